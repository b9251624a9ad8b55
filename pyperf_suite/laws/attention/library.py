"""Which attention kernels a GPU has laws of: those fitted to its own table, or those of the GPU most like it.

The libraries that were measured differ by a third, so that each keeps its own law.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.attention.kernel import KernelLaw, unpack_kernels
from pyperf_suite.laws.calibration import Block, Calibration, all_shipped, shipped_calibration

BLOCK = "attention_bf16"
# How the time of a kernel's bytes follows the memory's bandwidth from GPU to GPU: kernels that wait for memory only now
# and then gain less. H200 took 10 % less time a byte than H100, of whose kind it is, with 43 % more bandwidth.
MEMORY_EXPONENT = 0.3
# Mean error on a GPU whose own table was left out (advise.calibrate.attention): read off one of the same architecture,
# off another (B200 18 %, A100 38 %, L40S 42 %).
ERROR_PERCENT_SAME_ARCHITECTURE = 4.0
ERROR_PERCENT_OTHER_ARCHITECTURE = 42.0


@dataclass(frozen=True)
class AttentionKernels:
    """The kernels of one GPU by the head dimension that each was measured at, one a library."""

    by_head_dim: Mapping[int, Sequence[KernelLaw]]
    fitted_range: Mapping[str, tuple[float, float]]
    error_percent: float
    origin: str
    transferred: bool = False

    def at_width(self, width: int) -> list[tuple[float, Sequence[KernelLaw]]]:
        """Which kernels tell of heads of a width, with their weights.

        Its own; else the two next to it, straight between them; else the nearest, scaled by what its pairs cost.
        """
        if width in self.by_head_dim:
            return [(1.0, self.by_head_dim[width])]
        below = [known for known in self.by_head_dim if known < width]
        above = [known for known in self.by_head_dim if known > width]
        if below and above:
            low, high = max(below), min(above)
            share = (width - low) / (high - low)
            return [(1 - share, self.by_head_dim[low]), (share, self.by_head_dim[high])]
        nearest = max(below) if below else min(above)
        return [(1.0, [kernel.at_head_dim(width) for kernel in self.by_head_dim[nearest]])]


def unpack_attention(block: Block, spec: GpuSpec) -> AttentionKernels:
    """The kernels that a block of a GPU's calibration keeps."""
    by_head_dim: dict[int, list[KernelLaw]] = {}
    for kernel in unpack_kernels(block, spec.sms):
        by_head_dim.setdefault(kernel.head_dim, []).append(kernel)
    return AttentionKernels(by_head_dim, block.fitted_range, float(block.held_out["mape"]), block.origin)


def transferred_attention(
    spec: GpuSpec, known: Mapping[str, AttentionKernels], dtype: str = "bf16"
) -> AttentionKernels:
    """The kernels of the most alike of GPUs known by name, as fast as `spec`'s units and memory make them.

    Most alike is one of its architecture, then the nearest in bandwidth, as for `roofline.transferred_law`. Raises
    UserError where none is known or `spec` has no units for that dtype.
    """
    if not known:
        raise UserError(f"No GPU's attention is calibrated, so nothing can be told of {spec.name}'s: calibrate one.")

    def sm_rate(gpu: GpuSpec) -> float:
        return gpu.peak(dtype) / gpu.sms

    def unlikeness(name: str) -> tuple[bool, float, float, str]:
        other = find_gpu(name)
        memory = abs(float(np.log(other.memory_bytes_per_s / spec.memory_bytes_per_s)))
        units = abs(float(np.log(other.peak(dtype) / spec.peak(dtype))))
        return other.architecture != spec.architecture, memory, units, name

    nearest = find_gpu(min(known, key=unlikeness))
    faster_sm = sm_rate(spec) / sm_rate(nearest)
    faster_memory = (spec.memory_bytes_per_s / nearest.memory_bytes_per_s) ** MEMORY_EXPONENT
    theirs = known[nearest.name]
    same = nearest.architecture == spec.architecture
    return AttentionKernels(
        {
            head_dim: [kernel.on(spec.sms, faster_sm, faster_memory) for kernel in kernels]
            for head_dim, kernels in theirs.by_head_dim.items()
        },
        theirs.fitted_range,
        ERROR_PERCENT_SAME_ARCHITECTURE if same else ERROR_PERCENT_OTHER_ARCHITECTURE,
        f"read off {nearest.name}, fitted to {theirs.origin}",
        transferred=True,
    )


def kernels_of(gpu: str | GpuSpec | Calibration, spec: GpuSpec, dtype: str) -> AttentionKernels:
    """The kernels of `gpu`, whose data sheet is `spec`, for products in that dtype."""
    if isinstance(gpu, Calibration) and BLOCK in gpu.blocks:
        return unpack_attention(gpu.block(BLOCK), spec)
    return _shipped_kernels(spec, dtype)


@functools.cache
def _shipped_kernels(spec: GpuSpec, dtype: str) -> AttentionKernels:
    own = shipped_calibration(spec.name)
    if own is not None and BLOCK in own.blocks:
        return unpack_attention(own.block(BLOCK), spec)
    shipped = [calibration for calibration in all_shipped() if BLOCK in calibration.blocks]
    known = {each.gpu: unpack_attention(each.block(BLOCK), find_gpu(each.gpu)) for each in shipped}
    return transferred_attention(spec, known, dtype)
