"""A transformer by its dimensions: its parameters, its products and attention on one rank, and the FLOP of a step.

What a model costs to train follows from these few numbers; no weights are needed. Sizes may be arrays, of many models
at once. Model FLOP are what the mathematics asks for, hardware FLOP what is computed, recomputation included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiled_attention import visible_pairs

# Far above any model there is; and even all of them together are fewer parameters than 64 bits can count.
LARGEST = {
    "layers": 1 << 11,
    "hidden": 1 << 18,
    "ffn": 1 << 20,
    "heads": 1 << 13,
    "vocab": 1 << 25,
    "experts": 1 << 12,
    "expert_ffn": 1 << 20,
    "shared_ffn": 1 << 20,
    "positions": 1 << 25,
    "query_rank": 1 << 18,
    "latent_rank": 1 << 18,
    "norms": 1 << 4,
    "window": 1 << 25,
    # Last, as they may follow from others.
    "head_dim": 1 << 13,
    "value_head_dim": 1 << 13,
}
ALWAYS_GIVEN = ("layers", "hidden", "ffn", "heads", "vocab")
_AT_LEAST_1 = (*ALWAYS_GIVEN, "experts", "top_k")
_BIASES = ("qkv_bias", "output_bias", "mlp_bias", "norm_bias")


@dataclass(frozen=True)
class ModelDimensions:
    """A transformer: GPT-2 with `bias`, `positions` and `tied`, Llama with `gated` and `kv_heads`, BERT not `causal`.

    `ffn` is the width of the hidden layer of an MLP, `gated` one with a third matrix (SwiGLU). `experts` MLPs of width
    `expert_ffn` stand in each layer, of which a token is routed to `top_k` and to one of width `shared_ffn`; the
    `dense_layers` have one MLP of width `ffn`. `positions` are learned position embeddings, 0 where there are none.
    `tied` says that the embedding is the output matrix too. `bias` stands for one in all projections and norms.

    With a `latent_rank` attention is DeepSeek-V2's latent one (MLA): keys and values come from a vector of that rank,
    queries from one of `query_rank` (0: straight from the hidden state), `rope_head_dim` of a head's `head_dim` are
    rotated and the keys' part of it is shared by all heads, values have `value_head_dim`. `other_parameters` stand
    once in the model and enter no product worth counting.

    In `windowed_layers` a query sees `window` keys, or those of its `chunked` piece of the sequence, elsewhere all
    before it. Raises UserError for dimensions that no model can have.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocab: int
    kv_heads: int = 0  # as many as heads
    head_dim: int = 0  # hidden / heads
    gated: bool = False
    bias: bool = False
    tied: bool = False
    positions: int = 0
    experts: int = 1
    top_k: int = 1
    qkv_bias: bool = False
    output_bias: bool = False  # of the projection after attention
    mlp_bias: bool = False
    norm_bias: bool = False  # LayerNorm, where RMSNorm has none
    norm_weight: bool = True
    norms: int = 2  # in each layer, as wide as hidden
    qk_norm: bool = False  # over a head's queries and over its keys
    expert_ffn: int = 0  # ffn
    shared_ffn: int = 0  # no shared expert
    shared_gate: bool = False
    router_bias: bool = False
    dense_layers: int = 0
    query_rank: int = 0
    latent_rank: int = 0
    rope_head_dim: int = 0
    value_head_dim: int = 0  # head_dim
    causal: bool = True
    head_transform: bool = False  # BERT's: a square matrix and a norm before the output matrix, which has a bias
    other_parameters: int = 0
    window: int = 0
    windowed_layers: int = 0
    chunked: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _AT_LEAST_1 and value < 1:
                raise UserError(f"A model needs {field.name} of at least 1, but {value} were requested.")
            if value < 0:
                raise UserError(f"{field.name} cannot be negative, but {value} was requested.")
        if not self.head_dim and self.hidden % self.heads:
            raise UserError(
                f"hidden = {self.hidden} cannot be divided into {self.heads} heads: give head_dim, or a hidden that "
                f"{self.heads} divides."
            )
        self._fill_in()
        self._check_sizes()

    def __str__(self) -> str:
        values = [(field.name, field.default, getattr(self, field.name)) for field in fields(self)]
        return ", ".join(f"{name}={value}" for name, usual, value in values if name in ALWAYS_GIVEN or value != usual)

    @property
    def sparse_layers(self) -> int:
        """Layers with experts; with the MLP, where there are no experts."""
        return self.layers - self.dense_layers

    @property
    def expert_parameters(self) -> int:
        return self._mlp_parameters(self.expert_ffn)

    @property
    def layer_parameters(self) -> int:
        return self._outside_mlp + self._sparse_mlp_parameters

    @property
    def dense_layer_parameters(self) -> int:
        return self._outside_mlp + self._mlp_parameters(self.ffn)

    @property
    def outer_parameters(self) -> int:
        """Parameters outside of the layers: embeddings, the last norm (BERT: the first), the output matrix."""
        matrices = 1 if self.tied else 2
        transform = self.hidden * (self.hidden + 1) + self._norm_parameters + self.vocab if self.head_transform else 0
        embeddings = self.hidden * (matrices * self.vocab + self.positions)
        return embeddings + self._norm_parameters + transform + self.other_parameters

    @property
    def inner_parameters(self) -> int:
        """Parameters of all layers."""
        mlps = self.sparse_layers * self._sparse_mlp_parameters + self.dense_layers * self._mlp_parameters(self.ffn)
        return self.layers * self._outside_mlp + mlps

    @property
    def parameters(self) -> int:
        return self.inner_parameters + self.outer_parameters

    @property
    def active_parameters(self) -> int:
        return self.parameters - self.sparse_layers * (self.experts - self.top_k) * self.expert_parameters

    @property
    def _sparse_mlp_parameters(self) -> int:
        router = self.experts * (self.hidden + self.router_bias) if self.experts > 1 else 0
        shared = self._mlp_parameters(self.shared_ffn) + self.hidden * self.shared_gate if self.shared_ffn else 0
        return self.experts * self.expert_parameters + router + shared

    @property
    def _outside_mlp(self) -> int:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if self.latent_rank:
            down_and_up = self.query_rank * (self.hidden + 1 + queries) if self.query_rank else self.hidden * queries
            from_latent = self.heads * (self.head_dim - self.rope_head_dim + self.value_head_dim)
            latent = self.hidden * (self.latent_rank + self.rope_head_dim) + self.latent_rank * (1 + from_latent)
            projections = down_and_up + latent + self.heads * self.value_head_dim * self.hidden
            biased = self.query_rank + self.latent_rank + self.rope_head_dim  # of the projections down alone
        else:
            projections, biased = 2 * self.hidden * (queries + keys), queries + 2 * keys
        biases = biased * self.qkv_bias + self.hidden * self.output_bias
        return projections + biases + 2 * self.head_dim * self.qk_norm + self.norms * self._norm_parameters

    @property
    def _norm_parameters(self) -> int:
        return self.hidden * (self.norm_weight + self.norm_bias)

    def _mlp_parameters(self, width: int) -> int:
        into = 2 if self.gated else 1
        return (into + 1) * self.hidden * width + (into * width + self.hidden) * self.mlp_bias

    def _fill_in(self) -> None:
        """Fill in the fields that were left out, and resolve `bias`."""
        followed = {"kv_heads": self.heads, "head_dim": self.hidden // self.heads, "expert_ffn": self.ffn}
        for name, value in followed.items():
            if isinstance(getattr(self, name), int) and not getattr(self, name):
                object.__setattr__(self, name, value)
        if not self.latent_rank and isinstance(self.value_head_dim, int) and not self.value_head_dim:
            object.__setattr__(self, "value_head_dim", self.head_dim)
        if self.bias:
            for name in _BIASES:
                object.__setattr__(self, name, True)

    def _check_sizes(self) -> None:
        for name, most in LARGEST.items():
            if getattr(self, name) > most:
                raise UserError(
                    f"A model of {name} = {getattr(self, name)} is beyond the {most} that are counted with."
                )
        if self.heads % self.kv_heads:
            raise UserError(f"{self.heads} heads cannot share {self.kv_heads} key-value heads evenly.")
        if self.top_k > self.experts:
            raise UserError(f"A token cannot visit {self.top_k} of {self.experts} experts.")
        if self.experts == 1 and self.expert_ffn != self.ffn:
            raise UserError(f"expert_ffn = {self.expert_ffn} is of one of several experts: give experts, or ffn alone.")
        if self.dense_layers > self.layers:
            raise UserError(f"{self.dense_layers} of {self.layers} layers cannot be dense.")
        if self.windowed_layers > self.layers:
            raise UserError(f"{self.windowed_layers} of {self.layers} layers cannot have a window.")
        if self.windowed_layers and not self.window:
            raise UserError(f"{self.windowed_layers} layers with a window need its size: give window.")
        if self.latent_rank and not (self.value_head_dim and self.rope_head_dim < self.head_dim):
            raise UserError(
                "Latent attention needs a value_head_dim, and a rope_head_dim below head_dim, but "
                f"{self} was requested."
            )
        if not self.latent_rank and self.value_head_dim != self.head_dim:
            raise UserError(
                f"value_head_dim = {self.value_head_dim} with head_dim = {self.head_dim} is of latent attention: "
                "give its latent_rank too."
            )


# One size, or one for each model of a grid.
Sizes = int | NDArray[np.int64]
Phase = Literal["fprop", "dgrad", "wgrad"]
PHASES: tuple[Phase, ...] = ("fprop", "dgrad", "wgrad")
ROUTED = ("expert in", "expert out")
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
                raise UserError(f"Layers are cut over at least 1 rank, but {name} = {np.min(ranks)} was requested.")

    def divides(self, model: ModelDimensions) -> NDArray[np.bool_]:
        """True if every dimension can be cut evenly; an array where the model or `tensor` is one."""
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
    """`calls` of one product C[M,N] = A[M,K]·B[K,N] of a micro-batch on a rank, in all layers together.

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
        return LAYOUTS[self.phase]

    @property
    def routed(self) -> bool:
        """True for a product of experts that tokens are routed to, which libraries compute together."""
        return self.part in ROUTED

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


def linears(model: ModelDimensions, tokens: Sizes, sharding: Sharding | None = None) -> tuple[Linear, ...]:
    """Every linear layer of one rank for a micro-batch of `tokens` tokens (micro_batch · seq), layers and logits.

    Columns of the matrix into a block are cut over TP, rows of the one out of it (Shoeybi et al. 2019, Megatron-LM);
    the vocabulary is padded to a multiple of the ranks. Queries, keys and values are one product, and so are gate and
    up projection, as Megatron has it. Tokens are routed to experts evenly. Not listed: the lookup of embeddings, and
    gates of a single column. Raises UserError for fewer than 1 token, and for one model where a dimension cannot be cut
    evenly; of a grid, ask `Sharding.divides`.
    """
    sharding = sharding or Sharding()
    if np.min(tokens) < 1:
        raise UserError(f"A micro-batch has at least 1 token, but {np.min(tokens)} were requested.")
    if type(model) is ModelDimensions and np.ndim(sharding.tensor) == np.ndim(sharding.expert) == 0:
        sharding.check(model)
    return (
        *_attention_linears(model, tokens, sharding),
        *_mlp_linears(model, tokens, sharding),
        *((Linear("head transform", tokens, model.hidden, model.hidden, 1, True),) * bool(model.head_transform)),
        Linear("logits", tokens, -(-model.vocab // sharding.tensor), model.hidden, 1, outside_layers=True),
    )


def products(
    model: ModelDimensions, tokens: Sizes, sharding: Sharding | None = None, phases: tuple[Phase, ...] = PHASES
) -> tuple[Product, ...]:
    """Every matrix product of one micro-batch on one rank, in the requested passes; arguments as of `linears`."""
    return tuple(linear.product(phase) for linear in linears(model, tokens, sharding) for phase in phases)


def _attention_linears(model: ModelDimensions, tokens: Sizes, sharding: Sharding) -> Iterator[Linear]:
    heads, layers = model.heads // sharding.tensor, model.layers
    queries = heads * model.head_dim
    if model.latent_rank:
        rows = _share_of_sequence(tokens, sharding)
        if model.query_rank:
            yield Linear("query down", rows, model.query_rank, model.hidden, layers)
            yield Linear("query up", tokens, queries, model.query_rank, layers)
        else:
            yield Linear("query", tokens, queries, model.hidden, layers)
        unrotated = model.head_dim - model.rope_head_dim
        yield Linear("latent down", rows, model.latent_rank + model.rope_head_dim, model.hidden, layers)
        yield Linear("latent up", tokens, heads * (unrotated + model.value_head_dim), model.latent_rank, layers)
    else:
        keys = at_least_1(model.kv_heads // sharding.tensor) * model.head_dim
        yield Linear("qkv", tokens, queries + 2 * keys, model.hidden, layers)
    yield Linear("attention output", tokens, model.hidden, heads * model.value_head_dim, layers)


def _mlp_linears(model: ModelDimensions, tokens: Sizes, sharding: Sharding) -> Iterator[Linear]:
    def mlp(name: str, tokens: Sizes, width: Sizes, calls: Sizes) -> Iterator[Linear]:
        ours = width // sharding.tensor
        yield Linear(f"{name} in", tokens, (2 if model.gated else 1) * ours, model.hidden, calls)
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


def _share_of_sequence(tokens: Sizes, sharding: Sharding) -> Sizes:
    """Tokens of a rank where TP does not cut: all of them, or its share with SP."""
    return -(-tokens // sharding.tensor) if sharding.sequence_parallel else tokens


FULL_ATTENTION = "attention"  # the name of attention over the whole sequence


@dataclass(frozen=True)
class AttentionCall:
    """The attention of one micro-batch on one rank, between its projections: `calls` of it, one a layer.

    With a `window` a query sees that number of keys, itself the last of them. Latent attention is trained with keys and
    values of every head; then `head_dim` is of queries and keys, and `value_head_dim` differs.
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
    name: str = FULL_ATTENTION

    @property
    def is_windowed(self) -> bool:
        """True if it sees a window or a chunk of the sequence."""
        return self.name != FULL_ATTENTION

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
    """The attention of one micro-batch on one rank, as if all layers saw whole sequences: see `attention_calls`.

    Heads are cut over TP; with SP the sequence is whole here.
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
    """The same by kinds of layers: full sequences, and windows or chunks, which are shorter sequences."""
    call = attention_call(model, micro_batch, seq, sharding)
    if not model.window or not np.any(model.windowed_layers):
        return (call,)
    windowed = replace(call, calls=model.windowed_layers, window=model.window, name="windowed attention")
    if model.chunked:
        pieces = -(-np.asarray(seq) // model.window)
        windowed = replace(windowed, batch=micro_batch * pieces, seq=-(-seq // pieces), window=0)
    whole = replace(call, calls=model.layers - model.windowed_layers)
    return (whole, windowed) if np.any(whole.calls) else (windowed,)


def at_least_1(size: Sizes) -> Sizes:
    """The size, or 1 where it is less."""
    return max(size, 1) if isinstance(size, int) else np.maximum(size, 1)


# Work that backward computes once more instead of keeping it: nothing, the attention between its projections (selective
# recomputation; FlashAttention does at least its scores), or whole layers (activation checkpointing).
Recompute = Literal["nothing", "attention", "layers"]
RECOMPUTES: tuple[Recompute, ...] = ("nothing", "attention", "layers")


def check_recompute(recompute: str) -> None:
    """Raise UserError for anything but what can be recomputed."""
    if recompute not in RECOMPUTES:
        raise UserError(f"Backward cannot recompute {recompute!r}: choose from {', '.join(RECOMPUTES)}.")


PASSES = 3  # backward computes two gradients for each product of the forward pass


def model_flop(model: ModelDimensions, batch: Sizes, seq: Sizes) -> Any:
    """Forward and backward over `batch` sequences of `seq` tokens: three times the forward pass's products.

    Pairs that a causal mask hides do not count. In most published figures they do (Chowdhery et al. 2022, PaLM,
    appendix B: 6·N + 12·L·H·Q·T a token): those are of the same model without `causal`.
    """
    inside, outside, attention = _forward(model, batch, seq)
    return PASSES * (inside + outside + attention)


def hardware_flop(model: ModelDimensions, batch: Sizes, seq: Sizes, recompute: Recompute) -> Any:
    """FLOPs with recomputation: for "attention" or "layers" one forward pass more, logits never.

    Raises UserError for another word.
    """
    check_recompute(recompute)
    inside, outside, attention = _forward(model, batch, seq)
    once_more = {"nothing": 0.0, "attention": attention, "layers": inside + attention}[recompute]
    return PASSES * (inside + outside + attention) + once_more


def _forward(model: ModelDimensions, batch: Sizes, seq: Sizes) -> tuple[Any, Any, Any]:
    """FLOP of one forward pass: products inside the layers, those outside, and attention between its projections."""
    found = products(model, batch * seq, phases=("fprop",))
    inside, outside = (sum((each.flop for each in found if each.outside_layers == ends), 0.0) for ends in (False, True))
    return inside, outside, sum((call.flop() for call in attention_calls(model, batch, seq)), 0.0)
