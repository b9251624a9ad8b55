"""What FlashAttention-2's kernels say of themselves in their names: the head_dim they compute with, and their blocks.

A name holds its template arguments, `Flash_fwd_kernel_traits<kHeadDim, kBlockM, kBlockN, kNWarps, …>`
(flash-attention's csrc/flash_attn/src/kernel_traits.h, which torch carries as its flash backend).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pyperf_suite.laws.tiled_attention import Blocks

_FORWARD_TRAITS = re.compile(
    r"flash_fwd_kernel_traits<" + ",".join([r"\s*(?:\(int\))?([1-9][0-9]{0,8})"] * 4), re.IGNORECASE
)


@dataclass(frozen=True)
class FlashKernel:
    """The bucket that head_dim was padded to, and the blocks of one program."""

    padded_head_dim: int
    blocks: Blocks


def flash_kernel(names: Iterable[str]) -> FlashKernel | None:
    """What the first forward kernel of FlashAttention-2 among these names tells; None where there is none."""
    for name in names:
        match = _FORWARD_TRAITS.search(name)
        if match is not None:
            head_dim, m, n, warps = (int(part) for part in match.groups())
            return FlashKernel(head_dim, Blocks(m, n, warps=warps))
    return None
