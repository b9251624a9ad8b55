"""Which runs an older history can do without, listed by name first, and their deletion file by file.

Comparisons, selfchecks and watched jobs count as runs. Only what is surely one goes: a folder named as they are, with
the manifest of that name, holding plain files alone, that nobody writes. Whatever else lies among the results is never
touched.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.runner.results import open_run

RUN_NAME = re.compile(r"((?P<kind>ab|selfcheck|watch)-)?(?P<started>\d{8}T\d{6}Z)-[0-9a-f]{4}")

# After the last record a run still draws its pictures, and before the first there is no journal that could be locked.
# Of a job that is watched for long a sample is kept after each 0.3 % of its time.
SETTLED_S = 600.0
SETTLED_SHARE = 0.02
_LARGEST_MANIFEST_BYTES = 16 * 2**20
_BEING_WRITTEN = "another process is writing it"

Benchmark = tuple[str, ...]


@dataclass(frozen=True)
class Rules:
    """What may go: a run must be older than `older_than`, and for none of its benchmarks among the newest `keep_last`.

    A rule that is None asks nothing. With both None everything would go, so that is refused by `plan_pruning`.
    """

    older_than: datetime.timedelta | None = None
    keep_last: int | None = None
    machine: str | None = None


@dataclass(frozen=True)
class PrunedRun:
    """A run that the rules let go: its folder, and the reason why it goes, or why it is left alone all the same.

    One that goes has its `files` by name, and what they take.
    """

    path: Path
    reason: str
    files: tuple[str, ...] = ()
    size_bytes: int = 0

    @property
    def name(self) -> str:
        """Machine and run, as a person finds it in the results folder."""
        return f"{self.path.parent.name}/{self.path.name}"


@dataclass(frozen=True)
class Pruning:
    """What would go, what is left alone for a reason that no rule knows, and how many runs stay by the rules."""

    doomed: tuple[PrunedRun, ...]
    spared: tuple[PrunedRun, ...]
    staying: int

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.doomed)


def plan_pruning(
    results: Path,
    rules: Rules,
    holdings: Mapping[Path, frozenset[Benchmark]],
    now: datetime.datetime | None = None,
    unread: Collection[Path] = (),
) -> Pruning:
    """What the rules let go. Nothing is deleted.

    Args:
        results: The folder that holds a folder a machine.
        rules: At least one of age and number must be given.
        holdings: For each run's folder the benchmarks that it has a value of; runs not named there hold none.
        now: The time that ages are counted from; by default the present.
        unread: The runs' folders with records that this version cannot read. What those hold is not known, so
            `keep_last` lets none of them go.

    Raises:
        UserError: no rule was given, or the results folder cannot be read.
    """
    if rules.older_than is None and rules.keep_last is None:
        raise UserError("prune needs a rule: say --older-than 90d, --keep-last 20, or both.")
    now = now or datetime.datetime.now(datetime.timezone.utc)
    runs = list(_runs(results, rules.machine))
    newest = _newest(runs, holdings, rules.keep_last)
    doomed: list[PrunedRun] = []
    spared: list[PrunedRun] = []
    for path in runs:
        reason = _reason(path, rules, now, newest)
        if reason is None:
            continue
        obstacle = _obstacle(path)
        if not obstacle and rules.keep_last is not None and path in unread:
            obstacle = "it holds records that this version cannot read, so what it has measured is not known"
        if obstacle:
            spared.append(PrunedRun(path, obstacle))
        else:
            held = sorted(path.iterdir())
            doomed.append(
                PrunedRun(path, reason, tuple(file.name for file in held), sum(file.stat().st_size for file in held))
            )
    return Pruning(tuple(doomed), tuple(spared), len(runs) - len(doomed) - len(spared))


def delete(doomed: PrunedRun) -> None:
    """Delete one run: its other files, then its records, its manifest and its folder.

    A kill on the way leaves what is still a run, so that the next pruning names it again. Raises UserError if somebody
    writes the run, it holds other files than were named, or the system refuses.
    """
    obstacle = _obstacle(doomed.path)
    if obstacle:
        raise UserError(f"{doomed.name} was not deleted: {obstacle}.")
    try:
        with _locked(_journal(doomed.path)) as free:
            if not free:
                raise UserError(f"{doomed.name} was not deleted: {_BEING_WRITTEN}.")
            if {file.name for file in doomed.path.iterdir()} != set(doomed.files):
                raise UserError(f"{doomed.name} was not deleted: its files are no longer those that were named.")
            last = (_journal(doomed.path).name, _manifest_name(doomed.path))
            for name in sorted(doomed.files, key=lambda name: last.index(name) if name in last else -1):
                (doomed.path / name).unlink()
            doomed.path.rmdir()
    except OSError as error:
        raise UserError(f"{doomed.name} could not be deleted whole: {error.strerror or error}.") from None


def _began(path: Path) -> datetime.datetime | None:
    """When a run began, by its folder's name; None for a folder that is not named as runs are."""
    match = RUN_NAME.fullmatch(path.name)
    try:
        began = datetime.datetime.strptime(match["started"], "%Y%m%dT%H%M%SZ") if match else None
    except ValueError:
        return None
    return began.replace(tzinfo=datetime.timezone.utc) if began else None


def _kind(path: Path) -> str | None:
    """Of a folder that is named as runs are: what it holds, if no run."""
    match = RUN_NAME.fullmatch(path.name)
    return match and match["kind"]


def _manifest_name(path: Path) -> str:
    return f"{_kind(path) or 'run'}.json"


def _manifest(path: Path) -> Mapping[str, Any]:
    """Raises UserError where it is damaged, or there is none."""
    if _kind(path) is None:
        return open_run(path).manifest
    try:
        manifest: Mapping[str, Any] = json.loads(files.read_text(path / _manifest_name(path), _LARGEST_MANIFEST_BYTES))
        datetime.datetime.fromisoformat(manifest["started_at"])
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        raise UserError(f"it has no {_manifest_name(path)} that can be read") from None
    return manifest


def _journal(path: Path) -> Path:
    return next(iter(sorted(path.glob("*.jsonl"))), path / "records.jsonl")


def _benchmarks(path: Path, holdings: Mapping[Path, frozenset[Benchmark]]) -> frozenset[Benchmark]:
    """Of what is no run: the comparisons of a machine are one, and so are the jobs that one command started."""
    if _kind(path) is None:
        return holdings.get(path, frozenset())
    try:
        return frozenset({(str(_kind(path)), str(_manifest(path).get("command")))})
    except UserError:
        return frozenset()


def _runs(results: Path, machine: str | None) -> Iterator[Path]:
    """Folders that are named as runs are, oldest first within each machine; links are not followed."""
    try:
        machines = sorted(path for path in results.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError as error:
        raise UserError(f"The results folder {results} cannot be read: {error.strerror}.") from None
    for folder in machines:
        if machine in (None, folder.name):
            yield from sorted(
                path for path in folder.iterdir() if _began(path) and path.is_dir() and not path.is_symlink()
            )


def _newest(runs: list[Path], holdings: Mapping[Path, frozenset[Benchmark]], count: int | None) -> frozenset[Path]:
    if count is None:
        return frozenset()
    seen: Counter[tuple[str, Benchmark]] = Counter()
    newest = set()
    for path in reversed(runs):
        for benchmark in _benchmarks(path, holdings):
            seen[path.parent.name, benchmark] += 1
            if seen[path.parent.name, benchmark] <= count:
                newest.add(path)
    return frozenset(newest)


def _reason(path: Path, rules: Rules, now: datetime.datetime, newest: frozenset[Path]) -> str | None:
    reasons = []
    began = _began(path)
    if rules.older_than is not None and began is not None:
        age = now - began
        if age <= rules.older_than:
            return None
        reasons.append(f"{age / datetime.timedelta(days=1):.0f} days old")
    if rules.keep_last is not None:
        if path in newest:
            return None
        reasons.append(f"not among the last {rules.keep_last} of any benchmark")
    return ", ".join(reasons)


def _obstacle(path: Path) -> str | None:
    """Why a folder that is named as runs are cannot be deleted; None if nothing speaks against it."""
    try:
        manifest = _manifest(path)
        held = list(path.iterdir())
        touched = max(file.lstat().st_mtime for file in [path, *held])
        with _locked(_journal(path)) as free:
            if not free:
                return _BEING_WRITTEN
    except UserError as error:
        return str(error).rstrip(".")
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if _kind(path) is None and manifest.get("run_id") != path.name:
        return f"its manifest is that of run {manifest.get('run_id')}"
    if _kind(path) and datetime.datetime.fromisoformat(manifest["started_at"]) != _began(path):
        return f"its manifest is of what began at {manifest['started_at']}"
    others = [file.name for file in held if file.is_symlink() or not file.is_file()]
    if others:
        return f"it holds what no run writes: {', '.join(sorted(others))}"
    began = _began(path)
    settled_s = max(SETTLED_S, SETTLED_SHARE * (touched - began.timestamp()) if began else 0.0)
    if time.time() - touched < settled_s:
        return f"it changed within the last {settled_s / 60:.0f} minutes, so its run may not be over"
    return None


@contextmanager
def _locked(journal: Path) -> Iterator[bool]:
    """Hold the journal's lock, which every writer takes, and tell whether it was free, as it is without a journal."""
    # Windows refuses to delete a file that is open.
    if os.name == "nt" or not journal.exists():
        yield True
        return
    with files.open_for_reading(journal) as file:
        try:
            files.lock(file)
        except BlockingIOError:
            yield False
        else:
            yield True
