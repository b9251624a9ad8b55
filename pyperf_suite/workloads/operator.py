"""Workloads that are one computation: seeded operands, one float64 reference, sets that rotate so that caches are cold.

An implementation turns operands into launches on a device; who is right is decided here, the same for all of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import out_of_memory
from pyperf_suite.hardware import cpu, memory
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.arrays import Keep, computed_anew
from pyperf_suite.measure.spot_checks import Verdict
from pyperf_suite.measure.verify import Verification
from pyperf_suite.workloads import scratch
from pyperf_suite.workloads.cuda import cuda_device
from pyperf_suite.workloads.inputs import Operands
from pyperf_suite.workloads.workload import Parameters, Place, Prepared, Way, Workload

Array = NDArray[np.generic]

# Rotating through operands that together exceed the caches this many times over leaves nothing of a set when it
# comes round again (DESIGN: 2-3 x L2).
CACHE_TURNOVER = 3

# Of operands so small that more would be needed, preparing the sets takes longer than measuring with them.
MOST_SETS = 1024

# Operand sets may not crowd out the reference, which needs room of its own.
MEMORY_SHARE = 0.25

# Of what is verified on a GPU the host judges cases up to so many FLOPs too, a tenth of a second, and one in so many
# of the others.
HOST_FLOP = 2e9
HOST_JUDGES_ONE_OF = 16


class Tensors(NamedTuple):
    """An operand set as torch tensors where it lies, by name and as stored: what launches read and what they write."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


class Launches(Prepared):
    """Launches over rotating operand sets, whose outputs `judge` compares with the reference."""

    judge: Judge

    @abstractmethod
    def output(self, index: int) -> Array:
        """What the last launch on that set wrote, in the output dtype's storage and the host's memory."""

    @abstractmethod
    def poison(self, index: int | None = None) -> None:
        """Fill the outputs of every set, or of that one, with NaN, so that an element nobody wrote is seen."""

    def tensors(self, index: int) -> Tensors | None:
        """The set as it lies in a GPU's memory, whatever was launched on it done; None where torch sees none there."""
        return None

    def left(self, index: int) -> Verification:
        return self.judge(index)

    def check(self) -> Verdict:
        """Launch on every set once more, untimed; the first verdict that is bad, or that on set 0."""
        self.poison()
        for index in range(self.sets):
            self.launch(index)
        verdicts = [self.left(index) for index in range(self.sets)]
        return next((each for each in verdicts if not each.passed), verdicts[0])

    def references(self) -> dict[str, Any]:
        return {"references": self.judge.references}

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


class TimedImplementation(Way[Parameters]):
    """One way to compute an operator on one kind of device."""

    @abstractmethod
    def prepare(self, parameters: Parameters, operands: Mapping[str, Array], sets: int, device: Device) -> Launches:
        """Make launches that rotate through `sets` copies of the operands in the device's memory.

        Raises Unsupported with the reason where this machine has no way to run the case.
        """


class Operator(Workload[Parameters]):
    """A computation: one signature, several implementations, one float64 reference, FLOPs and bytes."""

    own_check = False

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

    def prepare(self, parameters: Parameters, implementation: str, place: Place) -> Launches:
        """Launches over as many copies of the operands as leave caches cold, with the judge of their outputs."""
        operands = self.operands(parameters, place.seed)
        sets, cache = sets_to_rotate(self.footprint_bytes(parameters), place.device)
        if place.sets is not None:
            sets = place.sets
        launches: Launches = self.implementation(implementation).prepare(parameters, operands, sets, place.device)
        launches.sampling = {"cache": cache, "operand_sets": sets}
        launches.judge = Judge(self, parameters, place.seed, operands, launches)
        return launches


class Judge:
    """The verdict on the last launch on an operand set, by the reference on its device, else by the host's.

    Of GPU cases the host judges those too whose reference is cheap there, and one in `HOST_JUDGES_ONE_OF` by what is
    computed, the first time that they are judged: the two must agree. `references` names who judged.
    """

    def __init__(
        self, operator: Operator[Any], parameters: Any, seed: int, operands: Mapping[str, Any], launches: Launches
    ) -> None:
        self._operator, self._parameters, self._operands, self._launches = operator, parameters, operands, launches
        key = f"{operator.name} {operator.reference_key(parameters)} seed {seed}"
        self._keep = scratch.shared(key)
        cheap = operator.work(parameters).flop <= HOST_FLOP
        drawn = hashlib.sha256(f"{parameters} {launches.kernel.name}".encode()).digest()
        self._host_too = cheap or int.from_bytes(drawn[:8], "big") % HOST_JUDGES_ONE_OF == 0
        self.references: list[str] = []

    def __call__(self, index: int) -> Verification:
        tensors = self._launches.tensors(index)
        if tensors is None:
            self.references = ["host"]
            return self._by_host(index)
        try:
            by_device = self._operator.verify_tensors(self._parameters, tensors)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            self.references = ["host"]
            return self._by_host(index)
        if not self._host_too:
            self.references = self.references or ["device"]
            return by_device
        self._host_too = False
        self.references = ["device", "host"]
        by_host = self._by_host(index)
        if by_device.passed == by_host.passed:
            return by_device
        words = f"the references of device and host disagree: {by_device.message} / {by_host.message}"
        return dataclasses.replace(by_host, passed=False, message=words)

    def _by_host(self, index: int) -> Verification:
        output = self._launches.output(index)
        return self._operator.verify(self._parameters, self._operands, output, self._keep)


def sets_to_rotate(set_bytes: int, device: Device, most: int = MOST_SETS) -> tuple[int, str]:
    """How many operand sets to rotate through, so that no launch finds in cache what the last one left there.

    Also whether that is so, in the record's word: cold_l2, larger_than_l2 where one set is enough, or partly_warm where
    more would be needed than can be made.
    """
    if device.kind == "cuda":
        context = cuda_device(device.index).context
        cache_bytes, free_bytes = context.properties.l2_bytes, context.memory_bytes()[0]
    else:
        cache_bytes, free_bytes = cpu.detect().l2_total_bytes, memory.available_bytes()
    wanted = math.ceil(CACHE_TURNOVER * cache_bytes / set_bytes)
    affordable = int(MEMORY_SHARE * free_bytes / set_bytes)
    sets = max(1, min(wanted, affordable, most))
    return sets, "partly_warm" if sets < wanted else "cold_l2" if wanted > 1 else "larger_than_l2"


def same_bits(left: Array, right: Array) -> bool:
    """Whether two arrays hold the same bytes in the same shape; NaN equals itself."""
    words = np.dtype(f"u{left.dtype.itemsize}")
    return left.shape == right.shape and bool((left.view(words) == right.view(words)).all())


def _bits(tensor: Any) -> Any:
    """A torch tensor as integers of its elements' size."""
    import torch

    return tensor.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])
