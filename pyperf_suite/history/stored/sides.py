"""One side of a comparison of finished runs: a run's folder, its records.jsonl, or another project's JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.history.stored.conditions import commit_of
from pyperf_suite.history.stored.foreign import MOST_NOTES, read_foreign
from pyperf_suite.history.stored.journal_lines import read_lines
from pyperf_suite.history.stored.observations import Figure, Observation
from pyperf_suite.history.stored.series import TIME

RECORDS = "records.jsonl"


@dataclass(frozen=True)
class Measured:
    """What one side says of one benchmark.

    `medians` holds one median a process, in seconds, in the order measured; it is empty for static kernels, whose
    exact figures are `metrics`, and where every process failed, for the `failures` told. `low` and `high` are the
    least and the greatest median, or the one process's own interval. A sentinel's visits are each in a process of
    their own. `clock_hz` and `steal_share` hold what each process saw, where it was told.
    """

    probe: str
    case_id: str
    label: str
    kind: str  # timing, static or sentinel
    medians: tuple[float, ...] = ()
    low: float = float("nan")
    high: float = float("nan")
    samples: tuple[int, ...] = ()  # that count, one number a process
    state: Mapping[str, Any] = field(default_factory=dict)
    commit: str = ""
    dirty: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    clock_hz: tuple[float, ...] = ()
    steal_share: tuple[float, ...] = ()
    profile: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What pairs it with the other side's."""
        return (self.probe, self.case_id)

    @property
    def seconds(self) -> float:
        """The median of the processes' medians; NaN where none measured a time."""
        return statistics.median(self.medians) if self.medians else float("nan")


@dataclass(frozen=True)
class Side:
    """One finished run. `notes` are sentences about what of it could not be read, `run_ids` name it in the history."""

    name: str
    machine: str
    benchmarks: Mapping[tuple[str, str], Measured]
    commit: str = ""
    notes: tuple[str, ...] = ()
    run_ids: frozenset[str] = frozenset()


def read_run_or_file(path: Path) -> Side:
    """The side at that path: a run's folder, records (a name in .jsonl), or pytest-benchmark JSON (any other name).

    Raises UserError where it is none of these, cannot be read, holds no result, or holds more than one machine's.
    """
    if path.is_dir():
        if not (path / RECORDS).exists():
            raise UserError(f"{path} is not a run's folder, for it holds no {RECORDS}: name one, or a file.")
        path = path / RECORDS
    found, notes = _read_records(path) if path.suffix == ".jsonl" else read_foreign(path)
    if not found:
        raise UserError(f"{path} holds no results to compare.{' ' if notes else ''}{' '.join(notes[:1])}")
    return side_of(str(path.parent if path.name == RECORDS else path), found, notes)


def side_of(name: str, observations: Iterable[Observation], notes: Iterable[str] = ()) -> Side:
    """The side made of these observations. Raises UserError where they are of more than one machine."""
    by_benchmark: dict[tuple[str, str], list[Observation]] = {}
    machines, run_ids = set(), set()
    for one in observations:
        machines.add(one.machine)
        run_ids.add(one.run_id)
        by_benchmark.setdefault((one.probe, one.case_id), []).append(one)
    if len(machines) > 1:
        raise UserError(f"{name} holds results of several machines ({', '.join(sorted(machines))}): compare one each.")
    benchmarks = {key: _measured(visits) for key, visits in by_benchmark.items()}
    commit = next((one.commit for one in reversed(benchmarks.values()) if one.commit), "")
    return Side(name, machines.pop() if machines else "", benchmarks, commit, tuple(notes), frozenset(run_ids))


def newest_visits(observations: Iterable[Observation]) -> list[Observation]:
    """One observation a visit: the one that measured rather than one that failed, then the later one."""
    kept: dict[int, Observation] = {}
    for one in observations:
        if one.visit not in kept or one.outcome == "ok" or kept[one.visit].outcome != "ok":
            kept[one.visit] = one
    return list(kept.values())


def _measured(observations: list[Observation]) -> Measured:
    visits = newest_visits(observations)
    good = [one for one in visits if one.outcome == "ok"]
    last = good[-1] if good else visits[-1]
    times = [figure for one in good for figure in one.figures if figure.metric == TIME and one.kind != "static"]
    low, high = interval_of(times)
    commits = {commit_of(one.state) for one in good or visits}
    commit, dirty = commit_of(last.state)
    return Measured(
        *(last.probe, last.case_id, last.label, last.kind),
        medians=tuple(figure.value for figure in times),
        low=low,
        high=high,
        samples=tuple(figure.samples for figure in times),
        state=last.state,
        commit=commit,
        dirty=dirty or len(commits) > 1,
        metrics={figure.metric: figure.value for figure in last.figures} if last.kind == "static" else {},
        failures=tuple(f"{one.outcome}: {one.reason}" for one in visits if one.outcome != "ok"),
        clock_hz=tuple(one.clock_hz for one in good if one.clock_hz is not None),
        steal_share=tuple(one.steal_share for one in good if one.steal_share is not None),
        profile=last.profile,
    )


def interval_of(times: list[Figure]) -> tuple[float, float]:
    """The least and the greatest of several processes' medians; one process's own interval; NaN for none."""
    if not times:
        return float("nan"), float("nan")
    if len(times) == 1:
        return times[0].low, times[0].high
    medians = [figure.value for figure in times]
    return min(medians), max(medians)


def _read_records(path: Path) -> tuple[list[Observation], list[str]]:
    found, notes, bad = [], [], 0
    try:
        with files.open_named_by_user(path) as file:
            for line in read_lines(file, path.resolve().parent.parent.name):
                if line.observation is not None:
                    found.append(line.observation)
                elif (bad := bad + 1) <= MOST_NOTES:
                    notes.append(f"{path}, line {line.number} is not a record of the suite: {line.why}")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    return found, notes if bad <= MOST_NOTES else [*notes, f"{path}: {bad - MOST_NOTES} more lines are no records."]
