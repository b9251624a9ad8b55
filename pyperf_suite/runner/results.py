"""Find runs in `<results>/<machine>/<run-id>/`, with run.json, records.jsonl and the pictures drawn from them."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyperf_suite import files
from pyperf_suite.errors import UserError, offer
from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.record import Record

if TYPE_CHECKING:
    from pyperf_suite.hardware.machine import Identity
    from pyperf_suite.runner.plan import Plan

MANIFEST, RECORDS = "run.json", "records.jsonl"
LARGEST_MANIFEST_BYTES = 64 * 2**20
_STAMP = re.compile(r"(?:[a-z]+-)?(\d{8}T\d{6}Z)-")
_STAMP_FORMAT = "%Y%m%dT%H%M%SZ"
_LATEST = re.compile(r"latest(?:~(\d{1,6}))?")


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run and the manifest in it."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def records_path(self) -> Path:
        return self.path / RECORDS

    def records(self) -> list[Record]:
        """All records so far; none where the run was ended before its first."""
        return read_journal(self.records_path) if self.records_path.exists() else []


def stamp_of(name: str) -> str:
    """The time in a run's name, by which runs are in the order in which they were made; "" for a name of one's own."""
    found = _STAMP.match(name)
    return found[1] if found else ""


def order_of(run_id: str, started_at: str) -> tuple[str, str, str]:
    """Key by which runs are sorted: the time in a run's name, which clocks set back leave, or its beginning."""
    began = re.sub("[-:]", "", started_at)
    return stamp_of(run_id) or began, began, run_id


def new_stamp(folder: Path, now: datetime.datetime) -> str:
    """The time in the name of a new run in that folder: later than in those there, also if the clock was set back."""
    for path in folder.glob("*"):
        with contextlib.suppress(ValueError, OverflowError):  # no run, or a time that no clock shows
            made = datetime.datetime.strptime(stamp_of(path.name), _STAMP_FORMAT).replace(tzinfo=datetime.timezone.utc)
            now = max(now, made + datetime.timedelta(seconds=1))
    return now.strftime(_STAMP_FORMAT)


def run_files(results: Path, names: Sequence[str]) -> list[Path]:
    """The files of these names in runs' folders, oldest run first, own names last; also one deeper, as CI unpacks."""
    found = []
    for folder in results.glob("*/*"):
        here = [path for name in names for path in folder.glob(name)]
        found += here or [path for name in names for path in folder.glob(f"*/{name}")]
    return sorted(found, key=lambda path: (stamp_of(path.parent.name) or path.parent.name, path))


def create_run(results: Path, identity: Identity, plan: Plan, name: str | None = None) -> RunFolder:
    """Make a new run's folder and manifest, of that name or of one that says when.

    Raises UserError where the results folder cannot be written, or a name is no folder's.
    """
    if name is not None and (Path(name).name != name or name == ".." or not name.isprintable()):
        raise UserError(f"{name!r} cannot name a run: give a plain name, without slashes.")
    now = datetime.datetime.now(datetime.timezone.utc)
    folder = results / identity.slug
    path = folder / (name or f"{new_stamp(folder, now)}-{secrets.token_hex(2)}")
    manifest = {
        "run_id": path.name,
        "plan_id": plan.plan_id,
        "started_at": now.isoformat(timespec="seconds"),
        "probes": list(plan.probes),
        "profile": plan.profile.name,
        "processes": plan.profile.processes,
        "device": str(plan.device),
        "seed": plan.seed,
        "asked": list(plan.requested),
        "cases": len(plan.cases),
        "identity": dict(identity.fields),
    }
    make_folder(results, path, MANIFEST, manifest)
    return RunFolder(path, manifest)


def make_folder(results: Path, path: Path, name: str, manifest: Mapping[str, Any]) -> None:
    """Make a folder below `results` with the manifest in it, or none: UserError where it cannot be written."""
    try:
        files.make_folder(path)
        files.write_whole(path / name, json.dumps(manifest, indent=2) + "\n")
    except OSError as error:
        with contextlib.suppress(OSError):
            path.rmdir()
        raise UserError(
            f"The results folder {results} cannot be written ({error.strerror}): name another with --results, "
            "or --suite-results under pytest."
        ) from None


def read_run(path: Path) -> RunFolder:
    """The run in that folder. Raises UserError where its manifest is absent or damaged."""
    manifest_path = path / MANIFEST
    try:
        manifest = json.loads(files.read_text(manifest_path, LARGEST_MANIFEST_BYTES))
    except OSError as error:
        raise UserError(
            f"{path} is not a run's folder: {manifest_path.name} cannot be read ({error.strerror})."
        ) from None
    except (ValueError, RecursionError):
        raise UserError(f"{manifest_path} is damaged: it does not hold JSON; its records are untouched.") from None
    if not isinstance(manifest, dict) or "plan_id" not in manifest:
        raise UserError(f"{manifest_path} is not a run's manifest: it names no plan_id.")
    return RunFolder(path, manifest)


def find_run(results: Path, identity: Identity, plan: Plan, wanted: str = "latest") -> RunFolder:
    """The run to resume: the newest of the same plan on this machine, or the one named `wanted`.

    Raises UserError where there is none, or where the named run measured something else.
    """
    folder = results / identity.slug
    if wanted != "latest":
        run = read_run(folder / wanted)
        if run.manifest["plan_id"] != plan.plan_id:
            axes = "".join(f" -a {axis}" for axis in run.manifest.get("asked", ()))
            raise UserError(
                f"Run {wanted} measured other cases than those requested now. Its options were: "
                f"{' '.join(run.manifest.get('probes', ()))}{axes} --profile {run.manifest.get('profile')}."
            )
        return run
    for manifest in sorted(folder.glob(f"*/{MANIFEST}"), reverse=True):
        try:
            run = read_run(manifest.parent)
        except UserError:
            continue  # a damaged neighbour is no reason not to find the right one
        if run.manifest["plan_id"] == plan.plan_id:
            return run
    raise UserError(f"There is no run of the same cases and profile in {folder}: start one, with no --resume.")


def find_run_folder(name: str, results: Path, files: Sequence[str] = (RECORDS,)) -> Path:
    """The folder of the run of that name: its id, `latest`, or `latest~1` for the one before on the same machine.

    A run is a folder in which one of the files `files` has something in it. Raises UserError if there is no such run,
    or several machines have one.
    """
    filled = [path for path in run_files(results, files) if path.is_file() and path.stat().st_size]
    runs = list({(path.parent.parent.name, path.parent.name): path.parent for path in filled}.values())
    if not runs:
        what = "" if _LATEST.fullmatch(name) else f" {name[:80]!r}"
        raise UserError(f"There is no run{what} in {results}: measure one with `pyperf-suite run`, or name --results.")
    if latest := _LATEST.fullmatch(name):
        own = [run for run in runs if run.parent.name == runs[-1].parent.name]
        steps = int(latest[1] or 0)
        if steps < len(own):
            return own[-1 - steps]
        count = f"{len(own)} run{'s' if len(own) > 1 else ''}"
        raise UserError(f"latest~{steps} goes back beyond the first run: {own[-1].parent} holds {count}.")
    named = [run for run in runs if run.name == name]
    if len(named) > 1:
        raise UserError(f"Several machines have a run {name}: name the folder, one of {', '.join(map(str, named))}.")
    if not named:
        known = ["latest", *(run.name for run in runs[-20:])]
        raise UserError(f"There is no run {name[:80]!r} in {results}: {offer(name, known)}")
    return named[0]
