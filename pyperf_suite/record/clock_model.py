"""Time of a launch at one clock of the GPU, from its samples and the clock of the multiprocessors in each.

Under its power cap a GPU gives each case the clock that the heat and power of its neighbours left over. Within a case
log t = a − e·log(f / reference): the elasticity e is near 1 for what the multiprocessors bound and near 0 for what
memory bounds. It is fitted to the case's own samples by least absolute deviations (Birkes & Dodge, *Alternative Methods
of Regression*, 1993, chapter 4), and a jackknife over slices, whose samples share their disturbances, gives both errors
(Efron & Stein, *The Jackknife Estimate of Variance*, 1981). docs/measure.md has what it predicts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.record.interval import MedianInterval, median_interval, student_quantile

Floats = NDArray[np.float64]

REFERENCE_SHARE_OF_MAXIMUM = 1500 / 1980
"""Reference clock over the highest clock: 1500 MHz on an H100 or H200, where products at the power cap run."""

REFERENCE_STEP_HZ = 10e6
MAX_CLOCK_OVER_REFERENCE = 1.2
MIN_SLICES, MIN_CLOCK_SPREAD, MAX_ELASTICITY_ERROR = 5, 0.015, 0.1
"""With fewer slices, a smaller relative standard deviation of clocks or a larger error, e is unknown."""

UNKNOWN_ELASTICITY = (0.4, 1.0)
"""Elasticities of all compute-bound kernels that an H200 has run: the range of one that is unknown."""

SHORTEST_SATURATED_S = 10e-6
"""A shorter launch does not fill the GPU: without a fit its time is not converted."""

SHORTEST_OWN_CLOCK_S = 200e-6
"""A shorter sample takes the median clock of its slice, whose noise is smaller."""

FIT_ROUNDS, REFIT_ROUNDS, LEAST_RESIDUAL = 30, 12, 1e-5


@dataclass(frozen=True)
class AtOneClock:
    """Seconds of a launch at the reference clock, within [`low`, `high`]; `clock_hz` is the median of all slices.

    `elasticity` is None if it is unknown: the bounds then span all of UNKNOWN_ELASTICITY. `half_width` is the relative
    half-width of the interval by slices alone. `log_of_doubt` is the logarithm, with its sign, of the conversion's
    possible error, 0 if there is none: two cases at the same clock share it, so that their ratio has none. `samples`
    are all at the reference clock, with two quantiles; `slices` counts those of each slice.
    """

    seconds: float
    low: float
    high: float
    half_width: float
    elasticity: float | None
    clock_hz: float
    samples: list[float]
    slices: list[int]
    log_of_doubt: float
    q20: float
    q80: float


def reference_clock_hz(maximum_hz: float, seen_hz: float = 0.0) -> float:
    """The reference clock of a GPU by its highest clock, or the clock that its sentinel ran at if that is far off."""
    usual = round(REFERENCE_SHARE_OF_MAXIMUM * maximum_hz / REFERENCE_STEP_HZ) * REFERENCE_STEP_HZ
    if not seen_hz or 1 / MAX_CLOCK_OVER_REFERENCE <= seen_hz / usual <= MAX_CLOCK_OVER_REFERENCE:
        return usual
    return round(seen_hz / REFERENCE_STEP_HZ) * REFERENCE_STEP_HZ


def at_one_clock(
    seconds: Sequence[float],
    clocks_hz: Sequence[float],
    slices: Sequence[int],
    reference_hz: float,
    confidence: float = 0.9,
    *,
    is_compute: bool = True,
    launches_per_sample: int = 1,
) -> AtOneClock:
    """Convert samples of a launch to the reference clock; `slices` holds the number of samples of each slice.

    Without a usable fit cycles are constant for a compute-bound launch that fills the GPU, seconds for any other.
    """
    times, clocks = np.asarray(seconds, dtype=np.float64), np.asarray(clocks_hz, dtype=np.float64)
    rounds, slices = list(slices), [size for size in slices if size]
    owner = np.repeat(np.arange(len(slices)), slices)
    if np.median(times) * launches_per_sample < SHORTEST_OWN_CLOCK_S:
        clocks = np.concatenate([np.full(len(part), np.median(part)) for part in _parts(clocks, slices)])
    x, y = np.log(clocks / reference_hz), np.log(times)
    count, seen_hz = len(slices), float(np.median(clocks))
    reach = student_quantile(max(1, count - 1), (1 + confidence) / 2)
    # By which factors elasticities move the time at the reference clock, if they are other than the one assumed.
    assumed = 1.0 if is_compute and np.median(times) >= SHORTEST_SATURATED_S else 0.0
    shifts = [assumed * (e - assumed) * math.log(seen_hz / reference_hz) for e in UNKNOWN_ELASTICITY]
    elasticity, at_reference, error = None, float(np.median(y + assumed * x)), 0.0
    if count >= MIN_SLICES and np.std(clocks) >= MIN_CLOCK_SPREAD * seen_hz:
        a, e = _fit(x, y, None, FIT_ROUNDS)
        without = np.array([_fit(x[owner != n], y[owner != n], (a, e), REFIT_ROUNDS) for n in range(count)])
        errors = np.sqrt((1 - 1 / count) * np.sum((without - without.mean(axis=0)) ** 2, axis=0))
        if errors[1] <= MAX_ELASTICITY_ERROR:
            elasticity, at_reference, error, shifts = e, a, float(errors[0]), [0.0, 0.0]
    logs = y + (assumed if elasticity is None else elasticity) * x
    medians = [float(np.median(part)) for part in _parts(logs, slices)]
    samples = np.exp(logs)
    if count > 1:
        half = reach * max(error, float(np.std(medians, ddof=1)) / math.sqrt(count))
    else:
        half = median_interval(samples, confidence).half_width / float(np.median(samples))
    low, high = math.exp(at_reference + min(shifts) - half), math.exp(at_reference + max(shifts) + half)
    quantiles = np.quantile(samples, (0.2, 0.8)).tolist()
    value = math.exp(at_reference)
    return AtOneClock(
        value, low, high, half, elasticity, seen_hz,
        samples.tolist(), rounds, shifts[1] - shifts[0], *quantiles,
    )  # fmt: skip


def interval_at_one_clock(
    seconds: Sequence[float], clocks_hz: Sequence[float], slices: Sequence[int], confidence: float, launches: int
) -> MedianInterval:
    """Return the interval of the median of samples of `launches` launches each, as wide as that of times at one clock.

    It is the narrower one of cycles and of seconds, where no elasticity can be fitted: which of the two a launch keeps
    is not known before its work is.
    """
    seen_hz, median = float(np.median(clocks_hz)), float(np.median(seconds))
    half = min(
        at_one_clock(
            seconds, clocks_hz, slices, seen_hz, confidence, is_compute=is_compute, launches_per_sample=launches
        ).half_width
        for is_compute in (True, False)
    )
    return MedianInterval(median * math.exp(-half), median * math.exp(half), confidence, len(slices))


def _parts(values: Floats, slices: Sequence[int]) -> list[Floats]:
    return [part for part in np.split(values, np.cumsum(slices)[:-1]) if part.size]


def _fit(x: Floats, y: Floats, start: tuple[float, float] | None, rounds: int) -> tuple[float, float]:
    """(a, e) with the least sum of |y − a + e·x|, by iteratively reweighted least squares from `start`."""
    a, e = start or (0.0, 0.0)
    weights = np.ones_like(x) if start is None else 1 / np.maximum(np.abs(y - a + e * x), LEAST_RESIDUAL)
    for _ in range(rounds):
        total = weights.sum()
        mean_x, mean_y = float(weights @ x / total), float(weights @ y / total)
        squares = float(weights @ (x - mean_x) ** 2)
        e = -float(weights @ ((x - mean_x) * (y - mean_y))) / squares if squares else 0.0
        a = mean_y + e * mean_x
        weights = 1 / np.maximum(np.abs(y - a + e * x), LEAST_RESIDUAL)
    return a, e
