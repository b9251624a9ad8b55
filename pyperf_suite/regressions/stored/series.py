"""A benchmark's values over its runs: one point a run, and the marked breaks where the machine's state changed.

A series never leaves its machine's identity; a driver, a limit or a library that changed within it is a break. A GPU's
UUID is no break but a label on the points, and neither is this package's own version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True)
class Benchmark:
    """One metric of one case of one probe on one machine.

    `metric` is "time", or the name of an exact figure of a kernel's machine code, as in "registers"; `kind` is the
    record's: timing, static or sentinel. `count` is of runs that measured it, the first and last at those times;
    `constant` says that all its values are equal, as an exact figure's are while nobody changes the kernel.
    """

    machine: str
    probe: str
    case_id: str
    metric: str
    label: str
    kind: str
    unit_of_measure: str  # "s" for times
    count: int = 0
    first: str = ""
    last: str = ""
    constant: bool = False

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.machine, self.probe, self.case_id, self.metric)

    @property
    def title(self) -> str:
        """The label, and the metric's name unless it is the time."""
        return self.label if self.metric == TIME else f"{self.label} {self.metric}"


@dataclass(frozen=True)
class SeriesPoint:
    """One run's value: the median over processes of the processes' medians, in the series' unit of measure.

    `low` and `high` are the least and the greatest of the processes' medians, or the one process's own interval.
    `ok`, `failed` and `unsupported` count the processes that ended so. `dirty` says that `commit` does not name the
    code exactly: files were changed, or a resumed run went on with other code.
    """

    run_id: str
    started_at: str  # ISO 8601, UTC
    value: float
    low: float
    high: float
    medians: tuple[float, ...] = ()  # one a process
    ok: int = 1
    failed: int = 0
    unsupported: int = 0
    commit: str = ""
    dirty: bool = False
    unit: str = ""  # the UUID of the GPU; "" without one
    clock_hz: float | None = None
    state: Mapping[str, Any] = field(default_factory=dict)

    @property
    def processes(self) -> int:
        return self.ok


@dataclass(frozen=True)
class Break:
    """From point `index` on, the machine's state is another: `what` says which, as in "driver 570.1 -> 580.2"."""

    index: int
    what: str


@dataclass(frozen=True)
class BenchmarkSeries:
    """Points in the order measured. `failed_runs` are those in which no process could measure it."""

    machine: str
    probe: str
    case_id: str
    label: str
    unit_of_measure: str
    points: tuple[SeriesPoint, ...]
    breaks: tuple[Break, ...] = ()
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


def breaks_of(points: Sequence[SeriesPoint], kind: str = "timing") -> list[Break]:
    """Where the machine's state differs from what was last reported of it."""
    found, known = [], dict[str, str]()
    previous: Mapping[str, Any] | None = None
    for index, point in enumerate(points):
        if point.state is previous:  # the usual case: nothing changed for a hundred runs
            continue
        reported = settings(point.state, kind)
        if changed := changes(known, reported):
            found.append(Break(index, ", ".join(changed)))
        known |= reported
        previous = point.state
    return found


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


def unit_of(state: Mapping[str, Any]) -> str:
    """The UUID of the GPU in a state; "" without one."""
    return _text(_reach(state, "gpu.uuid") or "")


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
