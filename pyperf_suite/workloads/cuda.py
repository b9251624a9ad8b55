"""One GPU made ready for implementations: its context, the compiler of its kernels, the stopwatch of its streams.

What this machine cannot do becomes `Unsupported` here, once for all implementations.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.kernels.nvrtc import wheels
from pyperf_suite.measure.stopwatch import CudaStopwatch
from pyperf_suite.workloads.kernel_cache import KernelCache
from pyperf_suite.workloads.native import native_extension


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
        """Machine code of a source, for this very device if no architecture is named; headers by their include name.

        Raises Unsupported where NVRTC does not know the device, and `native.CompileError` with the compiler's log.
        """
        target = architecture or self.context.architecture
        with self.translated():
            compiled = self._compiler.compile(name, source, dict(headers), target, list(options))
        return bytes(compiled.cubin)

    def kernel(self, cubin: bytes, name: str) -> Any:
        """The kernel of that name, loaded: a `_native.cuda.Kernel`."""
        with self.translated():
            return self.native.Kernel(self.native.Module(self.context, cubin), name)

    def stopwatch(self, queueing: str = "held", **options: float) -> CudaStopwatch:
        """A stopwatch; `queueing` is held, graph or open, options as `native.Stopwatch`'s.

        Without options all share one stream, for which cuBLAS then keeps one workspace.
        """
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
        """Whether a kernel or the hardware took the context with it, after which only a new process can go on."""
        try:
            self.context.synchronize()
        except self.native.CudaError:
            return True
        return False


def context_is_lost(device: Device) -> bool:
    """Whether this process's context on that device is lost; never where it is no GPU, or has no context of ours."""
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
    """Where compiled kernels are kept: $PYPERF_CACHE_DIR, else below $XDG_CACHE_HOME or ~/.cache; '' for nowhere."""
    asked = os.environ.get("PYPERF_CACHE_DIR")
    if asked:
        return asked
    caches = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The XDG Base Directory Specification has relative paths ignored.
        base = Path(caches) if Path(caches).is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return ""
    return str(base / "pyperf_suite" / "kernels")
