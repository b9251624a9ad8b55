"""All runs of a results folder as series, and one finished run as a side of a comparison.

The journals are the truth. What was read of each is kept in a cache, and read anew where that or the journal changed.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
import os
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyperf_suite import files
from pyperf_suite.errors import UserError, nearest, offer
from pyperf_suite.findings.rows import grouped
from pyperf_suite.record.journal import is_being_written
from pyperf_suite.regressions.stored import series
from pyperf_suite.regressions.thresholds import selects
from pyperf_suite.regressions.verdict import Judgement
from pyperf_suite.runner.results import MANIFEST, RECORDS, find_run_folder, run_files
from pyperf_suite.workloads.backends import kept_folder

# Also a run may hold thousands of cases, but what is kept of each is short.
LARGEST_CACHE_BYTES = 512 * 2**20
CACHE_VERSION = 3
# Summaries that are left however few are used.
FEWEST_KEPT = 500
_MEDIANS = series.Measured._fields.index("medians")


class Store:
    """The history of a results folder as its journals were; `notes` on the cache, `damage` on what is no record."""

    def __init__(self, results: Path) -> None:
        """Raises UserError if `results` is a file."""
        if results.exists() and not results.is_dir():
            raise UserError(f"The results folder {results} is a file: name the folder that holds the runs.")
        self.results = results
        self.damage: list[str] = []
        self._read: dict[Path, series.RunSummary] = {}
        self._lost: dict[Path, str] = {}
        cache = SummaryCache()
        # A run whose journal is gone was made, too.
        self._paths = [*dict.fromkeys(path.parent / RECORDS for path in run_files(results, [RECORDS, MANIFEST]))]
        with _without_collecting():
            for path in self._paths:
                try:
                    self._read[path] = cache.summary_of(path)
                except OSError as error:
                    self._lost[path] = str(error.strerror)
                    self.damage.append(f"{path} cannot be read: {error.strerror}.")
                else:
                    self.damage += [f"{path}, {each}" for each in self._read[path].damage]
        cache.prune(len(self._read))
        self.notes = [cache.why_not_kept] if cache.why_not_kept else []

    @functools.cached_property
    def measured(self) -> list[series.Measured]:
        """Measurements of each case by each run, in the order in which the runs were made, whatever the clock said."""
        runs = sorted(self._read.values(), key=lambda summary: summary.order)
        return [one for summary in runs for one in summary.measured]

    def of_machine(self, machine: str | None) -> list[series.Measured]:
        """Return measurements of that machine, or of any, by run and case."""
        return [one for one in self.measured if machine in (None, one.machine)]

    def unreadable(self, machine: str | None = None) -> list[Judgement]:
        """A failed judgement for the newest run of each machine if it is over and holds no record that can be read."""
        measured = {path for path, read in self._read.items() if read.measured}
        over = (path for path in self._paths if path in measured or not is_being_written(path))
        newest = {path.parent.parent.name: path for path in over}
        failures = []
        for name, path in newest.items():
            if machine in (None, name) and path not in measured:
                read = self._read.get(path)
                said = next(iter(read.damage), read.torn) if read else self._lost[path]
                why = f": {said.rstrip('.')}" if said else ""
                sentence = f"{path}, the newest run, holds no record that can be read{why}."
                failures.append(Judgement(path.parent.name, "", "", "failed", None, 0.0, sentence, {"machine": name}))
        return failures

    def series(self, pattern: str | None = None, machine: str | None = None) -> list[series.BenchmarkSeries]:
        """The series, by machine, probe and label, of what the `pattern` of `selects` leaves."""
        cases = grouped(self.of_machine(machine), lambda run: (run.machine, run.probe, run.case_id))
        of_cases = []
        for runs in cases.values():
            in_order = [*{run.run_id: run for run in reversed(runs)}.values()][::-1]  # a copy of a run counts once
            failed_runs = tuple(run.run_id for run in in_order if run.failed and not run.metrics)
            by_metric: dict[str, list[series.Measured]] = defaultdict(list)
            for run in in_order:
                for metric in run.metrics:
                    by_metric[metric].append(run)
            for metric, having in by_metric.items():
                points = having if metric == series.TIME else [run.figure(metric) for run in having]
                last = having[-1]
                names = (last.machine, last.probe, last.case_id, last.label)
                unit = "s" if metric == series.TIME else last.exact[metric][0]
                of_cases.append(series.BenchmarkSeries(*names, unit, tuple(points), metric, last.kind, failed_runs))
        of_cases = [each for each in of_cases if selects(pattern, each.probe, each.title, each.case_id)]
        return sorted(of_cases, key=lambda each: (each.machine, each.probe, each.label, each.metric))

    def journals(self) -> dict[tuple[str, str], Path]:
        """The journal of each run, by machine and run_id."""
        return {(one.machine, one.run_id): path for path, read in self._read.items() for one in read.measured}

    def why_nothing(self, pattern: str | None = None, machine: str | None = None) -> str:
        """The sentence to print if `series` found none: what was requested, what there is, what to do."""
        where = f"{self.results}" + (f" for machine {machine}" if machine else "")
        if pattern is not None and (labels := {one.label for one in self.measured if machine in (None, one.machine)}):
            near = nearest(pattern, labels)
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            return f"No benchmark in {where} matches {pattern!r}: {meant}`pyperf-suite history` lists those there are."
        if machine is not None and (machines := {one.machine for one in self.measured}):
            return f"No measured run was found in {where}: {offer(machine, sorted(machines))}"
        if self.damage:
            more = f" {len(self.damage) - 1} more such." if len(self.damage) > 1 else ""
            return f"No measured run that can be read was found in {where}: {self.damage[0].rstrip('.')}.{more}"
        return f"No measured run was found in {where}: measure one with `pyperf-suite run`, or say --results."


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Collect no garbage where all that is made stays, then or later: looking through it takes as long as making it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


class SummaryCache:
    """Contents of each journal in the user's cache folder, whose loss costs time; `why_not_kept` where none are."""

    def __init__(self) -> None:
        self.folder = kept_folder("history")
        self.why_not_kept = ""
        self._has_put = False
        try:
            if self.folder is None:
                raise OSError(0, "there is none")
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if foreign := files.why_not_private(self.folder):
                raise OSError(0, foreign)
        except OSError as error:
            self._give_up(error)

    def summary_of(self, journal: Path) -> series.RunSummary:
        """Return the journal's contents, from the cache or by reading it. Raises OSError if it cannot be read."""
        with files.open_for_reading(journal) as file:
            # Taken before reading: a line written meanwhile makes it another's next time.
            found = os.fstat(file.fileno())
            stamp = [CACHE_VERSION, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
            kept = self._get(journal, stamp)
            if kept is None:
                kept = series.summarise_journal(file, journal.parent.parent.name)
                self._put(journal, stamp, kept)
            elif not self.why_not_kept:
                with contextlib.suppress(OSError):
                    os.utime(self._place(journal))  # used now
        return kept

    def prune(self, used: int) -> None:
        """Leave the summaries that were used last: twice those of this time, and of other results folders some."""
        if self.folder is None or not self._has_put:
            return
        with contextlib.suppress(OSError):
            kept = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in kept[: -max(2 * used, FEWEST_KEPT)]:
                path.unlink(missing_ok=True)

    def _get(self, journal: Path, stamp: list[int]) -> series.RunSummary | None:
        if self.why_not_kept:
            return None
        try:
            checksum, _, body = files.read_bytes(self._place(journal), LARGEST_CACHE_BYTES).partition(b"\n")
            if checksum != b"%08x" % zlib.crc32(body) or (kept := json.loads(body))["stamp"] != stamp:
                return None
            states = [*map(series.State, kept["states"])]
            for row in kept["measured"]:
                row[_MEDIANS], row[-1] = tuple(row[_MEDIANS]), states[row[-1]]
            return series.RunSummary([series.Measured._make(row) for row in kept["measured"]], kept["damage"])
        except (OSError, RecursionError, LookupError, TypeError, ValueError):
            return None

    def _put(self, journal: Path, stamp: list[int], summary: series.RunSummary) -> None:
        if self.why_not_kept:
            return
        # The state, common to all cases of a run, is written once.
        states: dict[str, int] = {}
        rows = [[*one[:-1], states.setdefault(json.dumps(dict(one.state)), len(states))] for one in summary.measured]
        kept = {"stamp": stamp, "damage": summary.damage, "measured": rows, "states": [*map(json.loads, states)]}
        body = json.dumps(kept).encode()
        try:
            self._has_put = True
            files.write_whole(self._place(journal), b"%08x\n" % zlib.crc32(body) + body)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.why_not_kept = (
            f"What was read cannot be kept in the cache folder ({error.strerror}): the records are read anew each time."
        )

    def _place(self, journal: Path) -> Path:
        assert self.folder is not None
        name = hashlib.sha256(os.fsencode(journal.resolve())).hexdigest()[:32]
        return self.folder / f"{name}.json"


@dataclass(frozen=True)
class Side:
    """One finished run. `notes` are sentences about what of it could not be read, `run_ids` name it in the history."""

    name: str
    machine: str
    benchmarks: Mapping[tuple[str, str], series.Measured]  # by probe and case_id
    notes: tuple[str, ...] = ()
    run_ids: frozenset[str] = frozenset()

    @property
    def commit(self) -> str:
        """The commit of the last benchmark that names one; "" without any. A sentinel's is this suite's."""
        own = (one for one in reversed(list(self.benchmarks.values())) if one.kind != "sentinel" and one.commit)
        return next((one.commit for one in own), "")


def find_side(name: str, results: Path) -> Side:
    """The side of a path, or of a run as `find_run_folder` knows it. Raises UserError for none, or several."""
    try:
        is_path = Path(name).exists()
    except (OSError, ValueError):  # a name that is too long, or that no file can have
        is_path = False
    return read_side(Path(name) if is_path else find_run_folder(name, results))


def read_side(path: Path) -> Side:
    """A run's folder, or records. Raises UserError for neither, no result, or several machines' results."""
    if path.is_dir():
        if not (path / RECORDS).exists():
            raise UserError(f"{path} is not a run's folder, for it holds no {RECORDS}: name one, or a file.")
        path = path / RECORDS
    try:
        with files.open_for_reading(path, may_be_pipe=True) as file:
            summary = series.summarise_journal(file, path.resolve().parent.parent.name)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    notes = [f"{path}, {each}" for each in (*summary.damage, summary.torn) if each]
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
