"""Memory of how fast a machine's cores are at their best, below the user's cache folder, by machine and kind.

A run that lies in a slow stretch of its machine from beginning to end cannot tell by itself.
"""

from __future__ import annotations

import contextlib
import json
import math
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.measure.telemetry import best_loop_s
from pyperf_suite.record.record import Record
from pyperf_suite.workloads.backends import kept_folder

MAX_RUNS, MAX_BYTES = 20, 100_000
SHORTEST_LOOP_S, LONGEST_LOOP_S = 1e-6, 1.0


def remembered(slug: str) -> dict[str, float]:
    """Return the seconds at its best of each loop, by its name, as the last runs on that machine saw it."""
    best_s: dict[str, float] = {}
    for run in _runs(slug):
        for name, seconds in run["best_loop_s"].items():
            best_s[name] = min(seconds, best_s.get(name, math.inf))
    return best_s


def remember(slug: str, run_id: str, records: Iterable[Record]) -> None:
    """Add what a run's records say of their loops; where nothing can be written nothing is remembered."""
    loops_s: dict[str, list[float]] = {}
    for record in records:
        disturbances = record.quality.get("disturbances", {})
        if "loop" in disturbances:
            loops_s.setdefault(disturbances["loop"], []).extend(disturbances.get("loop_s", ()))
    best_s = {name: best_loop_s(sorted(seconds)) for name, seconds in loops_s.items()}
    best_s = {name: seconds for name, seconds in best_s.items() if _is_loop_s(seconds)}
    path = _path(slug)
    if path is None or not best_s:
        return
    runs = [*_runs(slug), {"run_id": run_id, "best_loop_s": best_s}][-MAX_RUNS:]
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, json.dumps({"runs": runs}, indent=1) + "\n")


def _path(slug: str) -> Path | None:
    folder = kept_folder("core_speed")
    host = re.sub(r"[^\w.-]", "_", platform.node())[:80]
    return None if folder is None else folder / f"{host}-{slug}.json"


def _runs(slug: str) -> list[dict[str, Any]]:
    """Runs as they were remembered; none of a file that is absent or damaged."""
    path = _path(slug)
    try:
        runs = json.loads(files.read_text(path, MAX_BYTES))["runs"] if path else []
        return [run for run in runs if all(map(_is_loop_s, run["best_loop_s"].values()))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _is_loop_s(value: Any) -> bool:
    return isinstance(value, float) and SHORTEST_LOOP_S < value < LONGEST_LOOP_S
