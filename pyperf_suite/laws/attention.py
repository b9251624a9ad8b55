"""Attention counted: which pairs of query and key are computed, and what a kernel's blocks make of them.

Causal is bottom-right aligned throughout: query i sees keys j ≤ i + seq_k − seq_q.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError

# dQ, dK, dV, and the scores and the gradient of the weights once more: five products where the forward has two.
BACKWARD_FLOP_RATIO = 2.5

_BLOCKS = re.compile(r"(\d+)x(\d+)(?::s(\d+))?(?::w(\d+))?")


@dataclass(frozen=True, order=True)
class Blocks:
    """What one worker holds at a time: `m` queries, and `n` keys per step of its loop.

    `stages` is the depth of the key and value pipeline and `warps` those of one program; both are 1 on CPUs. Written
    `128x64:s3:w8`, parts at 1 left out.
    """

    m: int
    n: int
    stages: int = 1
    warps: int = 1

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.stages, self.warps) < 1:
            raise UserError(f"Blocks have sizes of at least 1, but {self} was asked for.")

    def __str__(self) -> str:
        pipeline = f":s{self.stages}" if self.stages != 1 else ""
        warps = f":w{self.warps}" if self.warps != 1 else ""
        return f"{self.m}x{self.n}{pipeline}{warps}"

    @classmethod
    def parse(cls, text: str) -> Blocks:
        """The inverse of `str`. Raises UserError for anything else."""
        match = _BLOCKS.fullmatch(text.strip())
        if match is None:
            raise UserError(f"{text!r} are not blocks: write QUERIESxKEYS, as in 128x64 or 128x64:s3:w8.")
        return cls(*(int(part) for part in match.groups(default="1")))


def visible_pairs(seq_q: ArrayLike, seq_k: ArrayLike, causal: bool) -> NDArray[np.int64]:
    """Σᵢ visible(i): pairs of query and key that one head computes, for seq_q ≤ seq_k where causal."""
    queries, keys = np.asarray(seq_q, dtype=np.int64), np.asarray(seq_k, dtype=np.int64)
    if not causal:
        return queries * keys
    # Query 0 sees seq_k − seq_q + 1 keys, each later one sees one more.
    return queries * (keys - queries) + queries * (queries + 1) // 2


def attention_flop(
    batch: ArrayLike, heads: ArrayLike, head_dim: ArrayLike, pairs: ArrayLike, backward: bool = False
) -> NDArray[np.int64]:
    """4·b·h·d·Σᵢ visible(i) for the forward pass, 2.5 × that for the backward pass alone (Dao, FlashAttention-2)."""
    forward = (
        4
        * np.asarray(batch, dtype=np.int64)
        * np.asarray(heads, dtype=np.int64)
        * np.asarray(head_dim, dtype=np.int64)
        * np.asarray(pairs, dtype=np.int64)
    )
    return forward * 5 // 2 if backward else forward
