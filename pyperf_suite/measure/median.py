"""The median of samples taken one after another, and an interval of it that allows for their autocorrelation.

Neighbouring samples resemble each other, so n of them say less than n independent ones: the interval counts
fewer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class MedianInterval:
    """Where the median lies, in the samples' unit; `confidence` was reached, maybe less than asked."""

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
    from scipy import special

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
    reached = 1 - 2 * float(special.bdtr(rank - 1, independent, 0.5))
    outer = max(1, rank * n // independent)
    return MedianInterval(float(values[outer - 1]), float(values[n - outer]), reached, effective)


def _lower_rank(n: int, confidence: float) -> int:
    """The largest r with P(fewer than r of n below the median) <= (1 − confidence)/2; 0 if there is none."""
    from scipy import special

    tail = (1 - confidence) / 2
    if 0.5**n > tail:
        return 0
    rank = max(1, int(special.bdtrik(tail, n, 0.5)) + 1)
    # bdtrik inverts in floating point: step to the exact answer from either side.
    while rank > 1 and special.bdtr(rank - 1, n, 0.5) > tail:
        rank -= 1
    while special.bdtr(rank, n, 0.5) <= tail:
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
    from scipy import special

    values = np.asarray(samples, dtype=np.float64)
    n = values.size
    if n < 4:
        return n / 2
    tau, window = _integrated_autocorrelation(np.sign(values - np.median(values)))
    seen = (2 * window + 1) / n
    tau = max(1.0, tau / max(1 - seen, 0.1))
    tail = (1 + confidence) / 2
    student = float(special.stdtrit(max(1.0, 2 / seen - 1), tail))
    return float(min(n, max(1.0, n / tau * (float(special.ndtri(tail)) / student) ** 2)))


def _integrated_autocorrelation(signs: NDArray[np.float64]) -> tuple[float, int]:
    """(1 + 2·Σ autocorrelations, the last lag summed), by the monotone sequence of sums of lag pairs."""
    n = signs.size
    spectrum = np.fft.rfft(signs, 1 << (2 * n - 1).bit_length())
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[:n] / n
    if covariance[0] <= 0:  # all samples equal
        return 1.0, 1
    correlation = covariance / covariance[0]
    pairs = correlation[0 : n - n % 2 : 2] + correlation[1::2]
    negative = np.flatnonzero(pairs <= 0)
    kept = np.minimum.accumulate(pairs[: negative[0] if negative.size else pairs.size])
    if kept.size == 0:
        return 1.0, 1
    return float(2 * kept.sum() - 1), 2 * kept.size - 1
