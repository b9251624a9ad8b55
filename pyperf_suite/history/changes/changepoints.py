"""Where a series of times changed its level, by the vote of two detectors of different kinds.

Our own step detector knows autocorrelated noise; ruptures (Truong, Oudre, Vayatis, Signal Processing 167, 2020) sees
the values through a Gaussian kernel, in which a far outlier counts no more than a near one. A change is nominated
where both find it, it is large enough to matter and beyond what the series' own noise could do. It is never more than
nominated: a paired rerun decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.history.changes.step_detector import (
    FEWEST_POINTS,
    MOST_CORRELATED,
    Floats,
    Steps,
    detect_steps,
    draw_in_outliers,
    levels,
    moved_to_best_places,
    variance_of_mean,
)
from pyperf_suite.measure.estimates import CONFIDENCE, Ratio

# Smaller effects are not nominated: versions of one library differ by about 1 % from build to build.
LEAST_EFFECT = 0.02

# Both detectors mean the same step if they place it within so many points.
SAME_PLACE = 2

# Of so many series without a change, one would have a step beyond its noise if noise were as modelled.
ONE_ALARM_IN = 100

# Both detectors take time as the square of the points; of longer series the newest are searched.
MOST_POINTS = 12_000

# The kernel's width in standard deviations of the noise: within it values count by their distance, beyond it all alike.
KERNEL_WIDTH = 3.0
KERNEL_PENALTY = 2.0

# The penalty grows with the noise's memory, but only so far: a few points save no more than their number.
MOST_MEMORY = 3.0


@dataclass(frozen=True)
class Change:
    """A level that others followed: `index` is the first point of the new level.

    `before_s` and `after_s` are the geometric means of both levels in the unit of the values, outliers drawn in;
    `ratio` is the second over the first with its interval, which knows of the noise's correlation. The commits are
    those of the last point before and of the first after (empty where unknown): what changed came after the one, with
    the other at the latest.
    """

    index: int
    before_s: float
    after_s: float
    ratio: Ratio
    points_before: int
    points_after: int
    commit_before: str = ""
    commit_after: str = ""


def find_changes(
    values: Sequence[float] | Floats,
    commits: Sequence[str] = (),
    units: Sequence[str] = (),
    breaks: Sequence[int] = (),
    least_effect: float = LEAST_EFFECT,
) -> list[Change]:
    """Nominate the changes of a series of positive times in order of time, by index.

    `commits` and `units`, if given, name one for each value; `breaks` are the indices of points before which the
    machine's state changed. No change is looked for across a break, nor between values of different units: each unit's
    own values between breaks are a series for themselves. Raises ValueError for a time that is not finite and positive.
    """
    times = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(times) & (times > 0)):
        raise ValueError("a series of times holds finite positive numbers only")
    found = []
    for members in _alike(len(times), units, breaks):
        for change in _changes_of_one(times[members], least_effect):
            last, first = int(members[change.index - 1]), int(members[change.index])
            found.append(
                Change(
                    first,
                    change.before_s,
                    change.after_s,
                    change.ratio,
                    change.points_before,
                    change.points_after,
                    commits[last] if commits else "",
                    commits[first] if commits else "",
                )
            )
    return sorted(found, key=lambda change: change.index)


def _alike(count: int, units: Sequence[str], breaks: Sequence[int]) -> list[np.ndarray]:
    """Indices of the values that may be compared: of one unit, between two breaks; too few for two levels are left."""
    since = np.searchsorted(np.sort(np.asarray(breaks, dtype=int)), np.arange(count), side="right")
    keys = [(part, units[index] if units else "") for index, part in enumerate(since)]
    members: dict[tuple[int, str], list[int]] = {}
    for index, key in enumerate(keys):
        members.setdefault(key, []).append(index)
    return [np.array(each[-MOST_POINTS:]) for each in members.values() if len(each) >= 2 * FEWEST_POINTS]


def _changes_of_one(times: Floats, least_effect: float) -> list[Change]:
    logs = np.log(times)
    steps = detect_steps(logs)
    if not steps.starts:
        return []
    cleaned = draw_in_outliers(logs)
    starts = _those_that_stand(cleaned, steps, _places_by_kernel(logs, steps), math.log1p(least_effect))
    return [_change(cleaned, steps, starts, position) for position in range(len(starts))]


def _places_by_kernel(logs: Floats, steps: Steps) -> Floats:
    """Where ruptures sees a change. Of our own fit it knows only how noisy and how correlated the values are."""
    try:
        import ruptures
    except ModuleNotFoundError:
        raise UserError("Change points need ruptures, which is not installed: pip install ruptures.") from None
    width = KERNEL_WIDTH * steps.noise
    # Within the kernel's width a step saves its squares over twice the width's: so this is about 2 log n of squares.
    longer_memory = min((1 + steps.correlation) / (1 - steps.correlation), MOST_MEMORY)
    penalty = KERNEL_PENALTY * math.log(len(logs)) / KERNEL_WIDTH**2 * longer_memory
    detector = ruptures.KernelCPD(kernel="rbf", params={"gamma": 1 / (2 * width**2)}, min_size=FEWEST_POINTS)
    return np.array(detector.fit(logs.reshape(-1, 1)).predict(pen=penalty)[:-1], dtype=float)


def _those_that_stand(cleaned: Floats, steps: Steps, others: Floats, least: float) -> tuple[int, ...]:
    """The steps that are large, beyond noise and seen by both.

    The weakest of those that are not is taken out first and the levels beside it become one, for a step that was split
    in two small ones may stand as a whole.
    """
    starts = steps.starts
    while starts:
        effects = np.abs(_effects(cleaned, starts))
        stands = [
            effect >= least
            and effect > _noise_of(cleaned, steps, starts, position, 1 / (ONE_ALARM_IN * len(cleaned)))
            and bool(np.any(np.abs(others - starts[position]) <= SAME_PLACE))
            for position, effect in enumerate(effects)
        ]
        if all(stands):
            break
        weakest = min((position for position in range(len(starts)) if not stands[position]), key=effects.__getitem__)
        starts = moved_to_best_places(cleaned, (*starts[:weakest], *starts[weakest + 1 :]))
    return starts


def _effects(cleaned: Floats, starts: Sequence[int]) -> Floats:
    """For each step the mean after it less the mean before."""
    return np.diff([float(np.mean(level)) for level in np.split(cleaned, list(starts))])


def _noise_of(cleaned: Floats, steps: Steps, starts: Sequence[int], position: int, alarms: float) -> float:
    """How far apart noise alone puts the two levels beside a step, but for that share of alarms (two-sided)."""
    from scipy import special

    edges = (0, *starts, len(cleaned))
    left, start, right = edges[position : position + 3]
    near = (cleaned - levels(cleaned, starts))[left:right]
    # A series may be noisier here than it is elsewhere.
    noise = max(steps.noise, float(np.sqrt(np.sum(near**2) / max(len(near) - 2, 1))))
    # What a short series says of its own memory is little, and errs towards none: a standard error more is taken.
    memory = min(steps.correlation + 1 / math.sqrt(len(cleaned)), MOST_CORRELATED)
    variance = variance_of_mean(start - left, memory) + variance_of_mean(right - start, memory)
    student = float(special.stdtrit(max(len(cleaned) - len(starts) - 1, 1), 1 - alarms / 2))
    return student * noise * math.sqrt(variance)


def _change(cleaned: Floats, steps: Steps, starts: Sequence[int], position: int) -> Change:
    edges = (0, *starts, len(cleaned))
    left, start, right = edges[position : position + 3]
    before, after = float(np.mean(cleaned[left:start])), float(np.mean(cleaned[start:right]))
    half_width = _noise_of(cleaned, steps, starts, position, 1 - CONFIDENCE)
    value, low, high = (math.exp(after - before + shift) for shift in (0, -half_width, half_width))
    return Change(start, math.exp(before), math.exp(after), Ratio(value, low, high), start - left, right - start)
