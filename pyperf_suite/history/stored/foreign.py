"""Results of other tools as runs: the JSON of pytest-benchmark (from 3.x on), Google Benchmark and nvbench.

Each format is one class of `FORMATS`. The files come from anybody: each is read with limits, and what is no figure is
reported in one sentence.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.machine import slug
from pyperf_suite.history.stored.journals import (
    MOST_NOTES,
    RunSummary,
    Trial,
    measured,
    positive_seconds,
    utc,
)
from pyperf_suite.measure.estimates import median_interval

LARGEST_FILE_BYTES = 256 * 2**20
LONGEST_NAME = 500
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

Time = tuple[float, float, float]  # median and its interval, in seconds


class Format(Protocol):
    """How one tool writes its results. Methods may raise AttributeError, TypeError, ValueError or OverflowError."""

    probe: str

    def recognises(self, data: Mapping[str, Any]) -> bool: ...

    def machine(self, data: Mapping[str, Any]) -> str: ...

    def moment(self, data: Mapping[str, Any]) -> str | None:
        """When it was measured, in ISO 8601; None if the file does not say."""

    def state(self, data: Mapping[str, Any]) -> dict[str, Any]: ...

    def benchmarks(self, data: Mapping[str, Any]) -> Iterator[Any]: ...

    def read(self, benchmark: Any) -> tuple[str, Time]:
        """Its label and its time. Raises one of the errors above where it holds none."""


class PytestBenchmark:
    """What `pytest --benchmark-json` and `--benchmark-autosave` write."""

    probe = "pytest-benchmark"

    def recognises(self, data: Mapping[str, Any]) -> bool:
        return isinstance(data.get("benchmarks"), list)

    def machine(self, data: Mapping[str, Any]) -> str:
        """CPU, system, cores; never the node's name."""
        info = _mapping(data.get("machine_info"))
        cpu = _mapping(info.get("cpu"))
        # py-cpuinfo renamed `brand` in version 7.
        brand = cpu.get("brand_raw") or cpu.get("brand") or info.get("processor") or info.get("machine") or "unknown"
        return slug("cpu", str(brand), str(info.get("system") or "unknown")[:20], f"{_cores(cpu.get('count'))}c")

    def moment(self, data: Mapping[str, Any]) -> str | None:
        return str(data["datetime"]) if "datetime" in data else None

    def state(self, data: Mapping[str, Any]) -> dict[str, Any]:
        info, commit = _mapping(data.get("machine_info")), _mapping(data.get("commit_info"))
        state: dict[str, Any] = {
            "python": _words(info.get("python_implementation"), info.get("python_version")),
            "kernel": _words(info.get("system"), info.get("release")),
            "compiler": _words(info.get("python_compiler")),
            "harness": _words("pytest-benchmark", data.get("version")),
        }
        if isinstance(commit.get("id"), str) and commit["id"] not in ("", "unknown", "unversioned"):
            state["source"] = {"commit": _clean(commit["id"])[:64], "dirty": commit.get("dirty") is True}
        return state

    def benchmarks(self, data: Mapping[str, Any]) -> Iterator[Any]:
        yield from data["benchmarks"]

    def read(self, benchmark: Any) -> tuple[str, Time]:
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


class GoogleBenchmark:
    """Repetitions are samples of one process; of aggregates alone the median counts."""

    probe = "google-benchmark"

    def recognises(self, data: Mapping[str, Any]) -> bool:
        return isinstance(data.get("benchmarks"), list) and "num_cpus" in _mapping(data.get("context"))

    def machine(self, data: Mapping[str, Any]) -> str:
        """Cores, clock and caches, for the file does not name the CPU; never the host's name."""
        context = _mapping(data["context"])
        caches = [_mapping(each) for each in context.get("caches") or () if _is_number(_mapping(each).get("size"))]
        sizes = [f"{float(each['size']) / 1024:.0f}k" for each in caches]
        clock = context.get("mhz_per_cpu")
        mhz = f"{clock:.0f}mhz" if _is_number(clock) else "unknown"
        return slug("cpu", mhz, *sizes[:8], f"{_cores(context.get('num_cpus'))}c")

    def moment(self, data: Mapping[str, Any]) -> str | None:
        return str(data["context"]["date"]) if "date" in data["context"] else None

    def state(self, data: Mapping[str, Any]) -> dict[str, Any]:
        context = data["context"]
        words = _words("google-benchmark", context.get("library_version"), context.get("library_build_type"))
        return {"harness": words}

    def benchmarks(self, data: Mapping[str, Any]) -> Iterator[Any]:
        """Lists of entries of one name: its repetitions, else its median."""
        entries: dict[str, list[Any]] = {}
        for each in data["benchmarks"]:
            entries.setdefault(str(_mapping(each).get("run_name") or _mapping(each).get("name")), []).append(each)
        for same in entries.values():
            repetitions = [each for each in same if _mapping(each).get("run_type") != "aggregate"]
            yield repetitions or [each for each in same if each.get("aggregate_name") == "median"]

    def read(self, benchmark: Any) -> tuple[str, Time]:
        if not benchmark:
            raise ValueError("it holds neither repetitions nor their median")
        if any(_mapping(each).get("error_occurred") for each in benchmark):
            raise ValueError("it ended in an error")
        label = _name(benchmark[0], "run_name", "name")
        units = [_SECONDS.get(each.get("time_unit", "ns"), math.nan) for each in benchmark]
        times = [
            positive_seconds(positive_seconds(each.get("real_time"), "its real_time") * unit, "its real_time")
            for each, unit in zip(benchmark, units, strict=True)
        ]
        interval = median_interval(times, 0.95)
        return label, (statistics.median(times), interval.low, interval.high)


class Nvbench:
    """The cold GPU times, mean with its standard error: nvbench keeps no samples in its JSON."""

    probe = "nvbench"

    def recognises(self, data: Mapping[str, Any]) -> bool:
        return isinstance(data.get("benchmarks"), list) and isinstance(data.get("devices"), list)

    def machine(self, data: Mapping[str, Any]) -> str:
        device = _mapping((data["devices"] or [{}])[0])
        memory = device.get("global_memory_size")
        gib = f"{memory / 2**30:.0f}gib" if _is_number(memory) else "unknown"
        return slug("cuda", str(device.get("name"))[:80], f"{_cores(device.get('number_of_sms'))}sm", gib)

    def moment(self, data: Mapping[str, Any]) -> str | None:
        return None

    def state(self, data: Mapping[str, Any]) -> dict[str, Any]:
        version = _mapping(_mapping(_mapping(data.get("meta")).get("version")).get("nvbench"))
        return {"harness": _words("nvbench", version.get("string"))}

    def benchmarks(self, data: Mapping[str, Any]) -> Iterator[Any]:
        for benchmark in data["benchmarks"]:
            for state in _mapping(benchmark).get("states") or ():
                if not _mapping(state).get("is_skipped"):
                    yield {"benchmark": benchmark.get("name"), **_mapping(state)}

    def read(self, benchmark: Any) -> tuple[str, Time]:
        values = {
            _mapping(summary).get("tag"): datum.get("value")
            for summary in benchmark.get("summaries") or ()
            for datum in map(_mapping, _mapping(summary).get("data") or ())
            if datum.get("name") == "value"
        }
        mean = positive_seconds(_number(values.get("nv/cold/time/gpu/mean")), "its nv/cold/time/gpu/mean")
        noise, count = (_number(values.get(f"nv/cold/{name}")) for name in ("time/gpu/stdev/relative", "sample_size"))
        share = 1.96 * noise / math.sqrt(count) if noise is not None and count is not None and count > 1 else 0.0
        share = share if 0 <= share < 1 else 0.0
        label = " ".join(filter(None, (_name(benchmark, "benchmark"), _words(benchmark.get("name")))))
        return label, (mean, mean * (1 - share), mean * (1 + share))


# The first that recognises a file reads it: pytest-benchmark's form has the fewest marks.
FORMATS: tuple[Format, ...] = (GoogleBenchmark(), Nvbench(), PytestBenchmark())
FOREIGN_PROBES = frozenset(each.probe for each in FORMATS)


def read_foreign(path: Path) -> RunSummary:
    """A file's benchmarks, each name one case, and a sentence for each that could not be used.

    Raises UserError if the file cannot be read, is larger than 256 MiB, or is none of `FORMATS`.
    """
    content = _content(path)
    try:
        data = files.strict_json(content)
    except ValueError as error:
        raise UserError(f"{path} cannot be read as pytest-benchmark JSON: {error}.") from None
    found = next((each for each in FORMATS if isinstance(data, dict) and each.recognises(data)), None)
    if found is None:
        raise UserError(
            f"{path} is no pytest-benchmark JSON, for it has no list of benchmarks: name a run's folder, "
            "its records.jsonl, or what pytest --benchmark-json, Google Benchmark or nvbench wrote."
        )
    try:
        # An old version does not say: then it is when the file was written.
        started_at = utc(found.moment(data) or _written(path))
        digest = hashlib.sha256(content).hexdigest()[:8]
        run_id = f"{datetime.datetime.fromisoformat(started_at):%Y%m%dT%H%M%SZ}-{digest}"
    except (OSError, OverflowError, TypeError, ValueError):
        raise UserError(f"{path} does not say when it was measured: its date is no date.") from None
    try:
        machine = found.machine(data)
        state = {name: value for name, value in found.state(data).items() if value}
        benchmarks = list(found.benchmarks(data))
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise UserError(f"{path} cannot be read as the JSON of {found.probe}: {str(error)[:200]}.") from None
    summary, trials = RunSummary(), dict[str, list[Trial]]()
    for position, benchmark in enumerate(benchmarks, start=1):
        try:
            label, time = found.read(benchmark)
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
        summary.measured.append(measured((machine, run_id, found.probe, case_id, label, "timing", ""), same))
    return summary


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


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, str | int | float) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _words(*parts: Any) -> str:
    return _clean(" ".join(str(part)[:80] for part in parts if isinstance(part, str | int | float) and part))


def _clean(text: str) -> str:
    """Text that every file and terminal takes: half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
