"""Offload: states of a training that lie in the host's memory or on its drives, and what moving them costs.

Bytes over rates, none of it fitted: the bus carries gradients out and parameters in, Adam on the CPU is bound by the
host's memory, and drives are read and written while it computes. Ren et al. 2021, ZeRO-Offload; Rajbhandari et al.
2021, ZeRO-Infinity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.hardware.links import pcie_of

# Parts of a training outside the GPU's memory: "optimizer" states alone, or all in the host's, or on its drives.
Offload = Literal["none", "optimizer", "cpu", "nvme"]
OFFLOADS: tuple[Offload, ...] = get_args(Offload)
MEANT_BY: Mapping[str, str] = {
    "optimizer": "optimizer states in the host's memory (ZeRO-Offload)",
    "cpu": "parameters, gradients and optimizer states in the host's memory",
    "nvme": "parameters, gradients and optimizer states on NVMe drives (ZeRO-Infinity)",
}
# Offloads of each framework: offload_optimizer and offload_param of DeepSpeed, CPUOffloadPolicy of FSDP2, CPUOffload of
# FSDP1, --optimizer-cpu-offload of Megatron-Core.
OFFLOADED_BY: Mapping[str, tuple[Offload, ...]] = {
    "megatron": ("none", "optimizer"),
    **dict.fromkeys(("fsdp1", "fsdp2", "torchtitan"), ("none", "cpu")),
    "deepspeed": OFFLOADS,
    "ddp": ("none",),
}
# A parameter's bytes over the bus: FSDP keeps it in 32 bits and casts it on the GPU, the others in 16.
SENT_BYTES: Mapping[str, int] = {"fsdp1": 4, "fsdp2": 4, "torchtitan": 4}
# A gradient that is added to one of the micro-batch before, in single precision.
ADDED_BYTES = 12
# Bytes of a parameter on a drive: moments and master copy are read and written, so is the gradient, and half weights.
DRIVE_BYTES = 2 * 12 + 2 * 4 + 2
# Shares of the peak that copies reach on a bus, and kernels in a host's memory: assumed. ZeRO-Offload's own Adam
# reached 0.6 of a DGX-2's memory: 1 billion parameters in 0.22 s, 10 in 2.57 s (its table 4, recalled). torch's AdamW
# does on the CPU of two cores that these lines were written on if it is fused; else it takes 8 times as long.
BUS_SHARE, HOST_SHARE = 0.85, 0.6
# A GPU's share of the maker's server where nothing is said: two sockets of DGX for 8 GPUs by generation (DDR4-2400 and
# -3200, DDR5-4800 and -5600, every channel filled), and of its drives, 25 GB/s a server.
HOST_BYTES_PER_S = {7: 19.2e9, 8: 51.2e9, 9: 76.8e9, 10: 89.6e9}
NVME_BYTES_PER_S = 3.125e9
# A CPU on the same module: Grace, whose memory one GPU of GH200 has, two of GB200 share.
GRACE_BYTES_PER_S = {"GH": 500e9, "GB": 250e9}
# Factor by which offloaded work may be faster or slower, as the rates above are assumed.
UNSURE = 1.5
USABLE_HOST_SHARE = 0.9


@dataclass(frozen=True)
class Host:
    """One GPU's share of its host: peaks in bytes/s, of the bus and drives in one direction; None is not known."""

    bus_bytes_per_s: float
    host_bytes_per_s: float
    nvme_bytes_per_s: float = NVME_BYTES_PER_S
    memory_bytes: float | None = None

    @property
    def bus(self) -> float:
        """Bytes/s that copies reach."""
        return min(BUS_SHARE * self.bus_bytes_per_s, self.host)

    @property
    def host(self) -> float:
        """Bytes/s that the CPU's kernels reach."""
        return HOST_SHARE * self.host_bytes_per_s

    def holds(self, nbytes: Any) -> Any:
        """True if `nbytes` bytes a GPU have room in its host's memory; True where that is unknown."""
        return np.asarray(nbytes) <= (np.inf if self.memory_bytes is None else USABLE_HOST_SHARE * self.memory_bytes)


def usual_host(gpu: GpuSpec) -> Host:
    """Return the host of a GPU in its maker's server."""
    grace = GRACE_BYTES_PER_S.get(gpu.name[:2])
    generation = min(max((gpu.compute_capability or (8, 0))[0], 7), 10)
    bus = gpu.host_link_bytes_per_s or pcie_of(gpu.compute_capability).gb_per_s * 1e9
    return Host(bus, grace or HOST_BYTES_PER_S[generation])


def check_offload(offload: str) -> None:
    """Raise UserError for what is no offload."""
    if offload not in OFFLOADS:
        raise UserError(f"Nothing can be offloaded as {offload!r}: choose from {', '.join(OFFLOADS)}.")
