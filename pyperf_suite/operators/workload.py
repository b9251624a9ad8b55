"""What is timed as whole steps and has its own way to be right: a piece of training, a copy, a loader of data.

An operator has operands and one float64 reference; a workload checks itself, and may tell of more than time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.stopwatch import CpuStopwatch, Stopwatch
from pyperf_suite.operators.operator import Checked, Implementation, Kernel, Parameters, Subject, Work


@dataclass(frozen=True)
class Observed:
    """A quantity beside time, in that unit: one value, or as many as were seen."""

    unit: str
    samples: Sequence[float]


class Steps(ABC):
    """A workload made ready: nothing is left to do in a timed region but `step`."""

    kernel: Kernel

    @property
    def stopwatch(self) -> Stopwatch:
        """The clock that sees these steps: the host's, where `step` returns when the work is done."""
        return CpuStopwatch()

    @abstractmethod
    def step(self, index: int) -> None:
        """Do it once."""

    @abstractmethod
    def check(self) -> Checked:
        """Do it once more, untimed, and compare what came out with what must; before timing and after."""

    def observed(self) -> Mapping[str, Observed]:
        """What else is told of these steps, measured after they were timed: bytes, shares, counts."""
        return {}

    def close(self) -> None:
        """End processes and free what garbage collection does not; a second call does nothing."""
        return


class WorkloadImplementation(Implementation[Parameters]):
    """One way to do what a workload names, on one kind of device ("any": on the one asked for)."""

    @abstractmethod
    def prepare(self, parameters: Parameters, seed: int, device: Device) -> Steps:
        """Make the steps ready. Raises Unsupported with the reason where this machine cannot do them."""


class Workload(Subject[Parameters]):
    """A subject whose cases are steps that are timed."""

    implementations: Mapping[str, WorkloadImplementation[Parameters]]

    def work(self, parameters: Parameters) -> Work:
        """FLOPs and bytes of one step, as far as they can be known beforehand."""
        return Work(0, 0)

    def implementation(self, name: str) -> WorkloadImplementation[Parameters]:
        """The implementation of that name. Raises UserError that names those there are."""
        super().implementation(name)
        return self.implementations[name]
