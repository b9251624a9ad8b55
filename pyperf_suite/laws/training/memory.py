"""What training holds in a GPU's memory: weights, gradients, optimizer states and kept activations.

`training_memory` has the closed forms of the literature for planning, which divide evenly; room is left for what a
framework allocates in addition. `held_by_rank` has what torch's engines allocate on each rank to the byte, over the
weights of a GPT by name and shape.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.laws.layer_kinds import attention_call
from pyperf_suite.laws.tiling import ceil_div
from pyperf_suite.laws.transformer import (
    Linear,
    ModelDimensions,
    Recompute,
    Sharding,
    Sizes,
    check_recompute,
    linears,
)

FIRST, LAST = -1, -2
# What of a training lies outside the GPU's memory: "optimizer" states alone, or all in the host's, or on its drives.
Offload = Literal["none", "optimizer", "cpu", "nvme"]
OFFLOADS: tuple[Offload, ...] = get_args(Offload)
# A rank's pieces of the largest unit that are in the host's memory at once on their way to drives and back.
BUFFERS = 4


@dataclass(frozen=True)
class Weight:
    """One weight of a model; `cut` is the dimension that TP cuts, None where each rank has all of it.

    `place` is the number of its layer, FIRST in front of all layers or LAST behind them.
    """

    name: str
    shape: tuple[int, ...]
    place: int
    cut: int | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def over_tensor(self, ranks: int) -> Weight:
        if self.cut is None or ranks == 1:
            return self
        shape = tuple(size // ranks if place == self.cut else size for place, size in enumerate(self.shape))
        return replace(self, shape=shape)


def gpt_weights(model: ModelDimensions) -> tuple[Weight, ...]:
    """All of a decoder with dense layers, embeddings and logits: GPT-2's, or Llama's block where gated.

    Columns into a block are cut over TP, rows out of it (Shoeybi et al. 2019, Megatron-LM), as are the rows of both
    embeddings and of the output matrix; norms and biases behind a sum over ranks are whole on every rank.
    """
    hidden, vocab = model.hidden, model.vocab
    ends = [Weight("tokens.weight", (vocab, hidden), FIRST, 0)]
    if model.positions:
        ends.append(Weight("positions.weight", (model.positions, hidden), FIRST, 0))
    layers = (weight for layer in range(model.layers) for weight in _layer(model, layer))
    last = [*_norm(model, "norm", LAST)]
    if not model.tied:
        last.append(Weight("logits.weight", (vocab, hidden), LAST, 0))
    return (*ends, *layers, *last)


def stage_of(weight: Weight, layers: int, stages: int, chunks: int) -> int:
    """Of the pipeline stage that has it: layers are dealt out in stages · chunks groups, the i-th to stage i mod p."""
    if weight.place == FIRST:
        return 0
    if weight.place == LAST:
        return stages - 1
    return weight.place // (layers // (stages * chunks)) % stages


def rank_weights(
    model: ModelDimensions, tensor: int = 1, stages: int = 1, chunks: int = 1, stage: int = 0
) -> tuple[Weight, ...]:
    """What a rank of that pipeline stage has, cut over TP; layers and dimensions have to divide."""
    return tuple(
        weight.over_tensor(tensor)
        for weight in gpt_weights(model)
        if stage_of(weight, model.layers, stages, chunks) == stage
    )


def _layer(model: ModelDimensions, layer: int) -> Iterator[Weight]:
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
    yield from _norm(model, f"{prefix}.attention_norm", layer)
    yield from _norm(model, f"{prefix}.mlp_norm", layer)
    yield from linear("attention.qkv", projected, hidden, 0, model.qkv_bias)
    yield from linear("attention.out", hidden, result, 1, model.output_bias)
    for name, outputs in [*into, ("mlp.up", width)]:
        yield from linear(name, outputs, hidden, 0, model.mlp_bias)
    yield from linear("mlp.down", hidden, width, 1, model.mlp_bias)


def _norm(model: ModelDimensions, name: str, place: int) -> Iterator[Weight]:
    yield Weight(f"{name}.weight", (model.hidden,), place)
    if model.norm_bias:
        yield Weight(f"{name}.bias", (model.hidden,), place)


Engine = Literal["ddp", "zero_optimizer", "fsdp"]


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
        """What the optimizer has of a parameter: its moments, and the master copy that it updates."""
        return self.optimizer + self.master

    @property
    def total(self) -> int:
        return self.weight + self.gradient + self.state


# AdamW of torch on weights in one type, whose moments have the type of the weights.
FLOAT32 = Storage(weight=4, gradient=4, optimizer=8)
BFLOAT16 = Storage(weight=2, gradient=2, optimizer=4)
# Weights in 16 bits with a master copy, gradients and moments in 32 (laws/training/memory.py).
MIXED = Storage(weight=2, gradient=4, optimizer=8, master=4)


@dataclass(frozen=True)
class StateBytes:
    """Bytes that live from step to step on one rank."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


def held_by_rank(
    weights: Sequence[Weight], engine: Engine, ranks: int, storage: Storage = FLOAT32
) -> tuple[StateBytes, ...]:
    """What each of `ranks` data-parallel ranks holds of the `weights` that they have in common.

    "ddp" keeps all of it on each, gradients as views of its buckets; "zero_optimizer" is DDP whose optimizer states are
    dealt out by whole tensors; "fsdp" cuts each tensor along its first dimension, with or without resharding.
    """
    if engine == "fsdp":
        return tuple(_sharded(weights, ranks, rank, storage) for rank in range(ranks))
    elements = sum(weight.elements for weight in weights)
    shares = round_robin(weights, ranks) if engine == "zero_optimizer" else [weights] * ranks
    kept = storage.weight * elements
    return tuple(StateBytes(kept, storage.gradient * elements, _states(share, storage)) for share in shares)


def _states(weights: Sequence[Weight], storage: Storage) -> int:
    return sum(storage.state * weight.elements + storage.step for weight in weights)


def round_robin(weights: Sequence[Weight], ranks: int) -> list[list[Weight]]:
    """Largest first, each to the rank that has the least so far, as ZeroRedundancyOptimizer does."""
    shares: list[list[Weight]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for weight in sorted(weights, key=lambda weight: weight.elements, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(weight)
        sizes[least] += weight.elements
    return shares


def _sharded(weights: Sequence[Weight], ranks: int, rank: int, storage: Storage) -> StateBytes:
    """FSDP2's share: weights and gradients are padded to the first rank's rows, optimizer states are not."""
    padded = own = 0
    for weight in weights:
        rows, *_ = weight.shape
        across = weight.elements // rows
        most = int(ceil_div(rows, ranks))
        padded += most * across
        own += max(0, min(most, rows - rank * most)) * across
    return StateBytes(
        storage.weight * padded, storage.gradient * padded, storage.state * own + storage.step * len(weights)
    )


# Bytes a parameter with AdamW in mixed precision, 18 in all (Bekman, Machine Learning Engineering): weights in 16 bits
# and the master copy in 32, gradients in 32, two moments in 32.
WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = MIXED.weight, MIXED.gradient, MIXED.state
# From which stage of ZeRO on data-parallel ranks share each (Rajbhandari et al. 2020, section 5).
SHARED_FROM_STAGE = {"optimizer": 1, "gradients": 2, "weights": 3}
LAST_STAGE = 3
# Of a layer's parameter where ZeRO-3 gathers them: 16 bits of the one at work, of the next one, which is fetched
# meanwhile, and of its gradient before that is scattered (Zhao et al. 2023, PyTorch FSDP, section 3.3).
GATHERED_BYTES = 2 + 2 + 2
# The rest is for the CUDA context, buffers of NCCL and of the libraries, and fragmentation: a choice, no measurement.
USABLE_SHARE = 0.9
# Of a memory that is fuller than this, fragmentation may leave no piece that is large enough, hours into a run.
NEAR_LIMIT = 0.95
# Between these lay what published runs held (62 of BLOOM's, 5 of torchtitan's; test_published_runs.py):
# at least this share of the activations, where no mask of dropout is kept and gradients have 16 bits; at most a quarter
# more than the formulas, and what a framework allocates besides: context, buffers of collectives, fragmentation.
LEAST_ACTIVATIONS, LEAST_GRADIENTS = 0.7, 0.5
LEAST_GATHERED = 1 / 3  # the 16 bits of the layer at work
MOST_SHARE, FRAMEWORK_BYTES = 1.25, 6 * 2**30
# What of a need is on the GPU, by the fields of a `MemoryNeed`.
ON_GPU = ("weights", "gradients", "optimizer", "activations", "gathered")
Verdict = Literal["fits", "may not fit", "does not fit"]


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes on the fullest GPU, by what they are for; arrays where the model or the way it is cut is a grid.

    `gathered` are whole layers that ZeRO stage 3 has on each rank for the time of their computation. What is offloaded
    is not on the GPU: bytes of the `host`'s memory and of its `nvme` drives for that GPU.
    """

    weights: Any
    gradients: Any
    optimizer: Any
    activations: Any
    gathered: Any = 0
    host: Any = 0
    nvme: Any = 0

    @property
    def total(self) -> Any:
        return sum(getattr(self, name) for name in ON_GPU)

    @property
    def least(self) -> Any:
        """The least that runs of such a layout were found to hold."""
        kept = LEAST_GRADIENTS * self.gradients + LEAST_ACTIVATIONS * self.activations
        return self.weights + self.optimizer + kept + LEAST_GATHERED * self.gathered

    @property
    def most(self) -> Any:
        """What nine of ten such runs held no more than."""
        return MOST_SHARE * self.total + FRAMEWORK_BYTES

    def fuller(self, other: MemoryNeed) -> MemoryNeed:
        """Of two stages the one that needs more; of those in arrays, of each pair."""
        pairs = {field.name: (getattr(other, field.name), getattr(self, field.name)) for field in fields(self)}
        more = other.total > self.total
        return MemoryNeed(**{name: np.where(more, *pair)[()] for name, pair in pairs.items()})

    def away(self, offload: Offload, scattered: Any, storage: Storage, buffers: Any) -> MemoryNeed:
        """With what is offloaded on the host, of whose memory drives take `buffers`, in parameters.

        Gradients leave where they are `scattered`, else the host has a copy of those that the rank updates.
        """
        if offload == "none":
            return self
        drives, whole = offload == "nvme", offload != "optimizer"
        gone = self.optimizer * (1 + storage.gradient / storage.state) + whole * self.weights
        return replace(
            self,
            weights=self.weights * (not whole),
            gradients=np.where(scattered, 0.0, self.gradients),
            optimizer=0.0 * self.optimizer,
            host=np.minimum(gone, storage.total * buffers) if drives else gone,
            nvme=gone * drives,
        )

    def verdict(self, memory_bytes: float) -> Verdict:
        """Whether one layout fits a GPU with so many bytes, for sure, perhaps or not."""
        if float(self.most) <= memory_bytes:
            return "fits"
        return "may not fit" if float(self.least) <= memory_bytes else "does not fit"

    def fits(self, memory_bytes: float) -> Any:
        """Whether a GPU with so many bytes has room for it, a tenth of them kept free."""
        return self.total <= USABLE_SHARE * memory_bytes


@dataclass(frozen=True)
class PipelineSchedule:
    """How micro-batches go through a pipeline of `stages`, each of `chunks` groups of layers (interleaved schedule).

    `micro_batches` are of an iteration; None where there are enough to fill the pipeline. All may be arrays.
    """

    stages: Sizes = 1
    chunks: Sizes = 1
    micro_batches: Sizes | None = None

    def held_by(self, stage: Sizes) -> Any:
        """Micro-batches that a stage keeps at once, the first being 0.

        By 1F1B one more than there are stages behind it. Interleaved, p·(v − 1) + 1 chunks on the last and two more on
        each in front: p + (p − 1)/v micro-batches on the first (Narayanan et al. 2021, section 2.2; Korthikanti et al.
        2022, section 4.2.3).
        """
        stages, chunks = np.asarray(self.stages), np.asarray(self.chunks)
        behind = stages - 1 - np.asarray(stage)
        held = np.where(chunks > 1, (stages * (chunks - 1) + 1 + 2 * behind) / chunks, 1 + behind)
        return held if self.micro_batches is None else np.minimum(held, self.micro_batches)


def training_memory(
    model: ModelDimensions,
    micro_batch: Sizes,
    seq: Sizes,
    sharding: Sharding | None = None,
    *,
    data_ranks: Sizes = 1,
    zero_stage: Sizes = 0,
    stages: Sizes = 1,
    recompute: Recompute = "attention",
    chunks: Sizes = 1,
    micro_batches: Sizes | None = None,
    context: Sizes = 1,
    storage: Storage = MIXED,
    stage_layers: tuple[int, int, int] | None = None,
    offload: Offload = "none",
) -> MemoryNeed:
    """The need of one GPU of `data_ranks` that share by ZeRO stage 0 to 3, in a pipeline of `stages`.

    `recompute` "attention" is also right for FlashAttention, which keeps no scores. Of a pipeline the fullest stage
    is counted: the first, which holds the most micro-batches (`PipelineSchedule`), the last, which has the logits, or
    one between where `stage_layers` says how many the first has, the fullest between and the last. `context` ranks (CP)
    share each sequence; they are among the `data_ranks`. `storage` is bytes a parameter, by default of mixed precision;
    activations are of 16 bits. Experts are shared by those ranks that have the same ones. Of what is offloaded the GPU
    has the layers at work. Raises UserError for a stage of ZeRO that there is not, for layers that cannot be cut into
    stages, and where a dimension cannot be cut over the ranks.
    """
    sharding = sharding or Sharding()
    stage = np.asarray(zero_stage)
    if not (np.all(stage >= 0) and np.all(stage <= LAST_STAGE)):
        raise UserError(f"ZeRO has stages 0 to {LAST_STAGE}, but {zero_stage} was requested.")
    if np.min(data_ranks) < 1:
        raise UserError(f"Training needs at least 1 data-parallel rank, but {np.min(data_ranks)} were requested.")
    if np.any(np.asarray(stages) < 1) or np.any(np.asarray(model.layers) < stages):
        raise UserError(f"{np.min(model.layers)} layers cannot be cut into {stages} stages.")
    schedule = PipelineSchedule(stages, chunks, micro_batches)
    like, largest = np.maximum(1, np.asarray(data_ranks) // sharding.expert), _largest_gathered(model, sharding)
    gathers = (stage >= SHARED_FROM_STAGE["weights"]) & (np.asarray(data_ranks) > 1) | (offload in ("cpu", "nvme"))

    def need(layers: Sizes | None, place: Sizes) -> MemoryNeed:
        ours = rank_parameters(model, sharding, stages, place, layers)
        experts = rank_expert_parameters(model, sharding, stages, layers)

        def held(name: str) -> Any:
            is_shared = stage >= SHARED_FROM_STAGE[name]
            return (ours - experts) / np.where(is_shared, data_ranks, 1) + experts / np.where(is_shared, like, 1)

        kept = _stage_bytes(model, micro_batch, seq, sharding, schedule, recompute, place, layers)
        return MemoryNeed(
            weights=storage.weight * held("weights"),
            gradients=storage.gradient * held("gradients"),
            optimizer=storage.state * held("optimizer"),
            activations=kept / context,
            gathered=np.where(gathers, GATHERED_BYTES * largest, 0.0),
        ).away(offload, stage >= SHARED_FROM_STAGE["gradients"], storage, BUFFERS * largest / data_ranks)

    first, between, last = stage_layers or (None, None, None)
    needs = [need(first, 0), need(last, np.asarray(stages) - 1), *([need(between, 1)] if between else [])]
    return functools.reduce(MemoryNeed.fuller, needs)


def rank_parameters(
    model: ModelDimensions, sharding: Sharding, stages: Sizes = 1, stage: Sizes = 0, layers: Sizes | None = None
) -> Any:
    """Parameters on a rank: its share of every matrix, embeddings cut over TP, and norms and biases whole.

    Of a pipeline, those of a `stage` with so many `layers`, by default as many as the fullest: the first, 0, has the
    embeddings, the last the output matrix.
    """
    # A matrix of a rank has the shape of its product.
    ours, every = linears(model, 1, sharding), linears(model, 1)
    inside = _matrix_parameters(part for part in ours if not part.outside_layers)
    outside = _matrix_parameters(part for part in ours if part.outside_layers)
    embedding = 1.0 * model.vocab * model.hidden
    in_no_product = model.parameters - _matrix_parameters(every) - (0 if model.tied else embedding)
    embedding_share = 1.0 * ceil_div(model.vocab, sharding.tensor) * model.hidden
    loses, embeds = np.asarray(stage) == np.asarray(stages) - 1, np.asarray(stage) == 0
    ends = np.where(loses, outside, 0.0) + np.where(embeds & ~(loses & model.tied), embedding_share, 0.0)
    return (inside + in_no_product) * _layers_share(model, stages, layers) + ends


def rank_expert_parameters(
    model: ModelDimensions, sharding: Sharding, stages: Sizes = 1, layers: Sizes | None = None
) -> Any:
    """Those of them that belong to experts which tokens are routed to."""
    routed = (part for part in linears(model, 1, sharding) if part.part.startswith("expert "))
    return _matrix_parameters(routed) * _layers_share(model, stages, layers)


def activation_bytes(
    model: ModelDimensions,
    micro_batch: Sizes,
    seq: Sizes,
    sharding: Sharding | None = None,
    stages: Sizes = 1,
    recompute: Recompute = "attention",
) -> Any:
    """What the fullest stage keeps for backward, in 16 bits: s·b·h·(34 + 5·a·s/h) bytes a layer of a GPT.

    With TP and SP as table 2 of Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer
    Models, here for any width, shared key-value heads, gated MLPs and experts; masks of dropout are counted. Where
    layers are recomputed, their inputs are kept and the one at work. Raises UserError for an unknown `recompute`.
    """
    how = (model, micro_batch, seq, sharding or Sharding(), PipelineSchedule(stages), recompute)
    return np.maximum(_stage_bytes(*how, 0), _stage_bytes(*how, np.asarray(stages) - 1))


def _stage_bytes(
    model: ModelDimensions,
    micro_batch: Sizes,
    seq: Sizes,
    sharding: Sharding,
    schedule: PipelineSchedule,
    recompute: Recompute,
    stage: Sizes,
    layers: Sizes | None = None,
) -> Any:
    """Bytes that a stage keeps of whole sequences."""
    check_recompute(recompute)
    stages = np.asarray(schedule.stages)
    each = _layers_bytes(model, seq, sharding, recompute)
    at_work = _layers_bytes(model, seq, sharding, "attention") / model.layers if recompute == "layers" else 0.0
    # The first stage keeps what it gives its layers, where the last one has the loss.
    inputs = np.where((np.asarray(stage) == 0) & (stages > 1), model.hidden / _sequence_ranks(sharding), 0.0)
    ends = np.where(np.asarray(stage) == stages - 1, _outside_bytes(model, sharding), 0.0)
    held = schedule.held_by(stage) * (each * _layers_share(model, stages, layers) + inputs)
    return 1.0 * micro_batch * seq * (at_work + held + ends)


def _layers_share(model: ModelDimensions, stages: Sizes, layers: Sizes | None) -> Any:
    return (ceil_div(model.layers, stages) if layers is None else layers) / np.asarray(model.layers)


def _largest_gathered(model: ModelDimensions, sharding: Sharding) -> Any:
    """Parameters of the largest unit that is gathered at once: a layer, or embedding or output matrix."""
    layers = (part for part in linears(model, 1, sharding) if not part.outside_layers)
    layer = _matrix_parameters(layers) / np.asarray(model.layers)
    return np.maximum(layer, 1.0 * ceil_div(model.vocab, sharding.tensor) * model.hidden)


def _layers_bytes(model: ModelDimensions, seq: Sizes, sharding: Sharding, recompute: Recompute) -> Any:
    sequence_ranks = _sequence_ranks(sharding)
    if recompute == "layers":
        return 2.0 * model.hidden * model.layers / sequence_ranks
    attention = attention_call(model, 1, seq, sharding)
    # Inputs of norms, of attention and of the MLP, and a byte for each mask after the latter two.
    whole: Any = 2 * model.layers * model.hidden * (model.norms + 2 + 1)
    whole = whole + attention.calls * 2 * (model.query_rank + model.latent_rank + model.rope_head_dim)
    cut = 2 * (attention.heads + attention.kv_heads) * attention.head_dim  # queries and keys
    cut = cut + 2 * (attention.kv_heads + attention.heads) * attention.value_head_dim  # values, and what comes out
    if recompute == "nothing":
        cut = cut + 5 * attention.heads * np.asarray(seq)  # softmax, its dropout, and the mask of that
    # Before and after the activation function, and the gate; each of a token's experts has its input and output too.
    per_width = 2 * (3 if model.gated else 2) / np.asarray(sharding.tensor)
    visited = model.top_k * model.expert_ffn + model.shared_ffn
    routed = 4 * model.top_k * model.hidden if model.experts > 1 else 0
    experts = model.sparse_layers * (per_width * visited + routed / sequence_ranks)
    dense = model.dense_layers * per_width * model.ffn
    return whole / sequence_ranks + attention.calls * cut + experts + dense


def _outside_bytes(model: ModelDimensions, sharding: Sharding) -> Any:
    """Bytes a token outside of the layers: mask of the embedding, last norm, input and 32-bit result of the logits."""
    return 5 * model.hidden / _sequence_ranks(sharding) + 4.0 * ceil_div(model.vocab, sharding.tensor)


def _matrix_parameters(parts: Iterable[Linear]) -> Any:
    return sum(1.0 * part.outputs * part.inputs * part.calls for part in parts)


def _sequence_ranks(sharding: Sharding) -> NDArray[np.int64]:
    """Over how many ranks the sequence is cut where TP leaves tokens whole."""
    return np.asarray(sharding.tensor if sharding.sequence_parallel else 1)


def largest_batch(
    used_bytes: float, growing_bytes: float, batch: int, limit_bytes: float, batches: Iterable[int]
) -> int:
    """The largest of `batches` that stays clear of the limit, where `growing_bytes` of those used grow with the batch.

    `batch` itself where no larger one does.
    """
    room = NEAR_LIMIT * limit_bytes - used_bytes
    return max((each for each in batches if growing_bytes * (each / batch - 1) <= room), default=batch)
