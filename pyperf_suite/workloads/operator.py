"""Workloads that are one computation: seeded operands, one float64 reference, sets that rotate so that caches are cold.

An implementation turns operands into launches on a device; who is right is decided here, the same for all of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from pyperf_suite.errors import Unsupported, UserError, out_of_memory
from pyperf_suite.hardware import cpu, memory
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.spot_checks import Verdict
from pyperf_suite.measure.stopwatch import Stopwatch
from pyperf_suite.measure.tolerance import Array, Keep, computed_anew
from pyperf_suite.measure.verify import Verification
from pyperf_suite.workloads import scratch
from pyperf_suite.workloads.cuda import cuda_device
from pyperf_suite.workloads.dtypes import widen
from pyperf_suite.workloads.inputs import Operand, Operands
from pyperf_suite.workloads.operand_sets import Bound, OperandSets, as_stored, copied, same_bits
from pyperf_suite.workloads.workload import Kernel, Parameters, Place, Prepared, Way, Workload

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

# Of launches that have to run before that is known.
NOT_KNOWN = Kernel("", "")


class Launches(Prepared):
    """Launches bound to rotating operand sets, whose results `judge` compares with the reference."""

    judge: Judge

    def __init__(self, memory: OperandSets, bound: Sequence[Bound], kernel: Kernel = NOT_KNOWN) -> None:
        self._memory, self._bound, self.kernel = memory, bound, kernel
        self._launches = [each.launch for each in bound]
        self.sets = len(bound)

    @property
    def stopwatch(self) -> Stopwatch:
        return self._memory.stopwatch

    def launch(self, index: int) -> Any:
        return self._launches[index % self.sets]()

    def poison(self, index: int | None = None) -> None:
        for each in self._bound if index is None else (self._bound[index % self.sets],):
            for held in each.written():
                self._memory.poison(held)
        self._memory.synchronize()

    def results(self, index: int) -> dict[str, Any]:
        """What the last launch on that set left, by name: as torch tensors, or as arrays in storage form."""
        self._memory.synchronize()
        found = self._bound[index % self.sets].results()
        return {name: self._memory.seen(name, held) for name, held in found.items()}

    def outputs(self, index: int) -> dict[str, Array]:
        """The same in storage form, in the host's memory."""
        described = self._memory.described
        return {name: as_stored(found, described[name].dtype) for name, found in self.results(index).items()}

    def tensors(self, index: int) -> Mapping[str, Any] | None:
        """Inputs and results of a set where they lie in a GPU's memory; None where torch sees none there."""
        results = self.results(index)
        if any(isinstance(each, np.ndarray) or not each.is_cuda for each in results.values()):
            return None
        held = self._memory.sets[index % self.sets]
        return {name: self._memory.seen(name, held[name]) for name in self._memory.inputs} | results

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
        return {name: copied(found) for name, found in self.results(index).items()}

    def equals(self, index: int, kept: Any) -> bool:
        return all(same_bits(found, kept[name]) for name, found in self.results(index).items())


class TimedImplementation(Way[Parameters]):
    """One way to compute an operator on one kind of device."""

    @abstractmethod
    def prepare(self, parameters: Parameters, operands: Operands, place: Place) -> Launches:
        """Bind launches to as many copies of the operands as the place says.

        Raises Unsupported with the reason where this machine has no way to run the case.
        """


class Operator(Workload[Parameters]):
    """A computation: one signature, several implementations, one float64 reference, FLOPs and bytes."""

    own_check = False

    @abstractmethod
    def described(self, parameters: Parameters) -> dict[str, Operand]:
        """Every operand by name: inputs, and the results that launches leave."""

    @abstractmethod
    def compare(self, parameters: Parameters, values: Mapping[str, Any], keep: Keep) -> Verification:
        """Compare results with the float64 reference of the inputs, all numpy arrays of values or all torch tensors.

        What depends on inputs alone goes through `keep`.
        """

    @abstractmethod
    def reference_key(self, parameters: Parameters) -> str:
        """What the reference depends on beside the seed: cases that agree in it share one."""

    def operands(self, parameters: Parameters, seed: int) -> Operands:
        """Seeded inputs and room for results, made when they are asked for."""
        return Operands(self.described(parameters), seed)

    def footprint_bytes(self, parameters: Parameters) -> int:
        """Bytes of all operands; what an implementation keeps beside them is its own."""
        return sum(operand.size_bytes for operand in self.described(parameters).values())

    def verify(
        self, parameters: Parameters, operands: Operands, outputs: Mapping[str, Array], keep: Keep = computed_anew
    ) -> Verification:
        """Compare outputs in storage form with the reference, computed in the host's memory or had from `keep`."""
        stored = {name: operands[name] for name in operands.inputs} | dict(outputs)
        values = {name: widen(array, operands.described[name].dtype) for name, array in stored.items()}
        return self.compare(parameters, values, keep)

    def prepare(self, parameters: Parameters, implementation: str, place: Place) -> Launches:
        """Launches over as many copies of the operands as leave caches cold, with the judge of their outputs."""
        operands = self.operands(parameters, place.seed)
        sets, cache = sets_to_rotate(self.footprint_bytes(parameters), place.device)
        place = dataclasses.replace(place, sets=place.sets or sets)
        launches: Launches = self.implementation(implementation).prepare(parameters, operands, place)
        launches.sampling = {"cache": cache, "operand_sets": place.sets}
        launches.judge = Judge(self, parameters, place.seed, operands, launches)
        return launches


@contextmanager
def refusing(kind: type[UserError | Unsupported]) -> Iterator[None]:
    """Turn the ValueError by which a kernel refuses what it cannot do into an error of this kind."""
    try:
        yield
    except ValueError as error:
        raise kind(str(error)) from None


def free_bytes(device: Device) -> int:
    """Memory of a device that nobody has."""
    if device.kind == "cuda":
        return int(cuda_device(device.index).context.memory_bytes()[0])
    return memory.available_bytes()


class Judge:
    """The verdict on the last launch on an operand set, by the reference on its device, else by the host's.

    Of GPU cases the host judges those too whose reference is cheap there, and one in `HOST_JUDGES_ONE_OF` by what is
    computed, the first time that they are judged: the two must agree. `references` names who judged.
    """

    def __init__(
        self, operator: Operator[Any], parameters: Any, seed: int, operands: Operands, launches: Launches
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
            by_device = self._operator.compare(self._parameters, tensors, computed_anew)
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
        outputs = self._launches.outputs(index)
        return self._operator.verify(self._parameters, self._operands, outputs, self._keep)


def sets_to_rotate(set_bytes: int, device: Device, most: int = MOST_SETS) -> tuple[int, str]:
    """How many operand sets to rotate through, so that no launch finds in cache what the last one left there.

    Also whether that is so, in the record's word: cold_l2, larger_than_l2 where one set is enough, or partly_warm where
    more would be needed than can be made.
    """
    if device.kind == "cuda":
        cache_bytes = cuda_device(device.index).context.properties.l2_bytes
    else:
        cache_bytes = cpu.detect().l2_total_bytes
    wanted = math.ceil(CACHE_TURNOVER * cache_bytes / set_bytes)
    affordable = int(MEMORY_SHARE * free_bytes(device) / set_bytes)
    sets = max(1, min(wanted, affordable, most))
    return sets, "partly_warm" if sets < wanted else "cold_l2" if wanted > 1 else "larger_than_l2"
