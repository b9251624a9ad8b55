"""Plain pytest-benchmark JSON of any project, from 3.x on, as observations under the machine that it describes.

Its files come from anybody: each is read with limits, and what is no figure is said in one sentence.
"""

from __future__ import annotations

import datetime
import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.identity import slug
from pyperf_suite.history.stored import strict_json
from pyperf_suite.history.stored.observations import Figure, Observation, positive_seconds, utc
from pyperf_suite.measure.estimates import median_interval

PROBE = "pytest-benchmark"
LARGEST_FILE_BYTES = 256 * 2**20
LONGEST_NAME = 500
# More notes than a person reads would only fill the memory.
MOST_NOTES = 20


def read_foreign(path: Path) -> tuple[list[Observation], list[str]]:
    """A file's benchmarks, and a note for each that could not be used.

    Raises UserError where the file cannot be read, is larger than 256 MiB, or is no pytest-benchmark JSON.
    """
    content = _content(path)
    try:
        data = strict_json.loads(content)
    except ValueError as error:
        raise UserError(f"{path} cannot be read as pytest-benchmark JSON: {error}.") from None
    if not isinstance(data, dict) or not isinstance(data.get("benchmarks"), list):
        raise UserError(
            f"{path} is no pytest-benchmark JSON, for it has no list of benchmarks: name a run's folder, "
            "its records.jsonl, or what pytest --benchmark-json wrote."
        )
    try:
        started_at = utc(_moment(data, path))
    except (OSError, OverflowError, TypeError, ValueError):
        raise UserError(f"{path} does not say when it was measured: its `datetime` is no date.") from None
    digest = hashlib.sha256(content).hexdigest()[:8]
    run_id = f"{datetime.datetime.fromisoformat(started_at):%Y%m%dT%H%M%SZ}-{digest}"
    machine, state = machine_of(_mapping(data.get("machine_info"))), _state(data)
    found, notes, seen = [], [], Counter[str]()
    for position, benchmark in enumerate(data["benchmarks"]):
        try:
            label = _name(benchmark)
            figure = _figure(_mapping(benchmark.get("stats")))
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            notes.append(f"{path}, benchmark {position + 1} cannot be used: {error}.")
            continue
        case_id = hashlib.sha256(label.encode()).hexdigest()[:16]
        found.append(
            Observation(
                *(machine, run_id, PROBE, case_id, label, "timing", seen[case_id], started_at, "ok"),
                figures=(figure,),
                state=state,
            )
        )
        seen[case_id] += 1  # the same name again is one more process's
    return found, _few(notes, path)


def machine_of(info: Mapping[str, Any]) -> str:
    """The machine's slug from pytest-benchmark's machine_info: CPU, system, cores; never the node's name."""
    cpu = _mapping(info.get("cpu"))
    # py-cpuinfo renamed `brand` in version 7.
    brand = cpu.get("brand_raw") or cpu.get("brand") or info.get("processor") or info.get("machine") or "unknown"
    count = cpu.get("count")
    cores = str(count) if isinstance(count, int) and 0 < count < 100_000 else "unknown-"
    return slug("cpu", str(brand), str(info.get("system") or "unknown")[:20], f"{cores}c")


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


def _moment(data: Mapping[str, Any], path: Path) -> str:
    """When it was measured; where an old version does not tell, when the file was written."""
    if "datetime" in data:
        return str(data["datetime"])
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc).isoformat()


def _state(data: Mapping[str, Any]) -> dict[str, Any]:
    info, commit = _mapping(data.get("machine_info")), _mapping(data.get("commit_info"))
    told = {
        "python": _words(info.get("python_implementation"), info.get("python_version")),
        "kernel": _words(info.get("system"), info.get("release")),
        "compiler": _words(info.get("python_compiler")),
        "harness": _words("pytest-benchmark", data.get("version")),
    }
    state: dict[str, Any] = {name: value for name, value in told.items() if value}
    if isinstance(commit.get("id"), str) and commit["id"] not in ("", "unknown", "unversioned"):
        state["source"] = {"commit": _clean(commit["id"])[:64], "dirty": commit.get("dirty") is True}
    return state


def _figure(stats: Mapping[str, Any]) -> Figure:
    """The median of the rounds, with an interval of it: from the rounds themselves where the file has them."""
    median = positive_seconds(stats.get("median"), "its median")
    data = stats.get("data")
    if isinstance(data, list) and data:
        rounds = [positive_seconds(sample, "one of its rounds") for sample in data]
        interval = median_interval(rounds, 0.95)
        return Figure("time", "s", median, interval.low, interval.high, len(rounds))
    count = stats.get("rounds")
    rounds_told = count if isinstance(count, int) and 0 < count < 2**62 else 1
    least = positive_seconds(stats.get("min", median), "its minimum")
    greatest = positive_seconds(stats.get("max", median), "its maximum")
    spread = stats.get("iqr")
    if not isinstance(spread, int | float) or not math.isfinite(spread) or spread < 0 or rounds_told < 2:
        return Figure("time", "s", median, least, greatest, rounds_told)
    # McGill, Tukey & Larsen, "Variations of Box Plots" (1978): 1.57 quartile ranges over √n either side of a median.
    half_width = 1.57 * float(spread) / math.sqrt(rounds_told)
    return Figure("time", "s", median, max(least, median - half_width), min(greatest, median + half_width), rounds_told)


def _name(benchmark: Any) -> str:
    """The test's full name, which holds its parameters."""
    if not isinstance(benchmark, Mapping):
        raise TypeError("it is no JSON object")
    name = benchmark.get("fullname") or benchmark.get("name")
    if not isinstance(name, str):
        raise TypeError("it has no name")
    return _clean(name)[:LONGEST_NAME]


def _few(notes: list[str], path: Path) -> list[str]:
    more = len(notes) - MOST_NOTES
    return notes if more <= 0 else [*notes[:MOST_NOTES], f"{path}: {more} more benchmarks cannot be used."]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _words(*parts: Any) -> str:
    return _clean(" ".join(str(part)[:80] for part in parts if isinstance(part, str | int | float) and part))


def _clean(text: str) -> str:
    """Text that every file and terminal takes: half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
