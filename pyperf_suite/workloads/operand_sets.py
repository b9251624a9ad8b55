"""Copies of a case's operands in one memory, for launches to rotate through: numpy's, torch's or a GPU's own.

Whatever computes, its results are then poisoned, read and compared in one way.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from pyperf_suite.measure.stopwatch import CpuStopwatch, CudaStopwatch, Stopwatch
from pyperf_suite.measure.tolerance import Array
from pyperf_suite.workloads.cuda import CudaDevice, cuda_device
from pyperf_suite.workloads.dtypes import aligned_empty, element_type, poison_array, poison_tensor, torch_name
from pyperf_suite.workloads.inputs import Operands, fill_on_device
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.workload import Place


@dataclass(frozen=True)
class Bound:
    """A launch on one operand set: what runs it, the results it left by name, and all memory that it fills."""

    launch: Callable[[], Any]
    results: Callable[[], Mapping[str, Any]]
    written: Callable[[], Iterable[Any]]

    @classmethod
    def into(cls, launch: Callable[[], Any], **results: Any) -> Bound:
        """One that writes these and nothing else."""
        return cls(launch, lambda: results, results.values)


class OperandSets(ABC):
    """`sets` are the copies, operands by name; `described` says what each is."""

    sets: Sequence[Mapping[str, Any]]
    stopwatch: Stopwatch

    def __init__(self, operands: Operands, place: Place) -> None:
        self.described, self.inputs = operands.described, operands.inputs
        self.place, self.count = place, place.sets or 1

    def synchronize(self) -> None:
        """Wait until all that was launched is done."""
        return

    def seen(self, name: str, held: Any) -> Any:
        """What that memory holds, as a numpy array in storage form or as a torch tensor."""
        return held

    @abstractmethod
    def poison(self, held: Any) -> None:
        """Fill it with what no correct result holds."""


class HostArrays(OperandSets):
    """numpy arrays, each elsewhere in memory."""

    def __init__(self, operands: Operands, place: Place, names: Iterable[str] = ()) -> None:
        """All operands, or those that are named."""
        super().__init__(operands, place)
        self.stopwatch = CpuStopwatch()
        first = {name: operands[name] for name in names or operands}
        self.sets = [first, *({name: self._copy(name, first[name]) for name in first} for _ in range(self.count - 1))]

    def _copy(self, name: str, array: Array) -> Array:
        copy = aligned_empty(array.shape, self.described[name].dtype)
        copy[...] = array
        return copy

    def poison(self, held: Array) -> None:
        poison_array(held)


class TorchTensors(OperandSets):
    """torch tensors: on a CPU they share numpy's memory, on a GPU they are filled where they lie."""

    def __init__(self, operands: Operands, place: Place, workers: int = 0, names: Iterable[str] = ()) -> None:
        """All operands, or those that are named; on a CPU torch takes so many threads, 0 for as many as it likes.

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
        """What torch calls an operand's type."""
        return getattr(self.torch, torch_name(self.described[name].dtype))

    def synchronize(self) -> None:
        self.where.synchronize()

    def seen(self, name: str, held: Any) -> Any:
        return held.detach()

    def poison(self, held: Any) -> None:
        poison_tensor(held.detach())

    def returned_by(self, function: Callable[[], Any], *names: str) -> Bound:
        """A launch of a function that allocates what it returns: one tensor, or a tuple of as many as there are names.

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

        return Bound(launch, results, forget)

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
    """Memory of a GPU that is ours, each operand a `_native.cuda.DeviceMemory`; launches also use what is `beside`."""

    stopwatch: CudaStopwatch
    beside: tuple[Any, ...] = ()

    def __init__(self, operands: Operands, place: Place, gpu: CudaDevice) -> None:
        super().__init__(operands, place)
        self._gpu = gpu
        self.stopwatch = gpu.stopwatch()
        self.stopwatch.sets = self.count
        self.sets = [{name: self._filled(name, operands.seed) for name in operands} for _ in range(self.count)]

    def _filled(self, name: str, seed: int) -> Any:
        operand = self.described[name]
        memory = self._gpu.native.DeviceMemory(self._gpu.context, operand.size_bytes)
        if operand.stream is not None:
            fill_on_device(self._gpu, memory.address, operand, seed)
        return memory

    def synchronize(self) -> None:
        self._gpu.context.synchronize()

    def seen(self, name: str, held: Any) -> Any:
        """A tensor that shares it where there is a torch that can use the GPU, else a copy in the host's memory."""
        operand = self.described[name]
        if importlib.util.find_spec("torch") is not None:
            import torch

            if torch.cuda.is_available():
                described = {"shape": (held.bytes,), "typestr": "|u1", "data": (held.address, False), "version": 3}
                holder = SimpleNamespace(__cuda_array_interface__=described)
                raw = torch.as_tensor(holder, device=torch.device("cuda", self._gpu.index))
                return raw.view(getattr(torch, torch_name(operand.dtype))).view(operand.shape)
        return np.frombuffer(held.read(), element_type(operand.dtype).storage).reshape(operand.shape)

    def poison(self, held: Any) -> None:
        # All bits set is not a number in every output type.
        held.fill(0xFF)


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


def same_bits(left: Any, right: Any) -> bool:
    """Whether two arrays or tensors hold the same bytes in the same shape; NaN equals itself."""
    return left.shape == right.shape and bool((_bits(left) == _bits(right)).all())


def _bits(values: Any) -> Any:
    """The elements as integers of their size."""
    if isinstance(values, np.ndarray):
        return values.view(np.dtype(f"u{values.dtype.itemsize}"))
    import torch

    return values.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[values.element_size()])
