"""Memory of training: the weights of a GPT by name and shape, and the activations that forward keeps for backward.

`kept_bytes` has what torch keeps on one device to the byte, each operation by what it saves, for a model written in
torch's own operations in any element. `activation_bytes` is Korthikanti's formula: 16 bits, fused masks, several GPUs.
With 16 bits on a GPU both are the same but for statistics, and for what torch keeps and the formula does not: SiLU's
result in a gated MLP.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiling import ceil_div
from pyperf_suite.laws.transformer import ModelDimensions, Recompute, Sharding, Sizes, attention_call, check_recompute

FIRST, LAST = -1, -2


@dataclass(frozen=True)
class Weight:
    """One weight; TP cuts dimension `cut` (None: none); `place` is its layer, FIRST before or LAST behind all."""

    name: str
    shape: tuple[int, ...]
    place: int
    cut: int | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def gpt_weights(model: ModelDimensions) -> tuple[Weight, ...]:
    """All of a decoder with dense layers, embeddings and logits: GPT-2's, or Llama's block where gated.

    Columns into a block are cut over TP, rows out of it (Shoeybi et al. 2019, Megatron-LM), as are the rows of both
    embeddings and of the output matrix; norms and biases behind a sum over ranks are whole on every rank.
    """
    hidden, vocab = model.hidden, model.vocab
    ends = [Weight("tokens.weight", (vocab, hidden), FIRST, 0)]
    if model.positions:
        ends.append(Weight("positions.weight", (model.positions, hidden), FIRST, 0))
    layers = (weight for layer in range(model.layers) for weight in _weights_of_layer(model, layer))
    last = [*_weights_of_norm(model, "norm", LAST)]
    if not model.tied:
        last.append(Weight("logits.weight", (vocab, hidden), LAST, 0))
    return (*ends, *layers, *last)


def _weights_of_layer(model: ModelDimensions, layer: int) -> Iterator[Weight]:
    hidden, width = model.hidden, model.ffn
    result = model.heads * model.head_dim
    projected = result + 2 * model.kv_heads * model.head_dim
    into = [("mlp.gate", width)] if model.gated else []

    def linear(name: str, outputs: int, inputs: int, cut: int, bias: bool) -> Iterator[Weight]:
        yield Weight(f"{prefix}.{name}.weight", (outputs, inputs), layer, cut)
        if bias:
            # Behind rows that are cut stands a sum over ranks, and only then the bias.
            yield Weight(f"{prefix}.{name}.bias", (outputs,), layer, 0 if cut == 0 else None)

    prefix = f"blocks.blocks.{layer}"
    yield from _weights_of_norm(model, f"{prefix}.attention_norm", layer)
    yield from _weights_of_norm(model, f"{prefix}.mlp_norm", layer)
    yield from linear("attention.qkv", projected, hidden, 0, model.qkv_bias)
    yield from linear("attention.out", hidden, result, 1, model.output_bias)
    for name, outputs in [*into, ("mlp.up", width)]:
        yield from linear(name, outputs, hidden, 0, model.mlp_bias)
    yield from linear("mlp.down", hidden, width, 1, model.mlp_bias)


def _weights_of_norm(model: ModelDimensions, name: str, place: int) -> Iterator[Weight]:
    yield Weight(f"{name}.weight", (model.hidden,), place)
    if model.norm_bias:
        yield Weight(f"{name}.bias", (model.hidden,), place)


@dataclass(frozen=True)
class Storage:
    """Bytes a parameter: the `weight` computed with, its `gradient`, the `optimizer`'s moments, a `master` copy.

    `step` is what the optimizer keeps once a tensor: torch's AdamW counts its steps in a float32 each.
    """

    weight: int
    gradient: int
    optimizer: int
    master: int = 0
    step: int = 4

    @property
    def state(self) -> int:
        """Return the optimizer's bytes per parameter: its moments, and the master copy that it updates."""
        return self.optimizer + self.master

    @property
    def total(self) -> int:
        return self.weight + self.gradient + self.state


# AdamW in mixed precision, 18 bytes in all (Bekman, Machine Learning Engineering): weights in 16 bits and a master copy
# in 32, gradients in 32, two moments in 32.
MIXED = Storage(weight=2, gradient=4, optimizer=8, master=4)
# Bytes per parameter of ZeRO (Rajbhandari et al. 2020).
LAST_STAGE = 3
# In a memory that is fuller than this, fragmentation may leave no piece that is large enough, hours into a run.
NEAR_LIMIT = 0.95


def activation_bytes(
    model: ModelDimensions,
    batch: Sizes,
    seq: Sizes,
    sharding: Sharding | None = None,
    recompute: Recompute = "attention",
) -> Any:
    """Return the bytes kept for backward, in 16 bits: s·b·h·(34 + 5·a·s/h) bytes a layer of a GPT.

    With TP and SP as table 2 of Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer
    Models, here for any width, shared key-value heads, gated MLPs and experts; masks of dropout are counted. Where
    layers are recomputed, their inputs are kept and the one at work. Raises UserError for an unknown `recompute`.
    """
    check_recompute(recompute)
    sharding = sharding or Sharding()
    at_work = layers_bytes(model, seq, sharding, "attention") / model.layers if recompute == "layers" else 0.0
    kept = layers_bytes(model, seq, sharding, recompute) + outside_bytes(model, sharding)
    return 1.0 * batch * seq * (at_work + kept)


def layers_bytes(model: ModelDimensions, seq: Sizes, sharding: Sharding, recompute: Recompute) -> Any:
    """Bytes a token that all layers keep on a rank."""
    ranks = sequence_ranks(sharding)
    if recompute == "layers":
        return 2.0 * model.hidden * model.layers / ranks
    attention = attention_call(model, 1, seq, sharding)
    # Inputs of norms, of attention and of the MLP, and a byte for each mask after the latter two.
    per_token: Any = 2 * model.layers * model.hidden * (model.norms + 2 + 1)
    per_token = per_token + attention.calls * 2 * (model.query_rank + model.latent_rank + model.rope_head_dim)
    cut = 2 * (attention.heads + attention.kv_heads) * attention.head_dim  # queries and keys
    cut = cut + 2 * (attention.kv_heads + attention.heads) * attention.value_head_dim  # values, and what comes out
    if recompute == "nothing":
        cut = cut + 5 * attention.heads * np.asarray(seq)  # softmax, its dropout, and the mask of that
    # Before and after the activation function, and the gate; each of a token's experts has its input and output too.
    per_width = 2 * (3 if model.gated else 2) / np.asarray(sharding.tensor)
    visited = model.top_k * model.expert_ffn + model.shared_ffn
    routed = 4 * model.top_k * model.hidden if model.experts > 1 else 0
    experts = model.sparse_layers * (per_width * visited + routed / ranks)
    return per_token / ranks + attention.calls * cut + experts + model.dense_layers * per_width * model.ffn


def outside_bytes(model: ModelDimensions, sharding: Sharding) -> Any:
    """Bytes a token outside of the layers: mask of the embedding, last norm, input and 32-bit result of the logits."""
    return 5 * model.hidden / sequence_ranks(sharding) + 4.0 * ceil_div(model.vocab, sharding.tensor)


def sequence_ranks(sharding: Sharding) -> NDArray[np.int64]:
    """Over how many ranks the sequence is cut where TP leaves tokens whole."""
    return np.asarray(sharding.tensor if sharding.sequence_parallel else 1)


# float32, in which torch keeps statistics, and int64, in which it has tokens.
FLOAT, INTEGER = 4, 8
KINDS = ("none", "every", "selective")


@dataclass(frozen=True)
class ActivationPolicy:
    """How the model is run, as far as that decides what is kept.

    `element_bytes` are of the results of matrix products, `stream_bytes` of the residual stream and the norms: the
    same but under autocast, where the stream stays in float32. `attention` "sdpa" is the fused kernel, which keeps no
    scores, "math" torch's own that writes them out, "explicit" the model's. `checkpointing` "every" drops all but the
    inputs of groups of `every` layers, "selective" all but each layer's input and the results of products and
    attention. `ends` says whether there are embeddings, last norm, logits and loss. Raises UserError for a kind of
    checkpointing that there is not.
    """

    element_bytes: int = FLOAT
    stream_bytes: int = FLOAT
    dropout: bool = False
    attention: Literal["sdpa", "math", "explicit"] = "sdpa"
    checkpointing: str = "none"
    every: int = 1
    ends: bool = True
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        if self.checkpointing not in KINDS or self.every < 1:
            raise UserError(
                f"Nothing is known of checkpointing {self.checkpointing!r} by {self.every}: choose from "
                f"{', '.join(KINDS)}, by at least 1."
            )

    @property
    def autocast(self) -> bool:
        return self.element_bytes < self.stream_bytes

    @property
    def written_out(self) -> bool:
        """True if scores are kept: torch has no fused kernel with dropout on a CPU."""
        return self.attention != "sdpa" or (self.device == "cpu" and self.dropout)


@dataclass(frozen=True)
class KeptBytes:
    """Bytes kept, by what they are: of all layers, and of the `ends` before and behind them.

    `statistics` are means and deviations of norms and the logarithms of softmax's sums. With checkpointing "every",
    `inputs` is all there is of the layers.
    """

    inputs: float = 0.0
    norms: float = 0.0
    attention: float = 0.0
    mlp: float = 0.0
    masks: float = 0.0
    statistics: float = 0.0
    ends: float = 0.0

    @property
    def total(self) -> float:
        return sum(getattr(self, field.name) for field in fields(self))

    def __add__(self, other: KeptBytes) -> KeptBytes:
        return KeptBytes(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def __mul__(self, factor: float) -> KeptBytes:
        return KeptBytes(*(getattr(self, each.name) * factor for each in fields(self)))


def kept_bytes(model: ModelDimensions, batch: int, seq: int, keeping: ActivationPolicy) -> KeptBytes:
    """Return the bytes kept of `batch` sequences of `seq` tokens between forward and backward, without weights.

    Measured on the CPU, where it is exact (tests/core/laws/test_activations.py); on a GPU written after torch's
    derivatives and not measured yet. For decoders of dense layers, GPT-2's (LayerNorm, GELU) or gated ones (RMSNorm,
    SwiGLU).
    """
    of_layer = _selected if keeping.checkpointing == "selective" else saved_of_layer
    layers = of_layer(model, batch, seq, keeping) * model.layers
    if keeping.checkpointing == "every":
        groups = int(ceil_div(model.layers, keeping.every))
        layers = KeptBytes(inputs=float(batch * seq * keeping.stream_bytes * model.hidden * groups))
    elif keeping.checkpointing == "none" and not keeping.ends and _is_composite(model, keeping):
        # A stack of layers alone starts from data, for which no gradient is computed.
        layers = layers + KeptBytes(norms=-FLOAT * model.hidden, statistics=-FLOAT) * (batch * seq)
    if not keeping.ends:
        return layers
    return layers + _ends(model, keeping) * (batch * seq) + KeptBytes(statistics=FLOAT)


def saved_of_layer(model: ModelDimensions, batch: int, seq: int, keeping: ActivationPolicy) -> KeptBytes:
    """One layer of which all is kept that autograd saves."""
    element, hidden = keeping.element_bytes, model.hidden
    norm = _kept_of_norm(model, keeping)
    # Under autocast each product casts its own input; else gate and up share the norm's result.
    readers = 2 if model.gated and keeping.autocast else 1
    # Hidden layer before and after GELU; gate, SiLU of it, up and their product where gated.
    mlp = element * (readers * hidden + (4 if model.gated else 2) * model.ffn)
    attention, statistics, masks = _attention(model, batch, seq, keeping)
    per_token = KeptBytes(
        norms=2 * norm.norms,
        attention=element * hidden + attention,
        mlp=mlp,
        masks=masks + (2 * hidden * _mask_bytes(element, keeping) if keeping.dropout else 0),
        statistics=2 * norm.statistics + statistics,
    )
    return per_token * (batch * seq)


def _attention(model: ModelDimensions, batch: int, seq: int, keeping: ActivationPolicy) -> tuple[float, float, float]:
    """Bytes a token from the result of the first projection to the input of the last one; statistics; masks."""
    element, heads = keeping.element_bytes, model.heads
    result = heads * model.head_dim
    projected = (heads + 2 * model.kv_heads) * model.head_dim
    if not keeping.written_out:
        return element * (projected + result), FLOAT * heads, 0.0
    # Not fused, torch's own attention computes in float32 and scales copies of queries and keys.
    fallback = keeping.attention != "explicit"
    inner = FLOAT if fallback else element
    shared = model.kv_heads != heads
    operands = inner * 3 * result
    # With a batch of one, products read the projection in place, of which a view keeps the whole.
    if batch == 1 or heads == 1:
        if fallback and not shared and inner == element:
            operands = inner * 2 * result + element * projected
        elif not fallback and shared:
            operands = element * (projected + 2 * result)
    # Softmax in float32 is what autocast wants of a GPU.
    softmax = FLOAT if keeping.autocast and keeping.device == "cuda" else inner
    dropped = inner if keeping.dropout or softmax != inner else 0
    mask = _mask_bytes(softmax, keeping) * heads * seq if keeping.dropout else 0
    return operands + (softmax + dropped) * heads * seq + element * result, 0.0, mask


def _selected(model: ModelDimensions, batch: int, seq: int, keeping: ActivationPolicy) -> KeptBytes:
    """One layer of which its input is kept, and what products and attention returned."""
    element, heads, hidden = keeping.element_bytes, model.heads, model.hidden
    projected, result = (heads + 2 * model.kv_heads) * model.head_dim, heads * model.head_dim
    statistics = 0.0
    if keeping.written_out:
        inner = FLOAT if keeping.attention != "explicit" else element
        attention = inner * (heads * seq + result)
    else:
        attention, statistics = element * result, float(FLOAT * heads)
    per_token = KeptBytes(
        inputs=keeping.stream_bytes * hidden,
        attention=attention + element * (projected + hidden),
        mlp=element * ((2 if model.gated else 1) * model.ffn + hidden),
        statistics=statistics,
    )
    return per_token * (batch * seq)


def _kept_of_norm(model: ModelDimensions, keeping: ActivationPolicy) -> KeptBytes:
    """Bytes a token: what a norm was given, and what it knows of it; its result is counted with who reads it."""
    if _is_composite(model, keeping):
        # RMSNorm out of single operations: input and scaled input, both in float32.
        return KeptBytes(norms=2 * FLOAT * model.hidden, statistics=FLOAT)
    statistic = keeping.stream_bytes if keeping.device == "cpu" else FLOAT
    return KeptBytes(norms=keeping.stream_bytes * model.hidden, statistics=(1 if model.gated else 2) * statistic)


def _is_composite(model: ModelDimensions, keeping: ActivationPolicy) -> bool:
    return model.gated and keeping.device == "cpu"


def _ends(model: ModelDimensions, keeping: ActivationPolicy) -> KeptBytes:
    """Bytes a token: numbers, embedding's mask, last norm, logits' input, and log-softmax in float32."""
    norm = _kept_of_norm(model, keeping)
    mask = _mask_bytes(keeping.stream_bytes, keeping) * model.hidden if keeping.dropout else 0
    ends = 2 * INTEGER + norm.norms + keeping.element_bytes * model.hidden + FLOAT * model.vocab
    return KeptBytes(ends=ends, masks=mask, statistics=norm.statistics)


def _mask_bytes(element_bytes: int, keeping: ActivationPolicy) -> int:
    """Return the bytes of a mask per element: 1 where dropout is one kernel, else a factor of the element's type."""
    return 1 if keeping.device == "cuda" else element_bytes
