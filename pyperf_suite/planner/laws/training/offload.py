"""Offload: states of a training that lie in the host's memory or on its drives, and what moving them costs.

Bytes over rates, none of it fitted: the bus carries gradients out and parameters in, Adam on the CPU is bound by the
host's memory, and drives are read and written while it computes. Ren et al. 2021, ZeRO-Offload; Rajbhandari et al.
2021, ZeRO-Infinity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.hardware.links import pcie_of
from pyperf_suite.planner.laws.training.memory import OFFLOADS, Offload

MEANT_BY: Mapping[str, str] = {
    "optimizer": "optimizer states in the host's memory (ZeRO-Offload)",
    "cpu": "parameters, gradients and optimizer states in the host's memory",
    "nvme": "parameters, gradients and optimizer states on NVMe drives (ZeRO-Infinity)",
}
# What each framework can do: offload_optimizer and offload_param of DeepSpeed, CPUOffloadPolicy of FSDP2, CPUOffload of
# FSDP1, --optimizer-cpu-offload of Megatron-Core.
OFFLOADED_BY: Mapping[str, tuple[Offload, ...]] = {
    "megatron": ("none", "optimizer"),
    **dict.fromkeys(("fsdp1", "fsdp2", "torchtitan"), ("none", "cpu")),
    "deepspeed": OFFLOADS,
    "ddp": ("none",),
}
# A parameter's bytes over the bus: FSDP keeps it in 32 bits and casts it on the GPU, the others in 16.
SENT_BYTES: Mapping[str, int] = {"fsdp1": 4, "fsdp2": 4, "torchtitan": 4}
HALF = 2
# Adam reads and writes weights and both moments in single precision (24), writes half weights (2), reads gradients for
# their norm and for the update, where they were written to by the bus (10): as on the GPU (step.py).
ADAM_BYTES = 36
# A gradient that is added to one of the micro-batch before, in single precision.
ADDED_BYTES = 12
# Of a parameter on a drive: moments and master copy are read and written, so is the gradient, and half weights.
DRIVE_BYTES = 2 * 12 + 2 * 4 + 2
# What copies reach of a bus's peak, and kernels of a host's memory: assumed. ZeRO-Offload's own Adam reached 0.6 of a
# DGX-2's memory: 1 billion parameters in 0.22 s, 10 in 2.57 s (its table 4, recalled). torch's AdamW does on the CPU of
# two cores that these lines were written on if it is fused; else it takes 8 times as long.
BUS_SHARE, HOST_SHARE = 0.85, 0.6
# A GPU's share of the maker's server where nothing is said: two sockets of DGX for 8 GPUs by generation (DDR4-2400 and
# -3200, DDR5-4800 and -5600, every channel filled), and of its drives, 25 GB/s a server.
HOST_BYTES_PER_S = {7: 19.2e9, 8: 51.2e9, 9: 76.8e9, 10: 89.6e9}
NVME_BYTES_PER_S = 3.125e9
# A CPU on the same module: Grace, whose memory one GPU of GH200 has, two of GB200 share.
GRACE_BYTES_PER_S = {"GH": 500e9, "GB": 250e9}
# Rates above are assumed: what is offloaded may take so many times less or longer.
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
        """Whether so many bytes a GPU have room in its memory; True where that is not known."""
        return np.asarray(nbytes) <= (np.inf if self.memory_bytes is None else USABLE_HOST_SHARE * self.memory_bytes)


def usual_host(gpu: GpuSpec) -> Host:
    """What a GPU has in its maker's server."""
    grace = GRACE_BYTES_PER_S.get(gpu.name[:2])
    generation = min(max((gpu.compute_capability or (8, 0))[0], 7), 10)
    bus = gpu.host_link_bytes_per_s or pcie_of(gpu.compute_capability).gb_per_s * 1e9
    return Host(bus, grace or HOST_BYTES_PER_S[generation])


def check_offload(offload: str) -> None:
    """Raise UserError for what is no offload."""
    if offload not in OFFLOADS:
        raise UserError(f"Nothing can be offloaded as {offload!r}: choose from {', '.join(OFFLOADS)}.")


def offloaded(
    offload: Offload,
    framework: str,
    host: Host,
    parameters: Any,
    zero_stage: Any,
    gradient_bytes: Any,
    micro_batches: Any,
    forward_s: Any,
    backward_s: Any,
) -> tuple[Any, Any]:
    """Seconds of an iteration that a rank waits for the bus and drives, and of Adam on the CPU.

    The rank updates so many `parameters`, and computes so long a micro-batch.

    Gradients leave during backward: under DeepSpeed from ZeRO 2 on, and FSDP, those of each micro-batch, to which the
    ones before are added (by DeepSpeed on the GPU, so they come back meanwhile; by FSDP on the CPU); else those of an
    iteration. Megatron sends them when backward is over. Parameters that lie in the host's memory are fetched during
    forward and again during backward; those that do not are sent back when Adam is through.
    """
    adam, out = parameters * ADAM_BYTES / host.host, parameters * gradient_bytes / host.bus
    back = parameters * HALF / host.bus
    if framework == "megatron":
        return out + back, adam
    stays = offload == "optimizer"
    each = (np.asarray(zero_stage) >= 2) | (not stays)
    added = np.where(each & (np.asarray(micro_batches) > 1), out if framework == "deepspeed" else 0.0, 0.0)
    drives = min(host.bus, host.nvme_bytes_per_s)
    fetched = (
        parameters * (0 if stays else SENT_BYTES.get(framework, HALF)) / (drives if offload == "nvme" else host.bus)
    )
    # Both directions of the bus at once; each has what is computed meanwhile.
    waited = np.where(each, micro_batches, 1) * np.maximum(0.0, np.maximum(out, fetched + added) - backward_s)
    waited = waited + micro_batches * np.maximum(0.0, fetched - forward_s) + (back if stays else 0.0)
    if framework != "deepspeed":
        waited = waited + (micro_batches - 1) * parameters * ADDED_BYTES / host.host
    if offload == "nvme":
        waited = waited + np.maximum(0.0, parameters * DRIVE_BYTES / drives - adam)
    return waited, adam
