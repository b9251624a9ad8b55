"""Series searched for changes: what `track` reports, and what can be said of each change before anyone reruns it.

A change that is still there is a judgement; one that was made good again, or that came while the code stayed the same,
is a note: the first concerns nobody, and the second is the machine's. What the newest runs should have measured and did
not is failed. History says when; `confirm` runs the two commits between which a change came in live pairs, which alone
says whether it was the code.
"""

from __future__ import annotations

import functools
import math
import re
import shlex
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.findings.rows import grouped
from pyperf_suite.probes import is_users
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.journal import placed_records
from pyperf_suite.regressions import changepoints
from pyperf_suite.regressions.pairs.arms import Arm, PairedCase
from pyperf_suite.regressions.stored.series import ABSENT, PROFILE, SETTINGS, BenchmarkSeries, Measured
from pyperf_suite.regressions.verdict import LESS_IS_WORSE, MORE_IS_WORSE, Judgement, Word, percent, range_text
from pyperf_suite.runner.results import order_of
from pyperf_suite.user_kernels.probe import is_test

if TYPE_CHECKING:
    from pyperf_suite.hardware.devices import Device
    from pyperf_suite.regressions.pairs.ab import RuleFor

# A change that began longer ago has been seen by earlier runs of `track`.
RECENT_POINTS = 30
PLACED_WITHIN = 2
# A clock that moved by at least this part of the change is named as what may explain it.
EXPLAINING_PART = 0.5
# Points on either side that show the clock's and the sentinel's move; a smaller share is no move.
POINTS_COMPARED, LEAST_MOVE = 10, 0.01
SENTINEL_MOVED = " The sentinel, the same code in every run, took {} with it."
MOST_NOTES = 10
# A later run is of the same choice of benchmarks where it holds this share of those measured together.
SAME_CHOICE = 0.5

Run = tuple[str, str, str]  # machine, profile and run_id
Case = tuple[str, str]  # probe and case_id


def changes_of(series: BenchmarkSeries) -> list[changepoints.Change]:
    """The changes to draw in a series, by index: nominated ones of times, every one of an exact figure."""
    points, values = series.points, series.values
    if series.kind != "static":
        return changepoints.find_changes(values, [point.commit for point in points], series.groups)
    starts = [index for index in range(1, len(values)) if values[index] != values[index - 1]]
    edges = [0, *starts, len(values)]
    changes = []
    for left, index, right in zip(edges, edges[1:], edges[2:], strict=False):
        before, after = values[index - 1], values[index]
        ratio = after / before if before else float("inf")
        levels = (index, before, after, Ratio(ratio, ratio, ratio), index - left, right - index)
        changes.append(changepoints.Change(*levels, points[index - 1].commit, points[index].commit))
    return changes


@dataclass(frozen=True)
class Nomination:
    """A change of one series; `undone` says that a later one made it good, `same_code` that no commit came with it.

    A drift is the sum of small steps: its commits are those of its first and last point. `sentinel` is how much longer
    the sentinel took with it, as a logarithm.
    """

    series: BenchmarkSeries
    change: changepoints.Change
    undone: bool = False
    same_code: bool = False
    is_drift: bool = False
    sentinel: float = 0.0

    @property
    def is_machine(self) -> bool:
        """True if it is not the code: the same code, the sentinel itself, or as much as the sentinel slowed."""
        change = math.log(self.change.ratio.value) if not self.is_exact else 0.0
        rest, part = change - self.sentinel, self.sentinel / change if change else 0.0
        explained = abs(rest) <= math.log1p(changepoints.LEAST_EFFECT) and part >= EXPLAINING_PART
        return self.same_code or self.series.kind == "sentinel" or explained

    @property
    def first(self) -> Measured:
        return self.series.points[self.change.index]

    @property
    def clock_change(self) -> float | None:
        """By how much the clock changed with the time, as a share; None if that is no good part of the change."""
        if self.is_exact or self.is_drift:
            return None
        clock, change = self.move_of(lambda point: point.clock_hz), math.log(self.change.ratio.value)
        return math.expm1(clock) if -clock * change > 0 and -clock / change >= EXPLAINING_PART else None

    def move_of(self, figure: Callable[[Measured], float | None]) -> float:
        """Log by which another figure of the runs about the change (of a drift: at its ends) moved; 0 if unknown."""
        points, change = self.series.points, self.change
        before, after = points[: change.index][-change.points_before :], points[change.index :][: change.points_after]
        near = (before[:POINTS_COMPARED], after[-POINTS_COMPARED:])
        if not self.is_drift:
            near = (before[-POINTS_COMPARED:], after[:POINTS_COMPARED])
        sides = [[value for run in side if run.unit == self.first.unit and (value := figure(run))] for side in near]
        return math.log(statistics.median(sides[1]) / statistics.median(sides[0])) if all(sides) else 0.0

    @property
    def is_slower(self) -> bool:
        """True if the new level takes more time, or more of a scarce resource."""
        return (self.change.ratio.value > 1) != (self.series.metric in LESS_IS_WORSE)

    @property
    def is_exact(self) -> bool:
        """True for static metrics (registers, spills), which have no noise."""
        return self.series.kind == "static"

    def is_recent(self, since: str | None) -> bool:
        """True if the change began at or after that ISO date, or without one among the newest points."""
        points_since = len(self.series.points) - self.change.index
        return self.first.made_at >= since if since else points_since <= RECENT_POINTS

    @property
    def sentence(self) -> str:
        """How much, since when, between which commits, and what else moved."""
        change = self.change
        if self.is_exact:
            moved = f"{change.before:g} -> {change.after:g}"
        else:
            moved = f"{percent(change.ratio.value - 1)} ({range_text(change.ratio)})"
        runs = "run" if change.points_after == 1 else "runs"
        clock = self.clock_change
        if self.is_drift:
            moved += f" by a drift in small steps, beyond {percent(changepoints.LEAST_EFFECT)}"
        return (
            f"{self.series.title}: {moved} since {self.first.made_at[:16]}Z, {change.points_after} {runs}; "
            f"{self.commits}.{self._hypotheses}"
            f"{'' if clock is None else f' The clock changed by {percent(clock)} with it.'}"
            f"{SENTINEL_MOVED.format(percent(math.expm1(self.sentinel))) if abs(self.sentinel) > LEAST_MOVE else ''}"
            f"{f' --since {self.series.points[-1].made_at[:10]} accepts it.' if self.is_drift else ''}"
        )

    @functools.cached_property
    def moved(self) -> dict[str, tuple[str, str]]:
        """Settings of the machine that changed where the time did, as exactly as its place is known."""
        if self.is_exact or self.is_drift:
            return {}
        points, groups, index = self.series.points, self.series.groups, self.change.index
        own = [place for place in range(len(points)) if groups[place] == groups[index]]
        start = own.index(index)
        before, after = own[max(0, start - 1 - PLACED_WITHIN)], own[min(len(own) - 1, start + PLACED_WITHIN)]
        return self.series.moved_with(before, after)

    @property
    def _hypotheses(self) -> str:
        """Return other possible causes of the move, and the command that tells them from the code."""
        if not self.moved:
            return ""
        came = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in self.moved.items())
        if self.same_code:
            return f" With it came {came}."
        # Only what imports packages of its own can be paired with other versions of them.
        apart = is_users(self.series.probe)
        packages = [name for name in self.moved if apart and name not in (*SETTINGS.values(), PROFILE)]
        sides = [self.change.commit_before[:12] or "OLD", self.change.commit_after[:12] or "NEW"]
        if packages and not any(ABSENT in self.moved[name] for name in packages):
            sides = [" ".join(f"{name}=={self.moved[name][side]}" for name in packages) for side in (0, 1)]
        command = ["ab", "--old", sides[0], "--new", sides[1], self.series.probe, "-k", self.series.label]
        decides = "" if is_test(self.series.probe) else f"; `{shlex.join(command)}` decides"
        return f" With it came {came}: code and {' and '.join(self.moved)} cannot be told apart{decides}."

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
            "clock_change": self.clock_change,
            "is_drift": self.is_drift,
        }
        return Judgement(
            *(self.series.title, self.series.probe, self.series.case_id, word),
            ratio=None if self.is_exact else change.ratio,
            margin=0.0 if self.is_exact else changepoints.LEAST_EFFECT,
            sentence=how + self.sentence,
            details=details,
        )


@dataclass
class Tracked:
    """Changes that stand, the most recent first, and others for notes; `newest` are of one run or two: no level yet."""

    current: list[Nomination] = field(default_factory=list)
    earlier: list[Nomination] = field(default_factory=list)
    of_the_machine: list[Nomination] = field(default_factory=list)
    newest: list[Nomination] = field(default_factory=list)
    searched: int = 0
    too_short: int = 0
    breaks: list[tuple[str, str]] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        notes = [f"{self.searched or 'No'} series were searched for changes."]
        if self.too_short:
            notes.append(
                f"{self.too_short} more have fewer than {2 * changepoints.FEWEST_POINTS} points of one GPU and state: "
                "too few for a change to be seen."
            )
        notes += _some([f"Outside the range of its level: {each.sentence}" for each in self.newest], "newest runs")
        notes += _some([f"Not the code: {each.sentence}" for each in self.of_the_machine], "changes of the machine")
        notes += _some([f"The machine's state changed: {what} at {at[:16]}Z." for at, what in self.breaks], "breaks")
        if older := sum(not each.undone for each in self.earlier):
            notes.append(f"Older changes, which --since DATE lists: {older}.")
        return notes


def track(searched: Sequence[BenchmarkSeries], since: str | None = None, sentinels: Iterable[Measured] = ()) -> Tracked:
    """Search these series; `since` is ISO 8601, UTC: changes that began earlier are not listed.

    A change is the machine's where the sentinels of the same runs, among the series or besides, changed by as much.
    """
    tracked = Tracked()
    times: dict[tuple[str, str], dict[str, float]] = {}
    for one in (*sentinels, *(point for series in searched if series.kind == "sentinel" for point in series.points)):
        if one.medians:
            times.setdefault((one.machine, one.case_id), {})[one.run_id] = one.value
    breaks: dict[tuple[str, str], None] = {}
    for series in searched:
        groups = changepoints.comparable_points(len(series.points), series.groups) if series.kind != "static" else []
        if series.kind != "static" and not groups:
            tracked.too_short += 1
            continue
        tracked.searched += 1
        for each in series.breaks if series.kind != "static" else ():
            when = series.points[each.index].made_at
            if not since or when >= since:
                breaks[when[:13], each.what] = None
        steps = nominations(series)
        newest, drift = _newest_and_drift(series, groups, [each.change for each in steps], since)
        tracked.newest += [_with_sentinel(each, times) for each in newest]
        for nomination in (_with_sentinel(each, times) for each in (*steps, *drift)):
            if not nomination.is_drift and (not nomination.is_recent(since) or nomination.undone):
                tracked.earlier.append(nomination)
            elif nomination.is_machine:
                tracked.of_the_machine.append(nomination)
            else:
                tracked.current.append(nomination)
    tracked.current.sort(key=lambda each: order_of(each.first.run_id, each.first.started_at), reverse=True)
    tracked.breaks = sorted(breaks, reverse=True)
    return tracked


def _with_sentinel(nomination: Nomination, sentinels: Mapping[tuple[str, str], Mapping[str, float]]) -> Nomination:
    """The nomination with how the sentinels moved, whose times are given by run, by machine and case."""
    if nomination.series.kind != "timing":
        return nomination
    own = [times for (machine, _), times in sentinels.items() if machine == nomination.series.machine]
    moves = [move for times in own if (move := nomination.move_of(lambda point: times.get(point.run_id)))]  # noqa: B023
    return replace(nomination, sentinel=statistics.median(moves)) if moves else nomination


def nominations(series: BenchmarkSeries) -> list[Nomination]:
    """Every change of a series, the oldest first; of exact figures every one whose worse direction is known."""
    is_exact = series.kind == "static"
    if is_exact and series.metric not in (*MORE_IS_WORSE, *LESS_IS_WORSE):
        return []
    changes = changes_of(series)
    if is_exact:
        # A changed compiler or driver explains a change of exact figures.
        broken = {each.index for each in series.breaks}
        changes = [each for each in changes if each.index not in broken]
    return [
        Nomination(
            series,
            change,
            undone=any(
                _makes_good(later, change)
                for later in changes[number + 1 :]
                if series.groups[later.index] == series.groups[change.index]
            ),
            same_code=not is_exact and _is_one_commit(_about(series, change)),
        )
        for number, change in enumerate(changes)
    ]


def _newest_and_drift(
    series: BenchmarkSeries, groups: Sequence[np.ndarray], steps: Sequence[changepoints.Change], since: str | None
) -> tuple[list[Nomination], list[Nomination]]:
    """The newest runs where they left their level, and a drift since then that no step explains."""
    points = series.points
    members = next((group for group in groups if group[-1] == len(points) - 1), None)
    if members is None:
        return [], []
    inside = [step for step in steps if step.index in members]
    newest = changepoints.find_newest(series.values, members, max((step.index for step in inside), default=0))
    later = members[[points[index].made_at >= since for index in members]] if since else members
    explained = sum(math.log(step.ratio.value) for step in inside if step.index in later[1:])
    drift = (
        changepoints.find_drift(series.values, later, explained)
        if len(later) >= 2 * changepoints.FEWEST_POINTS
        else None
    )
    pair: tuple[list[Nomination], list[Nomination]] = [], []
    for change, kind, length in ((newest, pair[0], 1), (drift, pair[1], drift.points_before if drift else 0)):
        if change:
            within = later if change is drift else members
            start = int(np.searchsorted(within, change.index))
            own = [points[index] for index in within[start - length :]]
            last = own[-1] if change is drift else own[1]
            named = replace(change, commit_before=own[0].commit, commit_after=last.commit)
            same = _is_one_commit(own if change is drift else _about(series, change))
            kind.append(Nomination(series, named, same_code=same, is_drift=change is drift))
    return pair


def _makes_good(later: changepoints.Change, change: changepoints.Change) -> bool:
    """True if a later level is back at the change's start, or beyond."""
    if change.ratio.value > 1:
        return later.after <= change.before * (1 + changepoints.LEAST_EFFECT)
    return later.after >= change.before / (1 + changepoints.LEAST_EFFECT)


def _about(series: BenchmarkSeries, change: changepoints.Change) -> Sequence[Measured]:
    """The points about a change, as exactly as its place is known."""
    return series.points[max(0, change.index - 1 - PLACED_WITHIN) : change.index + PLACED_WITHIN + 1]


def _is_one_commit(points: Sequence[Measured]) -> bool:
    """Return True if all are of one commit without changes."""
    return len({point.commit for point in points}) == 1 and not any(p.dirty or not p.commit for p in points)


def _some(sentences: Sequence[str], kind: str) -> list[str]:
    rest = len(sentences) - MOST_NOTES
    return [*sentences[:MOST_NOTES], *([f"{rest} more {kind} of this kind."] if rest > 0 else [])]


def absent(
    measured: Sequence[Measured], is_wanted: Callable[[Measured], bool], since: str | None = None
) -> list[Judgement]:
    """A failed judgement for each wanted benchmark that runs measured once and the newest that should have did not.

    `measured` holds all trials of all runs, the oldest run first, for what was measured together tells what is missing.
    What vanished before `since` (ISO 8601), else before the newest runs, is left out.
    """
    runs: dict[Run, dict[Case, Measured]] = defaultdict(dict)
    trials: dict[tuple[str, Case], list[Measured]] = defaultdict(list)
    for one in measured:
        if one.kind != "sentinel":
            case = (one.probe, one.case_id)
            runs[_run_of(one)][case] = one
            trials[one.machine, case].append(one)
    later: dict[Run, list[Measured]] = {}
    judgements = []
    for (_, case), history in trials.items():
        newest = _run_of(history[-1])
        if newest not in later:
            later[newest] = _later_runs(newest, runs)
        gone = [one for one in later[newest] if case not in runs[_run_of(one)]]
        if not is_wanted(history[-1]) or (gone and gone[0].made_at < since if since else len(gone) > RECENT_POINTS):
            continue
        if history[-1].metrics:
            if min(len(gone), len(history)) < changepoints.FEWEST_POINTS:
                continue
            last: Measured | None = history[-1]
            missed = gone
            renamed = _new_name(history[-1], trials, list(runs))
            sentence = f"vanished: {_runs(gone)} measured what was measured with it.{renamed}"
        else:
            last = next((one for one in reversed(history) if one.metrics), None)
            if not (last or history[-1].failed):
                continue
            missed = history[history.index(last) + 1 :] if last else history
            sentence = f"not measured in {_runs(missed)}, the newest: {history[-1].why_absent}."
        sentence = f"{f'Last measured {last.made_at[:16]}Z' if last else 'Never measured'}, {sentence}"
        details = {"machine": history[-1].machine, "run_id": missed[-1].run_id, "runs": len(missed)}
        judgements.append(Judgement(history[-1].label, *case, "failed", None, 0.0, sentence, details))
    return judgements


def _run_of(point: Measured) -> Run:
    return point.machine, point.profile, point.run_id


def _later_runs(newest: Run, runs: dict[Run, dict[Case, Measured]]) -> list[Measured]:
    """A trial of each later run of the same machine, profile and choice of benchmarks."""
    cases, order = runs[newest], list(runs)
    later = [runs[run] for run in order[order.index(newest) + 1 :] if run[:2] == newest[:2]]
    least = max(1, SAME_CHOICE * (len(cases) - 1))
    return [next(iter(others.values())) for others in later if len(cases.keys() & others.keys()) >= least]


def _runs(missed: Sequence[Measured]) -> str:
    return f"{len(missed)} run{'s' if len(missed) > 1 else ''} since {missed[0].made_at[:16]}Z"


def _new_name(gone: Measured, trials: dict[tuple[str, Case], list[Measured]], order: list[Run]) -> str:
    """The benchmark of the same parameters that was first measured after this one was last; "" without any."""
    since = set(order[order.index(_run_of(gone)) + 1 :])
    for own in trials.values():
        is_new = own[0].machine == gone.machine and _run_of(own[0]) in since
        if is_new and (parameters := _parameters(own[0].label)) and parameters == _parameters(gone.label):
            return f" New since then with the same parameters: {own[0].label}; a new name begins a new series."
    return ""


def _parameters(label: str) -> set[str]:
    return set(re.findall(r"[^\s\[\]]+=[^\s\]]+", label))


Rerun = tuple[Nomination, PairedCase]


def rerunnable(
    wanted: Iterable[Nomination], machine: str, journals: Mapping[tuple[str, str], Path]
) -> tuple[list[Rerun], list[Judgement]]:
    """Changes that can be rerun on this machine, with cases out of `journals`, and judgements of the others."""
    able: list[Rerun] = []
    unable: list[Judgement] = []
    for nomination in wanted:
        try:
            able.append((nomination, _case_to_rerun(nomination, machine, journals)))
        except UserError as reason:
            unable.append(_not_rerun(nomination, str(reason)))
    return able, unable


def _case_to_rerun(nomination: Nomination, machine: str, journals: Mapping[tuple[str, str], Path]) -> PairedCase:
    """The case as the first run of the new level measured it. Raises UserError where it cannot be rerun here."""
    series, change = nomination.series, nomination.change
    if series.machine != machine:
        raise UserError(f"it was measured on {series.machine}, and this is {machine}")
    if series.kind != "timing":
        raise UserError("it is no timed case")
    if is_test(series.probe):
        raise UserError("it is a test, which pytest alone measures")
    if not change.commit_before or not change.commit_after:
        raise UserError("its runs do not name their commits")
    ends = {change.commit_before, change.commit_after}
    near = series.points if nomination.is_drift else _about(series, change)
    if len(ends) == 1 or any(point.dirty and point.commit in ends for point in near):
        raise UserError("its runs measured uncommitted changes, which are gone")
    journal = journals[series.machine, nomination.first.run_id]
    for _, record in placed_records(journal):
        if record.case_id == series.case_id:
            return PairedCase.same(series.probe, record.parsed_case())
    raise UserError(f"{journal} holds no case {series.case_id}")


def confirm(
    wanted: Iterable[Rerun],
    arms_of: Callable[[str, str, Sequence[str]], tuple[Arm, Arm]],
    device: Device,
    rule: RuleFor | None = None,
    seed: int = 0,
    **how: Any,
) -> list[Judgement]:
    """Compare both commits of each nomination; all of the same two commits as one suite, in the order first wanted.

    `arms_of` makes the arms of two commits for some probes, all the suite's or all users'; `how` is as for
    `compare_arms`. A nomination whose commit is not in the checkout stays what it was, with the reason. Raises
    UserError if a pair cannot be written to the journal.
    """
    from pyperf_suite.regressions.pairs.ab import compare_arms

    def suite_of(rerun: Rerun) -> tuple[str, str, bool]:
        change, case = rerun[0].change, rerun[1]
        return change.commit_before, change.commit_after, is_users(case.probe)

    suites = grouped(wanted, suite_of)
    judgements: list[Judgement] = []
    for (before, after, _), members in suites.items():
        cases = [case for _, case in members]
        try:
            old, new = arms_of(before, after, list(dict.fromkeys(case.probe for case in cases)))
        except UserError as reason:
            judgements += [_not_rerun(nomination, str(reason)) for nomination, _ in members]
            continue
        decided = compare_arms(old, new, cases, device, rule, seed, **how)
        for (nomination, _), rerun in zip(members, decided, strict=True):
            history = nomination.judgement()
            sentence = f"Rerun of both commits: {rerun.sentence} History: {nomination.sentence}"
            details = {**rerun.details, "history": dict(history.details)}
            judgements.append(replace(rerun, benchmark=history.benchmark, sentence=sentence, details=details))
    return judgements


def _not_rerun(nomination: Nomination, reason: str) -> Judgement:
    """The nomination's own finding, with why it was not rerun."""
    judgement = nomination.judgement()
    return replace(
        judgement,
        sentence=f"{judgement.sentence} It was not rerun: {reason.rstrip('.')}.",
        details={**judgement.details, "not_rerun": reason},
    )
