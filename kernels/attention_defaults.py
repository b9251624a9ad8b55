"""The blocks that attention begins with on a target, where nobody asks for others: chosen in one place.

They follow what is published for Triton on these devices (the tables of PyTorch's flex_attention, and the fused
attention tutorial), changed where a kernel's machine code spilled or did not fit the shared memory.
"""

from __future__ import annotations

from dataclasses import replace

from pyperf_suite.hardware.catalogue import architecture
from pyperf_suite.kernels.attention import ELEMENT_BYTES, Configuration, padded
from pyperf_suite.kernels.triton_host import LARGEST_DESCRIPTOR_BLOCK, SMALLEST_BLOCK, TMA_ALIGNMENT_BYTES, check_known

# The largest padded head_dim that a row is for: rows held, rows a step, stages, warps.
Rows = dict[int, tuple[int, int, int, int]]

FORWARD: dict[str, Rows] = {
    "Ampere": {64: (64, 64, 3, 4), 128: (128, 64, 3, 8), 256: (64, 32, 2, 8), 512: (32, 32, 1, 8)},
    "Hopper": {64: (128, 128, 2, 8), 128: (128, 64, 3, 8), 256: (128, 64, 2, 8), 512: (32, 32, 2, 8)},
    "Blackwell": {64: (128, 128, 3, 8), 128: (128, 128, 2, 8), 256: (128, 64, 2, 8), 512: (64, 32, 2, 8)},
}
BACKWARD: dict[str, Rows] = {
    "Ampere": {64: (128, 32, 2, 8), 128: (64, 32, 2, 8), 256: (32, 32, 1, 8), 512: (16, 16, 1, 8)},
    "Hopper": {64: (128, 64, 2, 8), 128: (128, 32, 2, 8), 256: (64, 16, 2, 8), 512: (16, 16, 1, 8)},
    "Blackwell": {64: (64, 64, 2, 8), 128: (64, 32, 2, 8), 256: (64, 32, 1, 8), 512: (16, 16, 1, 8)},
}
# Other candidates of the causal or full forward pass, by head_dim: as near to the first choice by what is published,
# then those of which two programs or more fit a multiprocessor, where one multiplies during the softmax of another. By
# machine code none spills; times are not measured. In 128x128:s2:w4, whose threads hold 192 sums, each wgmma waits for
# the one before.
RIVALS: dict[str, dict[int, tuple[tuple[int, int, int, int], ...]]] = {
    "Hopper": {
        64: ((128, 64, 3, 4), (128, 64, 3, 8), (128, 128, 2, 4), (64, 128, 2, 4)),
        128: ((128, 128, 3, 8), (64, 64, 2, 4), (128, 32, 3, 4)),
    }
}
# Tensor cores do not take float32, so that blocks are bounded by registers on every generation.
FLOAT32: dict[bool, Rows] = {
    False: {64: (64, 32, 2, 8), 128: (32, 32, 2, 8), 256: (16, 32, 2, 8), 512: (16, 16, 1, 8)},
    True: {64: (32, 32, 2, 8), 128: (32, 16, 2, 8), 256: (16, 16, 1, 8), 512: (16, 16, 1, 8)},
}


def default_configuration(
    target: str, head_dim: int, dtype: str, causal: bool = False, backward: bool = False, seq_q: int | None = None
) -> Configuration:
    """Return the first configuration to try on a target such as "sm_90": through TMA where it and the rows allow.

    A block of the forward pass is no taller than `seq_q` queries need. Raises ValueError for what is not a target, a
    dtype or a head_dim.
    """
    check_known("attention", "dtype", dtype, ELEMENT_BYTES)
    generation = generation_of(target)
    rows = FLOAT32[backward] if dtype == "float32" else (BACKWARD if backward else FORWARD)[generation]
    block, stepped, stages, warps = rows[min((most for most in rows if most >= padded(head_dim)), default=max(rows))]
    if seq_q is not None and not backward:
        block = min(block, padded(seq_q))
        # With few rows most of more warps have none.
        warps = warps if block > SMALLEST_BLOCK else min(warps, 4)
    tma = generation != "Ampere" and not (head_dim * ELEMENT_BYTES[dtype]) % TMA_ALIGNMENT_BYTES
    tma &= padded(head_dim) <= LARGEST_DESCRIPTOR_BLOCK
    operands = "descriptors" if tma else "addresses"
    return Configuration(block, stepped, head_dim, dtype, causal, backward, stages, warps, operands)


def default_set(target: str) -> tuple[Configuration, ...]:
    """The kernels of a target as "sm_90" whose code is watched; none spills. Raises ValueError for no target."""
    generation = generation_of(target)
    # Through TMA the padding is the copy engine's: the code is that of the padded head_dim.
    head_dims = (64, 80, 128, 256) if generation == "Ampere" else (64, 128, 256)
    wanted = (*((head_dim, False) for head_dim in head_dims), *((head_dim, True) for head_dim in (64, 128, 256)))
    first = [default_configuration(target, head_dim, "bfloat16", True, backward) for head_dim, backward in wanted]
    rivals = [
        replace(requested, block_m=held, block_n=stepped, stages=stages, warps=warps)
        for requested in first
        if not requested.backward
        for held, stepped, stages, warps in RIVALS.get(generation, {}).get(requested.head_dim, ())
    ]
    return (*first, *rivals)


def generation_of(target: str) -> str:
    """The generation whose shared memory and instructions a target has. Raises ValueError for what is not a target."""
    return architecture(target).generation
