"""One side of a comparison of finished runs: a run's folder, its records.jsonl, or another project's pytest-benchmark JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Measured:
    """What one side says of one benchmark.

    `medians` holds one median a process, in seconds, in the order measured; it is empty for static kernels, whose
    exact figures are `metrics`, and where every process failed, for the `failures` told. `low` and `high` are the
    least and the greatest median, or the one process's own interval. A sentinel's visits are each in a process of
    their own. `clock_hz` and `steal_share` hold what each process saw, where it was told.
    """

    probe: str
    case_id: str
    label: str
    kind: str  # timing, static or sentinel
    medians: tuple[float, ...] = ()
    low: float = float("nan")
    high: float = float("nan")
    samples: tuple[int, ...] = ()  # that count, one number a process
    state: Mapping[str, Any] = field(default_factory=dict)
    commit: str = ""
    dirty: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    clock_hz: tuple[float, ...] = ()
    steal_share: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """What pairs it with the other side's."""
        return (self.probe, self.case_id)


@dataclass(frozen=True)
class Side:
    """One finished run. `notes` are sentences about what of it could not be read."""

    name: str
    machine: str
    benchmarks: Mapping[tuple[str, str], Measured]
    commit: str = ""
    notes: tuple[str, ...] = ()


def read_run_or_file(path: Path) -> Side:
    """The side at that path. Raises UserError where it is none, or holds nothing that was measured."""
    from pyperf_suite.history.observations import read_observations

    found, notes = read_observations(path)
    return side_of(str(path), found, notes)


def side_of(name: str, observations: Iterable[Any], notes: Iterable[str] = ()) -> Side:
    """The side made of these observations."""
    raise NotImplementedError
