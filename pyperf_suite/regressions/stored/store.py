"""All runs of a results folder as series, and one finished run as a side of a comparison.

The journals are the truth. What was read of each file is kept in a small cache next to the results, one file a run, and
is read anew where the run's file changed or the cache is lost, damaged or another version's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeGuard

from pyperf_suite import files
from pyperf_suite.errors import UserError, nearest, offer
from pyperf_suite.regressions.stored.foreign import read_foreign
from pyperf_suite.regressions.stored.journals import RECORDS, Measured, RunSummary, shallow, summarise_journal
from pyperf_suite.regressions.stored.series import (
    TIME,
    Benchmark,
    BenchmarkSeries,
    SeriesPoint,
    breaks_of,
    commit_of,
    unit_of,
)

# Also a run may hold thousands of cases, but what is kept of each is short.
LARGEST_CACHE_BYTES = 512 * 2**20
CACHE_VERSION = 2
_CACHE_FILE = re.compile(r"[0-9a-f]{32}\.json")
_LATEST = re.compile(r"latest(?:~(\d{1,6}))?")

CaseKey = tuple[str, str, str]  # machine, probe and case_id
Stamp = list[int]


class Store:
    """The history of a results folder. Call `update` before asking.

    `notes` are sentences about the cache, `damage` about the files: what in them is no record.
    """

    def __init__(self, results: Path) -> None:
        """Raises UserError if `results` is a file."""
        if results.exists() and not results.is_dir():
            raise UserError(f"The results folder {results} is a file: name the folder that holds the runs.")
        self.results = results
        self.damage: list[str] = []
        self._cache = RunCache(results / RunCache.NAME)
        self._watched = self._cache.watched()
        self._read: dict[str, tuple[Stamp, RunSummary]] = {}
        self._cases: dict[CaseKey, list[Measured]] = {}

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def notes(self) -> list[str]:
        return self._cache.notes

    def add(self, path: Path) -> None:
        """Read the JSON of another tool from now on too: that file, or every *.json of that folder.

        Raises UserError if there is no such path.
        """
        if not path.exists():
            raise UserError(f"There is no {path} to add: name a pytest-benchmark JSON file, or a folder of them.")
        if str(path.resolve()) not in self._watched:
            self._watched.append(str(path.resolve()))
            if self.results.is_dir():
                self._cache.watch(self._watched)

    def update(self) -> None:
        """Read the files that are new or changed since the last update, and forget those that are gone."""
        paths = {str(path.relative_to(self.results)): path for path in sorted(self.results.glob(f"*/*/{RECORDS}"))}
        foreign = {str(path): path for path in self._foreign_files()}
        before, self._read, self.damage = self._read, {}, []
        for name, path in (paths | foreign).items():
            try:
                found = path.stat()
                if not stat.S_ISREG(found.st_mode):
                    self.damage.append(f"{path} is not a regular file and was not read.")
                    continue
                known = before.get(name)
                if known is None or known[0] != _stamp(found):
                    known = self._summary(name, path, found, name in foreign)
            except OSError as error:
                self.damage.append(f"{path} cannot be read: {error.strerror}.")
                continue
            self._read[name] = known
            # A foreign file's sentences name it; a journal's do not, for the results folder may be moved.
            self.damage += [each if name in foreign else f"{path}, {each}" for each in known[1].damage]
        self._cache.forget_all_but(self._read)
        self._cases = {}
        for one in self.measured:
            self._cases.setdefault((one.machine, one.probe, one.case_id), []).append(one)

    def benchmarks(self, pattern: str | None = None, machine: str | None = None) -> list[Benchmark]:
        """What was measured, by machine, probe and label.

        `pattern` is a case_id, a label (with its metric), a part of one, or a glob over it; None for all.
        """
        found = []
        for case, runs in self._cases.items():
            for metric in dict.fromkeys(name for one in runs for name in _metrics(one)):
                having = {one.run_id: one for one in reversed(runs) if metric in _metrics(one)}.values()
                last = max(having, key=lambda one: one.started_at)
                values = {_value(one, metric) for one in having}
                benchmark = Benchmark(
                    *(*case, metric, last.label, last.kind, "s" if metric == TIME else last.exact[metric][0]),
                    count=len(having),
                    first=min(one.started_at for one in having),
                    last=last.started_at,
                    constant=len(values) == 1,
                )
                if machine in (None, benchmark.machine) and _matches(benchmark, pattern):
                    found.append(benchmark)
        return sorted(found, key=lambda one: (one.machine, one.probe, one.label, one.metric))

    def series(self, benchmark: Benchmark) -> BenchmarkSeries:
        runs = {one.run_id: one for one in reversed(self._cases.get(benchmark.key[:3], []))}  # a copy counts once
        in_order = sorted(runs.values(), key=lambda one: (one.started_at, one.run_id))
        points = [_point(one, benchmark.metric) for one in in_order if benchmark.metric in _metrics(one)]
        return BenchmarkSeries(
            *(benchmark.machine, benchmark.probe, benchmark.case_id, benchmark.label, benchmark.unit_of_measure),
            points=tuple(points),
            breaks=tuple(breaks_of(points, benchmark.kind)),
            metric=benchmark.metric,
            kind=benchmark.kind,
            failed_runs=tuple(one.run_id for one in in_order if one.failed and not _metrics(one)),
        )

    @property
    def measured(self) -> list[Measured]:
        """What each run measured of each case."""
        return [one for _, summary in self._read.values() for one in summary.measured]

    def journals(self) -> dict[tuple[str, str], Path]:
        """The journal of each run, by machine and run_id."""
        files_read = ((self.results / name, summary.measured) for name, (_, summary) in self._read.items())
        return {(one.machine, one.run_id): path for path, measured in files_read for one in measured}

    def why_nothing(self, pattern: str | None = None, machine: str | None = None) -> str:
        """The sentence to print if `benchmarks` found none: what was requested, what there is, what to do."""
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

    def _foreign_files(self) -> Iterator[Path]:
        for path in map(Path, self._watched):
            yield from sorted(path.rglob("*.json")) if path.is_dir() else [path] if path.exists() else []

    def _summary(self, name: str, path: Path, found: os.stat_result, is_foreign: bool) -> tuple[Stamp, RunSummary]:
        """What a file holds, from the cache or itself. Raises OSError if it cannot be read."""
        stamp = _stamp(found)
        kept = self._cache.get(name, stamp)
        if kept is not None:
            return stamp, kept
        if is_foreign:
            try:
                summary = read_foreign(path)
            except UserError as error:
                summary = RunSummary(damage=[str(error)])
        else:
            with files.open_for_reading(path) as file:
                # Taken before reading: what is written meanwhile makes it another's next time.
                stamp = _stamp(os.fstat(file.fileno()))
                summary = summarise_journal(file, path.parent.parent.name)
        self._cache.put(name, stamp, summary)
        return stamp, summary


class RunCache:
    """What was read of each file, by the file's name and stamp, in a folder that git ignores.

    It holds nothing that the files do not, but for the list of the folders watched: losing it costs time. `notes` say
    why it is not kept, if it is not.
    """

    NAME = ".history-cache"
    _WATCHED = "also.json"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []

    def get(self, name: str, stamp: Stamp) -> RunSummary | None:
        """None if the file was never read, was another then, or what is kept of it is damaged."""
        try:
            content = files.read_bytes(self._place(name), LARGEST_CACHE_BYTES)
            checksum, _, body = content.partition(b"\n")
            if checksum != b"%08x" % zlib.crc32(body):
                return None
            kept = json.loads(body)
            if kept["version"] != CACHE_VERSION or kept["stamp"] != stamp or not _are_texts(kept["damage"]):
                return None
            states = [shallow(state) for state in kept["states"] if isinstance(state, dict)]
            return RunSummary([_measured(row, states) for row in kept["measured"]], kept["damage"])
        except (OSError, RecursionError, LookupError, TypeError, ValueError, AttributeError):
            return None

    def put(self, name: str, stamp: Stamp, summary: RunSummary) -> None:
        states: dict[str, int] = {}
        rows = []
        for one in summary.measured:
            # The last field is the state.
            state = states.setdefault(json.dumps(dict(one.state)), len(states))
            rows.append([*one[:-1], state])
        kept = {"version": CACHE_VERSION, "stamp": stamp, "damage": summary.damage, "measured": rows}
        # Texts already: what all cases share is written once.
        body = f'{json.dumps(kept)[:-1]}, "states": [{", ".join(states)}]}}'.encode()
        self._write(self._place(name).name, b"%08x\n" % zlib.crc32(body) + body)

    def forget_all_but(self, names: Iterable[str]) -> None:
        wanted = {self._place(name).name for name in names}
        with contextlib.suppress(OSError):
            for left in self.folder.iterdir() if not self.folder.is_symlink() else ():
                if _CACHE_FILE.fullmatch(left.name) and left.name not in wanted:
                    left.unlink()

    def watched(self) -> list[str]:
        with contextlib.suppress(OSError, ValueError):
            found = files.strict_json(files.read_bytes(self.folder / self._WATCHED, 2**20))
            return found if _are_texts(found) else []
        return []

    def watch(self, paths: list[str]) -> None:
        self._write(self._WATCHED, json.dumps(paths).encode())

    def _place(self, name: str) -> Path:
        return self.folder / f"{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:32]}.json"

    def _obstacle(self) -> str:
        try:
            self.folder.mkdir()
            (self.folder / ".gitignore").write_text("*\n")
        except FileExistsError:
            mode = os.lstat(self.folder).st_mode
            return "" if stat.S_ISDIR(mode) else f"it is {files.kind_of(mode)}"
        return ""

    def _write(self, name: str, content: bytes) -> None:
        """Whole or not at all, but not waiting for the disk: what a power cut takes is read anew."""
        if self.notes:
            return
        temporary = self.folder / f".{os.urandom(8).hex()}"
        try:
            if obstacle := self._obstacle():
                raise OSError(0, obstacle)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                files.write_all(descriptor, content)
            finally:
                os.close(descriptor)
            temporary.replace(self.folder / name)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            self.notes.append(
                f"The cache {self.folder} cannot be kept ({error.strerror}): the records are read anew each time."
            )


@dataclass(frozen=True)
class Side:
    """One finished run. `notes` are sentences about what of it could not be read, `run_ids` name it in the history."""

    name: str
    machine: str
    benchmarks: Mapping[tuple[str, str], Measured]  # by probe and case_id
    notes: tuple[str, ...] = ()
    run_ids: frozenset[str] = frozenset()

    @property
    def commit(self) -> str:
        """The commit of the last benchmark that names one; "" without any."""
        return next((one.commit for one in reversed(list(self.benchmarks.values())) if one.commit), "")


def find_side(name: str, results: Path, machine: str | None = None) -> Side:
    """The side that a person names: a path, a run's name, `latest`, or `latest~1` for the one before.

    Runs are looked for in `results`, on one machine if `machine` is its slug. `latest` is the newest run that recorded
    anything, and `latest~1` the one before it on the same machine. Raises UserError if there is none of that name,
    several of it, or it cannot be read.
    """
    if latest := _LATEST.fullmatch(name):
        return read_side(_counted_back(int(latest[1] or 0), results, machine))
    if _exists(Path(name)):
        return read_side(Path(name))
    there = _runs_in(results, machine)
    runs = [run for run in there if run.name == name]
    if not runs:
        near = nearest(name, {run.name for run in there})
        raise UserError(
            f"There is no run, folder or file {name[:80]!r}, neither here nor in {results}: "
            + (f"did you mean {' or '.join(near)}? Else " if near else "")
            + "name a run's folder or its name, a records.jsonl, a pytest-benchmark JSON file, or latest."
        )
    if len(runs) > 1:
        raise UserError(f"Several machines have a run {name}: name the folder, one of {', '.join(map(str, runs))}.")
    return read_side(runs[0])


def read_side(path: Path) -> Side:
    """The side at that path: a run's folder, records (a name in .jsonl), or another tool's JSON (any other name).

    Raises UserError if it is none of these, cannot be read, holds no result, or holds results of several machines.
    """
    if path.is_dir():
        if not (path / RECORDS).exists():
            raise UserError(f"{path} is not a run's folder, for it holds no {RECORDS}: name one, or a file.")
        path = path / RECORDS
    if path.suffix == ".jsonl":
        try:
            with files.open_named_by_user(path) as file:
                summary = summarise_journal(file, path.resolve().parent.parent.name)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from None
        notes = [f"{path}, {each}" for each in (*summary.damage, summary.torn) if each]
    else:
        summary = read_foreign(path)
        notes = summary.damage
    if not summary.measured:
        raise UserError(f"{path} holds no results to compare.{' ' if notes else ''}{' '.join(notes[:1])}")
    machines = {one.machine for one in summary.measured}
    if len(machines) > 1:
        raise UserError(f"{path} holds results of several machines ({', '.join(sorted(machines))}): compare one each.")
    return Side(
        str(path.parent if path.name == RECORDS else path),
        machines.pop(),
        {(one.probe, one.case_id): one for one in summary.measured},
        tuple(notes),
        frozenset(one.run_id for one in summary.measured),
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or that no file can have
        return False


def _counted_back(steps: int, results: Path, machine: str | None) -> Path:
    runs = _runs_in(results, machine)
    if not runs:
        raise UserError(f"There is no run in {results}: measure one with `pyperf-suite run`, or name --results.")
    own = [run for run in runs if run.parent == runs[-1].parent]
    if steps >= len(own):
        raise UserError(
            f"latest~{steps} goes back beyond the first run: {own[-1].parent} holds "
            f"{len(own)} run{'s' if len(own) > 1 else ''}."
        )
    return own[-1 - steps]


def _runs_in(results: Path, machine: str | None) -> list[Path]:
    """Every run's folder that holds a record, the oldest first: a run's name begins with its time."""
    found = results.glob(f"{'*' if machine is None else machine}/*/{RECORDS}")
    runs = [records.parent for records in found if records.is_file() and records.stat().st_size]
    return sorted(runs, key=lambda run: (run.name, run.parent.name))


def _matches(benchmark: Benchmark, pattern: str | None) -> bool:
    if pattern is None or pattern == benchmark.case_id:
        return True
    # fnmatch would take the brackets of a label for a set of characters.
    return pattern in benchmark.title or fnmatchcase(benchmark.title, pattern.replace("[", "[[]"))


def _metrics(one: Measured) -> tuple[str, ...]:
    return (TIME,) if one.medians else tuple(one.exact)


def _value(one: Measured, metric: str) -> float:
    return one.seconds if metric == TIME else one.exact[metric][1]


def _point(one: Measured, metric: str) -> SeriesPoint:
    value = _value(one, metric)
    is_time = metric == TIME
    return SeriesPoint(
        run_id=one.run_id,
        started_at=one.started_at,
        value=value,
        low=one.low if is_time else value,
        high=one.high if is_time else value,
        medians=one.medians if is_time else (value,),
        ok=one.ok,
        failed=one.failed,
        unsupported=one.unsupported,
        commit=commit_of(one.state)[0],
        dirty=one.dirty,
        unit=unit_of(one.state),
        clock_hz=one.clock_hz,
        state=one.state,
    )


def _stamp(found: os.stat_result) -> Stamp:
    """What tells a file that was written from one that was not."""
    return [found.st_size, found.st_mtime_ns, found.st_ino]


_MEDIANS, _EXACT = Measured._fields.index("medians"), Measured._fields.index("exact")
_TYPES = tuple(
    (*[str] * 7, list, float, float, dict, int, int, int, str, bool, clock, str, int) for clock in (float, type(None))
)


def _measured(row: Any, states: list[dict[str, Any]]) -> Measured:
    """The inverse of what `RunCache.put` writes. Raises ValueError, TypeError or LookupError for anything else."""
    types = tuple(map(type, row))
    if types not in _TYPES:
        raise ValueError("not a row of the cache")
    row[_MEDIANS], row[-1] = tuple(row[_MEDIANS]), states[row[-1]]
    if row[_EXACT]:
        row[_EXACT] = {name: (str(unit), float(value)) for name, (unit, value) in row[_EXACT].items()}
    one = Measured._make(row)
    figures = [
        *one.medians,
        1.0 if one.clock_hz is None else one.clock_hz,
        *([one.low, one.high] if one.medians else ()),
    ]
    if min(figures) <= 0 or not all(map(math.isfinite, [*figures, *(value for _, value in one.exact.values())])):
        raise ValueError("figures that are none")
    return one


def _are_texts(found: Any) -> TypeGuard[list[str]]:
    return isinstance(found, list) and all(isinstance(each, str) for each in found)
