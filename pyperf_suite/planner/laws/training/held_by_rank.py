"""What torch's engines allocate on each rank, to the byte: weights, gradients, optimizer states, kept activations.

In which order a stage of a pipeline keeps and frees what its micro-batches need, `interleaved` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pyperf_suite.laws.tiling import ceil_div
from pyperf_suite.laws.training.memory import (
    FIRST,
    FLOAT,
    INTEGER,
    LAST,
    ActivationPolicy,
    KeptBytes,
    Storage,
    Weight,
    gpt_weights,
    kept_bytes,
    kept_of_layer,
    saved_of_layer,
)
from pyperf_suite.laws.transformer import ModelDimensions


def stage_of(weight: Weight, layers: int, stages: int, chunks: int) -> int:
    """Of the pipeline stage that has it: layers are dealt out in stages · chunks groups, the i-th to stage i mod p."""
    if weight.place == FIRST:
        return 0
    if weight.place == LAST:
        return stages - 1
    return weight.place // (layers // (stages * chunks)) % stages


def _over_tensor(weight: Weight, ranks: int) -> Weight:
    if weight.cut is None or ranks == 1:
        return weight
    shape = tuple(size // ranks if place == weight.cut else size for place, size in enumerate(weight.shape))
    return replace(weight, shape=shape)


def rank_weights(
    model: ModelDimensions, tensor: int = 1, stages: int = 1, chunks: int = 1, stage: int = 0
) -> tuple[Weight, ...]:
    """What a rank of that pipeline stage has, cut over TP; layers and dimensions have to divide."""
    return tuple(
        _over_tensor(weight, tensor)
        for weight in gpt_weights(model)
        if stage_of(weight, model.layers, stages, chunks) == stage
    )


Engine = Literal["ddp", "zero_optimizer", "fsdp"]
# AdamW of torch on weights in one type, whose moments have the type of the weights.
FLOAT32 = Storage(weight=4, gradient=4, optimizer=8)
BFLOAT16 = Storage(weight=2, gradient=2, optimizer=4)


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


class Action(NamedTuple):
    """Forward or backward of one micro-batch through one of the model's chunks, which are numbered from its input."""

    backward: bool
    chunk: int
    micro_batch: int


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """What a stage does in turn: as many forwards as stages are left, then backward and forward by turns (1F1B).

    Source: Narayanan et al. 2021, section 2.2.1.
    """
    ahead = min(micro_batches, stages - stage)
    forwards = [Action(False, stage, number) for number in range(micro_batches)]
    backwards = [Action(True, stage, number) for number in range(micro_batches)]
    order = forwards[:ahead]
    for number in range(micro_batches - ahead):
        order += [backwards[number], forwards[ahead + number]]
    return order + backwards[micro_batches - ahead :]


def interleaved(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Action]:
    """The same with `chunks` groups of layers a stage, `stages` micro-batches through one after the other.

    Source: Narayanan et al. 2021, section 2.2.2. With several chunks `micro_batches` is a multiple of `stages`.
    """
    if chunks == 1:
        return one_forward_one_backward(stage, stages, micro_batches)
    total = micro_batches * chunks
    ahead = min(total, (chunks - 1) * stages + 2 * (stages - 1 - stage))

    def action(number: int, backward: bool) -> Action:
        turn, place = divmod(number, stages * chunks)
        chunk = place // stages
        chunk = chunks - 1 - chunk if backward else chunk
        return Action(backward, chunk * stages + stage, turn * stages + place % stages)

    order = [action(number, False) for number in range(ahead)]
    for number in range(total - ahead):
        order += [action(ahead + number, False), action(number, True)]
    return order + [action(number, True) for number in range(total - ahead, total)]


def working_bytes(model: ModelDimensions, batch: int, seq: int, keeping: ActivationPolicy) -> float:
    """What backward holds in addition at the most: one group's activations, once they are computed again."""
    if keeping.checkpointing == "none":
        return 0.0
    plain = replace(keeping, checkpointing="none")
    group = min(keeping.every, model.layers) if keeping.checkpointing == "every" else 1
    whole = saved_of_layer(model, batch, seq, plain).total * group
    dropped = kept_of_layer(model, batch, seq, keeping).total * group if keeping.checkpointing == "selective" else 0.0
    return whole - dropped


def saved_bytes(
    model: ModelDimensions,
    batch: int,
    seq: int,
    keeping: ActivationPolicy,
    *,
    tensor: int = 1,
    chunk_layers: int | None = None,
    last_chunk: int = 0,
    order: Sequence[Action] = (Action(False, 0, 0),),
    micro_batches: int = 1,
) -> float:
    """The most that is kept at the end of any forward of a rank which does `order`, in bytes.

    Chunks have `chunk_layers` layers each, by default all; chunk 0 has the embeddings and `last_chunk` the logits. With
    `tensor` ranks of TP and SP, heads, MLP and vocabulary are cut, and what stands between blocks along the sequence;
    but DTensor keeps the gathered input of both blocks. In a pipeline the tokens and targets of all micro-batches lie
    together and live as long as one of them is kept.
    """
    layers = chunk_layers or model.layers
    group, ends = _group_and_ends(model, batch, seq, keeping, tensor)
    of_chunk = group * float(ceil_div(layers, _layers_of_group(keeping)))
    numbers = float(INTEGER * batch * seq)
    most = under_way = 0.0
    own = {action.chunk for action in order}
    for action in order:
        kept = of_chunk + (ends - 2 * numbers if action.chunk == last_chunk else 0.0)
        under_way += -kept if action.backward else kept
        most = max(most, under_way)
    together = numbers * micro_batches
    return most + (together if 0 in own else 0.0) + (together if last_chunk in own else 0.0)


def _layers_of_group(keeping: ActivationPolicy) -> int:
    return keeping.every if keeping.checkpointing == "every" else 1


def _group_and_ends(
    model: ModelDimensions, batch: int, seq: int, keeping: ActivationPolicy, tensor: int
) -> tuple[float, float]:
    """Bytes of one group of layers, and of what stands before and behind all of them."""
    cut = _cut(model, tensor)
    layers = _layers_of_group(keeping)
    one, two = (kept_bytes(replace(cut, layers=layers * groups), batch, seq, keeping) for groups in (1, 2))
    group = KeptBytes(*(getattr(two, name) - getattr(one, name) for name in vars(one)))
    tokens = batch * seq
    of_attention = 0.0 if keeping.written_out or keeping.checkpointing == "every" else FLOAT * cut.heads * tokens
    norms = group.norms + group.inputs + group.statistics - layers * of_attention
    last_norm = keeping.stream_bytes * model.hidden * tokens + one.statistics - group.statistics - FLOAT
    elsewhere = 1 - 1 / tensor
    return group.total - elsewhere * norms, one.total - group.total - elsewhere * last_norm


def _cut(model: ModelDimensions, tensor: int) -> ModelDimensions:
    """A model whose layers keep what a rank of TP keeps between its gathers and scatters."""
    if tensor == 1:
        return model
    return replace(
        model,
        heads=model.heads // tensor,
        kv_heads=model.kv_heads // tensor,
        head_dim=model.head_dim,
        ffn=model.ffn // tensor,
        expert_ffn=model.ffn // tensor,
        vocab=model.vocab // tensor,
    )
