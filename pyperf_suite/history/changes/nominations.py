"""Changes in the series of a store, and what can be said of each before anyone reruns it.

A change that is still there is a finding; one that was made good again, or that came while the code stayed the same, is
told as a note: the first concerns nobody, and the second is the machine's.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyperf_suite.history.changes.changepoints import LEAST_EFFECT, SAME_PLACE, Change, find_changes
from pyperf_suite.history.exit_code import NOMINATED
from pyperf_suite.history.finding import Finding, Verdict
from pyperf_suite.history.static_figures import LESS_IS_WORSE, MORE_IS_WORSE
from pyperf_suite.history.stored.series import Point, Series
from pyperf_suite.measure.estimates import Ratio

# A change that began longer ago has been seen by earlier runs of `track`.
RECENT_POINTS = 30

# A clock or sentinel that moved by at least this part of the change is named as what may explain it.
EXPLAINING_PART = 0.5

# So many points on either side tell what clock and sentinel did.
BESIDE = 10


@dataclass(frozen=True)
class Nomination:
    """A change of one series; `undone` says that a later one made it good, `same_code` that no commit came with it."""

    series: Series
    change: Change
    undone: bool
    same_code: bool
    machine_notes: tuple[str, ...] = ()

    @property
    def first(self) -> Point:
        """The first point of the new level."""
        return self.series.points[self.change.index]

    @property
    def is_slower(self) -> bool:
        """Whether the new level takes more time, or more of what is scarce."""
        return (self.change.ratio.value > 1) != (self.series.metric in LESS_IS_WORSE)

    @property
    def is_exact(self) -> bool:
        """Whether this is a figure of machine code, of which there is no doubt and no noise."""
        return self.series.kind == "static"

    @property
    def points_since(self) -> int:
        """How many points of the series there are from the change on."""
        return len(self.series.points) - self.change.index

    def is_recent(self, since: str | None) -> bool:
        """Whether the change began at or after that ISO date, or without one among the newest points."""
        return self.first.started_at >= since if since else self.points_since <= RECENT_POINTS

    @property
    def stands(self) -> bool:
        """Whether it is still there, and may be the code's."""
        return not self.undone and not self.same_code

    @property
    def sentence(self) -> str:
        """How much, since when, between which commits, and what else moved."""
        change = self.change
        if self.is_exact:
            moved = f"{change.before_s:g} -> {change.after_s:g}"
        else:
            low, value, high = map(_percent, (change.ratio.low, change.ratio.value, change.ratio.high))
            moved = f"{value} ({low} to {high})"
        runs = "run" if change.points_after == 1 else "runs"
        return (
            f"{self.series.title}: {moved} since {self.first.started_at[:16]}Z, {change.points_after} {runs}; "
            f"{self.commits}.{''.join(f' {note}' for note in self.machine_notes)}"
        )

    @property
    def commits(self) -> str:
        """The range of commits in which the change came, in words."""
        before, after = self.change.commit_before, self.change.commit_after
        if self.same_code:
            return f"the code was {after[:10]} before and after, so it is the machine that changed"
        if not before or not after:
            return "the runs do not name the commits that they measured"
        changed = " and uncommitted changes" if self.first.dirty else ""
        if before == after:
            return f"at {after[:10]}{changed}"
        return f"after {before[:10]}, with {after[:10]}{changed} at the latest (git log {before[:10]}..{after[:10]})"

    def finding(self) -> Finding:
        """As what every command ends in. An unconfirmed slower change is undecided; exact figures need no rerun."""
        change = self.change
        verdict: Verdict = "faster"
        if self.is_slower:
            verdict = "slower" if self.is_exact else "undecided"
        how = "" if self.is_exact else f"Looks {'slower' if self.is_slower else 'faster'}, not confirmed: "
        details = {
            "run_id": self.first.run_id,
            "started_at": self.first.started_at,
            "machine": self.series.machine,
            "metric": self.series.metric,
            "commit_before": change.commit_before,
            "commit_after": change.commit_after,
            "before": change.before_s,
            "after": change.after_s,
            "points_before": change.points_before,
            "points_after": change.points_after,
            "beside": list(self.machine_notes),
        }
        if not self.is_exact:
            details[NOMINATED] = "slower" if self.is_slower else "faster"
        return Finding(
            self.series.title,
            self.series.probe,
            self.series.case_id,
            verdict,
            None if self.is_exact else change.ratio,
            0.0 if self.is_exact else LEAST_EFFECT,
            how + self.sentence,
            details,
        )


def nominations(series: Series, sentinels: Iterable[Series] = ()) -> list[Nomination]:
    """Every change of a series, the oldest first; `sentinels` are the series of the sentinels of its machine.

    Of exact figures every difference is one, if it is known which direction is worse.
    """
    changes = _exact_changes(series) if series.kind == "static" else _changes_of_times(series)
    sentinels = list(sentinels)
    return [
        Nomination(
            series,
            change,
            undone=any(_makes_good(later, change) for later in changes[number + 1 :]),
            same_code=series.kind != "static" and _is_same_code(series, change),
            machine_notes=() if series.kind == "static" else tuple(_what_else_moved(series, change, sentinels)),
        )
        for number, change in enumerate(changes)
    ]


def _changes_of_times(series: Series) -> list[Change]:
    return find_changes(
        series.values,
        [point.commit for point in series.points],
        [point.unit for point in series.points],
        [each.index for each in series.breaks],
    )


def _exact_changes(series: Series) -> list[Change]:
    """Where an exact figure differs from the run before, unless its compiler or driver does so as well."""
    if series.metric not in (*MORE_IS_WORSE, *LESS_IS_WORSE):
        return []
    broken = {each.index for each in series.breaks}
    values = series.values
    starts = [index for index in range(1, len(values)) if values[index] != values[index - 1]]
    edges = [0, *starts, len(values)]
    found = []
    for number, index in enumerate(starts, start=1):
        if index in broken:
            continue
        before, after = values[index - 1], values[index]
        ratio = after / before if before else float("inf")
        points = series.points
        found.append(
            Change(
                index,
                before,
                after,
                Ratio(ratio, ratio, ratio),
                index - edges[number - 1],
                edges[number + 1] - index,
                points[index - 1].commit,
                points[index].commit,
            )
        )
    return found


def _makes_good(later: Change, change: Change) -> bool:
    """Whether a later level is back where the change came from, or beyond."""
    if change.ratio.value > 1:
        return later.after_s <= change.before_s * (1 + LEAST_EFFECT)
    return later.after_s >= change.before_s / (1 + LEAST_EFFECT)


def _is_same_code(series: Series, change: Change) -> bool:
    """Whether all points about the change, as exactly as its place is known, are of one commit without changes."""
    first = max(0, change.index - 1 - SAME_PLACE)
    beside = series.points[first : change.index + SAME_PLACE + 1]
    return len({point.commit for point in beside}) == 1 and not any(p.dirty or not p.commit for p in beside)


def _what_else_moved(series: Series, change: Change, sentinels: Sequence[Series]) -> list[str]:
    """Clock and sentinel, where they moved with the time by a good part of it."""
    before, after = _beside(series, change)
    found = []
    clocks = [[point.clock_hz for point in points if point.clock_hz] for points in (before, after)]
    if all(clocks):
        clock = statistics.median(clocks[1]) / statistics.median(clocks[0])
        if _explains(1 / clock, change.ratio.value):
            found.append(f"The clock changed by {_percent(clock)} with it.")
    for sentinel in sentinels:
        by_run = {point.run_id: point.value for point in sentinel.points}
        seen = [[by_run[point.run_id] for point in points if point.run_id in by_run] for points in (before, after)]
        if all(seen):
            moved = statistics.median(seen[1]) / statistics.median(seen[0])
            if _explains(moved, change.ratio.value):
                found.append(f"The sentinel kernel's time changed by {_percent(moved)} with it: it may be the machine.")
    return found


def _beside(series: Series, change: Change) -> tuple[Sequence[Point], Sequence[Point]]:
    """The last points before a change and the first after, of its unit."""
    points, unit = series.points, series.points[change.index].unit
    before = [point for point in points[: change.index] if point.unit == unit][-min(BESIDE, change.points_before) :]
    after = [point for point in points[change.index :] if point.unit == unit][: min(BESIDE, change.points_after)]
    return before, after


def _explains(moved: float, ratio: float) -> bool:
    """Whether a factor of time goes the same way as another, and at least a good part of it."""
    return (moved - 1) * (ratio - 1) > 0 and abs(moved - 1) >= EXPLAINING_PART * abs(ratio - 1)


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"
