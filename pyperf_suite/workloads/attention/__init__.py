"""The parameters of softmax(scale · Q·Kᵀ)·V, scale = 1/√head_dim, or of its gradients.

Q and O are stored [batch, heads, seq_q, head_dim], K and V [batch, kv_heads, seq_k, head_dim], all contiguous.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pyperf_suite.errors import OneOf, UserError, Within
from pyperf_suite.laws.tiled_attention import Blocks, visible_pairs

DTYPES = ("float32", "float16", "bfloat16")
INPUTS = ("q", "k", "v")
GRADIENTS = ("dq", "dk", "dv")

# Beyond this no machine has memory for one head; it also keeps sizes inside 64-bit arithmetic.
LARGEST_SIZE = 1 << 24
Size = Annotated[int, Within(1, LARGEST_SIZE)]
SizeOrNone = Annotated[int, Within(0, LARGEST_SIZE)]


@dataclass(frozen=True)
class AttentionParameters:
    """One attention. `seq_k` 0 is seq_q, `kv_heads` 0 is heads; `blocks` None lets the implementation choose.

    Causal is bottom-right aligned: query i sees keys ≤ i + seq_k − seq_q. `backward` measures the gradients alone, from
    a forward pass done before. `workers` bounds the cores of a CPU; a GPU takes all its multiprocessors.
    """

    batch: Size
    heads: Size
    head_dim: Size
    seq_q: Size
    seq_k: SizeOrNone = 0
    kv_heads: SizeOrNone = 0
    causal: bool = False
    backward: bool = False
    dtype: Annotated[str, OneOf(DTYPES)] = "bfloat16"
    workers: Size = 1
    blocks: Blocks | None = None

    @property
    def keys(self) -> int:
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
        return self.heads * self.head_dim

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.heads, self.seq_q, self.head_dim)

    @property
    def k_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.key_heads, self.keys, self.head_dim)

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head_dim)

    @property
    def pairs(self) -> int:
        return int(visible_pairs(self.seq_q, self.keys, self.causal))

    @property
    def masks_something(self) -> bool:
        """Whether causality hides any key: a single query sees all of them."""
        return self.causal and self.seq_q > 1

    @property
    def shapes(self) -> dict[str, tuple[int, int, int, int]]:
        """Shape of each operand by name; the gradients stand there only for the backward pass."""
        shapes = {"q": self.q_shape, "k": self.k_shape, "v": self.k_shape, "o": self.q_shape}
        if self.backward:
            shapes |= {"do": self.q_shape, "dq": self.q_shape, "dk": self.k_shape, "dv": self.k_shape}
        return shapes

    @property
    def results(self) -> tuple[str, ...]:
        return GRADIENTS if self.backward else ("o",)

    def validate(self) -> None:
        heads, key_heads = self.heads, self.key_heads
        if heads % key_heads:
            allowed = ", ".join(str(each) for each in range(1, heads + 1) if heads % each == 0)
            raise UserError(
                f"{key_heads} key heads were requested, but they must divide the {heads} heads: choose from {allowed}."
            )
        if self.causal and self.seq_q > self.keys:
            raise UserError(
                f"Causal attention of {self.seq_q} queries to {self.keys} keys was requested, but the first "
                f"{self.seq_q - self.keys} queries would see no key: ask for at least as many keys."
            )
