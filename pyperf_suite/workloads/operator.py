"""Workloads that are one computation: seeded operands, one float64 reference, sets that rotate so that caches are cold.

An implementation turns operands into launches on a device, in numpy's, torch's or a GPU's own memory. Who is right is
decided here, the same for all of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from pyperf_suite.errors import Unsupported, UserError, out_of_memory
from pyperf_suite.hardware import cpu, memory
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.checks import CheckVerdict
from pyperf_suite.measure.stopwatch import CpuStopwatch, CudaStopwatch, Stopwatch
from pyperf_suite.measure.tolerance import Array, Keep, computed_anew
from pyperf_suite.measure.verify import Verification
from pyperf_suite.user_kernels.api import DeclaredKernel, Launch, described_by
from pyperf_suite.workloads import scratch
from pyperf_suite.workloads.backends import (
    CudaDevice,
    TorchDevice,
    core_peak,
    cuda_device,
    named_by_isa,
    native_extension,
    require_cores,
)
from pyperf_suite.workloads.operands import (
    ELEMENT_TYPES,
    Operand,
    Operands,
    aligned_empty,
    element_type,
    fill_on_device,
    poison_tensor,
    torch_name,
    widen,
)
from pyperf_suite.workloads.workload import (
    ExecutionContext,
    ImplementationBase,
    Kernel,
    Parameters,
    Prepared,
    Work,
    Workload,
)

# Rotating through operands that together exceed the caches this many times over leaves nothing of a set when it
# comes round again (DESIGN: 2-3 x L2).
CACHE_TURNOVER = 3
MOST_SETS = 1024  # sets at most: preparing more, of operands that small, takes longer than measuring with them
MEMORY_SHARE = 0.25  # operand sets may not crowd out the reference, which needs room of its own

# FLOPs up to which the host also judges a case that is verified on a GPU, a tenth of a second, and the part of the
# other cases that it judges.
HOST_FLOP = 2e9
HOST_JUDGES_ONE_OF = 16

Check = Callable[[Mapping[str, Any], Keep], Verification]  # the verdict on the values of all arrays by name

NOT_KNOWN = Kernel("", "")  # kernel of launches that have to run before it is known


@dataclass(frozen=True)
class BoundLaunch:
    """A launch on one operand set: what runs it, the results it left by name, and all memory that it fills."""

    launch: Callable[[], Any]
    results: Callable[[], Mapping[str, Any]]
    written: Callable[[], Iterable[Any]]

    @classmethod
    def into(cls, launch: Callable[[], Any], **results: Any) -> BoundLaunch:
        return cls(launch, lambda: results, results.values)


class OperandSets(ABC):
    """`sets` are the copies, operands by name; `described` says what each is."""

    sets: Sequence[Mapping[str, Any]]
    stopwatch: Stopwatch

    def __init__(self, operands: Operands, place: ExecutionContext) -> None:
        self.described, self.inputs = operands.described, operands.inputs
        self.place, self.count = place, place.sets or 1

    def synchronize(self) -> None:
        return

    def seen(self, name: str, buffer: Any) -> Any:
        """Return the memory as a numpy array in storage form or as a torch tensor."""
        return buffer

    @abstractmethod
    def poison(self, buffer: Any) -> None:
        """Fill it with what no correct result holds."""


class HostArrays(OperandSets):
    """numpy arrays, each elsewhere in memory."""

    def __init__(self, operands: Operands, place: ExecutionContext, names: Iterable[str] = ()) -> None:
        super().__init__(operands, place)
        self.stopwatch = CpuStopwatch()
        first = {name: operands[name] for name in names or operands}
        self.sets = [first, *({name: self._copy(name, first[name]) for name in first} for _ in range(self.count - 1))]

    def _copy(self, name: str, array: Array) -> Array:
        copy = aligned_empty(array.shape, self.described[name].dtype)
        copy[...] = array
        return copy

    def poison(self, buffer: Array) -> None:
        buffer.fill(next(each.not_a_number for each in ELEMENT_TYPES.values() if each.storage == buffer.dtype))


class TorchTensors(OperandSets):
    """torch tensors: on a CPU they share numpy's memory, on a GPU they are filled where they lie."""

    def __init__(
        self, operands: Operands, place: ExecutionContext, workers: int = 0, names: Iterable[str] = ()
    ) -> None:
        """Make all operands, or the named ones; on a CPU torch takes `workers` threads, 0 for as many as it likes.

        Raises Unsupported where torch is absent or cannot use the GPU.
        """
        super().__init__(operands, place)
        self.where = TorchDevice(place.device, workers)
        self.torch, self.device, self.stopwatch = self.where.torch, self.where.device, self.where.stopwatch
        if not self.where.is_gpu:
            arrays = HostArrays(operands, place, names).sets
            self.sets = [{name: self._wrapped(name, array) for name, array in each.items()} for each in arrays]
            return
        if isinstance(self.stopwatch, CudaStopwatch):
            self.stopwatch.sets = self.count
        first = {name: self._filled(name, operands.seed) for name in names or operands}
        # Outputs of the copies are copied as well, as uninitialised as they are.
        self.sets = [first, *({name: tensor.clone() for name, tensor in first.items()} for _ in range(self.count - 1))]

    def _wrapped(self, name: str, array: Array) -> Any:
        # As bytes and viewed there: numpy has no name for bfloat16 and float8.
        return self.torch.from_numpy(array.view(np.uint8)).view(self.dtype(name))

    def _filled(self, name: str, seed: int) -> Any:
        operand = self.described[name]
        tensor = self.torch.empty(operand.shape, dtype=self.dtype(name), device=self.device)
        if operand.stream is not None:
            fill_on_device(cuda_device(self.device.index), tensor.data_ptr(), operand, seed)
        return tensor

    def dtype(self, name: str) -> Any:
        return getattr(self.torch, torch_name(self.described[name].dtype))

    def synchronize(self) -> None:
        self.where.synchronize()

    def seen(self, name: str, tensor: Any) -> Any:
        return tensor.detach()

    def poison(self, tensor: Any) -> None:
        poison_tensor(tensor.detach())

    def returned_by(self, function: Callable[[], Any], *names: str) -> BoundLaunch:
        """A launch of a function that allocates what it returns: one tensor, or a tuple of as many as names.

        What was poisoned is forgotten: whoever gets that memory next and leaves it is seen.
        """
        last: list[Any] = [None]

        def launch() -> None:
            last[0] = function()

        def results() -> dict[str, Any]:
            if last[0] is None:
                return {name: self._nothing(name) for name in names}
            return dict(zip(names, last[0] if isinstance(last[0], tuple) else (last[0],), strict=True))

        def forget() -> Iterable[Any]:
            found, last[0] = results(), None
            return found.values()

        return BoundLaunch(launch, results, forget)

    def _nothing(self, name: str) -> Any:
        tensor = self.torch.empty(self.described[name].shape, dtype=self.dtype(name), device=self.device)
        poison_tensor(tensor)
        return tensor

    def launched_kernels(self, launch: Callable[[int], Any]) -> list[str]:
        """Names of the kernels that `launch(0)` runs on a GPU, as torch's profiler sees them; none on a CPU."""
        if not self.where.is_gpu:
            return []
        torch = self.torch
        launch(0)
        self.synchronize()
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            launch(0)
            self.synchronize()
        on_device = (event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA)
        return [event.name for event in on_device if not event.name.startswith("Mem")]


class DeviceMemory(OperandSets):
    """Memory of a GPU that is ours, each operand a `_native.cuda.DeviceMemory`; launches also use what is `extra`."""

    stopwatch: CudaStopwatch
    extra: tuple[Any, ...] = ()

    def __init__(self, operands: Operands, place: ExecutionContext, gpu: CudaDevice) -> None:
        super().__init__(operands, place)
        self._gpu = gpu
        self.stopwatch = gpu.stopwatch()
        self.stopwatch.sets = self.count
        self.sets = [{name: self._filled(name, operands.seed) for name in operands} for _ in range(self.count)]

    def _filled(self, name: str, seed: int) -> Any:
        operand = self.described[name]
        memory = self._gpu.native.DeviceMemory(self._gpu.context, operand.nbytes)
        if operand.stream is not None:
            fill_on_device(self._gpu, memory.address, operand, seed)
        return memory

    def synchronize(self) -> None:
        self._gpu.context.synchronize()

    def seen(self, name: str, buffer: Any) -> Any:
        """A tensor that shares it where there is a torch that can use the GPU, else a copy in the host's memory."""
        operand = self.described[name]
        if importlib.util.find_spec("torch") is not None:
            import torch

            if torch.cuda.is_available():
                described = {"shape": (buffer.bytes,), "typestr": "|u1", "data": (buffer.address, False), "version": 3}
                holder = SimpleNamespace(__cuda_array_interface__=described)
                raw = torch.as_tensor(holder, device=torch.device("cuda", self._gpu.index))
                return raw.view(getattr(torch, torch_name(operand.dtype))).view(operand.shape)
        return np.frombuffer(buffer.read(), element_type(operand.dtype).storage).reshape(operand.shape)

    def poison(self, buffer: Any) -> None:
        # All bits set is not a number in every output type.
        buffer.fill(0xFF)


def as_stored(values: Any, dtype: str) -> Array:
    """A torch tensor as a numpy array in `dtype`'s storage, in the host's memory; an array as it is."""
    if isinstance(values, np.ndarray):
        return values
    import torch

    stored: Array = values.contiguous().view(torch.uint8).cpu().numpy().view(element_type(dtype).storage)
    return stored


def copied(values: Any) -> Any:
    """A copy of an array or a tensor where it lies."""
    return values.copy() if isinstance(values, np.ndarray) else values.clone()


def _bits(values: Any) -> Any:
    """Bytes as integers, of which a NaN equals itself."""
    if isinstance(values, np.ndarray):
        return values.view(np.dtype(f"u{values.dtype.itemsize}"))
    import torch

    return values.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[values.element_size()])


class Launches(Prepared):
    """Launches bound to rotating operand sets, whose results `judge` compares with the reference."""

    judge: OutputVerifier

    def __init__(self, memory: OperandSets, bound: Sequence[BoundLaunch], kernel: Kernel = NOT_KNOWN) -> None:
        self._memory, self._bound, self.kernel = memory, bound, kernel
        self._launches = [each.launch for each in bound]
        self.sets, self.stopwatch = len(bound), memory.stopwatch

    def launch(self, index: int) -> Any:
        return self._launches[index % self.sets]()

    def poison(self, index: int | None = None) -> None:
        for each in self._bound if index is None else (self._bound[index % self.sets],):
            for held in each.written():
                self._memory.poison(held)
        self._memory.synchronize()

    def results(self, index: int) -> dict[str, Any]:
        self._memory.synchronize()
        found = self._bound[index % self.sets].results()
        return {name: self._memory.seen(name, held) for name, held in found.items()}

    def outputs(self, index: int) -> dict[str, Array]:
        described = self._memory.described
        return {name: as_stored(found, described[name].dtype) for name, found in self.results(index).items()}

    def tensors(self, index: int) -> Mapping[str, Any] | None:
        """Inputs and results of a set where they lie in a GPU's memory; None where torch sees none there."""
        results = self.results(index)
        if any(isinstance(each, np.ndarray) or not each.is_cuda for each in results.values()):
            return None
        held = self._memory.sets[index % self.sets]
        return {name: self._memory.seen(name, held[name]) for name in self._memory.inputs} | results

    def verify_last(self, index: int) -> Verification:
        return self.judge(self, index)

    def check(self) -> CheckVerdict:
        """Launch on every set once more, untimed; the first verdict that is bad, or that on set 0."""
        self.poison()
        for index in range(self.sets):
            self.launch(index)
        verdicts = [self.verify_last(index) for index in range(self.sets)]
        return next((each for each in verdicts if not each.passed), verdicts[0])

    def references(self) -> dict[str, Any]:
        return {"references": self.judge.references}

    def snapshot(self, index: int) -> Any:
        return {name: copied(found) for name, found in self.results(index).items()}

    def matches(self, index: int, snapshot: Any) -> bool:
        pairs = [(found, snapshot[name]) for name, found in self.results(index).items()]
        return all(now.shape == then.shape and bool((_bits(now) == _bits(then)).all()) for now, then in pairs)


class TimedImplementation(ImplementationBase[Parameters]):
    """One way to compute an operator on one kind of device."""

    @abstractmethod
    def prepare(self, parameters: Parameters, operands: Operands, place: ExecutionContext) -> Launches:
        """Bind launches to as many operand copies as the place says. Raises Unsupported where this machine cannot."""


class NativeKernels(TimedImplementation[Parameters]):
    """Our CPU kernels (`csrc/cpu`) of one instruction set: `native` takes the best there is."""

    device_kind = "cpu"

    def __init__(self, isa: str = "") -> None:
        self.isa = isa or None
        self.name = named_by_isa(isa)  # type: ignore[misc]

    def require_here(self, workers: int) -> ModuleType:
        """The extension. Raises UserError where the cores or the instruction set are not here."""
        require_cores(workers)
        native = native_extension()
        if self.isa:
            with refusing(UserError):
                native.micro_tile(self.isa)
        return native

    def details(self, kernel: Any, dtype: str, workers: int) -> dict[str, Any]:
        """Return a kernel of the extension for records: its name, and the most that its instructions multiply."""
        return {
            "isa": kernel.isa,
            "unit": kernel.unit,
            "micro_tile": "x".join(map(str, kernel.micro_tile)),
            "pinned": kernel.pinned,
            "workspace_bytes": kernel.workspace_bytes,
            "peak_flop_per_s": core_peak(dtype, kernel.isa, workers).flop_per_s * workers,
        }


class Operator(Workload[Any]):
    """A kernel that the suite declares as users declare theirs, measured in the process that has the device.

    What `randn` and `empty` make is described only, and each implementation has it filled where it computes. Arrays
    are keyword arguments of `launch`, whose `check` is a partial `check(values, keep)` that gives the verdict on all of
    them by name: its arguments and the inputs are what the reference depends on, which goes through `keep`.
    """

    own_check = False

    def __init__(self, kernel: DeclaredKernel, implementations: Mapping[str, Any]) -> None:
        assert kernel.parameters is not None
        self.kernel, self.implementations = kernel, implementations
        self.name, self.parameters_type = kernel.name, kernel.parameters

    def launched(self, parameters: Any) -> Launch:
        """Return the declaration's launch of a case, with an `Operand` for each array."""
        streams = itertools.count()

        with described_by(lambda is_input, shape, dtype: Operand(shape, dtype, next(streams) if is_input else None)):
            return self.kernel(parameters)

    def operands(self, parameters: Any, seed: int) -> Operands:
        return Operands(self.launched(parameters).kwargs, seed)

    def footprint_bytes(self, parameters: Any) -> int:
        """Bytes of all operands; what else an implementation keeps is its own."""
        return sum(operand.nbytes for operand in self.launched(parameters).kwargs.values())

    def work(self, parameters: Any) -> Work:
        launched = self.launched(parameters)
        return Work(launched.flop, launched.bytes)

    def prepare(self, parameters: Any, implementation: str, place: ExecutionContext) -> Launches:
        """Launches over as many copies of the operands as leave caches cold, with the judge of their outputs."""
        operands = self.operands(parameters, place.seed)
        sets, cache = sets_to_rotate(self.footprint_bytes(parameters), place.device)
        place = dataclasses.replace(place, sets=place.sets or sets)
        launches: Launches = self.implementation(implementation).prepare(parameters, operands, place)
        launches.sampling = {"cache": cache, "operand_sets": place.sets}
        launches.judge = OutputVerifier(self.launched(parameters), operands, f"{parameters} {launches.kernel.name}")
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


def judged(check: Check, operands: Operands, outputs: Mapping[str, Array], keep: Keep = computed_anew) -> Verification:
    """The verdict on outputs in storage form, by a reference in the host's memory."""
    stored = {name: operands[name] for name in operands.inputs} | dict(outputs)
    return check({name: widen(each, operands.described[name].dtype) for name, each in stored.items()}, keep)


class OutputVerifier:
    """The verdict on the last launch on an operand set, by the reference on its device, else by the host's.

    Of GPU cases the host judges those too whose reference is cheap there, and one in `HOST_JUDGES_ONE_OF` by what is
    computed, the first time that they are judged: the two must agree. `references` names who judged.
    """

    def __init__(self, launched: Launch, operands: Operands, computed: str) -> None:
        check: Any = launched.check
        self._check, self._operands = check, operands
        described = {name: operands.described[name] for name in operands.inputs}
        self._keep = scratch.shared(f"{check.func.__name__} {check.args} {described} seed {operands.seed}")
        drawn = hashlib.sha256(computed.encode()).digest()
        cheap = launched.flop <= HOST_FLOP
        self._host_too = cheap or int.from_bytes(drawn[:8], "big") % HOST_JUDGES_ONE_OF == 0
        self.references: list[str] = []

    def __call__(self, launches: Launches, index: int) -> Verification:
        tensors = launches.tensors(index)
        if tensors is None:
            self.references = ["host"]
            return self._by_host(launches, index)
        try:
            by_device = self._check(tensors, computed_anew)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            self.references = ["host"]
            return self._by_host(launches, index)
        if not self._host_too:
            self.references = self.references or ["device"]
            return by_device
        self._host_too = False
        self.references = ["device", "host"]
        by_host = self._by_host(launches, index)
        if by_device.passed == by_host.passed:
            return by_device
        words = f"the references of device and host disagree: {by_device.message} / {by_host.message}"
        return dataclasses.replace(by_host, passed=False, message=words)

    def _by_host(self, launches: Launches, index: int) -> Verification:
        return judged(self._check, self._operands, launches.outputs(index), self._keep)


def sets_to_rotate(set_bytes: int, device: Device, max_sets: int = MOST_SETS) -> tuple[int, str]:
    """How many operand sets to rotate through so that caches are cold, and whether they are, in the record's word."""
    if device.kind == "cuda":
        cache_bytes = cuda_device(device.index).context.properties.l2_bytes
    else:
        cache_bytes = cpu.detect().l2_total_bytes
    wanted = math.ceil(CACHE_TURNOVER * cache_bytes / set_bytes)
    affordable = int(MEMORY_SHARE * free_bytes(device) / set_bytes)
    sets = max(1, min(wanted, affordable, max_sets))
    return sets, "partly_warm" if sets < wanted else "cold_l2" if wanted > 1 else "larger_than_l2"
