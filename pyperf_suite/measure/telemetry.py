"""The state of the machine and its GPU around a measurement: clocks, load, interruptions, temperature, throttling.

A reading that this system does not offer is absent from the dict rather than guessed; everything is plain JSON. A
power cap is how a GPU runs under load and is reported; heat and brakes are the room's and the board's, and such
samples are discarded with that reason, never for their value.
"""

from __future__ import annotations

import bisect
import math
import os
import re
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from pyperf_suite.hardware.devices import Device, Unavailable, gpus
from pyperf_suite.hardware.nvml import Nvml, nvml
from pyperf_suite.measure.power import GpuSlices

_PROC = Path("/proc")
_SYS = Path("/sys")


def snapshot() -> dict[str, Any]:
    """Read the machine's state: clocks in MHz, seconds since some start, counts since the process began.

    Keys, each present where readable: `monotonic_s`, `cpu_mhz` {low, median, high} over the cores this process may use,
    `allowed_cores` how many those are, `load_average` (1, 5, 15 min), `cpu_busy_s`, `cpu_steal_s` (of the whole machine
    since boot), `process_cpu_s`, `voluntary_context_switches`, `involuntary_context_switches`, `major_page_faults` (of
    this process, all its threads), `peak_memory_bytes`, `temperature_celsius` (the hottest sensor).
    """
    readings: dict[str, Any] = {
        "monotonic_s": time.monotonic(),
        "cpu_mhz": _cpu_mhz(),
        "allowed_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "load_average": _load_average(),
        "temperature_celsius": _temperature_celsius(),
    }
    readings.update(_machine_times_s())
    readings.update(_process_usage())
    return {name: value for name, value in readings.items() if value is not None}


class Around:
    """`with telemetry: ...`, once or as often as something has a turn: what the machine did meanwhile, in `report`.

    Besides the snapshots `before` and `after`: `elapsed_s`, increments of every count and time in both, and
    `steal_share`, the part of the time wanted by this machine's cores that a hypervisor gave to others.
    """

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}
        self._sums: dict[str, float] = {}

    def __enter__(self) -> Around:
        if not self._first:
            self._first = snapshot()
        self._begin = _counters()
        return self

    def __exit__(self, *_: object) -> None:
        end = _counters()
        for name, value in end.items():
            if name in self._begin:
                self._sums[name] = self._sums.get(name, 0) + value - self._begin[name]

    @property
    def report(self) -> dict[str, Any]:
        between: dict[str, Any] = {"before": self._first, "after": snapshot(), **self._sums}
        between["elapsed_s"] = between.pop("monotonic_s", 0.0)
        if "cpu_steal_s" in between:
            wanted_s = between["cpu_busy_s"] + between["cpu_steal_s"]
            between["steal_share"] = between["cpu_steal_s"] / wanted_s if wanted_s > 0 else 0.0
        return between


# Seconds of the loop before and after a slice over its best on this machine, above which the cores were slow.
SLOW_BY = 1.25

# The quantile of all loops that is the cores' best, and how many loops it takes to tell.
BEST_QUANTILE, FEWEST_BEST_LOOPS = 0.05, 20

# After wide vectors a core has a lower clock for up to so long (Intel 64 and IA-32 Architectures Optimization Reference
# Manual, section on Intel AVX-512 licences), which is the kernel's doing and not a slow core.
RECOVERY_S = 2e-3
MOST_WAITED = 0.02  # a slice is disturbed if its thread waited for a core during more than this share of it

# Drift between runs equals drift between windows of STRETCH_S seconds; of a window with fewer loops it is unknown.
STRETCH_S, FEWEST_LOOPS = 5.0, 8

STOLEN, WAITED, SLOW = "stolen time", "other processes", "slow core"

_LOOP = range(25_000)
PYTHON_LOOP = "python 25000"


def python_loop_s() -> float:
    """Seconds of a loop that touches no memory on the calling thread's core: for use without the native extension."""
    begin = time.perf_counter()
    sum(_LOOP)
    return time.perf_counter() - begin


def best_loop_s(loops_s: Sequence[float]) -> float:
    """Seconds of the loop where the cores are at their best, from loops in ascending order; infinite for too few."""
    return loops_s[int(BEST_QUANTILE * len(loops_s))] if len(loops_s) >= FEWEST_BEST_LOOPS else math.inf


def are_slow(loops_s: Sequence[float], best_s: float) -> list[bool]:
    """Return for each slice, by its loops, True if the cores were slow, whatever else disturbed it."""
    return [loop_s > SLOW_BY * best_s for loop_s in loops_s]


class Disturbances:
    """Notes on what else the machine did during each slice of a measurement: `with disturbances: ...` around each.

    `loop_s()` times the loop of that `name` on the cores that the case uses, all at the same time, and returns the
    seconds of the slowest. `loops_s` has the mean of the loops before and after each slice, `reasons` a word for each
    slice, "" for a clean one: a hypervisor had time of this machine's cores (counted in ticks of 10 ms), others had the
    core that this thread wanted, or the loops took longer than the best that this machine is known for.
    """

    remembered_s: ClassVar[Mapping[str, float]] = {}
    """By name of the loop, its seconds at its best in earlier runs on this machine."""

    _loops_s: ClassVar[dict[str, list[float]]] = {}
    _stretches: ClassVar[dict[tuple[str, int], list[float]]] = {}

    def __init__(self, loop_s: Callable[[], float] = python_loop_s, name: str = PYTHON_LOOP) -> None:
        self._loop_s, self._name = loop_s, name
        self.loops_s: list[float] = []
        self._others: list[str] = []

    def __enter__(self) -> Disturbances:
        self._before_s = self._look_s()
        self._begin = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        lasted_s, stolen_s, waited_s = (now - then for now, then in zip(self._read(), self._begin, strict=True))
        self.loops_s.append((self._before_s + self._look_s()) / 2)
        bisect.insort(self._loops_s.setdefault(self._name, []), self.loops_s[-1])
        stretch = self._name, int(time.monotonic() / STRETCH_S)
        self._stretches.setdefault(stretch, []).append(self.loops_s[-1])
        self._others.append(STOLEN if stolen_s else WAITED if waited_s > MOST_WAITED * lasted_s else "")

    @property
    def best_s(self) -> float:
        """Seconds of the loop at its best, of earlier runs or of this process; infinite if not known yet."""
        return min(self.remembered_s.get(self._name, math.inf), best_loop_s(self._loops_s.get(self._name, ())))

    def _look_s(self) -> float:
        """Seconds of the loop; the faster of two where the first is slow, for clocks recover from wide vectors."""
        loop_s = self._loop_s()
        if loop_s <= SLOW_BY * self.best_s:
            return loop_s
        time.sleep(RECOVERY_S)
        return min(loop_s, self._loop_s())

    @property
    def reasons(self) -> list[str]:
        slow = are_slow(self.loops_s, self.best_s)
        return [other or SLOW * is_slow for other, is_slow in zip(self._others, slow, strict=True)]

    def report(self) -> dict[str, Any]:
        """For a record: the share of slices that were clean, which were not and why, and the loop around each."""
        return {**self.described(self.reasons, self.loops_s, self.best_s), "loop": self._name, "drift": self.drift()}

    @staticmethod
    def described(reasons: Sequence[str], loops_s: Sequence[float], best_s: float) -> dict[str, Any]:
        """Describe slices by their reasons and loops, as in `report`."""
        slices = {reason: [i for i, each in enumerate(reasons) if each == reason] for reason in (STOLEN, WAITED, SLOW)}
        return {
            "clean_share": reasons.count("") / max(1, len(reasons)),
            "slices": {reason: indices for reason, indices in slices.items() if indices},
            "loop_s": [float(f"{each:.4g}") for each in loops_s],
            **({"best_loop_s": float(f"{best_s:.4g}")} if math.isfinite(best_s) else {}),
        }

    @classmethod
    def drift(cls) -> float:
        """The standard deviation of the cores' speed, as a share, from stretch to stretch; 0 with fewer than three.

        Of loops on several numbers of cores that with the most stretches.
        """
        speeds: dict[str, list[float]] = {}
        for (name, _), loops_s in cls._stretches.items():
            if len(loops_s) >= FEWEST_LOOPS:
                speeds.setdefault(name, []).append(math.log(statistics.median(loops_s)))
        longest = max(speeds.values(), key=len, default=[])
        return float(f"{statistics.stdev(longest):.3g}") if len(longest) >= 3 else 0.0

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Now, what was stolen of all cores, and how long this thread has waited for a core (schedstats of Linux)."""
        waited = (_read(_PROC / "thread-self" / "schedstat") or "0 0 0").split()[1]
        return time.monotonic(), _machine_times_s().get("cpu_steal_s", 0.0), int(waited) * 1e-9


def _counters() -> dict[str, float]:
    """Read the counters of a snapshot: they only grow."""
    usage = _process_usage()
    grown = ("process_cpu_s", "voluntary_context_switches", "involuntary_context_switches", "major_page_faults")
    return {"monotonic_s": time.monotonic(), **_machine_times_s(), **{name: usage[name] for name in grown}}


def _cpu_mhz() -> dict[str, float] | None:
    usable = _usable_cores()
    # The governor's view, one file a core; virtual machines seldom have it.
    files = (_SYS / f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq" for core in usable or ())
    mhz = [int(text) / 1000 for path in files if (text := (_read(path) or "").strip()).isdigit()]
    if not mhz:
        clocks = r"^processor\s*:\s*(\d+)$.*?^cpu MHz\s*:\s*([\d.]+)$"
        found = re.findall(clocks, _read(_PROC / "cpuinfo") or "", re.MULTILINE | re.DOTALL)
        mhz = [float(each) for core, each in found if usable is None or int(core) in usable] or _psutil_mhz()
    if not mhz:
        return None
    return {"low": min(mhz), "median": statistics.median(mhz), "high": max(mhz)}


def _usable_cores() -> set[int] | None:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def _psutil_mhz() -> list[float]:
    try:
        import psutil

        frequency = psutil.cpu_freq()
    except (ImportError, OSError, RuntimeError, NotImplementedError, AttributeError):
        return []
    return [float(frequency.current)] if frequency else []


def _load_average() -> list[float] | None:
    try:
        return list(os.getloadavg())
    except (AttributeError, OSError):
        return None


def _machine_times_s() -> dict[str, float]:
    """Busy and stolen time of all cores since boot, from the first line of /proc/stat (proc(5))."""
    line = (_read(_PROC / "stat") or "").partition("\n")[0].split()
    if len(line) < 9 or line[0] != "cpu":
        return {}
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(ticks) for ticks in line[1:9])
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return {"cpu_busy_s": (user + nice + system + irq + softirq) * tick_s, "cpu_steal_s": steal * tick_s}


def _process_usage() -> dict[str, Any]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    unit_bytes = 1 if os.uname().sysname == "Darwin" else 1024
    return {
        "process_cpu_s": usage.ru_utime + usage.ru_stime,
        "voluntary_context_switches": usage.ru_nvcsw,
        "involuntary_context_switches": usage.ru_nivcsw,
        "major_page_faults": usage.ru_majflt,
        "peak_memory_bytes": usage.ru_maxrss * unit_bytes,
    }


def _temperature_celsius() -> float | None:
    """The hottest sensor, from the hwmon and thermal classes of the kernel, both in millidegrees."""
    paths = [*_SYS.glob("class/hwmon/hwmon*/temp*_input"), *_SYS.glob("class/thermal/thermal_zone*/temp")]
    texts = [(_read(path) or "").strip() for path in paths]
    return max((int(text) / 1000 for text in texts if text.lstrip("-").isdigit()), default=None)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


DISCARD_REASONS = ("hardware slowdown", "thermal slowdown by software", "thermal slowdown by hardware", "power brake")


def around_gpu(device: Device) -> AbstractContextManager[AroundGpu | None]:
    """Telemetry of a device where it is a GPU with NVML; else a block that does nothing."""
    manager = nvml() if device.kind == "cuda" else None
    if manager is None or isinstance(manager, Unavailable):
        return nullcontext()
    # By UUID: NVML counts all GPUs of the machine, CUDA those that this process may see.
    return AroundGpu(manager, gpus()[device.index].uuid)


class AroundGpu:
    """`with AroundGpu(manager, uuid) as gpu: ...` leaves readings before and after in `gpu.report`.

    Every throttle reason seen by `why_discard`, which sampling asks after each block, is listed as well, with the
    seconds it took where the GPU counts them, and the bytes that went over its NVLinks meanwhile.
    """

    def __init__(self, manager: Nvml, uuid: str) -> None:
        self._manager, self._uuid = manager, uuid
        self._reported: set[str] = set()
        self._throttled_s: dict[str, float] = {}
        self._sums_s: dict[str, float] = {}
        self.report: dict[str, Any] = {}

    def slices(self) -> GpuSlices:
        """Witness of what is around each slice of a measurement on this GPU."""
        return GpuSlices(self._manager, self._uuid)

    def why_discard(self) -> str | None:
        """The reason why the samples just taken do not count, or None.

        By counters that have grown since the last call: when the GPU is asked, its work is over, and so is what lowered
        its clocks. By what NVML says now, where heat is not counted. It asks for nothing else: the GPU waits meanwhile.
        """
        now_s = self._manager.throttled_s(self._uuid) or {}
        grown_s = {reason: seconds - self._throttled_s.get(reason, seconds) for reason, seconds in now_s.items()}
        reasons = [reason for reason, seconds in grown_s.items() if seconds > 0]
        for reason in reasons:
            self._sums_s[reason] = self._sums_s.get(reason, 0.0) + grown_s[reason]
        if now_s.keys().isdisjoint(DISCARD_REASONS):
            reasons += self._manager.throttle_reasons(self._uuid) or []
        self._throttled_s = now_s
        self._reported.update(reasons)
        return next((reason for reason in reasons if reason in DISCARD_REASONS), None)

    def __enter__(self) -> AroundGpu:
        self._before = self._manager.readings(self._uuid)
        self._throttled_s = self._manager.throttled_s(self._uuid) or {}
        self._sent_before = self._manager.nvlink_bytes(self._uuid)
        return self

    def __exit__(self, *_: object) -> None:
        sent_after = self._manager.nvlink_bytes(self._uuid)
        after = self._manager.readings(self._uuid)
        self.report = {"before": self._before, "after": after, "throttle_reasons_seen": sorted(self._reported)}
        if self._throttled_s:
            self.report["throttled_s"] = {name: float(f"{seconds:.4g}") for name, seconds in self._sums_s.items()}
        if self._sent_before is not None and sent_after is not None:
            sent, received = (now - then for now, then in zip(sent_after, self._sent_before, strict=True))
            self.report["nvlink_bytes"] = {"sent": sent, "received": received}
