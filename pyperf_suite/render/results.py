"""Choose the records of a report: the runs of a results folder, of one machine's folder, or a single run."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError, nearest
from pyperf_suite.extensions import OtherRecord
from pyperf_suite.findings.rows import grouped
from pyperf_suite.record.journal import record_of, sharing_machines, without_replaced
from pyperf_suite.record.record import Record
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.runner.results import LARGEST_MANIFEST_BYTES, RECORDS, order_of, run_files

STRONGEST, LATEST, EVERY_RUN = "strongest", "latest", "all"
# Relative to the run with the most cases: who measures a part again does not replace the whole.
_COMPLETE_SHARE = 0.5


@dataclass
class RunEvidence:
    """Evidence of a run on a probe: how thoroughly its cases were measured, how many of them, and how well."""

    profile: str = ""
    records: int = 0
    measured: int = 0
    converged: int = 0
    processes: set[int] = field(default_factory=set)
    cases: set[str] = field(default_factory=set)

    def add(self, record: Record) -> None:
        self.records += 1
        if record.outcome == "ok":
            self.profile = record.profile
            self.measured += 1
            self.converged += bool(record.quality.get("converged", True))
            self.processes.add(record.process)
            self.cases.add(record.case_id)

    def strength(self, most_cases: int) -> tuple[bool, bool, int, int, int]:
        """Sorts the strongest last: anything measured, the whole sweep, profile, processes, convergence in tenths."""
        profiles = list(PROFILES)
        return (
            self.measured > 0,
            len(self.cases) >= _COMPLETE_SHARE * most_cases,
            profiles.index(self.profile) if self.profile in profiles else -1,
            len(self.processes),
            10 * self.converged // max(1, self.measured),
        )

    def __str__(self) -> str:
        processes = len(self.processes)
        return f"{self.profile or 'no profile'}, {processes} process{'es' if processes != 1 else ''}"


@dataclass(frozen=True)
class ReadRun:
    """One run as its journal was read through; `place` is the journal within the results folder, with forward slashes.

    It holds how many records there are of each outcome, what is known of each probe, the first record, and the last
    that has the machine's state.
    """

    machine: str
    run_id: str
    place: str
    path: Path
    manifest: Mapping[str, Any]
    outcomes: Counter[str]
    probes: Mapping[str, RunEvidence]
    first: Record
    last: Record

    def said(self, name: str) -> str:
        """A word of the manifest; empty if it has none of that name."""
        value = self.manifest.get(name)
        return str(value) if isinstance(value, str | int) else ""

    @property
    def started_at(self) -> str:
        """ISO 8601, by the manifest or else by the first record."""
        return self.said("started_at") or self.first.started_at

    @property
    def commit(self) -> str:
        """Nine digits, with + for changes that were not committed."""
        source = self.first.state.get("source")
        source = source if isinstance(source, dict) else {}
        return f"{str(source.get('commit') or '')[:9]}{'+' if source.get('dirty') else ''}"

    def records(self) -> list[Record]:
        return list(_records(self.path, []))


@dataclass(frozen=True)
class Results:
    """All runs and other records, oldest first within a machine; `root` is the folder that holds machines' folders."""

    root: Path
    runs: tuple[ReadRun, ...]
    notes: tuple[str, ...] = ()
    single: bool = False
    others: tuple[OtherRecord, ...] = ()

    def of_machine(self, machine: str) -> list[ReadRun]:
        return [run for run in self.runs if run.machine == machine]


@dataclass(frozen=True)
class ChosenRun:
    """One probe as one run measured it; `others` are the runs that hold it too and are not shown, newest first."""

    probe: str
    run: ReadRun
    others: tuple[ReadRun, ...] = ()


Readers = Mapping[str, Callable[[Path], OtherRecord]]
"""Readers of folders that hold other records than a run's, by the name of the file that tells them."""


def read_results(requested: Path, machine: str | None = None, readers: Readers = MappingProxyType({})) -> Results:
    """Every run below the folder, whichever of the three it is, and the other records that `readers` know.

    Raises UserError if there is no such folder, nothing in it was measured, or the machine is not in it.
    """
    try:
        is_folder = requested.is_dir()
    except OSError:  # a name longer than any system takes
        is_folder = False
    if not is_folder:
        raise UserError(
            f"There is no results folder {requested}: measure one with `pyperf-suite run`, or name another."
        )
    requested = requested.resolve()
    names = (RECORDS, *readers)
    paths = [path for name in names if (path := requested / name).is_file()]
    single = bool(paths)
    paths = paths or sorted(path for name in names for path in requested.glob(f"*/{name}"))
    root = requested.parent.parent if single else requested.parent if paths else requested
    paths = paths or run_files(requested, names)
    if machine is not None:
        known = sorted({path.parent.parent.name for path in paths})
        paths = [path for path in paths if path.parent.parent.name == machine]
        if not paths and known:
            raise UserError(f"Machine {machine[:80]!r} is not in {requested.name}: it holds {', '.join(known)}.")
    places = [path for path in paths if path.name == RECORDS]
    runs = [_run(path, root) for path in places]
    notes = [note for _, note in runs if note]
    others = []
    for path in paths:
        if path.name in readers:
            try:
                others.append(readers[path.name](path.parent))
            except UserError as error:
                notes.append(str(error))
    read = sorted((run for run, _ in runs if run), key=lambda run: (run.machine, order_of(run.run_id, run.started_at)))
    for note in notes:
        warnings.warn(note, stacklevel=2)
    if not read and not others:
        damage = f" ({notes[0]})" if notes else ""
        advice = "measure one with `pyperf-suite run`, or name another folder."
        raise UserError(f"No measured run was found in {requested}{damage}: {advice}")
    return Results(root, tuple(read), tuple(notes), single, tuple(others))


def choose(results: Results, wanted: Sequence[str] = (STRONGEST,)) -> dict[str, list[ChosenRun]]:
    """By machine each probe's runs that are shown. Raises UserError if a named one is not there, or none is wanted."""
    words = (STRONGEST, LATEST, EVERY_RUN)
    if not wanted:
        raise UserError(f"--runs names no run: ask for {', '.join(words)}, or runs by their ids.")
    ids = [*(each.run_id for each in results.runs), *(each.path.name for each in results.others)]
    unknown = sorted(set(wanted) - {*words, *ids})
    if unknown:
        near = nearest(unknown[0], words)
        known = ", ".join(ids[-5:])
        offered = f"did you mean {near[0]}?" if near else f"the newest are {known}."
        raise UserError(f"There is no run {unknown[0][:80]} in these results: {offered}")
    chosen: dict[str, list[ChosenRun]] = {}
    for machine, runs in grouped(results.runs, lambda run: run.machine).items():
        for probe in dict.fromkeys(probe for run in runs for probe in run.probes):
            found = _of_probe(probe, [run for run in runs[::-1] if probe in run.probes], wanted)
            if found:
                chosen.setdefault(machine, []).extend(found)
    return chosen


def choose_others(results: Results, wanted: Sequence[str] = (STRONGEST,)) -> list[OtherRecord]:
    """The other records that are shown: of each title the newest, all, or those named; newest first."""
    newest = {(each.machine, each.title): each.path.name for each in results.others if {STRONGEST, LATEST} & {*wanted}}
    shown = {*newest.values(), *wanted}
    return [each for each in reversed(results.others) if EVERY_RUN in wanted or each.path.name in shown]


def _of_probe(probe: str, newest_first: list[ReadRun], wanted: Sequence[str]) -> list[ChosenRun]:
    """The probe with each run that is shown, and the others that hold it."""
    most = max(len(run.probes[probe].cases) for run in newest_first)
    first = {
        STRONGEST: max(newest_first, key=lambda run: run.probes[probe].strength(most)),
        LATEST: next((run for run in newest_first if run.probes[probe].measured), newest_first[0]),
    }
    named = [run for run in newest_first if EVERY_RUN in wanted or run.run_id in wanted]
    shown = {run.place: run for run in (*(first[word] for word in first if word in wanted), *named)}
    others = tuple(run for run in newest_first if run.place not in shown)
    return [ChosenRun(probe, run, others) for run in shown.values()]


def _run(path: Path, root: Path) -> tuple[ReadRun | None, str]:
    """The run of a journal, None if it holds no record, and what of it was passed over."""
    place = path.relative_to(root).as_posix()
    damaged: list[str] = []
    outcomes: Counter[str] = Counter()
    probes: dict[str, RunEvidence] = {}
    first = last = None
    for record in _records(path, damaged):
        first = first or record
        last = record if last is None or record.state else last
        if record.kind != "sentinel":
            outcomes[record.outcome] += 1
            probes.setdefault(record.probe, RunEvidence()).add(record)
    more = f" {len(damaged) - 1} more such." if len(damaged) > 1 else ""
    note = f"{place}: {damaged[0].rstrip('.')}.{more}" if damaged else ""
    if first is None or last is None:
        return None, note
    try:
        # Records say most of it themselves, so that it may be absent or damaged.
        manifest = json.loads(files.read_text(path.with_name("run.json"), LARGEST_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        manifest = {}
    manifest = manifest if isinstance(manifest, dict) else {}
    run = ReadRun(path.parent.parent.name, path.parent.name, place, path, manifest, outcomes, probes, first, last)
    return run, note


def _records(path: Path, damaged: list[str]) -> Iterator[Record]:
    def readable() -> Iterator[tuple[int, Record]]:
        parsed: set[str] = set()
        try:
            with files.open_for_reading(path) as file:
                for number, line in enumerate(file, start=1):
                    try:
                        if line.strip():
                            record = record_of(line)
                            if record.case_id not in parsed:
                                # A case of an operator there is not: no probe could read it.
                                record.parsed_case()
                                parsed.add(record.case_id)
                            yield number, record
                    except (ValueError, OverflowError, RecursionError, UserError) as error:
                        damaged.append(f"line {number} is passed over: {str(error)[:200]}")
        except OSError as error:
            damaged.append(f"it cannot be read: {error.strerror}")

    return (record for _, record in without_replaced(sharing_machines(readable())))
