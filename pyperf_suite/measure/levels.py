"""Samples that no single figure stands for: launches of two levels, a drift, or a tail that no machine explains.

The undisturbed time is a low quantile, which is right where whatever lies above it is the machine's doing. Where slices
were clean, and the reference loop around them kept its time, it is the launch's own. Where many launches are of a slow
level the mean takes the quantile's place, for half of the work may be left out in the others; a drift, a tail and a few
slow launches are said next to it. Of 1,323 cases of nine idle runs of `make bench` one had a slow level, and one in ten
a tail or a few slow launches: hypervisors do not report all that they take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.measure.sampling import Measurement, StopRule
from pyperf_suite.record.interval import USUAL, student_quantile, student_tail

MIN_SAMPLES, MIN_SLICES = 20, 4

# Two groups: the least share of either, how far apart they are, and how often slices hold both. Of a group that is one
# sample in twenty, short slices hold none.
MIN_GROUP_SHARE, MIN_GROUP_RATIO, SLICES_WITH_BOTH = 0.05, 1.25, 0.5

# The least share of slow launches whose level is the launch's and no disturbance, in slices that are clean or not; and
# the largest spread of either group, nine tenths less one tenth, over its median.
MIN_SLOW_SHARE, MAX_SPREAD = 0.3, 0.15
TICK_S = 1e-3

# A drift: how far medians of slices move from the first third to the last, and how seldom chance orders them so.
MIN_DRIFT, DRIFT_CHANCE = 0.15, 1e-3

# A tail: least mean over quantile − 1, and least multiple of the loop's own scatter.
MIN_EXCESS, LOOP_SCATTERS = 0.25, 4.0


def with_levels(
    measurement: Measurement, reasons: Sequence[str], loops_s: Sequence[float], rule: StopRule
) -> Measurement:
    """The measurement with the levels of its launches in clean slices; where many are slow their mean is the figure.

    `reasons` says of each slice what disturbed it, "" of a clean one; `loops_s` the seconds of the reference loop.
    `rule` is what the samples were taken by, and says how narrow the mean's interval has to be.
    """
    if measurement.quantile == USUAL:
        return measurement
    parts = np.split(np.asarray(measurement.seconds), np.cumsum(measurement.slices)[:-1])
    is_clean = np.array([not reason for reason in reasons])
    clean = [part for part, keep in zip(parts, is_clean, strict=True) if keep]
    levels = levels_of(clean, np.asarray(loops_s)[is_clean], measurement.quantile)
    if levels is None:
        # A launch waits for a scheduler's tick, which is longer than this, where others took the core.
        clean, levels = parts, levels_of(parts, np.asarray(loops_s), measurement.quantile)
        if levels is None or not levels["is_figure"] or levels["slow_s"] - levels["fast_s"] > TICK_S:
            return measurement
    if not levels["is_figure"]:
        return replace(measurement, levels=levels)
    # Student's t, slices being the unit.
    confidence, means = measurement.interval[2], np.array([part.mean() for part in clean])
    mean = float(np.average(means, weights=[part.size for part in clean]))
    reach = student_quantile(len(clean) - 1, (1 + confidence) / 2)
    half_width = min(0.9 * mean, reach * float(means.std(ddof=1)) / math.sqrt(len(clean)))
    interval = (mean - half_width, mean + half_width, confidence)
    found = replace(measurement, levels=levels, interval=interval, slow_by=1.0)
    return replace(found, converged=found.converged and found.relative_half_width <= rule.relative_half_width)


Parts = Sequence[NDArray[np.float64]]
Disagreement = tuple[str, float, float, float] | None


def levels_of(parts: Parts, loops_s: NDArray[np.float64], quantile: float) -> dict[str, Any] | None:
    """The levels of samples by slices; None where one figure stands for all of them.

    `kind` is "two levels", "drift" or "tail". `fast_s` and `slow_s` are medians of two groups, or of the first and the
    last slices, or the quantile and the mean of the slowest tenth; `slow_share` is that of slow samples.
    """
    if len(parts) < MIN_SLICES or sum(part.size for part in parts) < MIN_SAMPLES:
        return None
    samples = np.concatenate(parts)
    found = _two_groups(samples, parts) or _drift(parts, loops_s) or _tail(samples, loops_s, quantile)
    if found is None:
        return None
    kind, fast_s, slow_s, share = found
    # Either group spreads by little, as no launch does that others take the core from.
    groups = np.split(np.sort(samples), [round((1 - share) * samples.size)])
    are_tight = (np.subtract(*np.quantile(each, (0.9, 0.1))) < MAX_SPREAD * np.median(each) for each in groups)
    is_figure = kind == "two levels" and share >= MIN_SLOW_SHARE and all(are_tight)
    return {
        "kind": kind,
        "mean_s": float(samples.mean()),
        "fast_s": fast_s,
        "slow_s": slow_s,
        "slow_share": share,
        "is_figure": is_figure,
    }


def _two_groups(samples: NDArray[np.float64], parts: Parts) -> Disagreement:
    """The widest gap between samples in order, if it separates two groups that slices hold side by side."""
    ordered = np.sort(samples)
    least = math.ceil(MIN_GROUP_SHARE * ordered.size)
    # Between the samples in order at each place where either group is large enough.
    places = np.arange(least, ordered.size - least + 1)
    ratios = ordered[places] / ordered[places - 1]
    if ratios.max() < math.sqrt(MIN_GROUP_RATIO):
        return None
    cut = int(places[ratios.argmax()])
    fast, slow = float(np.median(ordered[:cut])), float(np.median(ordered[cut:]))
    both = np.mean([part.min() < ordered[cut] <= part.max() for part in parts])
    if slow < MIN_GROUP_RATIO * fast or both < SLICES_WITH_BOTH:
        return None
    return "two levels", fast, slow, 1 - cut / ordered.size


def _drift(parts: Parts, loops: NDArray[np.float64]) -> Disagreement:
    """Medians of slices that rise or fall while the loop does not."""
    medians = np.array([np.median(part) for part in parts])
    third = max(1, len(parts) // 3)
    fast, slow = sorted((float(np.median(medians[:third])), float(np.median(medians[-third:]))))
    is_trend = len(parts) >= FEWEST_VALUES and chance_of_no_trend(medians) < DRIFT_CHANCE
    if not is_trend or slow < (1 + MIN_DRIFT + LOOP_SCATTERS * _scatter(loops)) * fast:
        return None
    return "drift", fast, slow, 0.5


def _tail(samples: NDArray[np.float64], loops: NDArray[np.float64], quantile: float) -> Disagreement:
    """A mean beyond the quantile by more than the loop scatters."""
    fast = float(np.quantile(samples, quantile))
    if samples.mean() < (1 + MIN_EXCESS + LOOP_SCATTERS * _scatter(loops)) * fast:
        return None
    return "tail", fast, float(np.sort(samples)[-max(1, samples.size // 10) :].mean()), 0.1


def _scatter(loops: NDArray[np.float64]) -> float:
    """The relative standard deviation."""
    return float(loops.std() / loops.mean()) if loops.size and loops.mean() else 0.0


FEWEST_VALUES = 8  # with fewer values neither a drift nor a change can be distinguished from chance


def chance_of_no_trend(values: NDArray[np.float64]) -> float:
    """The probability that values without a trend are ordered as much, by Spearman's rank correlation r with time.

    r √((n − 2)/(1 − r²)) is Student's t with n − 2 degrees of freedom (Zar 1972).
    """
    count = len(values)
    if count < FEWEST_VALUES or not np.ptp(values):
        return 1.0
    correlation = float(np.corrcoef(np.arange(count), ranks_of(values))[0, 1])
    student = abs(correlation) * math.sqrt((count - 2) / max(1e-12, 1 - correlation**2))
    return 2 * student_tail(count - 2, student)


def ranks_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 for the smallest; equal ones share the mean of their places."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse])
