"""Series searched for changes: what `track` reports, and what can be said of each change before anyone reruns it.

A change that is still there is a judgement; one that was made good again, or that came while the code stayed the same,
is a note: the first concerns nobody, and the second is the machine's. History says when; `confirm` runs the two commits
between which a change came in live pairs, which alone says whether it was the code.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.findings.discovery import is_users
from pyperf_suite.measure.estimates import Ratio
from pyperf_suite.regressions.changepoints import FEWEST_POINTS, LEAST_EFFECT, SAME_PLACE, Change, find_changes
from pyperf_suite.regressions.stored.foreign import FOREIGN_PROBES
from pyperf_suite.regressions.stored.series import Benchmark, BenchmarkSeries, SeriesPoint
from pyperf_suite.regressions.stored.store import Store
from pyperf_suite.regressions.verdict import LESS_IS_WORSE, MORE_IS_WORSE, NOMINATED, Judgement, Word, percent
from pyperf_suite.runner.record import Case

if TYPE_CHECKING:
    from pyperf_suite.hardware.devices import Device
    from pyperf_suite.regressions.pairs.ab import RuleFor
    from pyperf_suite.regressions.pairs.arms import Arm

# A change that began longer ago has been seen by earlier runs of `track`.
RECENT_POINTS = 30

# A clock or sentinel that moved by at least this part of the change is named as what may explain it.
EXPLAINING_PART = 0.5

# So many points on either side show what clock and sentinel did.
POINTS_COMPARED = 10

# So many notes of a kind are printed one by one.
MOST_NOTES = 10


@dataclass(frozen=True)
class Step:
    """From point `index` on, those of the same unit lie at another level: the medians on both sides.

    The commits are those of the last point before and of the first one after, empty if unknown.
    """

    index: int
    before: float
    after: float
    commit_before: str = ""
    commit_after: str = ""

    @property
    def effect(self) -> str:
        """By how much it moved, as in +4.3%; from 0 there is no share."""
        return f"{self.after / self.before - 1:+.1%}" if self.before else f"from 0 to {self.after:g}"


def steps_of(series: BenchmarkSeries) -> list[Step]:
    """The steps to draw in a series, by index: nominated changes of times, every change of an exact figure."""
    points = series.points
    if series.kind == "static":
        return [
            Step(index, last.value, point.value, last.commit, point.commit)
            for index, (last, point) in enumerate(itertools.pairwise(points), 1)
            if last.value != point.value
        ]
    if not all(point.value > 0 for point in points):
        return []  # no time: other projects' files may hold zeros
    return [
        Step(change.index, change.before, change.after, change.commit_before, change.commit_after)
        for change in _changes_of_times(series)
    ]


@dataclass(frozen=True)
class Nomination:
    """A change of one series; `undone` says that a later one made it good, `same_code` that no commit came with it."""

    series: BenchmarkSeries
    change: Change
    undone: bool
    same_code: bool
    machine_notes: tuple[str, ...] = ()

    @property
    def first(self) -> SeriesPoint:
        return self.series.points[self.change.index]

    @property
    def is_slower(self) -> bool:
        """Whether the new level takes more time, or more of what is scarce."""
        return (self.change.ratio.value > 1) != (self.series.metric in LESS_IS_WORSE)

    @property
    def is_exact(self) -> bool:
        """Whether this is a figure of machine code, of which there is no doubt and no noise."""
        return self.series.kind == "static"

    def is_recent(self, since: str | None) -> bool:
        """Whether the change began at or after that ISO date, or without one among the newest points."""
        points_since = len(self.series.points) - self.change.index
        return self.first.started_at >= since if since else points_since <= RECENT_POINTS

    @property
    def sentence(self) -> str:
        """How much, since when, between which commits, and what else moved."""
        change = self.change
        if self.is_exact:
            moved = f"{change.before:g} -> {change.after:g}"
        else:
            ends = (percent(end - 1) for end in (change.ratio.value, change.ratio.low, change.ratio.high))
            moved = "{} ({} to {})".format(*ends)
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

    def judgement(self) -> Judgement:
        change = self.change
        word: Word = ("slower" if self.is_exact else "undecided") if self.is_slower else "faster"
        how = "" if self.is_exact else f"Looks {'slower' if self.is_slower else 'faster'}, not confirmed: "
        details = {
            "run_id": self.first.run_id,
            "started_at": self.first.started_at,
            "machine": self.series.machine,
            "metric": self.series.metric,
            "commit_before": change.commit_before,
            "commit_after": change.commit_after,
            "before": change.before,
            "after": change.after,
            "points_before": change.points_before,
            "points_after": change.points_after,
            "beside": list(self.machine_notes),
        }
        if not self.is_exact:
            details[NOMINATED] = "slower" if self.is_slower else "faster"
        return Judgement(
            *(self.series.title, self.series.probe, self.series.case_id, word),
            ratio=None if self.is_exact else change.ratio,
            margin=0.0 if self.is_exact else LEAST_EFFECT,
            sentence=how + self.sentence,
            details=details,
        )


@dataclass
class Tracked:
    """What was found: changes that stand, the most recent first, and the rest, for notes."""

    current: list[Nomination] = field(default_factory=list)
    earlier: list[Nomination] = field(default_factory=list)
    of_the_machine: list[Nomination] = field(default_factory=list)
    searched: int = 0
    too_short: int = 0
    breaks: list[tuple[str, str]] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        found = [f"{self.searched} series were searched for changes."]
        if self.too_short:
            found.append(
                f"{self.too_short} more have fewer than {2 * FEWEST_POINTS} points since the last break, of one GPU: "
                "too few for a change to be seen."
            )
        found += _some([f"Not the code: {each.sentence}" for each in self.of_the_machine], "changes of the machine")
        found += _some(
            [f"A break, across which no change is looked for: {what} at {when[:16]}Z." for when, what in self.breaks],
            "breaks",
        )
        if self.earlier:
            undone = sum(each.undone for each in self.earlier)
            older = len(self.earlier) - undone
            kinds = [
                f"{older} older, which --since DATE lists" if older else "",
                f"{undone} made good again" if undone else "",
            ]
            found.append(f"Changes not listed: {'; '.join(filter(None, kinds))}.")
        return found


def track(store: Store, benchmarks: Sequence[Benchmark], since: str | None = None) -> Tracked:
    """Search the series of these benchmarks; `since` is ISO 8601, UTC: changes that began earlier are not listed."""
    found = Tracked()
    sentinels: dict[str, list[BenchmarkSeries]] = {}
    for benchmark in store.benchmarks():
        if benchmark.kind == "sentinel":
            sentinels.setdefault(benchmark.machine, []).append(store.series(benchmark))
    breaks: dict[tuple[str, str], None] = {}
    for benchmark in benchmarks:
        series = store.series(benchmark)
        if series.kind != "static" and _longest_stretch(series) < 2 * FEWEST_POINTS:
            found.too_short += 1
            continue
        found.searched += 1
        for each in series.breaks if series.kind != "static" else ():
            when = series.points[each.index].started_at
            if not since or when >= since:
                breaks[when[:13], each.what] = None
        for nomination in nominations(series, () if series.kind == "sentinel" else sentinels.get(series.machine, ())):
            if not nomination.is_recent(since) or nomination.undone:
                found.earlier.append(nomination)
            elif nomination.same_code or series.kind == "sentinel":
                found.of_the_machine.append(nomination)
            else:
                found.current.append(nomination)
    found.current.sort(key=lambda each: each.first.started_at, reverse=True)
    found.breaks = sorted(breaks, reverse=True)
    return found


def nominations(series: BenchmarkSeries, sentinels: Iterable[BenchmarkSeries] = ()) -> list[Nomination]:
    """Every change of a series, the oldest first; `sentinels` are the series of the sentinels of its machine.

    Of exact figures every difference is one, if it is known which direction is worse.
    """
    is_exact = series.kind == "static"
    changes = _exact_changes(series) if is_exact else _changes_of_times(series)
    sentinels = list(sentinels)
    return [
        Nomination(
            series,
            change,
            undone=any(_makes_good(later, change) for later in changes[number + 1 :]),
            same_code=not is_exact and _is_same_code(series, change),
            machine_notes=() if is_exact else tuple(_what_else_moved(series, change, sentinels)),
        )
        for number, change in enumerate(changes)
    ]


def _changes_of_times(series: BenchmarkSeries) -> list[Change]:
    return find_changes(
        series.values,
        [point.commit for point in series.points],
        [point.unit for point in series.points],
        [each.index for each in series.breaks],
    )


def _exact_changes(series: BenchmarkSeries) -> list[Change]:
    """Where an exact figure differs from the run before, unless its compiler or driver does so as well."""
    if series.metric not in (*MORE_IS_WORSE, *LESS_IS_WORSE):
        return []
    broken = {each.index for each in series.breaks}
    values, points = series.values, series.points
    starts = [index for index in range(1, len(values)) if values[index] != values[index - 1]]
    edges = [0, *starts, len(values)]
    found = []
    for left, index, right in zip(edges, edges[1:], edges[2:], strict=False):
        if index not in broken:
            before, after = values[index - 1], values[index]
            ratio = after / before if before else float("inf")
            found.append(
                Change(
                    *(index, before, after, Ratio(ratio, ratio, ratio), index - left, right - index),
                    commit_before=points[index - 1].commit,
                    commit_after=points[index].commit,
                )
            )
    return found


def _makes_good(later: Change, change: Change) -> bool:
    """Whether a later level is back where the change came from, or beyond."""
    if change.ratio.value > 1:
        return later.after <= change.before * (1 + LEAST_EFFECT)
    return later.after >= change.before / (1 + LEAST_EFFECT)


def _is_same_code(series: BenchmarkSeries, change: Change) -> bool:
    """Whether all points about the change, as exactly as its place is known, are of one commit without changes."""
    first = max(0, change.index - 1 - SAME_PLACE)
    around = series.points[first : change.index + SAME_PLACE + 1]
    return len({point.commit for point in around}) == 1 and not any(p.dirty or not p.commit for p in around)


def _what_else_moved(series: BenchmarkSeries, change: Change, sentinels: Sequence[BenchmarkSeries]) -> list[str]:
    """Clock and sentinel, if they moved with the time by a good part of it."""
    own = [point.unit == series.points[change.index].unit for point in series.points]
    before = list(itertools.compress(series.points[: change.index], own))[-min(POINTS_COMPARED, change.points_before) :]
    after = list(itertools.compress(series.points[change.index :], own[change.index :]))
    after = after[: min(POINTS_COMPARED, change.points_after)]
    found = []
    clocks = [[point.clock_hz for point in points if point.clock_hz] for points in (before, after)]
    if all(clocks):
        clock = statistics.median(clocks[1]) / statistics.median(clocks[0])
        if _explains(1 / clock, change.ratio.value):
            found.append(f"The clock changed by {percent(clock - 1)} with it.")
    for sentinel in sentinels:
        by_run = {point.run_id: point.value for point in sentinel.points}
        seen = [[by_run[point.run_id] for point in points if point.run_id in by_run] for points in (before, after)]
        if all(seen):
            moved = statistics.median(seen[1]) / statistics.median(seen[0])
            if _explains(moved, change.ratio.value):
                found.append(
                    f"The sentinel kernel's time changed by {percent(moved - 1)} with it: it may be the machine."
                )
    return found


def _explains(moved: float, ratio: float) -> bool:
    """Whether a factor of time goes the same way as another, and at least a good part of it."""
    return (moved - 1) * (ratio - 1) > 0 and abs(moved - 1) >= EXPLAINING_PART * abs(ratio - 1)


def _longest_stretch(series: BenchmarkSeries) -> int:
    broken = {each.index for each in series.breaks}
    parts = itertools.accumulate(index in broken for index in range(len(series.points)))
    stretches = [(part, point.unit) for part, point in zip(parts, series.points, strict=True)]
    return max(Counter(stretches).values(), default=0)


def _some(sentences: Sequence[str], what: str) -> list[str]:
    rest = len(sentences) - MOST_NOTES
    return [*sentences[:MOST_NOTES], *([f"{rest} more {what} of this kind."] if rest > 0 else [])]


class Confirmable(NamedTuple):
    """A nomination with the case that its runs measured."""

    nomination: Nomination
    case: Case

    @property
    def commits(self) -> tuple[str, str]:
        return (self.nomination.change.commit_before, self.nomination.change.commit_after)


def why_not(nomination: Nomination, machine: str) -> str | None:
    """Why a nomination cannot be confirmed here; None where it can."""
    if nomination.series.machine != machine:
        return f"it was measured on {nomination.series.machine}, and this is {machine}"
    if nomination.series.kind != "timing" or nomination.series.probe in FOREIGN_PROBES:
        return "it is no timed case of this suite"
    if is_users(nomination.series.probe):
        return "it is a kernel of your own, and its runs name this suite's commits alone: compare yours with ab"
    before, after = nomination.change.commit_before, nomination.change.commit_after
    if not before or not after:
        return "its runs do not name their commits"
    around = nomination.series.points[nomination.change.index - 1 : nomination.change.index + 1]
    if before == after or any(point.dirty for point in around):
        return "its runs measured uncommitted changes, which are gone"
    return None


def find_case(records: Path, case_id: str) -> Case:
    """The case of that id in a journal. Raises UserError where it is not there, or no case any more."""
    why = f"{records} holds no case {case_id}."
    try:
        with files.open_for_reading(records) as lines:
            for line in lines:
                if case_id.encode() in line:
                    try:
                        record = json.loads(line)
                        if record.get("case_id") == case_id:
                            return Case.from_json(record["case"])
                    except UserError as error:
                        why = str(error)
                    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
                        continue  # a torn or foreign line; another trial's may be whole
    except OSError as error:
        raise UserError(f"{records} cannot be read: {error.strerror}.") from None
    raise UserError(why)


def confirm(
    wanted: Iterable[Confirmable],
    arm_of: Callable[[str], Arm],
    device: Device,
    rule: RuleFor | None = None,
    seed: int = 0,
    **how: Any,
) -> list[Judgement]:
    """Compare both commits of each nomination; all of the same two commits as one suite, in the order first wanted.

    `arm_of` makes the arm of a commit; `how` is as for `compare_arms`. A nomination whose commit is not in the checkout
    stays what it was, with the reason. Raises UserError if a pair cannot be written to the journal.
    """
    from pyperf_suite.regressions.pairs.ab import compare_arms
    from pyperf_suite.regressions.pairs.arms import PairedCase

    suites: dict[tuple[str, str], list[Confirmable]] = {}
    for each in wanted:
        suites.setdefault(each.commits, []).append(each)
    found: list[Judgement] = []
    for (before, after), members in suites.items():
        try:
            old, new = arm_of(before), arm_of(after)
        except UserError as reason:
            found += [unconfirmed(each.nomination, str(reason)) for each in members]
            continue
        cases = [PairedCase.same(each.nomination.series.probe, each.case) for each in members]
        decided = compare_arms(old, new, cases, device, rule, seed, **how)
        found += [_joined(each.nomination, finding) for each, finding in zip(members, decided, strict=True)]
    return found


def unconfirmed(nomination: Nomination, reason: str) -> Judgement:
    """The nomination's own finding, with why it was not rerun."""
    judgement = nomination.judgement()
    return replace(
        judgement,
        sentence=f"{judgement.sentence} It was not rerun: {reason.rstrip('.')}.",
        details={**judgement.details, "not_rerun": reason},
    )


def _joined(nomination: Nomination, decided: Judgement) -> Judgement:
    history = nomination.judgement()
    return replace(
        decided,
        benchmark=history.benchmark,
        sentence=f"Rerun of both commits: {decided.sentence} History: {nomination.sentence}",
        details={**decided.details, "history": dict(history.details)},
    )


def cases_of(
    wanted: Sequence[Nomination], machine: str, records_of: Callable[[Nomination], Path]
) -> tuple[list[Confirmable], list[Judgement]]:
    """Those that can be confirmed, with their cases; and judgements of those that cannot, with the reason."""
    able: list[Confirmable] = []
    unable: list[Judgement] = []
    for nomination in wanted:
        reason = why_not(nomination, machine)
        if reason is None:
            try:
                able.append(Confirmable(nomination, find_case(records_of(nomination), nomination.series.case_id)))
                continue
            except UserError as error:
                reason = str(error)
        unable.append(unconfirmed(nomination, reason))
    return able, unable
