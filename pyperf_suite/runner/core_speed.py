"""Memory of how fast a machine's cores are at their best, below the user's cache folder.

A run that lies in a slow stretch of its machine from beginning to end cannot tell by itself.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable
from pathlib import Path

from pyperf_suite import files
from pyperf_suite.measure.telemetry import best_loop_s
from pyperf_suite.runner.record import Record
from pyperf_suite.workloads.backends import kept_folder

MAX_RUNS, MAX_BYTES = 20, 100_000


def remembered(slug: str) -> dict[int, float]:
    """Return the seconds of the loop at its best by number of cores, as the last runs on that machine saw it."""
    best_s: dict[int, float] = {}
    for run in _runs(slug):
        for cores, seconds in run["best_loop_s"].items():
            best_s[int(cores)] = min(seconds, best_s.get(int(cores), math.inf))
    return best_s


def remember(slug: str, run_id: str, records: Iterable[Record]) -> None:
    """Add what a run's records say of the loop; where nothing can be written nothing is remembered."""
    loops_s: dict[str, list[float]] = {}
    for record in records:
        seen = record.quality.get("disturbances", {})
        if "cores" in seen:
            loops_s.setdefault(str(seen["cores"]), []).extend(seen.get("loop_s", ()))
    best_s = {cores: best_loop_s(sorted(seconds)) for cores, seconds in loops_s.items()}
    best_s = {cores: seconds for cores, seconds in best_s.items() if math.isfinite(seconds)}
    path = _path(slug)
    if path is None or not best_s:
        return
    runs = [*_runs(slug), {"run_id": run_id, "best_loop_s": best_s}][-MAX_RUNS:]
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, json.dumps({"runs": runs}, indent=1) + "\n")


def _path(slug: str) -> Path | None:
    folder = kept_folder("core_speed")
    return None if folder is None else folder / f"{slug}.json"


def _runs(slug: str) -> list[dict[str, dict[str, float]]]:
    """Runs as they were remembered; none of a file that is absent or damaged."""
    path = _path(slug)
    try:
        runs = json.loads(files.read_text(path, MAX_BYTES))["runs"] if path else []
        return [run for run in runs if all(float(s) > 0 and int(n) > 0 for n, s in run["best_loop_s"].items())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
