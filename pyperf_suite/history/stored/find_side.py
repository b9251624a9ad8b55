"""Which run or file a person means: a path, a run's name, `latest`, or `latest~1` for the one before."""

from __future__ import annotations

import re
from pathlib import Path

from pyperf_suite.errors import UserError, nearest
from pyperf_suite.history.stored.sides import RECORDS, Side, read_run_or_file

_LATEST = re.compile(r"latest(?:~(\d{1,6}))?")


def find_side(name: str, results: Path, machine: str | None = None) -> Side:
    """The side that a person names; runs are looked for in `results`, on one machine where `machine` is its slug.

    `latest` is the newest run that recorded anything, and `latest~1` the one before it on the same machine. Raises
    UserError where there is none of that name, several of it, or it cannot be read.
    """
    return read_run_or_file(_find(name, results, machine))


def _find(name: str, results: Path, machine: str | None) -> Path:
    if latest := _LATEST.fullmatch(name):
        return _counted_back(int(latest[1] or 0), results, machine)
    if _exists(Path(name)):
        return Path(name)
    runs = [run for run in _runs(results, machine) if run.name == name]
    if not runs:
        near = nearest(name, {run.name for run in _runs(results, machine)})
        raise UserError(
            f"There is no run, folder or file {name[:80]!r}, neither here nor in {results}: "
            + (f"did you mean {' or '.join(near)}? Else " if near else "")
            + "name a run's folder or its name, a records.jsonl, a pytest-benchmark JSON file, or latest."
        )
    if len(runs) > 1:
        raise UserError(f"Several machines have a run {name}: name the folder, one of {', '.join(map(str, runs))}.")
    return runs[0]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or that no file can have
        return False


def _counted_back(steps: int, results: Path, machine: str | None) -> Path:
    runs = _runs(results, machine)
    if not runs:
        raise UserError(f"There is no run in {results}: measure one with `pyperf-suite run`, or name --results.")
    own = [run for run in runs if run.parent == runs[-1].parent]
    if steps >= len(own):
        raise UserError(
            f"latest~{steps} goes back beyond the first run: {own[-1].parent} holds "
            f"{len(own)} run{'s' if len(own) > 1 else ''}."
        )
    return own[-1 - steps]


def _runs(results: Path, machine: str | None) -> list[Path]:
    """Every run's folder that holds a record, the oldest first: a run's name begins with its time."""
    found = results.glob(f"{'*' if machine is None else machine}/*/{RECORDS}")
    runs = [records.parent for records in found if records.is_file() and records.stat().st_size]
    return sorted(runs, key=lambda run: (run.name, run.parent.name))
