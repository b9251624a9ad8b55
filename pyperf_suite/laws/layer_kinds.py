"""The kinds of work in a model's layers besides its products: attention over all or a window, experts.

Each says what one rank of a sharded model computes, in the arguments of a kernel's law.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyperf_suite.laws.tiled_attention import visible_pairs
from pyperf_suite.laws.transformer import ModelDimensions, Sharding, Sizes, at_least_1

# The name of attention over the whole sequence.
WHOLE = "attention"


@dataclass(frozen=True)
class AttentionCall:
    """The attention of one micro-batch on one rank, between its projections: `calls` of it, one a layer.

    With a `window` a query sees so many keys, itself the last of them. Latent attention is
    trained with keys and values of every head; then `head_dim` is of queries and keys, and `value_head_dim` differs.
    """

    batch: Sizes
    seq: Sizes
    heads: Sizes
    kv_heads: Sizes
    head_dim: Sizes
    value_head_dim: Sizes
    causal: bool
    calls: Sizes
    window: int = 0
    name: str = WHOLE

    @property
    def is_windowed(self) -> bool:
        """Whether it sees a window or a chunk of the sequence."""
        return self.name != WHOLE

    def flop(self) -> Any:
        """2·b·a·(d_qk + d_v)·Σᵢ visible(i) of the forward passes of all calls."""
        pairs = visible_pairs(self.seq, self.seq, self.causal)
        if self.window:
            seen = np.minimum(self.window, self.seq)
            hidden = seen * (seen - 1) // 2 if self.causal else 0
            pairs = seen * np.asarray(self.seq) - hidden
        return 2.0 * self.batch * self.heads * (self.head_dim + self.value_head_dim) * pairs * self.calls


def attention_call(
    model: ModelDimensions, micro_batch: Sizes, seq: Sizes, sharding: Sharding | None = None
) -> AttentionCall:
    """The attention of one micro-batch on one rank, over whole sequences, as if all layers had that.

    Heads are cut over TP; with SP the sequence is whole here. `attention_calls` tells windowed layers apart.
    """
    ranks = (sharding or Sharding()).tensor
    heads = model.heads // ranks
    return AttentionCall(
        batch=micro_batch,
        seq=seq,
        heads=heads,
        kv_heads=heads if model.latent_rank else at_least_1(model.kv_heads // ranks),
        head_dim=model.head_dim,
        value_head_dim=model.value_head_dim,
        causal=model.causal,
        calls=model.layers,
    )


def attention_calls(
    model: ModelDimensions, micro_batch: Sizes, seq: Sizes, sharding: Sharding | None = None
) -> tuple[AttentionCall, ...]:
    """The same by kinds of layers: those that see the whole sequence, those that see a window or a chunk of it.

    Chunks of a sequence are shorter sequences of their own.
    """
    call = attention_call(model, micro_batch, seq, sharding)
    if not model.window or not np.any(model.windowed_layers):
        return (call,)
    windowed = replace(call, calls=model.windowed_layers, window=model.window, name="windowed attention")
    if model.chunked:
        pieces = -(-np.asarray(seq) // model.window)
        windowed = replace(windowed, batch=micro_batch * pieces, seq=-(-seq // pieces), window=0)
    whole = replace(call, calls=model.layers - model.windowed_layers)
    return (whole, windowed) if np.any(whole.calls) else (windowed,)


DEEPSEEKS_WIDTHS = (512, 64, 192, 128)


def is_deepseeks_latent(model: ModelDimensions) -> bool:
    """Whether its latent attention has the widths of DeepSeek-V2 and V3, for which kernels are written."""
    widths = ("latent_rank", "rope_head_dim", "head_dim", "value_head_dim")
    return all(np.all(getattr(model, name) == its) for name, its in zip(widths, DEEPSEEKS_WIDTHS, strict=True))


@dataclass(frozen=True)
class ExpertBlock:
    """The routed experts of a sparse layer on one rank, which libraries compute as one grouped product; `calls` layers.

    `tokens` are those of all `expert` ranks that share the experts.
    """

    tokens: Sizes
    hidden: Sizes
    width: Sizes
    experts: Sizes
    top_k: Sizes
    expert: Sizes
    tensor: Sizes
    gated: bool
    calls: Sizes

    @property
    def sizes(self) -> tuple[Sizes, Sizes, Sizes, Sizes, Sizes, Sizes, Sizes]:
        """In the order in which the price of a grouped product takes them."""
        return self.tokens, self.hidden, self.width, self.experts, self.top_k, self.expert, self.tensor


def expert_block(model: ModelDimensions, tokens: Sizes, sharding: Sharding | None = None) -> ExpertBlock | None:
    """The routed experts of a micro-batch of so many tokens; None where there are none.

    What `Product.routed` says of `products` is the same work, product by product.
    """
    if model.experts == 1:
        return None
    sharding = sharding or Sharding()
    return ExpertBlock(
        tokens * sharding.expert, model.hidden, model.expert_ffn, model.experts, model.top_k, sharding.expert,
        sharding.tensor, model.gated, model.sparse_layers,
    )  # fmt: skip


def activation_widths(model: ModelDimensions) -> tuple[tuple[str, Sizes, Sizes], ...]:
    """The MLPs whose activation function is a kernel of its own: its name, their width, and in how many layers.

    That of routed experts is part of their grouped product.
    """
    sparse = model.ffn if model.experts == 1 else model.shared_ffn
    kinds = (
        ("activation function", sparse, model.sparse_layers),
        ("dense activation function", model.ffn, model.dense_layers),
    )
    return tuple(kind for kind in kinds if np.any(np.asarray(kind[1]) * kind[2]))
