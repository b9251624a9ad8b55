"""Medians and ratios of samples with their intervals, and tests for a drift or a change.

Neighbouring samples resemble each other, so n of them say less than n independent ones: the interval of a median
counts fewer. Times of one process resemble each other too, so a ratio takes the process as its unit: each gives one,
taken within it, and the interval is Student's t on their logarithms.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class MedianInterval:
    """Interval of the median, in the samples' unit; `confidence` was reached, maybe less than requested."""

    low: float
    high: float
    confidence: float
    effective_samples: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def median_and_quantiles(samples: ArrayLike) -> tuple[float, float, float]:
    """The median and the 20 % and 80 % quantiles (linear between samples); all NaN for no samples."""
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        return math.nan, math.nan, math.nan
    low, middle, high = np.quantile(values, (0.2, 0.5, 0.8))
    return float(middle), float(low), float(high)


def median_interval(
    samples: Sequence[float] | NDArray[np.float64], confidence: float, effective: float | None = None
) -> MedianInterval:
    """The order statistics between which the median lies with `confidence`, samples given in the order taken.

    Of n independent samples, Binomial(n, 1/2) lie below the median, whatever their distribution, which gives
    the distribution-free interval of order statistics (David & Nagaraja, *Order Statistics*, 2003, section
    7.1). For dependent samples the count below the median spreads as that of `effective_samples(samples,
    confidence)` independent ones, and the ranks are scaled accordingly; pass `effective=len(samples)` to take
    them as independent.

    Where that is too few for any pair of order statistics, the interval is the whole range with the
    confidence that the whole range has, 1 − 2^(1−n), and so says itself that it is not to be relied on.

    Raises ValueError for no samples, or a confidence not strictly between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}")
    values = np.sort(np.asarray(samples, dtype=np.float64))
    n = values.size
    if n == 0:
        raise ValueError("an interval of the median needs at least one sample")
    if effective is None:
        effective = effective_samples(samples, confidence)
    independent = max(1, math.floor(effective))
    rank = _lower_rank(independent, confidence)
    if rank == 0:
        reached = max(0.0, 1 - 2.0 ** (1 - independent))
        return MedianInterval(float(values[0]), float(values[-1]), min(reached, confidence), effective)
    reached = 1 - 2 * binomial_tail(rank - 1, independent)
    outer = max(1, rank * n // independent)
    return MedianInterval(float(values[outer - 1]), float(values[n - outer]), reached, effective)


USUAL = 0.5
"""The quantile that is the median: what a launch usually takes."""

UNDISTURBED = 0.1
"""The quantile of samples that a launch takes when nothing else disturbs it: docs/measure.md says why."""

RUN_SPREAD = 0.033
"""Standard deviation of the logarithm of a figure between runs on one machine, beyond what slices of one run show.

Ten runs of `make bench` on two cores under a hypervisor differ by so much, most of it the speed of the whole machine.
Where that is seen to drift by more within a run (`Disturbances.drift`), that takes its place.
"""


def undisturbed_interval(
    samples: Sequence[float] | NDArray[np.float64], slices: Sequence[int], confidence: float, share: float = UNDISTURBED
) -> MedianInterval:
    """Return the interval of a quantile within this process; `slices` holds the number of samples of each slice.

    Slices are the unit, for their samples resemble each other: the standard error of the logarithms of their quantiles,
    times Student's t. One slice says nothing: then it is the interval of the median, and no more than a look.
    """
    values = np.asarray(samples, dtype=np.float64)
    quantile = float(np.quantile(values, share))
    parts = np.split(values, np.cumsum(slices)[:-1])
    if len(parts) < 2:
        middle = median_interval(values, confidence)
        return MedianInterval(min(quantile, middle.low), middle.high, middle.confidence, len(parts))
    logs = np.log([np.quantile(part, share) for part in parts])
    error = float(np.std(logs, ddof=1)) / math.sqrt(len(parts))
    half_width = student_quantile(len(parts) - 1, (1 + confidence) / 2) * error
    return MedianInterval(quantile * math.exp(-half_width), quantile * math.exp(half_width), confidence, len(parts))


def another_runs(value: float, within: MedianInterval, drift: float = 0.0) -> tuple[float, float]:
    """Return the prediction interval for another run on this machine, given its drift.

    Both figures have the error that slices show and what runs differ by, so their difference has twice the variance. An
    interval of confidence 0, as of a single sample, stays as it is.
    """
    if within.confidence <= 0 or within.low <= 0:
        return within.low, within.high
    reach = normal_quantile((1 + within.confidence) / 2)
    error = math.log(within.high / within.low) / 2 / reach
    half_width = reach * math.sqrt(2 * (error**2 + max(RUN_SPREAD, drift) ** 2))
    return value * math.exp(-half_width), value * math.exp(half_width)


def _lower_rank(n: int, confidence: float) -> int:
    """The largest r with P(fewer than r of n below the median) <= (1 − confidence)/2; 0 if there is none."""
    tail = (1 - confidence) / 2
    if 0.5**n > tail:
        return 0
    # Near the normal distribution's: step to the exact answer from either side.
    rank = max(1, int((n + normal_quantile(tail) * math.sqrt(n)) / 2))
    while rank > 1 and binomial_tail(rank - 1, n) > tail:
        rank -= 1
    while binomial_tail(rank, n) <= tail:
        rank += 1
    return rank


def effective_samples(samples: Sequence[float] | NDArray[np.float64], confidence: float = 0.95) -> float:
    """How many independent samples fix the median as well as these do, never more than there are.

    What matters to the median is which side of it each sample falls on, so the series looked at is sign(x −
    median), bounded and therefore indifferent to outliers. Its integrated autocorrelation time τ is summed up
    to Geyer's initial monotone sequence (Practical Markov Chain Monte Carlo, *Statistical Science* 7, 1992,
    section 3.3), and n/τ would do for long series. For short ones τ is too small and uncertain, and two
    corrections make up for it:

    * removing the sample's own median lowers each of the 2w+1 autocovariances within the window w by long-run
      variance / n, hence τ / (1 − (2w+1)/n);
    * a sum over a window w is an estimate with 2n/(2w+1) degrees of freedom (Priestley, *Spectral Analysis
      and Time Series*, 1981, section 6.2.4), hence Student's t in place of the normal quantile, expressed as
      fewer samples.

    No estimator sees a correlation as long as the series: of AR(1) 0.9, where τ is 14, the 95 % interval
    covers the median in 90 % of series of 50 and in 94 to 96 % from 300 on; with 0.5, in 94 % or more.
    """
    values = np.asarray(samples, dtype=np.float64)
    n = values.size
    if n < 4:
        return n / 2
    tau, window = _integrated_autocorrelation(np.sign(values - np.median(values)))
    seen = (2 * window + 1) / n
    tau = max(1.0, tau / max(1 - seen, 0.1))
    tail = (1 + confidence) / 2
    student = student_quantile(max(1.0, 2 / seen - 1), tail)
    return float(min(n, max(1.0, n / tau * (normal_quantile(tail) / student) ** 2)))


def _integrated_autocorrelation(signs: NDArray[np.float64]) -> tuple[float, int]:
    """(1 + 2·Σ autocorrelations, the last lag summed), by the monotone sequence of sums of lag pairs."""
    n = signs.size
    spectrum = np.fft.rfft(signs, 1 << (2 * n - 1).bit_length())
    sums = np.round(np.fft.irfft(np.abs(spectrum) ** 2)[:n])  # of products of signs: whole numbers
    if not sums[0]:  # all samples equal
        return 1.0, 1
    pairs = (sums[0 : n - n % 2 : 2] + sums[1::2]) / sums[0]
    negative = np.flatnonzero(pairs <= 0)
    kept = np.minimum.accumulate(pairs[: negative[0] if negative.size else pairs.size])
    if kept.size == 0:
        return 1.0, 1
    return float(2 * kept.sum() - 1), 2 * kept.size - 1


CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """A ratio of times or rates, and where it lies with a confidence of 95 %.

    `processes` is over how many the interval was taken; 0 where the ratio is counted and not timed. One process knows
    nothing of what differs between processes, so its interval is too narrow to judge by.
    """

    value: float
    low: float
    high: float
    processes: int = 0

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def __mul__(self, factor: float) -> Ratio:
        """The ratio in another unit: both ends of the interval move along."""
        return Ratio(self.value * factor, self.low * factor, self.high * factor, self.processes)

    @property
    def inverse(self) -> Ratio:
        """The first relative to the second, turned round."""
        return Ratio(1 / self.value, 1 / self.high, 1 / self.low, self.processes)


def exactly(value: float) -> Ratio:
    """A ratio of what is counted, as bytes are: it has no spread."""
    return Ratio(value, value, value)


def ratio_over_processes(ratios: Sequence[float], within: float = 0.0) -> Ratio:
    """The geometric mean of one ratio a process, with its interval.

    A single process has no spread; then the interval is its value times and over 1 + `within`, the relative
    half-width that its own samples give. Raises ValueError for no ratios.
    """
    count = len(ratios)
    if count == 0:
        raise ValueError("a ratio needs at least one process that measured both sides")
    logs = [math.log(ratio) for ratio in ratios]
    mean = math.fsum(logs) / count
    if count == 1:
        half_width = math.log1p(within)
    else:
        variance = math.fsum((log - mean) ** 2 for log in logs) / (count - 1)
        student = student_quantile(count - 1, (1 + CONFIDENCE) / 2)
        half_width = student * math.sqrt(variance / count)
    return Ratio(math.exp(mean), math.exp(mean - half_width), math.exp(mean + half_width), count)


# Quantiles and tails without scipy, whose import takes 0.1 s in the middle of the first samples. Where a step is no
# longer seen, and more steps than any of the sums below takes.
_PRECISION, _MOST_STEPS = 1e-15, 100_000
_TINY = 1e-300


def normal_quantile(probability: float) -> float:
    """The z below which a standard normal value lies with that probability."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(probability)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by Lentz's continued fraction.

    Press et al., *Numerical Recipes*, 2007, section 6.4.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    fraction, c, d = 1.0, 1.0, 0.0
    for step in range(_MOST_STEPS):
        m = step // 2
        if step == 0:
            term = 1.0
        elif step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / ((1 + term * d) or _TINY)
        c = (1 + term / c) or _TINY
        fraction *= c * d
        if step and abs(1 - c * d) < _PRECISION:
            break
    return math.exp(logs) * (fraction - 1) / a


def binomial_tail(count: int, tries: int) -> float:
    """Return the probability that at most `count` of `tries` tries succeed, each with a probability of one half."""
    return 1.0 if count >= tries else incomplete_beta(tries - count, count + 1, 0.5)


def student_tail(freedom: float, t: float) -> float:
    """Return the probability that Student's t with `freedom` degrees of freedom exceeds `t`, which is not negative."""
    return 0.5 * incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


@functools.lru_cache(maxsize=1024)
def student_quantile(freedom: float, probability: float) -> float:
    """The t below which Student's t lies with a probability of at least one half.

    By Newton's steps from the normal quantile: below the result, where the tail is convex, none goes too far.
    """
    half = freedom / 2
    logs = math.lgamma(half + 0.5) - math.lgamma(half) - 0.5 * math.log(freedom * math.pi)
    t = normal_quantile(probability)
    for _ in range(_MOST_STEPS):
        density = math.exp(logs - (half + 0.5) * math.log1p(t * t / freedom))
        step = (student_tail(freedom, t) - (1 - probability)) / density
        t += step
        if abs(step) <= 1e-14 * abs(t):
            break
    return t
