"""Every matrix product of a transformer: its sizes in forward and backward, as one rank of a sharded model does them.

The dimensions may be one model's or a whole grid's; then the sizes are arrays, and each shape is priced at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.laws.attention.counted import BACKWARD_FLOP_RATIO, visible_pairs
from pyperf_suite.laws.dimensions import ModelDimensions

# One size, or one for each model of a grid.
Sizes = int | NDArray[np.int64]
Phase = Literal["fprop", "dgrad", "wgrad"]
PHASES: tuple[Phase, ...] = ("fprop", "dgrad", "wgrad")
# How a linear layer's passes multiply: y = x·Wᵀ, dx = dy·W, dW = dyᵀ·x.
LAYOUTS: dict[Phase, str] = {"fprop": "TN", "dgrad": "NN", "wgrad": "NT"}


@dataclass(frozen=True)
class Sharding:
    """How layers are cut over ranks: by `tensor` parallelism (TP), and experts over `expert` ranks (EP).

    `sequence_parallel` (SP) cuts what TP leaves whole along the sequence (Korthikanti et al. 2022): of the products
    the router and the projections down to a latent. `tensor` and `expert` may be arrays, for a grid. Raises UserError
    for ranks below 1.
    """

    tensor: Sizes = 1
    sequence_parallel: bool = False
    expert: Sizes = 1

    def __post_init__(self) -> None:
        for name, ranks in (("tensor", self.tensor), ("expert", self.expert)):
            if np.min(ranks) < 1:
                raise UserError(f"Layers are cut over at least 1 rank, but {name} = {np.min(ranks)} was asked for.")

    def divides(self, model: ModelDimensions) -> NDArray[np.bool_]:
        """Whether every dimension can be cut evenly; an array where the model or `tensor` is one."""
        whole = np.asarray(True)
        for _, _, evenly in self._cuts(model):
            whole = whole & evenly
        return whole

    def check(self, model: ModelDimensions) -> None:
        """Raise UserError that names the first dimension which cannot be cut evenly."""
        for name, ranks, evenly in self._cuts(model):
            if not np.all(evenly):
                way = "EP" if name == "experts" else "TP"
                size = getattr(model, name)
                raise UserError(f"{way} over {ranks} ranks cannot divide {name} = {size} evenly.")

    def _cuts(self, model: ModelDimensions) -> Iterator[tuple[str, Sizes, Any]]:
        """What is cut, over how many ranks, and whether that comes out even."""
        yield "heads", self.tensor, model.heads % self.tensor == 0
        if not model.latent_rank:
            # More ranks than key-value heads keep copies of them.
            copied = (self.tensor % model.kv_heads == 0) | (model.kv_heads % self.tensor == 0)
            yield "kv_heads", self.tensor, copied
        widths = ("ffn", "expert_ffn", "shared_ffn") if np.any(model.dense_layers) else ("expert_ffn", "shared_ffn")
        for name in widths if model.experts > 1 else ("ffn",):
            yield name, self.tensor, getattr(model, name) % self.tensor == 0
        yield "experts", self.expert, model.experts % self.expert == 0


@dataclass(frozen=True)
class Product:
    """One kind of product C[M,N] = A[M,K]·B[K,N] of one micro-batch: `calls` of it on a rank, in all layers together.

    `part` says of what: "qkv", "mlp in", "logits" and so on; `outside_layers` that it stands once in the model.
    """

    part: str
    phase: Phase
    m: Sizes
    n: Sizes
    k: Sizes
    calls: Sizes
    outside_layers: bool = False

    @property
    def layout(self) -> str:
        """TN, NN or NT, as of `workloads.matmul`."""
        return LAYOUTS[self.phase]

    @property
    def flop(self) -> Any:
        """2·M·N·K of all calls, in floating point: a large grid's would not fit into 64 bits."""
        return 2.0 * self.m * self.n * self.k * self.calls


@dataclass(frozen=True)
class Linear:
    """One linear layer of a rank, y[tokens, outputs] = x[tokens, inputs]·Wᵀ, `calls` of them with equal shapes."""

    part: str
    tokens: Sizes
    outputs: Sizes
    inputs: Sizes
    calls: Sizes
    outside_layers: bool = False

    def product(self, phase: Phase) -> Product:
        """The product of one pass (NVIDIA, Linear/Fully-Connected Layers User's Guide)."""
        sizes = {
            "fprop": (self.tokens, self.outputs, self.inputs),
            "dgrad": (self.tokens, self.inputs, self.outputs),
            "wgrad": (self.outputs, self.inputs, self.tokens),
        }
        return Product(self.part, phase, *sizes[phase], self.calls, self.outside_layers)


@dataclass(frozen=True)
class AttentionCall:
    """The attention of one micro-batch on one rank, between its projections: `calls` of it, one a layer.

    Latent attention is trained with keys and values of every head; then `head_dim` is of queries and keys, and
    `value_head_dim` differs from it.
    """

    batch: Sizes
    seq: Sizes
    heads: Sizes
    kv_heads: Sizes
    head_dim: Sizes
    value_head_dim: Sizes
    causal: bool
    calls: Sizes

    def flop(self, backward: bool = False, causal_halved: bool = True) -> Any:
        """2·b·a·(d_qk + d_v)·Σᵢ visible(i) forward, 2.5 × that backward (Dao, FlashAttention-2); of all calls.

        With `causal_halved` off, masked pairs count too, as in the published formulas of training throughput.
        """
        pairs = visible_pairs(self.seq, self.seq, self.causal and causal_halved)
        forward = 2.0 * self.batch * self.heads * (self.head_dim + self.value_head_dim) * pairs * self.calls
        return forward * BACKWARD_FLOP_RATIO if backward else forward


def linears(
    model: ModelDimensions, tokens: Sizes, sharding: Sharding | None = None, fused: bool = True
) -> tuple[Linear, ...]:
    """Every linear layer of one rank for a micro-batch of so many tokens (micro_batch · seq), layers and logits.

    Columns of the matrix into a block are cut over TP, rows of the one out of it (Shoeybi et al. 2019, Megatron-LM);
    the vocabulary is padded to a multiple of the ranks. `fused` multiplies queries, keys and values in one product,
    and gate and up projection in one, as Megatron does; Hugging Face's models do not. Tokens are routed to experts
    evenly. Not listed: the lookup of embeddings, and gates of a single column. Raises UserError for fewer than 1 token,
    and for one model where a dimension cannot be cut evenly; of a grid, ask `Sharding.divides`.
    """
    sharding = sharding or Sharding()
    if np.min(tokens) < 1:
        raise UserError(f"A micro-batch has at least 1 token, but {np.min(tokens)} were asked for.")
    if type(model) is ModelDimensions and np.ndim(sharding.tensor) == np.ndim(sharding.expert) == 0:
        sharding.check(model)
    return (
        *_attention_linears(model, tokens, sharding, fused),
        *_mlp_linears(model, tokens, sharding, fused),
        *_head_linears(model, tokens, sharding),
    )


def products(
    model: ModelDimensions,
    tokens: Sizes,
    sharding: Sharding | None = None,
    fused: bool = True,
    phases: tuple[Phase, ...] = PHASES,
) -> tuple[Product, ...]:
    """Every matrix product of one micro-batch on one rank, in the passes asked for; arguments as of `linears`."""
    return tuple(linear.product(phase) for linear in linears(model, tokens, sharding, fused) for phase in phases)


def attention_call(
    model: ModelDimensions, micro_batch: Sizes, seq: Sizes, sharding: Sharding | None = None
) -> AttentionCall:
    """The attention of one micro-batch on one rank. Heads are cut over TP; with SP the sequence is whole here."""
    ranks = (sharding or Sharding()).tensor
    heads = model.heads // ranks
    return AttentionCall(
        batch=micro_batch,
        seq=seq,
        heads=heads,
        kv_heads=heads if model.latent_rank else _at_least_1(model.kv_heads // ranks),
        head_dim=model.head_dim,
        value_head_dim=model.value_head_dim,
        causal=model.causal,
        calls=model.layers,
    )


def _attention_linears(model: ModelDimensions, tokens: Sizes, sharding: Sharding, fused: bool) -> Iterator[Linear]:
    heads, layers = model.heads // sharding.tensor, model.layers
    queries = heads * model.head_dim
    if model.latent_rank:
        some = _share_of_sequence(tokens, sharding)
        if model.query_rank:
            yield Linear("query down", some, model.query_rank, model.hidden, layers)
            yield Linear("query up", tokens, queries, model.query_rank, layers)
        else:
            yield Linear("query", tokens, queries, model.hidden, layers)
        unrotated = model.head_dim - model.rope_head_dim
        yield Linear("latent down", some, model.latent_rank + model.rope_head_dim, model.hidden, layers)
        yield Linear("latent up", tokens, heads * (unrotated + model.value_head_dim), model.latent_rank, layers)
    else:
        keys = _at_least_1(model.kv_heads // sharding.tensor) * model.head_dim
        if fused:
            yield Linear("qkv", tokens, queries + 2 * keys, model.hidden, layers)
        else:
            yield Linear("query", tokens, queries, model.hidden, layers)
            yield Linear("key and value", tokens, keys, model.hidden, 2 * layers)
    yield Linear("attention output", tokens, model.hidden, heads * model.value_head_dim, layers)


def _mlp_linears(model: ModelDimensions, tokens: Sizes, sharding: Sharding, fused: bool) -> Iterator[Linear]:
    def mlp(name: str, tokens: Sizes, width: Sizes, calls: Sizes) -> Iterator[Linear]:
        ours = width // sharding.tensor
        together = 2 if model.gated and fused else 1
        apart = 2 if model.gated and not fused else 1
        yield Linear(f"{name} in", tokens, together * ours, model.hidden, apart * calls)
        yield Linear(f"{name} out", tokens, model.hidden, ours, calls)

    sparse = model.sparse_layers
    if model.experts == 1:
        yield from mlp("mlp", tokens, model.expert_ffn, sparse)
    else:
        yield Linear("router", _share_of_sequence(tokens, sharding), model.experts, model.hidden, sparse)
        # Each of the ranks that share the experts sends its tokens to all of them.
        visits = tokens * sharding.expert * model.top_k
        yield from mlp(
            "expert", -(-visits // model.experts), model.expert_ffn, sparse * (model.experts // sharding.expert)
        )
    if model.shared_ffn:
        yield from mlp("shared expert", tokens, model.shared_ffn, sparse)
    if np.any(model.dense_layers):
        yield from mlp("dense mlp", tokens, model.ffn, model.dense_layers)


def _head_linears(model: ModelDimensions, tokens: Sizes, sharding: Sharding) -> Iterator[Linear]:
    if model.head_transform:
        yield Linear("head transform", tokens, model.hidden, model.hidden, 1, outside_layers=True)
    yield Linear("logits", tokens, -(-model.vocab // sharding.tensor), model.hidden, 1, outside_layers=True)


def _share_of_sequence(tokens: Sizes, sharding: Sharding) -> Sizes:
    """Tokens of a rank where TP does not cut: all of them, or its share with SP."""
    return -(-tokens // sharding.tensor) if sharding.sequence_parallel else tokens


def _at_least_1(size: Sizes) -> Sizes:
    return max(size, 1) if isinstance(size, int) else np.maximum(size, 1)
