"""What an operator and its implementations are to the rest of the suite.

An operator is one signature with one float64 reference; an implementation turns its operands into launches on a device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.arrays import Keep, computed_anew
from pyperf_suite.measure.stopwatch import CpuStopwatch, Stopwatch
from pyperf_suite.measure.verify import Verification
from pyperf_suite.workloads.inputs import Operands

Parameters = TypeVar("Parameters")
Array = NDArray[np.generic]


@dataclass(frozen=True)
class Work:
    """What a case must at least do: floating-point operations, and bytes that have to be read or written once."""

    flop: int
    bytes: int


@dataclass(frozen=True)
class Kernel:
    """What really ran: the kernel's name, the path it took, and details worth keeping (tile, ISA, threads)."""

    name: str
    path: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Checked:
    """How what came out compares with what it must be: wrong elements of those compared, the first in words."""

    wrong: int
    compared: int
    first: str = ""


class Tensors(NamedTuple):
    """An operand set as torch tensors where it lies, by name and as stored: what launches read and what they write."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


class Launches(ABC):
    """A case made ready: buffers allocated, kernel chosen, nothing left to do in a timed region but `launch`.

    `sets` is the number of operand sets that launches rotate through.
    """

    kernel: Kernel
    sets: int

    @property
    def stopwatch(self) -> Stopwatch:
        """The clock that sees these launches: the host's, where `launch` returns when the work is done."""
        return CpuStopwatch()

    @abstractmethod
    def launch(self, index: int) -> None:
        """Run once on operand set `index` modulo the number of sets."""

    @abstractmethod
    def output(self, index: int) -> Array:
        """What the last launch on that set wrote, in the output dtype's storage and the host's memory."""

    @abstractmethod
    def poison(self, index: int | None = None) -> None:
        """Fill the outputs of every set, or of that one, with NaN, so that an element nobody wrote is seen."""

    def tensors(self, index: int) -> Tensors | None:
        """The set as it lies in a GPU's memory, whatever was launched on it done; None where torch sees none there."""
        return None

    def kept(self, index: int) -> Any:
        """A copy of what the last launch on that set wrote, for `equals`."""
        tensors = self.tensors(index)
        if tensors is None:
            return self.output(index).copy()
        return {name: output.clone() for name, output in tensors.outputs.items()}

    def equals(self, index: int, kept: Any) -> bool:
        """Whether the last launch on that set wrote what is `kept`, bit for bit."""
        tensors = self.tensors(index)
        if tensors is None:
            return same_bits(self.output(index), kept)
        return all(bool((_bits(output) == _bits(kept[name])).all()) for name, output in tensors.outputs.items())

    def _chosen(self, index: int | None) -> range:
        """The sets that are meant: all, or the one of that index."""
        return range(self.sets) if index is None else range(index % self.sets, index % self.sets + 1)


class Implementation(ABC, Generic[Parameters]):
    """One way to do what a subject names, on one kind of device ("any" where it needs none)."""

    name: ClassVar[str]
    device_kind: ClassVar[str]

    def validate(self, parameters: Parameters) -> None:
        """Raise UserError where this implementation can never take these parameters, before anything is measured."""


class TimedImplementation(Implementation[Parameters]):
    """One way to compute an operator on one kind of device."""

    @abstractmethod
    def prepare(self, parameters: Parameters, operands: Mapping[str, Array], sets: int, device: Device) -> Launches:
        """Make launches that rotate through `sets` copies of the operands in the device's memory.

        Raises Unsupported with the reason where this machine has no way to run the case.
        """


class InspectingImplementation(Implementation[Parameters]):
    """One way to read exact figures without timing anything."""

    @abstractmethod
    def inspect(self, parameters: Parameters) -> Inspection:
        """The figures. Raises Unsupported with the reason where this machine has no way to read them."""


@dataclass(frozen=True)
class Inspection:
    """Exact figures: metrics by name as records keep them, and what was inspected."""

    metrics: Mapping[str, Mapping[str, Any]]
    kernel: Kernel


class Subject(ABC, Generic[Parameters]):
    """What a case is about: parameters, and implementations that measure under them."""

    name: ClassVar[str]
    parameters_type: ClassVar[type]
    implementations: Mapping[str, Implementation[Parameters]]

    @abstractmethod
    def validate(self, parameters: Parameters) -> None:
        """Raise UserError where the parameters cannot be, whoever implements them."""

    def footprint_bytes(self, parameters: Parameters) -> int:
        """Memory that one set of operands needs; none for what is only looked at."""
        return 0

    def implementation(self, name: str) -> Implementation[Parameters]:
        """The implementation of that name. Raises UserError that names those there are."""
        if name not in self.implementations:
            raise UserError(
                f"{self.name} has no implementation {name!r}: choose from {', '.join(sorted(self.implementations))}."
            )
        return self.implementations[name]


def same_bits(left: Array, right: Array) -> bool:
    """Whether two arrays hold the same bytes in the same shape; NaN equals itself."""
    words = np.dtype(f"u{left.dtype.itemsize}")
    return left.shape == right.shape and bool((left.view(words) == right.view(words)).all())


def _bits(tensor: Any) -> Any:
    """A torch tensor as integers of its elements' size."""
    import torch

    return tensor.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


class Operator(Subject[Parameters]):
    """A computation that is timed: one signature, several implementations, one float64 reference, FLOPs and bytes."""

    implementations: Mapping[str, TimedImplementation[Parameters]]

    @abstractmethod
    def work(self, parameters: Parameters) -> Work:
        """FLOPs and compulsory bytes of one launch."""

    @abstractmethod
    def footprint_bytes(self, parameters: Parameters) -> int:
        """Memory of one operand set, inputs and outputs."""

    @abstractmethod
    def operands(self, parameters: Parameters, seed: int) -> Operands:
        """Seeded inputs and room for outputs, made when they are asked for."""

    @abstractmethod
    def verify(
        self, parameters: Parameters, operands: Mapping[str, Array], output: Array, keep: Keep = computed_anew
    ) -> Verification:
        """Compare an output with the float64 reference, computed in the host's memory or had from `keep`."""

    @abstractmethod
    def verify_tensors(self, parameters: Parameters, tensors: Tensors) -> Verification:
        """Compare the outputs of a set with the float64 reference, computed by torch where the set lies."""

    @abstractmethod
    def reference_key(self, parameters: Parameters) -> str:
        """What the reference depends on beside the seed: cases that agree in it share one."""

    def implementation(self, name: str) -> TimedImplementation[Parameters]:
        """The implementation of that name. Raises UserError that names those there are."""
        super().implementation(name)
        return self.implementations[name]


class Inspected(Subject[Parameters]):
    """Something whose figures are read and are the same each time: one visit of one process is all there is."""

    implementations: Mapping[str, InspectingImplementation[Parameters]]

    def inspect(self, implementation: str, parameters: Parameters) -> Inspection:
        """The figures as that implementation reads them."""
        super().implementation(implementation)
        return self.implementations[implementation].inspect(parameters)
