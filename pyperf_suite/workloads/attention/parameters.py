"""The parameters of softmax(scale · Q·Kᵀ)·V, scale = 1/√head_dim, or of its gradients.

Q and O are stored [batch, heads, seq_q, head_dim], K and V [batch, kv_heads, seq_k, head_dim], all contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.laws.attention.counted import Blocks, visible_pairs


@dataclass(frozen=True)
class AttentionParameters:
    """One attention. `seq_k` 0 is seq_q, `kv_heads` 0 is heads; `blocks` None lets the implementation choose.

    Causal is bottom-right aligned: query i sees keys ≤ i + seq_k − seq_q. `backward` measures the gradients alone, from
    a forward pass done before. `workers` bounds the cores of a CPU; a GPU takes all its multiprocessors.
    """

    batch: int
    heads: int
    head_dim: int
    seq_q: int
    seq_k: int = 0
    kv_heads: int = 0
    causal: bool = False
    backward: bool = False
    dtype: str = "bfloat16"
    workers: int = 1
    blocks: Blocks | None = None

    @property
    def keys(self) -> int:
        """The number of keys."""
        return self.seq_k or self.seq_q

    @property
    def key_heads(self) -> int:
        """The number of heads of K and V, each shared by `group` heads of Q."""
        return self.kv_heads or self.heads

    @property
    def group(self) -> int:
        """The grouped-query ratio: heads of Q that share one head of K and V."""
        return self.heads // self.key_heads

    @property
    def hidden(self) -> int:
        """The model dimension that the heads share: heads times head_dim."""
        return self.heads * self.head_dim

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """Shape of Q, O and their gradients."""
        return (self.batch, self.heads, self.seq_q, self.head_dim)

    @property
    def k_shape(self) -> tuple[int, int, int, int]:
        """Shape of K, V and their gradients."""
        return (self.batch, self.key_heads, self.keys, self.head_dim)

    @property
    def scale(self) -> float:
        """What scores are multiplied by before the softmax."""
        return float(1 / np.sqrt(self.head_dim))

    @property
    def pairs(self) -> int:
        """Pairs of query and key that one head computes."""
        return int(visible_pairs(self.seq_q, self.keys, self.causal))


def require_library_blocks(library: str, parameters: AttentionParameters) -> None:
    """Raise UserError where a library, which chooses its own blocks, is asked for ours."""
    if parameters.blocks is not None:
        raise UserError(f"{library} chooses its blocks itself, but {parameters.blocks} was asked of it: leave it out.")
