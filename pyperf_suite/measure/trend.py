"""Whether values in order of time drift or change: two tests that ask nothing of how the values are distributed."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# With fewer values neither a drift nor a change can be told from chance.
FEWEST_VALUES = 8


def chance_of_no_trend(values: NDArray[np.float64]) -> float:
    """The probability that values without a trend are ordered as much, by Spearman's rank correlation with time.

    Its statistic r √((n − 2)/(1 − r²)) is Student's t with n − 2 degrees of freedom (Zar 1972).
    """
    from scipy import special

    count = len(values)
    if count < FEWEST_VALUES or not np.ptp(values):
        return 1.0
    correlation = float(np.corrcoef(np.arange(count), _ranks(values))[0, 1])
    student = abs(correlation) * math.sqrt((count - 2) / max(1e-12, 1 - correlation**2))
    return 2 * float(special.stdtr(count - 2, -student))


def pettitt(values: NDArray[np.float64]) -> tuple[int, float]:
    """The index from which values are of another level, and the probability of such a change in none.

    Pettitt 1979, A non-parametric approach to the change-point problem: K = max |U_t|, p = 2 exp(−6K²/(n³ + n²)).
    """
    count = len(values)
    along = np.arange(1, count)
    statistic = np.abs(2 * np.cumsum(_ranks(values))[:-1] - along * (count + 1))
    place = int(statistic.argmax())
    chance = 2 * math.exp(-6 * float(statistic[place]) ** 2 / (count**3 + count**2))
    return place + 1, min(1.0, chance)


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 for the smallest; equal ones share the mean of their places."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse])
