"""The devices of this machine: what the CUDA driver says of its GPUs, and which device auto, cpu, cuda or cuda:N names.

The driver is queried without torch and without creating a context. Signatures and numbers are those of the CUDA Driver
API reference (cuInit, cuDeviceGet*, CUdevice_attribute).
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import architecture

Facility = TypeVar("Facility")


class Unavailable(Exception):
    """The library or the device behind it is not there; the message is a clause that says why."""

    def anew(self) -> Unavailable:
        """The same without the frames of whoever raised it: where it is kept, they and all they hold would be too."""
        return Unavailable(*self.args)


def required(facility: Facility | Unavailable) -> Facility:
    """Return a facility that was looked for. Raises Unavailable where it is missing."""
    if isinstance(facility, Unavailable):
        raise facility.anew()
    return facility


def open_library(override: str, names: Sequence[str]) -> Any:
    """Open the library whose path the environment variable `override` gives, else the first name that opens.

    Raises Unavailable where nothing opens. A set override is never passed over: what it names must open.
    """
    path = os.environ.get(override)
    for name in [path] if path else names:
        try:
            return ctypes.CDLL(name)
        except OSError as refusal:
            reason = str(refusal)
    if path:
        raise Unavailable(f"{override}={path} cannot be opened ({reason})")
    raise Unavailable(f"{names[0]} cannot be opened, so there is no NVIDIA driver here")


LIBRARIES = ("libcuda.so.1", "libcuda.so")
OVERRIDE = "PYPERF_LIBCUDA"

MULTIPROCESSOR_COUNT = 16
COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
# Answers of cuInit on machines that have the library; for other numbers the driver has words of its own.
REASONS = {
    100: "the driver finds no CUDA device",
    803: "the libcuda found does not fit the kernel's driver",
    804: "the libcuda found is too new for this GPU's driver",
}


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one slice of one under MIG, as the CUDA driver sees it."""

    index: int
    name: str
    uuid: str  # as nvidia-smi prints it: GPU-... or MIG-...
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int


class CudaDriver:
    """The few calls to libcuda that need no context."""

    def __init__(self, library: Any) -> None:
        """Initialise the driver; raises Unavailable where it has no device or does not start."""
        self._library = library
        code = int(library.cuInit(0))
        if code:
            raise Unavailable(REASONS.get(code, f"cuInit failed: {self._words(code)}"))

    def device_count(self) -> int:
        """How many devices this process may use; CUDA_VISIBLE_DEVICES has its say."""
        return self._integer("cuDeviceGetCount")

    def version(self) -> str:
        """The newest CUDA version that the driver supports, as in 13.0."""
        number = self._integer("cuDriverGetVersion")
        return f"{number // 1000}.{number % 1000 // 10}"

    def gpu(self, index: int) -> Gpu:
        """Describe the device of that index; raises Unavailable where the driver refuses."""
        device = self._integer("cuDeviceGet", index)
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, len(name), device)
        memory = ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        label = name.value.decode("utf-8", "replace")
        return Gpu(
            index=index,
            name=label,
            uuid=self._uuid(device, "MIG" if " MIG " in label else "GPU"),
            compute_capability=(
                self._integer("cuDeviceGetAttribute", COMPUTE_CAPABILITY_MAJOR, device),
                self._integer("cuDeviceGetAttribute", COMPUTE_CAPABILITY_MINOR, device),
            ),
            multiprocessors=self._integer("cuDeviceGetAttribute", MULTIPROCESSOR_COUNT, device),
            memory_bytes=memory.value,
        )

    def _uuid(self, device: int, prefix: str) -> str:
        raw = (ctypes.c_ubyte * 16)()
        # The second version tells slices of one GPU apart; drivers older than CUDA 11.4 lack it.
        getter = "cuDeviceGetUuid_v2" if hasattr(self._library, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        self._call(getter, raw, device)
        return f"{prefix}-{uuid.UUID(bytes=bytes(raw))}"

    def _integer(self, function: str, *arguments: int) -> int:
        """Call a function whose first parameter is a pointer to the int it answers with."""
        answer = ctypes.c_int()
        self._call(function, ctypes.byref(answer), *arguments)
        return answer.value

    def _call(self, function: str, *arguments: Any) -> None:
        code = int(getattr(self._library, function)(*arguments))
        if code:
            raise Unavailable(f"{function} failed: {self._words(code)}")

    def _words(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return f"{(text.value or b'unknown error').decode('utf-8', 'replace')} (CUresult {code})"


@functools.cache
def driver() -> CudaDriver | Unavailable:
    """The CUDA driver, or why there is none; queried once, then remembered."""
    try:
        return CudaDriver(open_library(OVERRIDE, LIBRARIES))
    except Unavailable as reason:
        return reason.anew()


def gpus() -> list[Gpu]:
    """All GPUs this process may use; empty if there is no driver."""
    return [] if isinstance(driver(), Unavailable) else _present()


@dataclass(frozen=True)
class Device:
    """A device that exists; `str(device)` is what `resolve` reads back."""

    kind: Literal["cpu", "cuda"]
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


def resolve(requested: str) -> Device:
    """Return the device; auto is the first GPU that our kernels run on, else the CPU. Raises UserError for none."""
    match = re.fullmatch(r"(auto|cpu)|cuda(?::([0-9]{1,4}))?", requested.strip().lower())
    if match is None:
        raise UserError(f"There is no device {requested!r}: ask for auto, cpu, cuda or cuda:N.")
    if match[1] == "cpu":
        return Device("cpu")
    try:
        present = _present()
    except Unavailable as reason:
        if match[1]:
            return Device("cpu")
        raise UserError(f"Device {requested!r} was requested, but {reason}: ask for cpu or auto.") from None
    if match[1]:
        index = next((gpu.index for gpu in present if architecture(gpu.compute_capability).cuda_kernels), None)
        return Device("cpu") if index is None else Device("cuda", index)
    index = int(match[2] or 0)
    if index >= len(present):
        there = "no CUDA device" if not present else f"no CUDA device beyond cuda:{len(present) - 1}"
        raise UserError(
            f"Device {requested!r} was requested, but there is {there}: ask for auto, cpu or one that is there."
        )
    return Device("cuda", index)


def _present() -> list[Gpu]:
    found = required(driver())
    return [found.gpu(index) for index in range(found.device_count())]
