"""Steps in a series whose noise remembers itself and has outliers: our own detector, one of the two that must agree.

A piecewise-constant fit as asv and others make it. Noise of benchmarks is autocorrelated, and a detector that takes it
for independent sees steps everywhere; here the number of steps is chosen by the likelihood of what the fit leaves over
as an autoregressive process of order one, so that slow wandering is explained as noise before it is explained as steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Fewer points are no level: one or two odd ones next to each other are outliers.
FEWEST_POINTS = 3

# An outlier lies further than so many standard deviations from the median of so many neighbours, and is drawn in to
# there. Of 7 neighbours a step would show a point later, of 5 three outliers in a row pass for a level.
OUTLIER = 3.0
NEIGHBOURHOOD = 5

# The criterion rises by so many log(n) for each step, chosen by simulation: tools/check_changepoints.py prints what it
# leads to. 3 is the modified BIC of Zhang and Siegmund (Biometrics 63, 2007) for independent noise whose variance is
# known; what is estimated, and correlated, needs more.
STEP_PENALTY = 5.0

# Correlation beyond this cannot be told from a step in series of this length.
MOST_CORRELATED = 0.9

# Relative noise that any clock has: without it two equal values would be infinitely sure of their level.
LEAST_NOISE = 1e-4

# The median of absolute deviations of a normal distribution is this part of its standard deviation.
MAD_OF_NORMAL = 0.6744897501960817


@dataclass(frozen=True)
class Steps:
    """A fit: the first index of every level but the first, and the noise around the levels.

    `noise` is the standard deviation of what outliers drawn in leave over, `correlation` that of successive ones.
    """

    starts: tuple[int, ...]
    noise: float
    correlation: float


def detect_steps(values: Floats) -> Steps:
    """Fit levels to values on an additive scale (take logarithms of times), in order of time.

    Exact least squares by dynamic programming finds more steps than there are; neighbouring levels are then joined one
    pair after the other, and of these fits the one with the best criterion counts. Takes time as the square of the
    number of points: 10,000 need about a second.
    """
    count = len(values)
    if count < 2 * FEWEST_POINTS:
        noise, correlation = _noise(values - np.median(values)) if count else (LEAST_NOISE, 0.0)
        return Steps((), noise, correlation)
    cleaned = draw_in_outliers(values)
    starts = _least_squares(cleaned, _penalty_of_white_noise(cleaned))
    best: tuple[int, ...] = ()
    criterion = math.inf
    while True:
        residuals = cleaned - levels(cleaned, starts)
        found = _criterion(residuals, len(starts))
        if found < criterion:
            best, criterion = tuple(starts), found
        if not starts:
            break
        starts = _join_most_alike(cleaned, starts)
    best = moved_to_best_places(cleaned, best)
    return Steps(best, *_noise(cleaned - levels(cleaned, best)))


def levels(values: Floats, starts: Any) -> Floats:
    """For each value the mean of its level, for levels that begin at 0 and at `starts`."""
    edges = np.array([0, *starts])
    lengths = np.diff([*edges, len(values)])
    return np.repeat(np.add.reduceat(values, edges) / lengths, lengths)


def draw_in_outliers(values: Floats) -> Floats:
    """Values that stand alone drawn in towards the median of their neighbours; steps stay where they are."""
    if len(values) < NEIGHBOURHOOD:
        return values
    windows = np.lib.stride_tricks.sliding_window_view(values, NEIGHBOURHOOD)
    half = NEIGHBOURHOOD // 2
    medians = np.median(windows, axis=1)
    middle = np.concatenate([np.repeat(medians[0], half), medians, np.repeat(medians[-1], half)])
    reach = OUTLIER * max(float(np.median(np.abs(values - middle))) / MAD_OF_NORMAL, _noise_of_differences(values))
    drawn: Floats = np.clip(values, middle - reach, middle + reach)
    return drawn


def variance_of_mean(count: int, correlation: float) -> float:
    """Variance of the mean of so many successive points whose own variance is 1, correlated as AR(1).

    (1 + 2 sum over lags k of (1 - k/n) r^k) / n, as in any text on time series.
    """
    lags = np.arange(1, count)
    return float((1 + 2 * np.sum((1 - lags / count) * correlation**lags)) / count)


def _noise_of_differences(values: Floats) -> float:
    """Standard deviation of independent noise, from successive differences: steps and drift hardly touch it."""
    return max(float(np.median(np.abs(np.diff(values)))) / MAD_OF_NORMAL / math.sqrt(2), LEAST_NOISE)


def _penalty_of_white_noise(values: Floats) -> float:
    """What a step must save in squares so that independent noise rarely has one."""
    return 2 * _noise_of_differences(values) ** 2 * math.log(len(values))


def _least_squares(values: Floats, penalty: float) -> list[int]:
    """Where the levels begin that minimise squares + penalty x steps, none shorter than the fewest points."""
    count = len(values)
    centred = values - np.median(values)
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    positions = np.arange(count + 1, dtype=float)
    best = np.full(count + 1, np.inf)
    best[0] = -penalty
    came_from = np.zeros(count + 1, dtype=int)
    # best[s] - squares[s], so that a step of the loop needs fewer passes over memory
    reduced = np.full(count + 1, np.inf)
    reduced[0] = -penalty
    for end in range(FEWEST_POINTS, count + 1):
        last = end - FEWEST_POINTS + 1
        total = sums[end] - sums[:last]
        total *= total
        total /= end - positions[:last]
        np.subtract(reduced[:last], total, out=total)
        start = int(np.argmin(total))
        best[end] = total[start] + squares[end] + penalty
        reduced[end] = best[end] - squares[end]
        came_from[end] = start
    starts = []
    end = count
    while (end := int(came_from[end])) > 0:
        starts.append(end)
    return starts[::-1]


def _join_most_alike(values: Floats, starts: Any) -> list[int]:
    """The starts without the one whose removal raises the squares least."""
    edges = np.array([0, *starts, len(values)])
    lengths = np.diff(edges)
    means = np.add.reduceat(values, edges[:-1]) / lengths
    rise = np.diff(means) ** 2 * lengths[:-1] * lengths[1:] / (lengths[:-1] + lengths[1:])
    least = int(np.argmin(rise))
    return [*starts[:least], *starts[least + 1 :]]


def _criterion(residuals: Floats, steps: int) -> float:
    """-2 log-likelihood of the residuals as AR(1), up to a constant, and what the steps cost; less is better."""
    count = len(residuals)
    correlation = _correlation(residuals)
    innovations = residuals[1:] - correlation * residuals[:-1]
    squares = float(innovations @ innovations) + (1 - correlation**2) * float(residuals[0]) ** 2
    return count * math.log(squares / count + LEAST_NOISE**2) + STEP_PENALTY * steps * math.log(count)


def _correlation(residuals: Floats) -> float:
    """Of successive residuals, never below none: noise that alternates is no reason to believe in smaller steps."""
    squares = float(residuals @ residuals)
    if squares <= 0:
        return 0.0
    return min(max(float(residuals[1:] @ residuals[:-1]) / squares, 0.0), MOST_CORRELATED)


def _noise(residuals: Floats) -> tuple[float, float]:
    """Standard deviation and correlation of residuals."""
    return max(float(np.sqrt(np.mean(residuals**2))), LEAST_NOISE), _correlation(residuals)


def moved_to_best_places(values: Floats, starts: tuple[int, ...]) -> tuple[int, ...]:
    """The same number of steps, each where the squares between its neighbours are least: joining moved their edges."""
    moved = list(starts)
    for _ in range(3):
        before = list(moved)
        for index in range(len(moved)):
            left = moved[index - 1] if index else 0
            right = moved[index + 1] if index + 1 < len(moved) else len(values)
            moved[index] = left + _best_split(values[left:right])
        if moved == before:
            break
    return tuple(moved)


def _best_split(values: Floats) -> int:
    """Where to split values into two levels so that the squares are least."""
    count = len(values)
    sums = np.cumsum(values - values.mean())[FEWEST_POINTS - 1 : count - FEWEST_POINTS]
    places = np.arange(FEWEST_POINTS, count - FEWEST_POINTS + 1)
    return int(places[np.argmax(sums**2 / (places * (count - places)))])
