"""Backends of implementations: the native extension, a GPU's context and compiler, torch's device.

A facility that this machine lacks becomes `Unsupported` here, once for all implementations. So does how launches of
torch are compared: one is right where every element of its results is as near to float64 as honest rounding leaves it.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from pyperf_suite.errors import Unsupported, UserError, out_of_memory
from pyperf_suite.hardware.devices import Device
from pyperf_suite.kernels.nvrtc import wheels
from pyperf_suite.measure.stopwatch import CpuStopwatch, CudaStopwatch, Stopwatch
from pyperf_suite.measure.telemetry import PYTHON_LOOP, python_loop_s
from pyperf_suite.workloads.scratch import KernelCache
from pyperf_suite.workloads.workload import Checked, ExecutionContext, Implementation, Prepared

RESULT = "the result"


# Enough for dozens of slices, of which the best counts, and what a look takes that only adds to earlier ones.
MEASURED_S = 0.01
AGAIN_S = 0.002
SAME_CLOCK_SHARE = 0.95  # clocks and rates nearer to each other than this are taken for the same


def native_extension() -> ModuleType:
    """`pyperf_suite._native`. Raises UserError that says how to build it where it is absent or does not load."""
    try:
        return importlib.import_module("pyperf_suite._native")
    except ImportError as error:
        raise UserError(
            f"The native extension does not load ({error}): build it with `pip install -e .` in the checkout, "
            "which needs a C++17 compiler."
        ) from None


def require_installed(package: str) -> None:
    """Raise Unsupported where there is no such package."""
    if importlib.util.find_spec(package) is None:
        raise Unsupported(f"{package} is not installed.")


# Knuth's multiplier of a linear congruential generator, odd; elements that are widened to 64 bits at a time.
_MULTIPLIER = 6364136223846793005
_FINGERPRINTED = 1 << 20

# Instruction sets of our CPU kernels, best first; `_native.isas()` has those that this processor can run.
INSTRUCTION_SETS = ("amx", "avx512_bf16", "avx512", "avx2", "portable", "neon")


def named_by_isa(isa: str) -> str:
    """The name of our CPU kernels of one instruction set: `native` takes the best there is."""
    return f"native_{isa}" if isa else "native"


@dataclass(frozen=True)
class CorePeak:
    """A core's mean peak while `workers` multiply at once, with the clock meanwhile and that of plain integers before.

    Wide vectors and matrix units may lower `clock_hz` below `idle_clock_hz`.
    """

    isa: str
    unit: str
    dtype: str
    workers: int
    flop_per_s: float
    clock_hz: float
    idle_clock_hz: float

    @property
    def flop_per_cycle(self) -> float:
        return self.flop_per_s / self.clock_hz

    @property
    def lowers_clock(self) -> bool:
        """True if multiplying costs clock: a licence for wide vectors, or a power limit."""
        return self.clock_hz < SAME_CLOCK_SHARE * self.idle_clock_hz


_best: dict[tuple[str, str | None, int], list[tuple[float, ...]]] = {}


def core_peak(dtype: str, isa: str | None = None, workers: int = 1) -> CorePeak:
    """The best that this process has seen so far. Raises UserError for an instruction set or cores not here."""
    # Each call looks again, for whoever else runs can only lower a look.
    native, key = native_extension(), (dtype, isa, workers)
    try:
        looked = native.core_peaks(dtype, workers, AGAIN_S if key in _best else MEASURED_S, isa)
        unit = native.unit(isa or native.isas()[0], dtype)
    except ValueError as refused:
        raise UserError(str(refused)) from None
    best = _best.get(key, looked)
    _best[key] = cores = [tuple(map(max, *each)) for each in zip(best, looked, strict=True)]
    flop_per_s, clock_hz, idle_clock_hz = (sum(each) / workers for each in zip(*cores, strict=True))
    return CorePeak(isa or native.isas()[0], unit, dtype, workers, flop_per_s, clock_hz, idle_clock_hz)


class CudaDevice:
    """A GPU that kernels are compiled for, loaded on and timed on; `context` and `native` are `_native.cuda`'s."""

    def __init__(self, index: int) -> None:
        """Retain the device's primary context, the one torch uses. Raises Unsupported where that cannot be."""
        self.index = index
        self.native: ModuleType = native_extension().cuda
        with self.translated():
            self.context = self.native.Context(self.native.Driver(), index)
            self._compiler = KernelCache(self.native.Compiler(list(wheels())), cache_folder())

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn the extension's NotAvailable into Unsupported, so that the case is recorded with its reason."""
        try:
            yield
        except self.native.NotAvailable as reason:
            raise Unsupported(str(reason)) from None

    def compile(
        self,
        name: str,
        source: str,
        headers: Mapping[str, str],
        options: Sequence[str] = (),
        architecture: str | None = None,
    ) -> bytes:
        """Machine code of a source, for this device if no architecture is named; headers by their include name.

        Raises Unsupported where NVRTC does not know the device, and `native.CompileError` with the compiler's log.
        """
        target = architecture or self.context.architecture
        with self.translated():
            compiled = self._compiler.compile(name, source, dict(headers), target, list(options))
        return bytes(compiled.cubin)

    def kernel(self, cubin: bytes, name: str) -> Any:
        with self.translated():
            return self.native.Kernel(self.native.Module(self.context, cubin), name)

    def stopwatch(self, queueing: str = "held", **options: float) -> CudaStopwatch:
        """A stopwatch; `queueing` is held, graph or open. Without options all share a stream and cuBLAS's workspace."""
        device = self._new_stopwatch(**options) if options else self._shared_stopwatch
        return CudaStopwatch(device, queueing, self.native.QueueTimedOut)

    @functools.cached_property
    def _shared_stopwatch(self) -> Any:
        return self._new_stopwatch()

    def _new_stopwatch(self, **options: float) -> Any:
        source = (files("pyperf_suite.kernels") / "cuda" / "stopwatch.cu").read_text("utf-8")
        cubin = self.compile("stopwatch.cu", source, {}, ("--std=c++17",))
        with self.translated():
            return self.native.Stopwatch(self.context, cubin, **options)

    def is_lost(self) -> bool:
        """True if a kernel or the hardware took the context with it, after which only a new process can go on."""
        try:
            self.context.synchronize()
        except self.native.CudaError:
            return True
        return False


def context_is_lost(device: Device) -> bool:
    """True if this process's context on that device is lost; False on a CPU or without a CUDA context."""
    if device.kind != "cuda":
        return False
    try:
        return cuda_device(device.index).is_lost()
    except Unsupported:
        return False


@functools.cache
def cuda_device(index: int) -> CudaDevice:
    """The device of that index, made ready once in a process. Raises Unsupported with the reason if it cannot be."""
    return CudaDevice(index)


def cache_folder() -> str:
    """Return the folder of compiled kernels: $PYPERF_CACHE_DIR, else below $XDG_CACHE_HOME or ~/.cache; '' for none."""
    requested = os.environ.get("PYPERF_CACHE_DIR")
    if requested:
        return requested
    caches = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The XDG Base Directory Specification has relative paths ignored.
        base = Path(caches) if Path(caches).is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return ""
    return str(base / "pyperf_suite" / "kernels")


def kept_folder(name: str) -> Path | None:
    """The folder of that name next to the compiled kernels, for what takes long to make; None for nowhere."""
    kernels = cache_folder()
    if not kernels:
        return None
    return (Path(kernels).parent if Path(kernels).name == "kernels" else Path(kernels)) / name


class TorchDevice:
    """`torch`, its `device`, and the `stopwatch` that sees what is computed there."""

    def __init__(self, device: Device, workers: int = 0, queueing: str = "held") -> None:
        """Take `workers` threads of a CPU (0: as many as torch does), or a stream of the GPU.

        `queueing` is how gaps between launches are hidden on a GPU; "open", not at all, is for steps of many kernels,
        more than could wait behind a held stream. Raises Unsupported where torch is absent or cannot use the GPU.
        """
        require_installed("torch")
        import torch

        self.torch, self.is_gpu = torch, device.kind == "cuda"
        self.stopwatch: Stopwatch
        if device.kind == "cpu":
            if workers:
                torch.set_num_threads(workers)
            self.device = torch.device("cpu")
            self.stopwatch = CpuStopwatch()
            return
        if not torch.cuda.is_available():
            raise Unsupported(f"This torch ({torch.__version__}) cannot use the GPU.")
        self.device = torch.device("cuda", device.index)
        torch.cuda.set_device(self.device)
        clock = cuda_device(device.index).stopwatch(queueing)
        torch.cuda.set_stream(torch.cuda.ExternalStream(clock.stream, self.device))
        self.stopwatch = clock

    def synchronize(self) -> None:
        if self.is_gpu:
            self.torch.cuda.synchronize(self.device)

    def details(self) -> dict[str, Any]:
        if self.is_gpu:
            return {"gpu": self.torch.cuda.get_device_name(self.device)}
        return {"threads": self.torch.get_num_threads(), "capability": self.torch.backends.cpu.get_cpu_capability()}


class TorchSettings:
    """Torch's settings for a whole process, of one case: kept at the end of its turn, restored before its next."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._threads = 0
        self._on_gpu: tuple[Any, str, bool] | None = None

    def take(self) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            return
        self._threads = torch.get_num_threads()
        if self._device.kind == "cuda" and torch.cuda.is_initialized():
            rounding = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
            self._on_gpu = (torch.cuda.current_stream(), *rounding)

    def give(self) -> None:
        torch = sys.modules.get("torch")
        if torch is None or not self._threads:
            return
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        if self._on_gpu is not None:
            stream, precision, torch.backends.cudnn.allow_tf32 = self._on_gpu
            torch.cuda.set_stream(stream)
            torch.set_float32_matmul_precision(precision)


def leave_nothing_behind(device: Device) -> None:
    """Give a GPU back as a fresh process has it: torch's own stream current, garbage collected, its cache empty."""
    if device.kind != "cuda":
        return
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    torch.cuda.set_stream(torch.cuda.default_stream(device.index))
    torch.cuda.empty_cache()


def workers_of(parameters: Any) -> int | None:
    """Number of cores that a case uses; None where its parameters do not say."""
    schedule = getattr(parameters, "schedule", None)
    workers: int | None = getattr(schedule, "workers", getattr(parameters, "workers", None))
    return workers


def core_loop(cores: int) -> tuple[Callable[[], float], str]:
    """Return a function that times a loop on `cores` cores at once, in seconds of the slowest, and the loop's name."""
    try:
        pace_of_cores = native_extension().pace_of_cores
    except (UserError, AttributeError):  # not built: what it measures is not its own
        return python_loop_s, PYTHON_LOOP
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = min(cores, len(usable))
    return lambda: max(pace_of_cores(cores)), f"registers 32768, {cores} cores"


def require_cores(workers: int) -> None:
    """Raise UserError where more workers are requested than this process may use cores."""
    from pyperf_suite.hardware import cpu  # needs psutil, which a user's interpreter may lack

    cores = cpu.detect().usable_cores
    if workers > cores:
        raise UserError(
            f"{workers} workers were requested, but this process may use {cores} cores: ask for at most that."
        )


class ByTorch(Implementation[Any]):
    """Launches by torch, on as many CPU cores as the parameter `workers` says, or on a GPU."""

    name = "torch"
    needs_torch = True

    def __init__(self, launches: Callable[[Any, int, TorchDevice], Prepared], queueing: str = "open") -> None:
        """`launches(parameters, seed, where)` are made; for `queueing` see TorchDevice."""
        self._launches, self._queueing = launches, queueing

    def validate(self, parameters: Any) -> None:
        require_cores(parameters.workers)

    def prepare(self, parameters: Any, place: ExecutionContext) -> Prepared:
        where = TorchDevice(place.device, parameters.workers, self._queueing)
        return self._launches(parameters, place.seed, where)


def use_products_of(where: TorchDevice, element: str) -> None:
    """Let a GPU round float32 to tfloat32 in products, or not. Raises Unsupported for tfloat32 on a CPU."""
    if where.is_gpu:
        where.torch.set_float32_matmul_precision("high" if element == "tfloat32" else "highest")
        where.torch.backends.cudnn.allow_tf32 = element == "tfloat32"
    elif element == "tfloat32":
        raise Unsupported("A CPU has no tfloat32.")


def fingerprint(tensors: Iterable[Any]) -> int:
    """The bits of all tensors in 64: words times odd numbers that grow with their place, summed modulo 2^64.

    So one that changes always shows, and so do two that are swapped.
    """
    torch: Any = importlib.import_module("torch")
    total = 0
    for each in tensors:
        flat, size = each.detach().contiguous().reshape(-1), each.element_size()
        # In words of 64 bits where the elements fill them, wherever they lie in their storage.
        flat = flat.clone() if flat.storage_offset() * size % 8 else flat
        kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32}
        numbers = flat.view(kinds[size] if flat.numel() * size % 8 else torch.int64)
        total *= _MULTIPLIER
        for begin in range(0, numbers.numel(), _FINGERPRINTED):
            part = numbers[begin : begin + _FINGERPRINTED].long()
            odd = torch.arange(2 * begin + 1, 2 * (begin + part.numel()) + 1, 2, device=part.device)
            total += int(odd.mul_(part).sum())
        total = (total + numbers.numel()) % 2**64
    return total - 2**63


class ExpectedOutputs(NamedTuple):
    """Results that a launch must leave, by name in float64, and the error allowed of each element and tensor.

    Where `in_norm`, a share of the tensor's own norm, is None, `allowed` is how far honest rounding moves an element,
    in root mean square, and rounding.judged has the rule.
    """

    exact: Mapping[str, Any]
    allowed: Mapping[str, Any]
    in_norm: float | None = None


class ComparedLaunches(Prepared):
    """Launches of torch whose results have names and are compared element by element."""

    def __init__(self, where: TorchDevice) -> None:
        self._where, self.stopwatch = where, where.stopwatch

    @abstractmethod
    def results(self, index: int) -> Mapping[str, Any]:
        """Return the results of the last launch on that set, by name; a missing result is absent or None."""

    @abstractmethod
    def due(self) -> ExpectedOutputs:
        """Return the expected outputs, computed once."""

    def verify_last(self, index: int) -> Checked:
        from pyperf_suite.workloads.rounding import compared, judged

        found, (exact, allowed, in_norm) = self.results(index), self.due()
        return judged(found, exact, allowed) if in_norm is None else compared(found, exact, allowed, in_norm)

    def snapshot(self, index: int) -> Any:
        return fingerprint(each for each in self.results(index).values() if each is not None)

    def matches(self, index: int, snapshot: Any) -> bool:
        return bool(self.snapshot(index) == snapshot)

    def _where_there_is_room(self, compute: Callable[[Any], Any]) -> Any:
        """`compute(device)` where launches run, or on the CPU where a GPU has too little memory for it."""
        if self._where.is_gpu:
            try:
                return compute(self._where.device)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
        return compute("cpu")
