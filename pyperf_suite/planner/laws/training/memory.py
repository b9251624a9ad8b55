"""The memory that training reserves on a GPU, for planning: the closed forms of the literature, which divide evenly.

What frameworks reserve beyond the formulas is fitted to published runs (`tools/fit/memory.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiling import ceil_div
from pyperf_suite.laws.training.memory import MIXED, NEAR_LIMIT, Storage, layers_bytes, outside_bytes, sequence_ranks
from pyperf_suite.laws.transformer import Linear, ModelDimensions, Recompute, Sharding, Sizes, linears
from pyperf_suite.planner.laws.training.offload import Offload
from pyperf_suite.planner.laws.training.plan import ParallelPlan

# A rank's pieces of the largest unit that are in the host's memory at once on their way to drives and back.
BUFFERS = 4
# From which stage of ZeRO on data-parallel ranks share each (Rajbhandari et al. 2020, section 5).
SHARED_FROM_STAGE = {"optimizer": 1, "gradients": 2, "weights": 3}
# Bytes a parameter of a layer where ZeRO-3 gathers them: 16 bits of the one at work, of the next one, which is fetched
# meanwhile, and of its gradient before that is scattered (Zhao et al. 2023, PyTorch FSDP, section 3.3).
GATHERED_BYTES = 2 + 2 + 2
# In a memory that is fuller, fragmentation may leave no piece that is large enough, hours into a run.
USABLE_SHARE = NEAR_LIMIT
# In pure bfloat16 there is no master copy; DeepSpeed keeps gradients in 16 bits, and at the optimizer's step those that
# a rank updates in 32 as well (deepspeed/runtime/zero/stage_1_and_2.py).
PURE, DEEPSPEED = Storage(weight=2, gradient=2, optimizer=4), Storage(weight=2, gradient=2, optimizer=8, master=8)


@dataclass(frozen=True)
class Reserve:
    """Memory that is reserved beyond the formulas, as published runs have it.

    `process_bytes` are the context, libraries and fragmentation, `group_bytes` NCCL's buffers for each axis of several
    ranks. The layer at work takes `at_work` times its activations: their gradients, and copies in float32. Of layers
    that are recomputed in part `selected` of the rest is kept. Nine of ten runs whose source the fit had not seen
    reserved between `low` and `high` times the prediction.
    """

    process_bytes: float
    group_bytes: float
    at_work: float
    selected: float
    low: float = 1.0
    high: float = 1.0


# By `python -m tools.fit TABLES --judge-memory`.
RESERVE = Reserve(3.38e9, 1.39e9, 3.12, 0.394, 0.76, 1.21)
# Fields of a `MemoryNeed` that are on the GPU.
ON_GPU = ("weights", "gradients", "optimizer", "activations", "gathered", "buffers")
Verdict = Literal["fits", "may not fit", "does not fit"]


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes on the fullest GPU, by what they are for; arrays where the model or the way it is cut is a grid.

    `gathered` are whole layers that ZeRO stage 3 has on each rank for the time of their computation, `buffers` the
    context, NCCL's buffers and fragmentation. Offloaded bytes are not on the GPU but in the `host`'s memory and on its
    `nvme` drives, for that GPU.
    """

    weights: Any
    gradients: Any
    optimizer: Any
    activations: Any
    gathered: Any = 0
    buffers: Any = 0
    host: Any = 0
    nvme: Any = 0

    @property
    def total(self) -> Any:
        return sum(getattr(self, name) for name in ON_GPU)

    @property
    def least(self) -> Any:
        """The least that nine of ten such runs reserve."""
        return RESERVE.low * self.total

    @property
    def most(self) -> Any:
        """The most that nine of ten such runs reserve."""
        return RESERVE.high * self.total

    def fuller(self, stage: MemoryNeed) -> MemoryNeed:
        """Return the larger need of two stages; in arrays, of each pair."""
        pairs = {field.name: (getattr(stage, field.name), getattr(self, field.name)) for field in fields(self)}
        more = stage.total > self.total
        return MemoryNeed(**{name: np.where(more, *pair)[()] for name, pair in pairs.items()})

    def away(self, offload: Offload, storage: Storage, scattered: Any, on_the_way: Any) -> MemoryNeed:
        """With what is offloaded on the host, of whose memory drives have parameters `on_the_way`.

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
            host=np.minimum(gone, storage.total * on_the_way) if drives else gone,
            nvme=gone * drives,
        )


def verdict_of(lower: float, upper: float, memory_bytes: float) -> Verdict:
    """Return whether a need between `lower` and `upper` bytes fits `memory_bytes`: for sure, perhaps or not."""
    usable = USABLE_SHARE * memory_bytes
    return "fits" if upper <= usable else "may not fit" if lower <= usable else "does not fit"


def micro_batches_held(stage: Sizes, plan: ParallelPlan) -> Any:
    """Micro-batches that a stage of the pipeline, counted from 0, keeps at once.

    By 1F1B one more than there are stages behind it. Interleaved, p·(v − 1) + 1 chunks on the last and two more on each
    in front: p + (p − 1)/v micro-batches on the first (Narayanan et al. 2021, section 2.2; Korthikanti et al. 2022,
    section 4.2.3).
    """
    stages, chunks = np.asarray(plan.pipeline), np.asarray(plan.chunks)
    behind = stages - 1 - np.asarray(stage)
    held = np.where(chunks > 1, (stages * (chunks - 1) + 1 + 2 * behind) / chunks, 1 + behind)
    return np.minimum(held, plan.micro_batches)


def _fullest_share(model: ModelDimensions, stages: Sizes) -> Any:
    """The share of all layers that the stage with the most has."""
    return ceil_div(model.layers, stages) / np.asarray(model.layers)


def need_of(model: ModelDimensions, plan: ParallelPlan, reserve: Reserve = RESERVE) -> MemoryNeed:
    """The need of the fullest GPU of a plan: of the first stage, which holds the most micro-batches, or of the last.

    Activations are of 16 bits. Experts are shared by those ranks that have the same ones. Of what is offloaded the GPU
    has the layers at work. Raises UserError for more stages than layers, and where a dimension cannot be cut over the
    ranks.
    """
    zero, stages, sharers = np.asarray(plan.zero_stage), plan.pipeline, plan.sharing * plan.expert_groups
    if np.any(np.asarray(model.layers) < stages):
        raise UserError(f"{np.min(model.layers)} layers cannot be cut into {stages} stages.")
    storage = PURE if plan.state_dtype == "bf16" else DEEPSPEED if plan.framework == "deepspeed" else MIXED
    # A fused kernel keeps no scores, whatever else is kept.
    recompute: Recompute = "attention" if plan.fused_attention and plan.recompute == "nothing" else plan.recompute
    groups: Any = sum(np.asarray(ranks) > 1 for ranks in (plan.shards, plan.tensor, stages))
    like = np.maximum(1, np.asarray(sharers) // plan.expert)
    # The largest unit that is gathered at once: a layer, or embedding or output matrix.
    layer = _matrix_parameters(part for part in linears(model, 1, plan) if not part.outside_layers)
    embedding = 1.0 * ceil_div(model.vocab, plan.tensor) * model.hidden
    largest = np.maximum(layer / np.asarray(model.layers), embedding)
    gathers = (zero >= SHARED_FROM_STAGE["weights"]) & (np.asarray(sharers) > 1) | (plan.offload in ("cpu", "nvme"))
    share = _fullest_share(model, stages)
    experts = _matrix_parameters(part for part in linears(model, 1, plan) if part.part.startswith("expert ")) * share
    layers, whole = (layers_bytes(model, plan.seq, plan, kept) for kept in (recompute, "attention"))
    layers = layers * share
    if recompute == "layers":
        layers = layers + (1 - plan.recompute_share) * reserve.selected * whole * share
    at_work = reserve.at_work * whole / model.layers

    def need(stage: Sizes) -> MemoryNeed:
        ours, last = rank_parameters(model, plan, stages, stage), np.asarray(stages) - 1

        def held(name: str) -> Any:
            is_shared = zero >= SHARED_FROM_STAGE[name]
            return (ours - experts) / np.where(is_shared, sharers, 1) + experts / np.where(is_shared, like, 1)

        # The first stage keeps what it gives its layers, where the last one has the loss.
        inputs = np.where((np.asarray(stage) == 0) & (last > 0), model.hidden / sequence_ranks(plan), 0.0)
        ends = np.where(np.asarray(stage) == last, outside_bytes(model, plan), 0.0)
        kept = at_work + micro_batches_held(stage, plan) * (layers + inputs) + ends
        return MemoryNeed(
            weights=storage.weight * held("weights"),
            gradients=storage.gradient * held("gradients"),
            optimizer=storage.state * held("optimizer"),
            activations=1.0 * plan.micro_batch * plan.seq * kept / plan.context,
            gathered=np.where(gathers, GATHERED_BYTES * largest, 0.0),
            buffers=reserve.process_bytes + reserve.group_bytes * groups,
        ).away(plan.offload, storage, zero >= SHARED_FROM_STAGE["gradients"], BUFFERS * largest / sharers)

    return need(0).fuller(need(np.asarray(stages) - 1))


def rank_parameters(model: ModelDimensions, sharding: Sharding, stages: Sizes = 1, stage: Sizes = 0) -> Any:
    """Parameters on a rank: its share of every matrix, embeddings cut over TP, and norms and biases whole.

    Of a pipeline, those of a `stage` with as many layers as the fullest: the first, 0, has the embeddings, the last the
    output matrix.
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
    return (inside + in_no_product) * _fullest_share(model, stages) + ends


def _matrix_parameters(parts: Iterable[Linear]) -> Any:
    return sum(1.0 * part.outputs * part.inputs * part.calls for part in parts)
