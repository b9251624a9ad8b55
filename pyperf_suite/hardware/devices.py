"""The device a run is about, and how a person names it: auto, cpu, cuda or cuda:N."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.cuda_driver import CudaDriver, driver
from pyperf_suite.hardware.shared_library import Unavailable

OLDEST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Device:
    """A device that exists; `str(device)` is what `resolve` reads back."""

    kind: Literal["cpu", "cuda"]
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


def resolve(asked: str) -> Device:
    """Return the device that was asked for; auto is the first GPU that our kernels run on, else the CPU.

    Raises:
        UserError: the name is none of those allowed, or this machine has no such device.
    """
    match = re.fullmatch(r"(auto|cpu)|cuda(?::([0-9]{1,4}))?", asked.strip().lower())
    if match is None:
        raise UserError(f"There is no device {asked!r}: ask for auto, cpu, cuda or cuda:N.")
    if match[1] == "auto":
        return _first_usable_gpu(driver()) or Device("cpu")
    if match[1]:
        return Device("cpu")
    return _resolve_cuda(asked, int(match[2] or 0), driver())


def _first_usable_gpu(found: CudaDriver | Unavailable) -> Device | None:
    """The first GPU of compute capability 8.0 or later, for which there are kernels."""
    if isinstance(found, Unavailable):
        return None
    try:
        for index in range(found.device_count()):
            if found.gpu(index).compute_capability >= OLDEST_CAPABILITY:
                return Device("cuda", index)
    except Unavailable:
        return None
    return None


def _resolve_cuda(asked: str, index: int, found: CudaDriver | Unavailable) -> Device:
    """The CUDA device of that index, if the driver has it."""
    if isinstance(found, Unavailable):
        raise UserError(f"Device {asked!r} was asked for, but {found}: ask for cpu or auto.")
    try:
        count = found.device_count()
    except Unavailable as reason:
        raise UserError(f"Device {asked!r} was asked for, but {reason}: ask for cpu or auto.") from None
    if index >= count:
        there = "no CUDA device" if count == 0 else f"no CUDA device beyond cuda:{count - 1}"
        raise UserError(
            f"Device {asked!r} was asked for, but there is {there}: ask for auto, cpu or one that is there."
        )
    return Device("cuda", index)
