"""A benchmark's values over its runs: one point a run, and the marked breaks where the machine's state changed.

A series never leaves its machine's identity; a driver, a limit or a library that changed within it is a break. A GPU's
UUID is no break but a label on the points, and neither is this package's own version.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

TIME = "time"

# What may change speed though the code stays the same, by its place in a state; packages are compared one by one.
SETTINGS = {
    "gpu.driver": "driver",
    "gpu.cuda": "CUDA",
    "gpu.power_limit_w": "power limit (W)",
    "gpu.ecc": "ECC",
    "gpu.persistence_mode": "persistence mode",
    "gpu.application_sm_clock_mhz": "application clock (MHz)",
    "gpu.maximum_sm_clock_mhz": "maximum clock (MHz)",
    "kernel": "kernel",
    "governors": "governors",
    "turbo": "turbo",
    "smt": "SMT",
    "transparent_hugepages": "huge pages",
    "cpu_quota_cores": "CPU quota (cores)",
    "hypervisor": "hypervisor",
    "container": "container",
    "python": "Python",
    "compiler": "compiler",
    "kernel_compiler": "kernel compiler",
    "harness": "harness",
    "reported_time": "reported time",
}
# Machine code depends on its compiler, and on nothing else here.
SETTINGS_OF_MACHINE_CODE = ("gpu.cuda", "kernel_compiler")
NOT_THE_MACHINE = ("pyperf_suite", "pytest-benchmark")
ABSENT = "absent"


class Measured(NamedTuple):
    """What one run measured of one case: a point of its series.

    `medians` holds one median a process, in seconds, in the order measured; it is empty for static kernels, whose
    exact figures are `exact` (unit and value by name), and where every process failed, with the `reason` of the first.
    `low` and `high` are the least and the greatest median, or the one process's own interval. `ok`, `failed` and
    `unsupported` count the processes that ended so. `dirty` says that `commit` does not name the code exactly: files
    were changed, or a resumed run went on with other code.
    """

    machine: str
    run_id: str
    probe: str
    case_id: str
    label: str
    kind: str = "timing"  # timing, static or sentinel
    started_at: str = ""  # ISO 8601, UTC
    medians: tuple[float, ...] = ()
    low: float = 0.0
    high: float = 0.0
    exact: Mapping[str, tuple[str, float]] = MappingProxyType({})
    ok: int = 0
    failed: int = 0
    unsupported: int = 0
    reason: str = ""
    dirty: bool = False
    clock_hz: float | None = None
    profile: str = ""
    state: Mapping[str, Any] = MappingProxyType({})

    @property
    def metrics(self) -> tuple[str, ...]:
        """The time, or the names of the exact figures; nothing if no process could measure any."""
        return (TIME,) if self.medians else tuple(self.exact)

    @property
    def value(self) -> float:
        """The median of the processes' medians; NaN without any."""
        return statistics.median(self.medians) if self.medians else math.nan

    @property
    def commit(self) -> str:
        return commit_of(self.state)[0]

    @property
    def unit(self) -> str:
        """The UUID of the GPU; "" without one."""
        return _text(_reach(self.state, "gpu.uuid") or "")

    def figure(self, name: str) -> Measured:
        """The exact figure of that name as if it were a time, so that it is a point of a series."""
        value = self.exact[name][1]
        return self._replace(medians=(value,), low=value, high=value)


@dataclass(frozen=True)
class Break:
    """From point `index` on, the machine's state is another: `what` says which, as in "driver 570.1 -> 580.2"."""

    index: int
    what: str


@dataclass(frozen=True)
class BenchmarkSeries:
    """One metric of one case of one probe on one machine, over the runs that measured it, the oldest first.

    `metric` is "time", or the name of an exact figure of a kernel's machine code, as in "registers"; `kind` is the
    record's: timing, static or sentinel. `failed_runs` are those in which no process could measure it.
    """

    machine: str
    probe: str
    case_id: str
    label: str
    unit_of_measure: str  # "s" for times
    points: tuple[Measured, ...]
    metric: str = TIME
    kind: str = "timing"
    failed_runs: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The label, and the metric's name unless it is the time."""
        return self.label if self.metric == TIME else f"{self.label} {self.metric}"

    @property
    def values(self) -> list[float]:
        return [point.value for point in self.points]

    @property
    def units(self) -> tuple[str, ...]:
        """The GPUs that the points were measured on, in order of appearance."""
        return tuple(dict.fromkeys(point.unit for point in self.points if point.unit))

    @functools.cached_property
    def breaks(self) -> tuple[Break, ...]:
        """Where the machine's state differs from what was last reported of it."""
        found, known = [], dict[str, str]()
        previous: Mapping[str, Any] | None = None
        for index, point in enumerate(self.points):
            if point.state is previous:
                continue
            reported = settings(point.state, self.kind)
            if changed := changes(known, reported):
                found.append(Break(index, ", ".join(changed)))
            known |= reported
            previous = point.state
        return tuple(found)


def settings(state: Mapping[str, Any], kind: str = "timing") -> dict[str, str]:
    """The settings in a state as text, by their names for a person; what the state lacks is left out.

    Records from before times were quantiles of samples do not say so: they have medians.
    """
    places = SETTINGS_OF_MACHINE_CODE if kind == "static" else tuple(SETTINGS)
    found = {SETTINGS[place]: _text(value) for place in places if (value := _reach(state, place)) not in (None, [])}
    if kind != "static":
        found.setdefault(SETTINGS["reported_time"], "median of samples")
    packages = state.get("packages")
    for name, version in packages.items() if isinstance(packages, Mapping) else ():
        if name not in NOT_THE_MACHINE:
            found[name] = ABSENT if version is None else _text(version)
    return found


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What differs between two `settings`, as in "driver 570.1 -> 580.2"; what only one of them has is no change."""
    return [f"{name} {before[name]} -> {after[name]}" for name in after if before.get(name, after[name]) != after[name]]


def commit_of(state: Mapping[str, Any]) -> tuple[str, bool]:
    """The commit that was measured, "" if it is not known, and whether files differed from it."""
    commit = _reach(state, "source.commit")
    return (commit, _reach(state, "source.dirty") is True) if isinstance(commit, str) else ("", False)


def _reach(state: Mapping[str, Any], place: str) -> Any:
    value: Any = state
    for part in place.split("."):
        value = value.get(part) if isinstance(value, dict) else None  # JSON has no other mapping
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return "+".join(map(str, value))[:80]
    return f"{value:g}"[:80] if isinstance(value, float) else str(value)[:80]
