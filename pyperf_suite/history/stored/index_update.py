"""Brings the index up to date: of each journal the bytes after those it has read, of each foreign file all or nothing.

A transaction a file: a process killed at any moment leaves the index as it was after some file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.history.stored.foreign import MOST_NOTES, read_foreign
from pyperf_suite.history.stored.journal_lines import read_lines
from pyperf_suite.history.stored.observations import Observation
from pyperf_suite.history.stored.series import TIME
from pyperf_suite.runner.record import OUTCOMES

RECORDS = "records.jsonl"
PROBED_BYTES = 4096


@dataclass
class Known:
    """What the index remembers of a file: how it looked, how far it was read, and what in it was no record."""

    id: int
    size: int = -1
    mtime_ns: int = -1
    inode: int = -1
    offset: int = 0
    lines: int = 0
    head: bytes = b""
    tail: bytes = b""
    damage: list[str] = field(default_factory=list)
    more_damage: int = 0

    def note(self, sentence: str) -> None:
        """Keep a sentence of damage; of very many only their number."""
        if len(self.damage) < MOST_NOTES:
            self.damage.append(sentence)
        else:
            self.more_damage += 1


@dataclass
class RunPart:
    """What one update found of a run: when it was measured, and how many records of each outcome."""

    id: int
    moments: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)


Runs = dict[tuple[str, str], RunPart]


class IndexUpdate:
    """One update over one connection."""

    def __init__(self, connection: sqlite3.Connection, results: Path) -> None:
        self._connection = connection
        self._results = results
        self._benchmarks: dict[tuple[str, ...], int] = {}
        self._conditions: dict[str, int] = {}
        self._unreadable: list[str] = []

    def watch(self, path: Path) -> None:
        """Read pytest-benchmark JSON there, a file or a folder's files, in this and every later update."""
        self._connection.execute("INSERT OR IGNORE INTO watched VALUES (?)", (str(path),))

    def run(self) -> None:
        """Do it. Raises sqlite3.DatabaseError where the index cannot be written or trusted."""
        journals = {str(path.relative_to(self._results)): path for path in _journals(self._results)}
        foreign = {str(path): path for path in self._foreign_files()}
        for name in [row[0] for row in self._connection.execute("SELECT path FROM files")]:
            if name not in journals and name not in foreign:
                with self._transaction():
                    self._forget(name)
        seen = {
            name: stamp for name, *stamp in self._connection.execute("SELECT path, size, mtime_ns, inode FROM files")
        }
        for name, path in (journals | foreign).items():
            try:
                found = path.stat()
                if not stat.S_ISREG(found.st_mode):
                    self._unreadable.append(f"{path} is not a regular file and was not read.")
                    continue
                if seen.get(name) == list(_stamp(found)):
                    continue
                with self._transaction():
                    self._read_foreign(name, path) if name in foreign else self._read_journal(name, path)
            except OSError as error:
                self._unreadable.append(f"{path} cannot be read: {error.strerror}.")

    def damage(self) -> list[str]:
        """What in all the files is no record, and which of them could not be read."""
        told = list(self._unreadable)
        for path, text in self._connection.execute("SELECT path, damage FROM files ORDER BY path"):
            sentences, more = json.loads(text)
            # A foreign file's sentences name it; a journal's do not, for the results folder may be moved.
            place = "" if Path(path).is_absolute() else f"{self._results / path}, "
            told += [f"{place}{sentence}" for sentence in sentences]
            told += [f"{place}{more} more lines are no records."] if more else []
        return told

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            # What a transaction that is undone had named is not in the index.
            self._benchmarks.clear()
            self._conditions.clear()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _foreign_files(self) -> Iterator[Path]:
        for (text,) in self._connection.execute("SELECT path FROM watched").fetchall():
            path = Path(text)
            yield from sorted(path.rglob("*.json")) if path.is_dir() else [path] if path.exists() else []

    def _read_journal(self, name: str, path: Path) -> None:
        with files.open_for_reading(path) as file:
            # Taken before reading: what is written meanwhile makes it another's next time.
            found = os.fstat(file.fileno())
            known = self._known(name)
            if found.st_size < known.offset or not _begins_as(file, known):
                self._forget(name)
                known = self._known(name)
            runs: Runs = {}
            for line in read_lines(file, path.parent.parent.name, known.offset, known.lines):
                if line.torn:
                    break
                known.offset, known.lines = line.end, line.number
                if line.observation is None:
                    known.note(f"line {line.number} is not a record of the suite: {line.why}")
                else:
                    self._insert(known.id, runs, line.number, line.observation)
            known.head, known.tail = _probes(file, known.offset)
        self._remember(known, found, runs)

    def _read_foreign(self, name: str, path: Path) -> None:
        status = path.stat()
        self._forget(name)
        known = self._known(name)
        runs: Runs = {}
        try:
            found, known.damage = read_foreign(path)
        except UserError as error:
            found, known.damage = [], [str(error)]
        for line, one in enumerate(found):
            self._insert(known.id, runs, line, one)
        self._remember(known, status, runs)

    def _known(self, name: str) -> Known:
        row = self._connection.execute(
            "SELECT id, size, mtime_ns, inode, offset, lines, head, tail, damage FROM files WHERE path = ?", (name,)
        ).fetchone()
        if row is not None:
            return Known(*row[:-1], *json.loads(row[-1]))
        made = self._connection.execute("INSERT INTO files (path, damage) VALUES (?, '[[], 0]')", (name,)).lastrowid
        return Known(made or 0)

    def _remember(self, known: Known, status: os.stat_result, runs: Runs) -> None:
        damage = json.dumps([known.damage, known.more_damage])
        self._connection.execute(
            "UPDATE files SET size = ?, mtime_ns = ?, inode = ?, offset = ?, lines = ?, head = ?, tail = ?, damage = ? "
            "WHERE id = ?",
            (
                *(*_stamp(status), known.offset, known.lines, known.head, known.tail),
                *(damage, known.id),
            ),
        )

        for run in runs.values():
            self._connection.execute(
                "UPDATE runs SET started_at = min(coalesce(started_at, ?1), ?1), "
                "ended_at = max(coalesce(ended_at, ?2), ?2), "
                "ok = ok + ?3, failed = failed + ?4, unsupported = unsupported + ?5 WHERE id = ?6",
                (min(run.moments), max(run.moments), *(run.outcomes[name] for name in OUTCOMES), run.id),
            )

    def _forget(self, name: str) -> None:
        """Take a file and all that came from it out of the index."""
        of_file = "(SELECT id FROM runs WHERE file IN (SELECT id FROM files WHERE path = ?))"
        self._connection.execute(f"DELETE FROM observations WHERE run IN {of_file}", (name,))
        self._connection.execute("DELETE FROM runs WHERE file IN (SELECT id FROM files WHERE path = ?)", (name,))
        self._connection.execute("DELETE FROM files WHERE path = ?", (name,))

    def _insert(self, file: int, runs: Runs, line: int, one: Observation) -> None:
        run = runs.get((one.machine, one.run_id))
        if run is None:
            run = RunPart(self._id("runs", {"file": file, "machine": one.machine, "run_id": one.run_id}))
            runs[one.machine, one.run_id] = run
        run.outcomes[one.outcome] += 1
        run.moments = [min([one.started_at, *run.moments]), max([one.started_at, *run.moments])]
        common = (line, one.visit, one.started_at, one.outcome, one.reason[:500])
        after = (one.clock_hz, one.steal_share, self._condition(one))
        if not one.figures:
            benchmark = self._benchmark(one, TIME, "s")
            self._add([(benchmark, run.id, *common, None, None, None, 0, *after)])
            return
        self._add(
            (
                *(self._benchmark(one, figure.metric, figure.unit), run.id, *common),
                *(figure.value, figure.low, figure.high, figure.samples, *after),
            )
            for figure in one.figures
        )

    def _add(self, rows: Iterable[tuple[object, ...]]) -> None:
        self._connection.executemany("INSERT INTO observations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def _benchmark(self, one: Observation, metric: str, unit: str) -> int:
        key = (one.machine, one.probe, one.case_id, metric)
        found = self._benchmarks.get(key)
        if found is None:
            names = dict(zip(("machine", "probe", "case_id", "metric"), key, strict=True))
            found = self._id("benchmarks", names, {"label": one.label, "kind": one.kind, "unit": unit})
            self._benchmarks[key] = found
        return found

    def _condition(self, one: Observation) -> int:
        """Many records share a state: it is kept once."""
        text = json.dumps(one.state, sort_keys=True, separators=(",", ":"))
        found = self._conditions.get(text)
        if found is None:
            digest = hashlib.sha256(text.encode()).digest()[:16]
            found = self._id("conditions", {"digest": digest}, {"state": text})
            self._conditions[text] = found
        return found

    def _id(self, table: str, key: Mapping[str, object], rest: Mapping[str, object] | None = None) -> int:
        """The row of that key in a table, made if it is not there."""
        where = " AND ".join(f"{name} = ?" for name in key)
        row = self._connection.execute(f"SELECT id FROM {table} WHERE {where}", tuple(key.values())).fetchone()
        if row is not None:
            return int(row[0])
        values = {**key, **(rest or {})}
        marks = ", ".join("?" * len(values))
        made = self._connection.execute(
            f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values())
        )
        return int(made.lastrowid or 0)


def _journals(results: Path) -> list[Path]:
    return sorted(results.glob(f"*/*/{RECORDS}"))


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    """What tells a file that was written from one that was not; sqlite's integers have a sign, inodes have none."""
    return status.st_size, status.st_mtime_ns, status.st_ino & (2**63 - 1)


def _begins_as(file: IO[bytes], known: Known) -> bool:
    """Whether the part that was read is still there: by its first and its last bytes."""
    return known.offset == 0 or _probes(file, known.offset) == (known.head, known.tail)


def _probes(file: IO[bytes], offset: int) -> tuple[bytes, bytes]:
    length = min(PROBED_BYTES, offset)
    file.seek(0)
    head = file.read(length)
    file.seek(offset - length)
    return _digest(head), _digest(file.read(length))


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:16]
