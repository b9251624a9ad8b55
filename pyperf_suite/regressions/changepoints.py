"""Find where a series of times changed its level.

Levels are fitted by least squares, and their number is chosen by the likelihood of what the fit leaves over as an
autoregressive process of order one: noise of benchmarks remembers itself, and a detector that assumes independence sees
steps everywhere. A change is nominated where it is large enough to matter, beyond what the series' own noise could do,
and sharper than a drift. It is never more than nominated: a paired rerun decides.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.findings.rows import grouped
from pyperf_suite.laws.tiling import MAD_OF_NORMAL
from pyperf_suite.record.interval import CONFIDENCE, Ratio
from pyperf_suite.regressions.thresholds import MARGIN
from pyperf_suite.regressions.verdict import LogDifference, ratio_of

Floats = NDArray[np.float64]

# Smaller effects are not nominated: versions of one library differ by about 1 % from build to build.
LEAST_EFFECT = 2 * MARGIN
# Series without a change of which one would have a step beyond its noise, if noise were as modelled.
ONE_ALARM_IN = 100
# Fitting takes time as the square of the points; of longer series the newest are searched.
MOST_POINTS = 12_000
# Fewer points are no level: one or two odd ones next to each other are outliers.
FEWEST_POINTS = 3
# An outlier lies further than OUTLIER standard deviations from the median of its NEIGHBOURHOOD neighbours, and is drawn
# in to there. Of 7 neighbours a step would show a point later, of 5 three outliers in a row pass for a level.
OUTLIER = 3.0
NEIGHBOURHOOD = 5
# The criterion rises by STEP_PENALTY · log(n) for each step, chosen by simulation. 3 is the modified BIC of Zhang and
# Siegmund (Biometrics 63, 2007) for independent noise of known variance; estimated and correlated noise needs more.
STEP_PENALTY = 5.0
# Parts searched for a drift, all points and their newest half and quarter, by the means of this number of blocks.
DRIFTS_SEARCHED = (1, 2, 4)
FEWEST_BLOCKS, MOST_BLOCKS = 8, 20
# Correlation beyond this cannot be distinguished from a step in series of this length.
MOST_CORRELATED = 0.9
# Relative noise that any clock has: without it two equal values would be infinitely sure of their level.
LEAST_NOISE = 1e-4


@dataclass(frozen=True)
class Change:
    """A level that others followed: `index` is the first point of the new level.

    `before` and `after` are the geometric means of both levels in the unit of the values, outliers drawn in; `ratio`
    is the second over the first with its interval, which allows for the noise's correlation. The commits are those of
    the last point before and of the first after (empty if unknown): what changed came after the one, with the other
    at the latest.
    """

    index: int
    before: float
    after: float
    ratio: Ratio
    points_before: int
    points_after: int
    commit_before: str = ""
    commit_after: str = ""

    @property
    def effect(self) -> str:
        """By how much it moved, as in +4.3%; from 0 there is no share."""
        return f"{self.after / self.before - 1:+.1%}" if self.before else f"from 0 to {self.after:g}"


@dataclass(frozen=True)
class Steps:
    """A fit: the first index of each level but the first, the `noise` around them, and its `correlation` by lag one."""

    starts: tuple[int, ...]
    noise: float
    correlation: float


def find_changes(
    values: Sequence[float] | Floats,
    commits: Sequence[str] = (),
    groups: Sequence[Hashable] = (),
    least_effect: float = LEAST_EFFECT,
) -> list[Change]:
    """Nominate the changes of a series of positive times in order of time, by index.

    `commits` and `groups`, if given, name one for each value. No change is looked for between values of different
    groups: each group's own values are a series for themselves. Raises ValueError for a time that is not finite and
    positive.
    """
    times = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(times) & (times > 0)):
        raise ValueError("a series of times holds finite positive numbers only")
    changes = []
    for members in comparable_points(len(times), groups):
        logs = np.log(times[members])
        steps = detect_steps(logs)
        if not steps.starts:
            continue
        cleaned = draw_in_outliers(logs)
        starts = _those_that_stand(cleaned, steps, math.log1p(least_effect))
        for left, start, right in _levels_around(cleaned, starts):
            last, first = int(members[start - 1]), int(members[start])
            step = _step(cleaned, steps, starts, left, start, right)
            change = _change(members, start, np.mean(cleaned[left:start]), step, start - left, right - start)
            changes.append(
                replace(change, commit_before=commits[last], commit_after=commits[first]) if commits else change
            )
    return sorted(changes, key=lambda change: change.index)


def find_newest(values: Sequence[float], members: np.ndarray, begin: int) -> Change | None:
    """The newest one or two points where they lie beyond the others of their level and beyond its noise.

    Three would be a level of their own. One spoilt point in twenty of the level hides none. `members` are the
    indices of comparable points, `begin` that of the first of the newest level.
    """
    level = np.log(np.asarray(values, dtype=np.float64)[members[members >= begin]])
    for fresh in range(FEWEST_POINTS - 1, 0, -1):
        before, newest = level[:-fresh], level[-fresh:]
        if len(before) < NEIGHBOURHOOD:
            continue
        spoilt, in_order = len(before) // 20, np.sort(before)
        if newest.min() <= in_order[-1 - spoilt] and newest.max() >= in_order[spoilt]:
            continue
        cleaned = draw_in_outliers(before)
        noise = max(float(np.std(cleaned, ddof=1)), LEAST_NOISE)
        rise = float(np.mean(newest) - np.mean(cleaned))
        step = LogDifference(rise, noise * math.sqrt(1 + 1 / len(before)), len(before) - 1)
        if step.p_value(math.log1p(LEAST_EFFECT)) < 1 / (ONE_ALARM_IN * len(before)):
            return _change(members, len(members) - fresh, np.mean(cleaned), step, len(before), fresh)
    return None


def find_drift(values: Sequence[float], members: np.ndarray, explained: float = 0.0) -> Change | None:
    """A rise beyond the least effect in steps too small for levels, over all points or the newest half or quarter.

    `explained` is the logarithm of the steps found among them. Means of blocks that follow each other rise more evenly
    than a random walk would, by Student's t of their differences. `index` is where the rise passed the least effect
    for good, `points_before` all points before it.
    """
    logs = draw_in_outliers(np.log(np.asarray(values, dtype=np.float64)[members]))
    least_log = math.log1p(LEAST_EFFECT)
    for count in (len(logs) // part for part in DRIFTS_SEARCHED):
        length = max(FEWEST_POINTS, count // MOST_BLOCKS)
        blocks = count // length
        if blocks < FEWEST_BLOCKS:
            break
        begin = len(logs) - blocks * length
        means = logs[begin:].reshape(blocks, length).mean(axis=1)
        # Differences of a random walk's means share a part, which makes their sum vary half as much again.
        error = float(np.std(np.diff(means), ddof=1)) * math.sqrt(1.5 * (blocks - 1))
        drift = LogDifference(float(means[-1] - means[0]), max(error, LEAST_NOISE), blocks - 2)
        if drift.centre - max(explained, 0.0) <= least_log or drift.p_value(least_log) >= 1 / (
            ONE_ALARM_IN * len(DRIFTS_SEARCHED)
        ):
            continue
        passed = begin + length * int(np.flatnonzero(means <= means[0] + least_log)[-1] + 1)
        return _change(members, passed, means[0], drift, passed - begin, len(logs) - passed)
    return None


def _change(members: np.ndarray, start: int, before: Any, step: LogDifference, earlier: int, later: int) -> Change:
    low, high, _ = step.interval(1 - CONFIDENCE)
    levels = (math.exp(before), math.exp(before + step.centre), ratio_of(step.centre, low, high))
    return Change(int(members[start]), *levels, earlier, later)


def comparable_points(count: int, groups: Sequence[Hashable] = ()) -> list[np.ndarray]:
    """Indices of the values that may be compared: of one group; those too few for two levels are left out."""
    members = grouped(range(count), lambda index: groups[index] if groups else "")
    return [np.array(each[-MOST_POINTS:]) for each in members.values() if len(each) >= 2 * FEWEST_POINTS]


def _those_that_stand(cleaned: Floats, steps: Steps, least_log: float) -> tuple[int, ...]:
    """The steps that are large, beyond noise and no drift.

    The weakest of those that are not is taken out first and its two levels become one, for a step that was split in two
    small ones may stand as a whole.
    """
    starts = steps.starts
    alpha = 1 / (ONE_ALARM_IN * len(cleaned))
    while starts:
        effects = []
        stands = []
        for left, start, right in _levels_around(cleaned, starts):
            step = _step(cleaned, steps, starts, left, start, right)
            effects.append(abs(step.centre))
            # Half of the steps as large as the least effect are estimated smaller: steps within their error of it
            # count.
            is_real = abs(step.centre) + step.error >= least_log and step.p_value(0.0) < alpha
            if is_real:
                # Two levels leave smaller squares than a straight line: a drift is no step.
                near, places = cleaned[left:right], np.arange(right - left)
                line = np.polyval(np.polyfit(places, near, 1), places)
                is_real = bool(np.sum((near - _levels(near, [start - left])) ** 2) <= np.sum((near - line) ** 2))
            stands.append(is_real)
        if all(stands):
            break
        weakest = min((position for position in range(len(starts)) if not stands[position]), key=effects.__getitem__)
        starts = _moved_to_best_places(cleaned, (*starts[:weakest], *starts[weakest + 1 :]))
    return starts


def _levels_around(cleaned: Floats, starts: Sequence[int]) -> list[tuple[int, int, int]]:
    """For each step where the level before it begins, where it is, and where the level after it ends."""
    edges = (0, *starts, len(cleaned))
    return list(zip(edges, edges[1:], edges[2:], strict=False))


def _step(cleaned: Floats, steps: Steps, starts: Sequence[int], left: int, start: int, right: int) -> LogDifference:
    """The mean after a step less the mean before, and how sure correlated noise lets one be of it."""
    near = (cleaned - _levels(cleaned, starts))[left:right]
    # A series may be noisier here than it is elsewhere.
    noise = max(steps.noise, float(np.sqrt(np.sum(near**2) / max(len(near) - 2, 1))))
    # A short series estimates its own memory badly, and errs towards none: one standard error is added.
    memory = min(steps.correlation + 1 / math.sqrt(len(cleaned)), MOST_CORRELATED)
    variance = _variance_of_mean(start - left, memory) + _variance_of_mean(right - start, memory)
    centre = float(np.mean(cleaned[start:right]) - np.mean(cleaned[left:start]))
    return LogDifference(centre, noise * math.sqrt(variance), max(len(cleaned) - len(starts) - 1, 1))


def detect_steps(values: Floats) -> Steps:
    """Fit levels to values on an additive scale (take logarithms of times), in order of time.

    Exact least squares by dynamic programming finds more steps than there are; neighbouring levels are then joined one
    pair after the other, and of these fits the one with the best criterion counts. Takes time as the square of the
    number of points: 10,000 need about a second.
    """
    count = len(values)
    if count < 2 * FEWEST_POINTS:
        return Steps((), *(_noise(values - np.median(values)) if count else (LEAST_NOISE, 0.0)))
    cleaned = draw_in_outliers(values)
    # Squares that a step must save so that independent noise rarely has one.
    starts = _least_squares(cleaned, 2 * _noise_of_differences(cleaned) ** 2 * math.log(count))
    best: tuple[int, ...] = ()
    criterion = math.inf
    while True:
        found = _criterion(cleaned - _levels(cleaned, starts), len(starts))
        if found < criterion:
            best, criterion = tuple(starts), found
        if not starts:
            break
        starts = _join_closest(cleaned, starts)
    best = _moved_to_best_places(cleaned, best)
    return Steps(best, *_noise(cleaned - _levels(cleaned, best)))


def draw_in_outliers(values: Floats) -> Floats:
    """Values that stand alone drawn in towards the median of their neighbours; steps stay where they are."""
    if len(values) < NEIGHBOURHOOD:
        return values
    half = NEIGHBOURHOOD // 2
    windows = np.lib.stride_tricks.sliding_window_view(values, NEIGHBOURHOOD)
    medians = np.sort(windows, axis=1)[:, half]
    middle = np.concatenate([np.repeat(medians[0], half), medians, np.repeat(medians[-1], half)])
    reach = OUTLIER * max(float(np.median(np.abs(values - middle))) / MAD_OF_NORMAL, _noise_of_differences(values))
    return np.clip(values, middle - reach, middle + reach)


def _levels(values: Floats, starts: Any) -> Floats:
    """For each value the mean of its level, for levels that begin at 0 and at `starts`."""
    edges = np.array([0, *starts])
    lengths = np.diff([*edges, len(values)])
    return np.repeat(np.add.reduceat(values, edges) / lengths, lengths)


def _variance_of_mean(count: int, correlation: float) -> float:
    """Variance of a mean of AR(1) points of variance 1: (1 + 2 sum over lags k of (1 - k/n) r^k) / n."""
    lags = np.arange(1, count)
    return float((1 + 2 * np.sum((1 - lags / count) * correlation**lags)) / count)


def _noise_of_differences(values: Floats) -> float:
    """Standard deviation of independent noise, from successive differences: steps and drift hardly touch it."""
    return max(float(np.median(np.abs(np.diff(values)))) / MAD_OF_NORMAL / math.sqrt(2), LEAST_NOISE)


def _least_squares(values: Floats, penalty: float) -> list[int]:
    """Return the starts of levels that minimise squares + penalty x steps, none shorter than the fewest points."""
    count = len(values)
    centred = values - np.median(values)
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    # One over the length of the segment from each point, a row for each end from `count` down.
    lengths = np.concatenate([np.arange(count, 0, -1), np.full(count, np.inf)])
    shares = np.lib.stride_tricks.sliding_window_view(1 / lengths, count)[::-1]
    came_from = np.zeros(count + 1, dtype=int)
    # The least cost up to a point, less the squares up to there: so a step of the loop needs fewer passes over memory.
    reduced = np.full(count + 1, np.inf)
    reduced[0] = -penalty
    # No segment is shorter than the fewest points, so that as many ends are independent of each other.
    for end in range(FEWEST_POINTS, count + 1, FEWEST_POINTS):
        ends = slice(end, min(end + FEWEST_POINTS, count + 1))
        total = sums[ends, None] - sums[None, :end]
        total *= total
        total *= shares[ends, :end]
        np.subtract(reduced[:end], total, out=total)
        for row in range(FEWEST_POINTS - 1):
            total[row : row + 1, end + row - FEWEST_POINTS + 1 :] = np.inf
        came_from[ends] = total.argmin(axis=1)
        reduced[ends] = total.min(axis=1) + penalty
    starts, end = [], count
    while (end := int(came_from[end])) > 0:
        starts.append(end)
    return starts[::-1]


def _join_closest(values: Floats, starts: Any) -> list[int]:
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
    """Correlation of successive residuals, at least 0: noise that alternates does not make smaller steps credible."""
    squares = float(residuals @ residuals)
    if squares <= 0:
        return 0.0
    return min(max(float(residuals[1:] @ residuals[:-1]) / squares, 0.0), MOST_CORRELATED)


def _noise(residuals: Floats) -> tuple[float, float]:
    return max(float(np.sqrt(np.mean(residuals**2))), LEAST_NOISE), _correlation(residuals)


def _moved_to_best_places(values: Floats, starts: tuple[int, ...]) -> tuple[int, ...]:
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
    """Return the place that splits values into two levels with the least squares."""
    count = len(values)
    sums = np.cumsum(values - values.mean())[FEWEST_POINTS - 1 : count - FEWEST_POINTS]
    places = np.arange(FEWEST_POINTS, count - FEWEST_POINTS + 1)
    return int(places[np.argmax(sums**2 / (places * (count - places)))])
