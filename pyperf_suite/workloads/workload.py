"""What is timed as whole steps and has its own way to be right: a piece of training, a copy, a loader of data.

An operator has operands and one float64 reference; a workload checks itself, and may tell of more than time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.stopwatch import CpuStopwatch, Stopwatch
from pyperf_suite.workloads.operator import Checked, Implementation, Kernel, Parameters, Subject, Work


@dataclass(frozen=True)
class Observed:
    """A quantity beside time, in that unit: one value, or as many as were seen."""

    unit: str
    samples: Sequence[float]


class Steps(ABC):
    """A workload made ready: nothing is left to do in a timed region but `step`."""

    kernel: Kernel
    # Why what timed steps leave cannot be checked, as a record says it; empty where it is (see Repeated).
    unchecked: str = "Each step starts from what the last one left."

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


class Repeated(Steps):
    """Steps that each leave the same, whatever ran before: what any of them left can be checked while they are timed.

    `sets` is how many places there are to leave it in, of which step i takes place i modulo their number.
    """

    sets: int = 1
    unchecked: str = ""
    # Whether `check` sees more than a step on every place: it is then made before timing and after as well.
    sees_more: bool = False

    def launch(self, index: int) -> None:
        """A step, by the name that spot checks have for it (measure/spot_checks.py)."""
        self.step(index)

    @abstractmethod
    def poison(self, index: int | None = None) -> None:
        """Leave nothing there, in one place or in all, that could pass for a result."""

    @abstractmethod
    def left(self, index: int) -> Checked:
        """Compare what the last step on a place left with what must be there."""

    @abstractmethod
    def kept(self, index: int) -> Any:
        """A copy or a fingerprint of what is there, for `equals`."""

    @abstractmethod
    def equals(self, index: int, kept: Any) -> bool:
        """Whether it is that, bit for bit."""

    def check(self) -> Checked:
        """A step on every place, and each compared."""
        self.poison()
        for index in range(self.sets):
            self.step(index)
        return together([self.left(index) for index in range(self.sets)])


def together(checks: Sequence[Checked]) -> Checked:
    """Several as one, with the first that found something."""
    first = next((each.first for each in checks if each.wrong), "")
    return Checked(sum(each.wrong for each in checks), sum(each.compared for each in checks), first)


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
