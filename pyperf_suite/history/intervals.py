"""Where the location of a few log ratios lies (Student's t, BCa bootstrap, signed ranks), and where a rate does.

The signed-rank interval is the one that decides. It needs no more than independent pairs that are as likely to err
upwards as downwards, which exchanging the arms at random gives, so it holds its level under any tails.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95

# With 2,000 an end of the interval still moves by a tenth of the interval's width from seed to seed.
RESAMPLES = 10_000
# Up to here the distribution of the signed-rank sum is exact; beyond, its normal approximation, whose far tails are a
# little too heavy, so that it decides late rather than wrongly.
EXACT_UP_TO = 500


def student_t(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Mean of the values with its Student t interval: (mean, low, high), in the values' own unit.

    A single value has no spread to tell of: its interval is itself. Raises ValueError for no values.
    """
    from scipy import special

    sample = _sample(values)
    mean = float(sample.mean())
    if len(sample) == 1:
        return mean, mean, mean
    half_width = float(special.stdtrit(len(sample) - 1, (1 + confidence) / 2)) * _standard_error(sample)
    return mean, mean - half_width, mean + half_width


def bca_bootstrap(values: Sequence[float], confidence: float = CONFIDENCE, seed: int = 0) -> tuple[float, float, float]:
    """Mean of the values with its bias-corrected and accelerated bootstrap interval: (mean, low, high).

    After Efron (1987), doi:10.1080/01621459.1987.10478410, with the jackknife for the acceleration. The same seed gives
    the same interval. Fewer than three values, or equal ones, give what was seen: least and greatest. Raises ValueError
    for no values.
    """
    from scipy import special

    sample = _sample(values)
    mean = float(sample.mean())
    if len(sample) < 3 or np.ptp(sample) == 0:
        low, high = float(sample.min()), float(sample.max())
        return min(max(mean, low), high), low, high  # a mean of equal values may be off by a rounding
    drawn = np.random.default_rng(seed).integers(0, len(sample), (RESAMPLES, len(sample)))
    means = np.sort(sample[drawn].mean(axis=1))
    below = (np.count_nonzero(means < mean) + 0.5 * np.count_nonzero(means == mean)) / RESAMPLES
    bias = float(special.ndtri(np.clip(below, 0.5 / RESAMPLES, 1 - 0.5 / RESAMPLES)))
    # The mean without one value moves by minus that value's distance over n − 1, so no jackknife loop is needed.
    distances = sample - mean
    acceleration = float((distances**3).sum() / (6 * (distances**2).sum() ** 1.5))
    ends = special.ndtri([(1 - confidence) / 2, (1 + confidence) / 2])
    shares = special.ndtr(bias + (bias + ends) / (1 - acceleration * (bias + ends)))
    low, high = np.quantile(means, shares)
    return mean, float(low), float(high)


def hodges_lehmann(values: Sequence[float]) -> float:
    """The median of the means of all pairs of values (each with itself too): the signed ranks' location.

    After Hodges and Lehmann (1963), doi:10.1214/aoms/1177704172. Raises ValueError for no values.
    """
    return float(np.median(walsh_averages(_sample(values))))


def signed_rank_interval(values: Sequence[float], tail: float) -> tuple[float, float]:
    """The interval that misses the location on either side with a probability of at most `tail`.

    An end that so few values cannot bound is infinite. Raises ValueError for no values.
    """
    averages = np.sort(walsh_averages(_sample(values)))
    wanted = critical_sum(len(values), tail)
    if wanted > len(averages):
        return -math.inf, math.inf
    return float(averages[len(averages) - wanted]), float(averages[wanted - 1])


def signed_rank_p(values: Sequence[float], location: float) -> float:
    """The p-value of "the values lie no higher than `location`", one-sided.

    Ties count against a difference, so the p-value is never too small for them. Raises ValueError for no values.
    """
    averages = walsh_averages(_sample(values))
    return float(_upper_tails(len(values))[np.count_nonzero(averages > location)])


def walsh_averages(sample: np.ndarray) -> np.ndarray:
    """The means of all n(n + 1)/2 pairs of values, each with itself too, in no order."""
    first, second = np.triu_indices(len(sample))
    return (sample[first] + sample[second]) / 2


@functools.cache
def critical_sum(count: int, tail: float) -> int:
    """The least signed-rank sum of `count` values that is reached by chance with a probability of at most `tail`.

    One more than the greatest possible sum where that is itself likelier than `tail`.
    """
    return int(np.count_nonzero(_upper_tails(count) > tail))


@functools.cache
def _upper_tails(count: int) -> np.ndarray:
    """The probability of each signed-rank sum 0 … n(n + 1)/2, or a greater one, of values symmetric about 0."""
    from scipy import special

    greatest = count * (count + 1) // 2
    if count > EXACT_UP_TO:
        spread = math.sqrt(greatest * (2 * count + 1) / 12)
        return np.asarray(special.ndtr(-(np.arange(greatest + 1) - 0.5 - greatest / 2) / spread))
    chances = np.zeros(greatest + 1)
    chances[0] = 1.0
    for rank in range(1, count + 1):
        with_rank = np.zeros_like(chances)
        with_rank[rank:] = chances[:-rank]
        chances = (chances + with_rank) / 2
    # Summed from the far end, so that the smallest tails are not lost in rounding.
    return np.cumsum(chances[::-1])[::-1]


def _standard_error(sample: np.ndarray) -> float:
    return float(sample.std(ddof=1)) / math.sqrt(len(sample))


def _sample(values: Sequence[float]) -> np.ndarray:
    sample = np.asarray(values, dtype=float)
    if sample.size == 0:
        raise ValueError("an interval needs at least one value")
    if not np.isfinite(sample).all():
        raise ValueError("an interval needs finite values")
    return sample


@dataclass(frozen=True)
class Proportion:
    """`hits` of `tries`, and where the rate lies with a confidence of at least 95 %.

    The interval is Clopper and Pearson's (*Biometrika* 26, 1934): exact, so never too narrow, also for 0 of 200.
    """

    hits: int
    tries: int

    def __post_init__(self) -> None:
        if not 0 <= self.hits <= self.tries:
            raise ValueError(f"{self.hits} of {self.tries} is no proportion")

    @property
    def value(self) -> float:
        return self.hits / self.tries if self.tries else float("nan")

    @property
    def low(self) -> float:
        """The lowest rate that would give so many hits or more in one of forty series."""
        from scipy import special

        return (
            float(special.betaincinv(self.hits, self.tries - self.hits + 1, (1 - CONFIDENCE) / 2)) if self.hits else 0.0
        )

    @property
    def high(self) -> float:
        """The highest rate that would give so few hits or fewer in one of forty series."""
        from scipy import special

        if self.hits == self.tries:
            return 1.0
        return float(special.betaincinv(self.hits + 1, self.tries - self.hits, (1 + CONFIDENCE) / 2))

    def __str__(self) -> str:
        if not self.tries:
            return "none tried"
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"
