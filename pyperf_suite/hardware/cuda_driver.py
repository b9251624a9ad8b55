"""Ask the CUDA driver which GPUs there are, without torch and without creating a context.

Signatures and numbers are those of the CUDA Driver API reference (cuInit, cuDeviceGet*, CUdevice_attribute).
"""

from __future__ import annotations

import ctypes
import functools
import uuid
from dataclasses import dataclass
from typing import Any

from pyperf_suite.hardware.shared_library import Unavailable, open_library

LIBRARIES = ("libcuda.so.1", "libcuda.so")
OVERRIDE = "PYPERF_LIBCUDA"

MULTIPROCESSOR_COUNT = 16
COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
# What cuInit answers on machines that have the library; for other numbers the driver has words of its own.
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
    """The CUDA driver, or why there is none; asked once, then remembered."""
    try:
        return CudaDriver(open_library(OVERRIDE, LIBRARIES))
    except Unavailable as reason:
        return reason


def gpus() -> list[Gpu]:
    """All GPUs this process may use; empty where there is no driver."""
    found = driver()
    if isinstance(found, Unavailable):
        return []
    return [found.gpu(index) for index in range(found.device_count())]
