"""A benchmark's values over its runs: one point a run, and the marked breaks where the machine's condition changed.

A series never leaves its machine's identity; a driver, a limit or a library that changed within it is a break.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TIME = "time"


@dataclass(frozen=True)
class Benchmark:
    """What the store holds of one case of one probe on one machine.

    `metric` is "time", or the name of an exact figure of a kernel's machine code, as in "registers"; `kind` is the
    record's: timing, static or sentinel. `count` is of runs that measured it, the first and last at those times;
    `constant` is 1 where all its values are one, as an exact figure's are while nobody changes the kernel.
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
    constant: int = 0

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells benchmarks apart."""
        return (self.machine, self.probe, self.case_id, self.metric)

    @property
    def title(self) -> str:
        """The label, and which figure of it where that is not its time."""
        return self.label if self.metric == TIME else f"{self.label} {self.metric}"


@dataclass(frozen=True)
class Point:
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
    unit: str = ""  # the UUID of the GPU; "" where there is none
    clock_hz: float | None = None
    state: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The value, by the name it has in a series of times."""
        return self.value

    @property
    def processes(self) -> int:
        """How many processes the value is of."""
        return self.ok


@dataclass(frozen=True)
class Break:
    """From point `index` on, the machine's condition is another: `what` says which, as in "driver 570.1 -> 580.2"."""

    index: int
    what: str


@dataclass(frozen=True)
class Series:
    """Points in the order measured. `failed_runs` are those in which no process could measure it."""

    machine: str
    probe: str
    case_id: str
    label: str
    unit_of_measure: str
    points: tuple[Point, ...]
    breaks: tuple[Break, ...] = ()
    metric: str = TIME
    kind: str = "timing"
    failed_runs: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The label, and which figure of it where that is not its time."""
        return self.label if self.metric == TIME else f"{self.label} {self.metric}"

    @property
    def values(self) -> list[float]:
        """Every point's value."""
        return [point.value for point in self.points]

    @property
    def units(self) -> tuple[str, ...]:
        """The GPUs that the points were measured on, in order of appearance."""
        return tuple(dict.fromkeys(point.unit for point in self.points if point.unit))
