"""Where runs live: `<results>/<machine>/<run-id>/` with run.json, records.jsonl and the pictures drawn from them."""

from __future__ import annotations

import contextlib
import datetime
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.record import Record

if TYPE_CHECKING:
    from pyperf_suite.hardware.machine import Identity
    from pyperf_suite.runner.plan import Plan

LARGEST_MANIFEST_BYTES = 64 * 2**20


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
        return self.path / "records.jsonl"

    def records(self) -> list[Record]:
        """All records so far; none where the run was ended before its first."""
        return read_journal(self.records_path) if self.records_path.exists() else []


def create_run(results: Path, identity: Identity, plan: Plan, name: str | None = None) -> RunFolder:
    """Make a new run's folder and manifest, of that name or of one that says when.

    Raises UserError where the results folder cannot be written, or a name is no folder's.
    """
    if name is not None and (Path(name).name != name or name == ".." or not name.isprintable()):
        raise UserError(f"{name!r} cannot name a run: give a plain name, without slashes.")
    now = datetime.datetime.now(datetime.timezone.utc)
    path = results / identity.slug / (name or f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}")
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
    make_folder(results, path, "run.json", manifest)
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
    manifest_path = path / "run.json"
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
    for manifest in sorted(folder.glob("*/run.json"), reverse=True):
        try:
            run = read_run(manifest.parent)
        except UserError:
            continue  # a damaged neighbour is no reason not to find the right one
        if run.manifest["plan_id"] == plan.plan_id:
            return run
    raise UserError(f"There is no run of the same cases and profile in {folder}: start one, with no --resume.")
