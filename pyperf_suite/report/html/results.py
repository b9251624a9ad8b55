"""What a report is made from: the runs of a results folder, of one machine's folder, or a single run, read leniently.

What is no record is named and passed over, as the store of history does: the records after it still count.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.nearest import nearest
from pyperf_suite.runner.journal import require_whole
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.results import LARGEST_MANIFEST_BYTES

RECORDS = "records.jsonl"
LATEST, ALL = "latest", "all"


@dataclass(frozen=True)
class Run:
    """One run as it was read; `place` is its records' path within the results folder, with forward slashes."""

    machine: str
    run_id: str
    place: str
    manifest: Mapping[str, Any]
    records: tuple[Record, ...]

    def said(self, name: str) -> str:
        """A word of the manifest; empty where it does not say."""
        value = self.manifest.get(name)
        return str(value) if isinstance(value, str | int) else ""

    @property
    def started_at(self) -> str:
        """ISO 8601, by the manifest or else by the first record."""
        return self.said("started_at") or (self.records[0].started_at if self.records else "")

    def of_probe(self, probe: str) -> list[Record]:
        """The records of one probe, in the order written."""
        return [record for record in self.records if record.probe == probe]


@dataclass(frozen=True)
class Results:
    """All runs, oldest first within a machine; `root` is the folder that holds machines' folders."""

    root: Path
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()
    single: bool = False

    @property
    def machines(self) -> list[str]:
        """Folder names, in order."""
        return sorted({run.machine for run in self.runs})

    def of_machine(self, machine: str) -> list[Run]:
        """The runs of a machine, oldest first."""
        return [run for run in self.runs if run.machine == machine]


@dataclass(frozen=True)
class Told:
    """One probe in one run, as the page tells it; `others` are further runs that hold the probe."""

    probe: str
    run: Run
    records: list[Record] = field(repr=False)
    others: int = 0


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
    notes: list[str] = []
    runs = [_run(path, root, notes) for path in places]
    read = sorted((run for run in runs if run.records), key=lambda run: (run.machine, run.started_at, run.run_id))
    for note in notes:
        warnings.warn(note, stacklevel=2)
    if not read:
        damage = f" ({notes[0]})" if notes else ""
        raise UserError(
            f"No measured run was found in {asked}{damage}: measure one with `pyperf-suite run`, or name another "
            "folder."
        )
    return Results(root, tuple(read), tuple(notes), single)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name longer than any system takes
        return False


def choose(results: Results, wanted: Sequence[str] = (LATEST,)) -> dict[str, list[Told]]:
    """By machine what is told: of each probe the newest run that measured anything, all runs, or those named.

    Raises UserError for a run that there is not, or where none is wanted.
    """
    if not wanted:
        raise UserError("--runs names no run: ask for latest, all, or runs by their ids.")
    named = set(wanted) - {LATEST, ALL}
    unknown = sorted(named - {run.run_id for run in results.runs})
    if unknown:
        near = nearest(unknown[0], (LATEST, ALL))
        known = ", ".join(run.run_id for run in results.runs[-5:])
        offered = f"did you mean {near[0]}?" if near else f"the newest are {known}."
        raise UserError(f"There is no run {unknown[0][:80]} in these results: {offered}")
    chosen: dict[str, list[Told]] = {}
    for machine in results.machines:
        holding: dict[str, list[Told]] = {}
        for run in results.of_machine(machine):
            for probe in dict.fromkeys(record.probe for record in run.records if record.kind != "sentinel"):
                holding.setdefault(probe, []).append(Told(probe, run, run.of_probe(probe)))
        chosen[machine] = [told for candidates in holding.values() for told in _of_probe(candidates, wanted, named)]
    return {machine: told for machine, told in chosen.items() if told}


def _of_probe(candidates: list[Told], wanted: Sequence[str], named: set[str]) -> list[Told]:
    newest_first = candidates[::-1]
    if ALL in wanted:
        return newest_first
    found = [told for told in newest_first if told.run.run_id in named]
    if LATEST in wanted:
        measured = [told for told in newest_first if any(record.outcome == "ok" for record in told.records)]
        latest = (measured or newest_first)[0]
        found = [latest, *(told for told in found if told is not latest)]
    return [Told(told.probe, told.run, told.records, len(candidates) - len(found)) for told in found]


def _layout(asked: Path) -> tuple[Path, list[Path], bool]:
    """The root, the journals, and whether a single run was asked for."""
    if (asked / RECORDS).is_file():
        return asked.parent.parent, [asked / RECORDS], True
    runs = sorted(asked.glob(f"*/{RECORDS}"))
    if runs:
        return asked.parent, runs, False
    return asked, sorted(asked.glob(f"*/*/{RECORDS}")), False


def _run(path: Path, root: Path, notes: list[str]) -> Run:
    place = path.relative_to(root).as_posix()
    records: list[Record] = []
    damaged: list[str] = []
    parsed: set[str] = set()
    for number, line in enumerate(_lines(path, damaged), start=1):
        if not line.strip():
            continue
        try:
            require_whole(line)
            record = Record.from_json(_DECODER.decode(line.decode()))
            _check(record, parsed)
            records.append(record)
        except (ValueError, OverflowError, RecursionError, UserError) as error:
            damaged.append(f"line {number} is passed over: {str(error)[:200]}")
    if damaged:
        more = f" {len(damaged) - 1} more such." if len(damaged) > 1 else ""
        notes.append(f"{place}: {damaged[0].rstrip('.')}.{more}")
    return Run(path.parent.parent.name, path.parent.name, place, _manifest(path), tuple(records))


def _no_constant(name: str) -> float:
    raise ValueError(f"it holds {name}, which is no number of JSON")


# Not history's own decoder, which also refuses a key that comes twice: that takes longer than all else here together.
_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _lines(path: Path, damaged: list[str]) -> Iterator[bytes]:
    try:
        with files.open_for_reading(path) as file:
            yield from file
    except OSError as error:
        damaged.append(f"it cannot be read: {error.strerror}")


def _check(record: Record, parsed: set[str]) -> None:
    """Raise UserError for what no probe could read: names that are no text, a case of an operator there is not."""
    names = (record.run_id, record.case_id, record.probe, record.started_at, record.reason, record.profile)
    if not all(isinstance(name, str) for name in names):
        raise UserError("a name in it is no text")
    if not all(isinstance(held, dict) for held in (record.identity, record.state, record.kernel, record.quality)):
        raise UserError("what it says of the machine is no mapping")
    if record.case_id not in parsed:
        record.parsed_case()
        parsed.add(record.case_id)


def _manifest(path: Path) -> Mapping[str, Any]:
    """run.json beside the records; empty where it is absent or damaged, for the records say most of it themselves."""
    try:
        manifest = json.loads(files.read_text(path.with_name("run.json"), LARGEST_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}
