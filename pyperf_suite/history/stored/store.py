"""All runs of a results folder as series, by an index that is brought up to date by what was written since.

The journals are the truth: the index remembers how far it has read each of them, one transaction a file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from pyperf_suite.errors import UserError, nearest, offer
from pyperf_suite.history.stored.build_series import Row, build_series
from pyperf_suite.history.stored.index_file import DAMAGE, IndexFile
from pyperf_suite.history.stored.index_update import IndexUpdate
from pyperf_suite.history.stored.series import TIME, Benchmark, Series

Answer = TypeVar("Answer")

# Machine, probe, case_id and metric.
BenchmarkKey = tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """A run as the store knows it: where its records lie, when it began, and how many there are of each outcome."""

    machine: str
    run_id: str
    path: Path
    started_at: str
    ended_at: str
    ok: int
    failed: int
    unsupported: int


class Store:
    """The history of a results folder. Use as a context manager; call `update` before asking.

    `notes` are sentences about the index, `damage` about the files: what in them is no record.
    """

    def __init__(self, results: Path) -> None:
        """Open or make the index of that folder.

        Raises UserError where `results` is a file, or another process keeps the index locked.
        """
        self.results = results
        self._index = IndexFile(results)
        self.damage: list[str] = []
        self._watched: list[Path] = []

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the index."""
        self._index.close()

    @property
    def notes(self) -> list[str]:
        """Why the index is not kept on disk, where it is not."""
        return self._index.notes

    def add(self, path: Path) -> None:
        """Read pytest-benchmark JSON from now on too: that file, or every *.json of that folder.

        Raises UserError where there is no such path.
        """
        if not path.exists():
            raise UserError(f"There is no {path} to add: name a pytest-benchmark JSON file, or a folder of them.")
        self._watched.append(path.resolve())

    def update(self) -> None:
        """Read what was written since the last update, and forget the files that are gone.

        Raises UserError where another process keeps the index locked.
        """
        self._index_of_any_state(self._update)

    def benchmarks(self, pattern: str | None = None, machine: str | None = None) -> list[Benchmark]:
        """What was measured, by machine, probe and label.

        `pattern` is a case_id, a label (with its metric), a part of one, or a glob over it; None for all.
        """
        found = self._ask(
            "SELECT b.machine, b.probe, b.case_id, b.metric, b.label, b.kind, b.unit, "
            "count(DISTINCT r.run_id), min(o.started_at), max(o.started_at), min(o.value) = max(o.value) "
            "FROM observations o JOIN benchmarks b ON b.id = o.benchmark JOIN runs r ON r.id = o.run "
            "WHERE o.outcome = 'ok' GROUP BY o.benchmark"
        )
        benchmarks = [Benchmark(*row) for row in found]
        return sorted(
            (one for one in benchmarks if machine in (None, one.machine) and _matches(one, pattern)),
            key=lambda one: (one.machine, one.probe, one.label, one.metric),
        )

    def series(self, benchmark: Benchmark) -> Series:
        """All points of a benchmark in the order measured, with its breaks."""
        return self._index_of_any_state(lambda: self._series(benchmark))

    def _series(self, benchmark: Benchmark) -> Series:
        # What failed has no metrics, and counts against each of them: it is kept under the time.
        rows = self._ask(
            "SELECT r.run_id, o.visit, o.started_at, o.outcome, o.value, o.low, o.high, o.samples, o.clock_hz, "
            "o.condition FROM benchmarks b JOIN observations o ON o.benchmark = b.id JOIN runs r ON r.id = o.run "
            "WHERE b.machine = ? AND b.probe = ? AND b.case_id = ? AND (b.metric = ? OR b.metric = ? "
            "AND o.outcome <> 'ok') ORDER BY o.started_at, o.run, o.line",
            (benchmark.machine, benchmark.probe, benchmark.case_id, benchmark.metric, TIME),
        )
        return build_series(benchmark, [Row(*row) for row in rows], self._states({row[-1] for row in rows}))

    def runs(self) -> list[Run]:
        """All runs, the oldest first."""
        rows = self._ask(
            "SELECT r.machine, r.run_id, f.path, r.started_at, r.ended_at, r.ok, r.failed, r.unsupported "
            "FROM runs r JOIN files f ON f.id = r.file ORDER BY r.started_at, r.run_id"
        )
        return [Run(machine, run_id, self.results / path, *rest) for machine, run_id, path, *rest in rows]

    def why_nothing(self, pattern: str | None = None, machine: str | None = None) -> str:
        """The sentence to say where `benchmarks` found none: what was asked, what there is, what to do."""
        where = f"{self.results}" + (f" for machine {machine}" if machine else "")
        if pattern is not None and (there := self.benchmarks(None, machine)):
            near = nearest(pattern, {each.label for each in there})
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            return f"No benchmark in {where} matches {pattern!r}: {meant}`pyperf-suite history` lists those there are."
        if machine is not None and (machines := {each.machine for each in self.benchmarks(None)}):
            return f"No measured run was found in {where}: {offer(machine, sorted(machines))}"
        if self.damage:
            more = f" {len(self.damage) - 1} more such." if len(self.damage) > 1 else ""
            return f"No measured run that can be read was found in {where}: {self.damage[0].rstrip('.')}.{more}"
        return f"No measured run was found in {where}: measure one with `pyperf-suite run`, or say --results."

    def holdings(self) -> dict[Path, frozenset[BenchmarkKey]]:
        """For each run's folder the benchmarks that it has a value of; sentinels are none."""
        keys = {
            number: tuple(key)
            for number, *key in self._ask(
                "SELECT id, machine, probe, case_id, metric FROM benchmarks WHERE kind <> 'sentinel'"
            )
        }
        # By the file, not by what its records say of themselves: a folder may have been renamed since.
        rows = self._ask(
            "SELECT f.path, o.benchmark FROM observations o JOIN runs r ON r.id = o.run JOIN files f ON f.id = r.file "
            "WHERE o.outcome = 'ok' GROUP BY o.benchmark, o.run"
        )
        held: dict[Path, set[BenchmarkKey]] = {}
        folders: dict[str, Path] = {}
        for path, number in rows:
            if number in keys:
                folder = folders.setdefault(path, (self.results / path).parent)
                held.setdefault(folder, set()).add(keys[number])
        return {folder: frozenset(benchmarks) for folder, benchmarks in held.items()}

    def damaged(self) -> frozenset[Path]:
        """The runs' folders whose journal holds lines that this version cannot read."""
        rows = self._ask("SELECT path FROM files WHERE damage <> '[[], 0]'")
        return frozenset((self.results / path).parent for (path,) in rows)

    def _update(self) -> None:
        update = IndexUpdate(self._index.connection, self.results)
        for path in self._watched:
            update.watch(path)
        update.run()
        self.damage = update.damage()

    def _states(self, conditions: set[int]) -> dict[int, str]:
        found: dict[int, str] = {}
        for condition in conditions:
            found.update(self._ask("SELECT id, state FROM conditions WHERE id = ?", (condition,)))
        return found

    def _ask(self, question: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """The rows; an index found damaged is made anew first."""
        return self._index_of_any_state(lambda: self._index.connection.execute(question, values).fetchall())

    def _index_of_any_state(self, answer: Callable[[], Answer]) -> Answer:
        """What `answer` makes of the index: of one that turns out damaged once it is made anew.

        Raises UserError where the records cannot be indexed even so, or another process keeps the index locked.
        """
        for repair in (self._index.recover, lambda _: self._index.start_over()):
            try:
                return answer()
            except DAMAGE as error:
                repair(error)
            with contextlib.suppress(*DAMAGE):
                self._update()
        try:
            return answer()
        except DAMAGE as error:
            raise UserError(f"The records in {self.results} cannot be indexed: {error}.") from None


def _matches(benchmark: Benchmark, pattern: str | None) -> bool:
    if pattern is None or pattern == benchmark.case_id:
        return True
    title = benchmark.title
    # fnmatch would take the brackets of a label for a set of characters.
    glob = pattern.replace("[", "[[]")
    return pattern in title or fnmatchcase(title, glob)
