"""Results of other projects as runs: what `pytest --benchmark-json` and `--benchmark-autosave` write, from 3.x on.

The files come from anybody: each is read with limits, and what is no figure is reported in one sentence.
"""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.machine import slug
from pyperf_suite.measure.estimates import median_interval
from pyperf_suite.regressions.stored.journals import (
    MOST_NOTES,
    RunSummary,
    Trial,
    finite,
    measured,
    utc,
)

LARGEST_FILE_BYTES = 256 * 2**20
LONGEST_NAME = 500
PROBE = "pytest-benchmark"
FOREIGN_PROBES = frozenset({PROBE})

Time = tuple[float, float, float]  # median and its interval, in seconds


def read_foreign(path: Path) -> RunSummary:
    """A file's benchmarks, each name one case, and a sentence for each that could not be used.

    Raises UserError if the file cannot be read, is larger than 256 MiB, or is no such JSON.
    """
    content = _content(path)
    try:
        data = files.strict_json(content)
    except ValueError as error:
        raise UserError(f"{path} cannot be read as pytest-benchmark JSON: {error}.") from None
    if not isinstance(data, dict) or not isinstance(data.get("benchmarks"), list):
        raise UserError(
            f"{path} is no pytest-benchmark JSON, for it has no list of benchmarks: name a run's folder, "
            "its records.jsonl, or what pytest --benchmark-json wrote."
        )
    try:
        # An old version does not say: then it is when the file was written.
        started_at = utc(str(data.get("datetime", "")) or _written(path))
        digest = hashlib.sha256(content).hexdigest()[:8]
        run_id = f"{datetime.datetime.fromisoformat(started_at):%Y%m%dT%H%M%SZ}-{digest}"
    except (OSError, OverflowError, TypeError, ValueError):
        raise UserError(f"{path} does not say when it was measured: its date is no date.") from None
    try:
        machine, state = _machine(data), _state(data)
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise UserError(f"{path} cannot be read as pytest-benchmark JSON: {str(error)[:200]}.") from None
    summary, trials = RunSummary(), dict[str, list[Trial]]()
    for position, benchmark in enumerate(data["benchmarks"], start=1):
        try:
            label, time = _read(benchmark)
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
            summary.damage.append(f"{path}, benchmark {position} cannot be used: {str(error)[:200]}.")
            continue
        same = trials.setdefault(label, [])  # the same name again is one more process's
        same.append(Trial(len(same), "ok", "", started_at, time, {}, None, state))
    more = len(summary.damage) - MOST_NOTES
    if more > 0:
        summary.damage[MOST_NOTES:] = [f"{path}: {more} more benchmarks cannot be used."]
    for label, same in trials.items():
        case_id = hashlib.sha256(label.encode()).hexdigest()[:16]
        summary.measured.append(measured((machine, run_id, PROBE, case_id, label, "timing", ""), same))
    return summary


def _machine(data: Mapping[str, Any]) -> str:
    """CPU, system, cores; never the node's name."""
    info = _mapping(data.get("machine_info"))
    cpu = _mapping(info.get("cpu"))
    # py-cpuinfo renamed `brand` in version 7.
    brand = cpu.get("brand_raw") or cpu.get("brand") or info.get("processor") or info.get("machine") or "unknown"
    return slug("cpu", str(brand), str(info.get("system") or "unknown")[:20], f"{_cores(cpu.get('count'))}c")


def _state(data: Mapping[str, Any]) -> dict[str, Any]:
    info, commit = _mapping(data.get("machine_info")), _mapping(data.get("commit_info"))
    state: dict[str, Any] = {
        "python": _words(info.get("python_implementation"), info.get("python_version")),
        "kernel": _words(info.get("system"), info.get("release")),
        "compiler": _words(info.get("python_compiler")),
        "harness": _words(PROBE, data.get("version")),
    }
    if isinstance(commit.get("id"), str) and commit["id"] not in ("", "unknown", "unversioned"):
        state["source"] = {"commit": _clean(commit["id"])[:64], "dirty": commit.get("dirty") is True}
    return {name: value for name, value in state.items() if value}


def _read(benchmark: Any) -> tuple[str, Time]:
    """The median of the rounds, with an interval of it: from the rounds themselves where the file has them."""
    label, stats = _name(benchmark, "fullname", "name"), _mapping(benchmark.get("stats"))
    median, rounds = positive_seconds(stats.get("median"), "its median"), stats.get("data")
    if isinstance(rounds, list) and rounds:
        interval = median_interval([positive_seconds(each, "one of its rounds") for each in rounds], 0.95)
        return label, (median, interval.low, interval.high)
    least = positive_seconds(stats.get("min", median), "its minimum")
    greatest = positive_seconds(stats.get("max", median), "its maximum")
    spread, count = stats.get("iqr"), stats.get("rounds")
    if not _is_number(spread) or spread < 0 or not isinstance(count, int) or not 1 < count < 2**62:
        return label, (median, least, greatest)
    # McGill, Tukey & Larsen, "Variations of Box Plots" (1978): 1.57 quartile ranges over √n to either side.
    half_width = 1.57 * float(spread) / math.sqrt(count)
    return label, (median, max(least, median - half_width), min(greatest, median + half_width))


def positive_seconds(value: Any, what: str) -> float:
    """A time as a number. Raises ValueError for what is not positive and finite: it has no logarithm."""
    seconds = finite(value)
    if seconds is None or seconds <= 0:
        raise ValueError(f"{what} is {value!r:.40}, not a positive number of seconds")
    return seconds


def _content(path: Path) -> bytes:
    try:
        with files.open_named_by_user(path) as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read: {why}.") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise UserError(
            f"{path} is larger than {LARGEST_FILE_BYTES // 2**20} MiB, more than is read of another project's file: "
            "save it without --benchmark-save-data."
        )
    return content


def _written(path: Path) -> str:
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc).isoformat()


def _name(benchmark: Any, *keys: str) -> str:
    if not isinstance(benchmark, Mapping):
        raise TypeError("it is no JSON object")
    name = next((benchmark[key] for key in keys if benchmark.get(key)), None)
    if not isinstance(name, str):
        raise TypeError("it has no name")
    return _clean(name)[:LONGEST_NAME]


def _cores(count: Any) -> str:
    return str(count) if isinstance(count, int) and 0 < count < 100_000 else "unknown-"


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _words(*parts: Any) -> str:
    return _clean(" ".join(str(part)[:80] for part in parts if isinstance(part, str | int | float) and part))


def _clean(text: str) -> str:
    """Text that every file and terminal takes: half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
