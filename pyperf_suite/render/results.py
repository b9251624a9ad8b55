"""What a report is made from: the runs of a results folder, of one machine's folder, or a single run, read leniently.

What is no record is named and passed over, as the store of history does: the records after it still count.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError, nearest
from pyperf_suite.render.helpers import helpers
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.results import LARGEST_MANIFEST_BYTES, record_of, sharing_machines
from pyperf_suite.spec.rows import grouped

RECORDS = "records.jsonl"
STRONGEST, LATEST, ALL = "strongest", "latest", "all"
# Of cases, beside the run that measured most: who measures a part again does not replace the whole.
_WHOLE = 0.5


@dataclass
class Evidence:
    """What a run knows of a probe: how thoroughly its cases were measured, how many of them, and how well."""

    profile: str = ""
    records: int = 0
    measured: int = 0
    converged: int = 0
    processes: set[int] = field(default_factory=set)
    cases: set[str] = field(default_factory=set)

    def add(self, record: Record) -> None:
        """Count a record."""
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
            len(self.cases) >= _WHOLE * most_cases,
            profiles.index(self.profile) if self.profile in profiles else -1,
            len(self.processes),
            10 * self.converged // max(1, self.measured),
        )


@dataclass(frozen=True)
class Run:
    """One run as its journal was read through; `place` is the journal within the results folder, with forward slashes.

    Of its records only what every run is asked for is held: how many of each outcome, what is known of each probe, the
    first record, and the last that says anything of the machine's state.
    """

    machine: str
    run_id: str
    place: str
    path: Path
    manifest: Mapping[str, Any]
    outcomes: Counter[str]
    probes: Mapping[str, Evidence]
    first: Record
    last: Record

    def said(self, name: str) -> str:
        """A word of the manifest; empty where it does not say."""
        value = self.manifest.get(name)
        return str(value) if isinstance(value, str | int) else ""

    @property
    def started_at(self) -> str:
        """ISO 8601, by the manifest or else by the first record."""
        return self.said("started_at") or self.first.started_at

    def records(self) -> list[Record]:
        """All records, read anew."""
        return [record for _, record in _records(self.path, [])]


@dataclass(frozen=True)
class Results:
    """All runs, oldest first within a machine; `root` is the folder that holds machines' folders."""

    root: Path
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()
    single: bool = False

    def of_machine(self, machine: str) -> list[Run]:
        """The runs of a machine, oldest first."""
        return [run for run in self.runs if run.machine == machine]


@dataclass(frozen=True)
class Choice:
    """One probe as one run measured it; `others` are the runs that hold it too and are not shown, newest first."""

    probe: str
    run: Run
    others: tuple[Run, ...] = ()


def read_results(asked: Path, machine: str | None = None) -> Results:
    """Every run below the folder, whichever of the three it is.

    Raises UserError where there is no such folder, nothing in it was measured, or the machine is not in it.
    """
    if not _is_folder(asked):
        raise UserError(f"There is no results folder {asked}: measure one with `pyperf-suite run`, or name another.")
    asked = asked.resolve()
    root, places, single = _layout(asked)
    if machine is not None:
        known = sorted({path.parent.parent.name for path in places})
        places = [path for path in places if path.parent.parent.name == machine]
        if not places and known:
            raise UserError(f"Machine {machine[:80]!r} is not in {asked.name}: it holds {', '.join(known)}.")
    with helpers(sum(path.stat().st_size for path in places)) as submit:
        if not single:
            submit(_bring_history_up_to_date, root)
        # The largest first, so that none is waited for alone.
        largest_first = sorted(places, key=lambda path: -path.stat().st_size)
        answers = {path: submit(_run, path, root) for path in largest_first}
        runs = [answers[path].result() for path in places]
    notes = [note for _, note in runs if note]
    read = sorted((run for run, _ in runs if run), key=lambda run: (run.machine, run.started_at, run.run_id))
    for note in notes:
        warnings.warn(note, stacklevel=2)
    if not read:
        damage = f" ({notes[0]})" if notes else ""
        raise UserError(
            f"No measured run was found in {asked}{damage}: measure one with `pyperf-suite run`, or name another "
            "folder."
        )
    return Results(root, tuple(read), tuple(notes), single)


def _bring_history_up_to_date(root: Path) -> None:
    """While journals are read here: the section of history finds it done, or says what stands in the way."""
    from pyperf_suite.history.stored.store import Store

    with contextlib.suppress(UserError), Store(root) as store:
        store.update()


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name longer than any system takes
        return False


def choose(results: Results, wanted: Sequence[str] = (STRONGEST,)) -> dict[str, list[Choice]]:
    """By machine what is shown: each probe's strongest evidence, its newest run, all runs, or those named.

    Raises UserError for a run that there is not, or where none is wanted.
    """
    words = (STRONGEST, LATEST, ALL)
    if not wanted:
        raise UserError(f"--runs names no run: ask for {', '.join(words)}, or runs by their ids.")
    named = set(wanted) - set(words)
    unknown = sorted(named - {run.run_id for run in results.runs})
    if unknown:
        near = nearest(unknown[0], words)
        known = ", ".join(run.run_id for run in results.runs[-5:])
        offered = f"did you mean {near[0]}?" if near else f"the newest are {known}."
        raise UserError(f"There is no run {unknown[0][:80]} in these results: {offered}")
    chosen: dict[str, list[Choice]] = {}
    for machine, runs in grouped(results.runs, lambda run: run.machine).items():
        holding = grouped(((probe, run) for run in runs for probe in run.probes), lambda item: item[0])
        found = [
            choice for probe, held in holding.items() for choice in _of_probe(probe, [run for _, run in held], wanted)
        ]
        chosen |= {machine: found} if found else {}
    return chosen


def _of_probe(probe: str, runs: list[Run], wanted: Sequence[str]) -> list[Choice]:
    """The probe with each run that is shown, and the others that hold it."""
    newest_first = runs[::-1]
    most = max(len(run.probes[probe].cases) for run in runs)
    shown = [run for run in newest_first if ALL in wanted or run.run_id in wanted]
    first = {
        STRONGEST: max(newest_first, key=lambda run: run.probes[probe].strength(most)),
        LATEST: next((run for run in newest_first if run.probes[probe].measured), newest_first[0]),
    }
    shown = list({run.place: run for run in (*(first[word] for word in first if word in wanted), *shown)}.values())
    others = tuple(run for run in newest_first if run not in shown)
    return [Choice(probe, run, others) for run in shown]


def _layout(asked: Path) -> tuple[Path, list[Path], bool]:
    """The root, the journals, and whether a single run was asked for."""
    if (asked / RECORDS).is_file():
        return asked.parent.parent, [asked / RECORDS], True
    runs = sorted(asked.glob(f"*/{RECORDS}"))
    if runs:
        return asked.parent, runs, False
    return asked, sorted(asked.glob(f"*/*/{RECORDS}")), False


def _run(path: Path, root: Path) -> tuple[Run | None, str]:
    """The run of a journal, None where it holds no record, and what of it was passed over."""
    place = path.relative_to(root).as_posix()
    damaged: list[str] = []
    outcomes: Counter[str] = Counter()
    probes: dict[str, Evidence] = {}
    first = last = None
    for _, record in _records(path, damaged):
        first = first or record
        last = record if last is None or record.state else last
        if record.kind != "sentinel":
            outcomes[record.outcome] += 1
            probes.setdefault(record.probe, Evidence()).add(record)
    more = f" {len(damaged) - 1} more such." if len(damaged) > 1 else ""
    note = f"{place}: {damaged[0].rstrip('.')}.{more}" if damaged else ""
    if first is None or last is None:
        return None, note
    manifest = _manifest(path)
    return Run(path.parent.parent.name, path.parent.name, place, path, manifest, outcomes, probes, first, last), note


def _records(path: Path, damaged: list[str]) -> Iterator[tuple[int, Record]]:
    """Every record with the number of its line; why others are none goes to `damaged`."""

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

    return sharing_machines(readable())


def _manifest(path: Path) -> Mapping[str, Any]:
    """run.json beside the records; empty where it is absent or damaged, for the records say most of it themselves."""
    try:
        manifest = json.loads(files.read_text(path.with_name("run.json"), LARGEST_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}
