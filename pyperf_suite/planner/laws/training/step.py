"""The time of a training iteration from the laws of its kernels and collectives, layer by layer and stage by stage.

Nothing of a step is fitted as a whole. The few constants that no kernel's law can know are those of the framework that
runs it (`planner/laws/training/framework.py`): kernels within a step, launches, what it hides and what it waits for.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.training.data_parallel import BACKWARD_SHARE
from pyperf_suite.laws.training.memory import LAST_STAGE
from pyperf_suite.laws.training.messages import SENT_BY_STAGE, Kind, Phase, exposed_comm_s
from pyperf_suite.laws.transformer import ModelDimensions, Sizes
from pyperf_suite.planner.laws.calibration import Calibration, spec_of
from pyperf_suite.planner.laws.collectives import Network
from pyperf_suite.planner.laws.explained import Explained
from pyperf_suite.planner.laws.prices import Prices
from pyperf_suite.planner.laws.training.framework import (
    LOW_PRECISION,
    FoundConstants,
    StepConstants,
    found_constants,
    usual_framework,
)
from pyperf_suite.planner.laws.training.layer_work import as_plain, ends_work, layer_work, price_work
from pyperf_suite.planner.laws.training.offload import ADDED_BYTES, DRIVE_BYTES, SENT_BYTES, UNSURE, Host, usual_host
from pyperf_suite.planner.laws.training.plan import HALF, ParallelPlan


def stage_parameters(model: ModelDimensions, plan: ParallelPlan) -> tuple[Any, Any]:
    """Parameters of a rank of the stage that has the output matrix: all but routed experts', and these.

    Matrices are cut over TP, layers over PP, experts over EP too.
    """
    routed = model.sparse_layers * model.experts * model.expert_parameters if model.experts > 1 else 0
    return (
        ((model.inner_parameters - routed) / plan.pipeline + model.hidden * model.vocab) / plan.tensor,
        routed / plan.pipeline / plan.tensor / plan.expert * plan.expert_groups,
    )


# Nodes that the law of collectives was fitted to. Beyond, a ring gets longer by a hop a rank: of 8 of a node 7 take 3.4
# microseconds and one 14 (NCCL, src/graph/tuning.cc, the latencies of a ring over NVLink and over the network).
MOST_NODES = 8
HOP_S = 4.7e-6


def price_exchange(
    model: ModelDimensions, plan: ParallelPlan, prices: Prices, network: Network | None
) -> dict[str, Any]:
    """Seconds of a stage's parameters, or their gradients, over the ranks that have the same, by operation.

    What no plan does is not priced. Frameworks send them by layers, or by buckets about as large, and the output
    matrix on its own. `tied` are gradients of an embedding that the first and last stage share, `sends` a micro-batch's
    way between stages.
    """
    (shared, experts), layers = stage_parameters(model, plan), model.layers / plan.pipeline
    ends, shards = model.hidden * model.vocab / plan.tensor, np.asarray(plan.zero_stage) > 0
    tied_s: Any = model.tied * (np.asarray(plan.pipeline) > 1)
    if np.any(tied_s):
        size = as_plain(plan.gradient_bytes * ends)
        tied_s = tied_s * prices.collective("all_reduce", size, 2, _stages_together(plan), network).seconds

    def over_s(operation: str, size: Any, ranks: Any, cut: Any) -> Any:
        """Seconds over the ranks that share parameters: TP, or EP, leaves one in `cut` of a node's."""
        per_node = np.maximum(1, plan.ranks_per_node // cut)
        counted = np.minimum(ranks, MOST_NODES * per_node)
        if np.ndim(counted) == np.ndim(per_node) == 0:
            counted, per_node = int(counted), int(per_node)
        hops = (ranks - counted) * (operation != "all_reduce")
        return prices.collective(operation, size, counted, per_node, network).seconds + HOP_S * hops

    def shared_s(operation: str, size: Any, ranks: Any, cut: Any) -> Any:
        """The same where ZeRO shares over some ranks alone, and copies add up their shares of gradients."""
        sharing = np.where(np.asarray(plan.shard_over) > 0, np.minimum(plan.shard_over, ranks), ranks)
        if np.all(sharing == ranks):
            return over_s(operation, size, ranks, cut)
        within_s = over_s(operation, size, sharing, cut)
        if operation != "reduce_scatter":
            return within_s
        return within_s + over_s("all_reduce", size / sharing, ranks // sharing, cut * sharing)

    def seconds(operation: str, element_bytes: Sizes, is_sent: Any, pieces: Any = 1) -> Any:
        if not np.any(is_sent):
            return 0.0
        piece = element_bytes / (layers * pieces)
        layer_s = shared_s(operation, piece * (shared - ends), plan.shards, plan.tensor)
        if model.experts > 1:
            cut = plan.tensor * plan.expert // plan.expert_groups
            layer_s = layer_s + shared_s(operation, piece * experts, plan.tensor * plan.shards // cut, cut)
        return layers * pieces * layer_s + shared_s(operation, element_bytes * ends, plan.shards, plan.tensor)

    return {
        "all_reduce": seconds("all_reduce", plan.gradient_bytes, ~shards),
        "reduce_scatter": seconds("reduce_scatter", plan.gradient_bytes, shards, plan.gathers),
        "all_gather": seconds("all_gather", plan.element_bytes, shards, plan.gathers),
        "tied": tied_s,
        "sends": send_s(model, plan, prices, network),
    }


def exposed(plan: ParallelPlan, prices: Mapping[str, Any], stage_s: Any) -> dict[tuple[Kind, bool], Any]:
    """Seconds that no computation hides, where a stage takes `stage_s` a micro-batch.

    By what is sent and whether that is in each micro-batch or once. For what is sent in each the pipeline waits too.
    FSDP in a pipeline keeps what it gathered, and the gradients, until the last micro-batch is through.
    """
    # Recomputation belongs to backward.
    stage_s = plan.overlap_gradients * stage_s
    forward_s = stage_s / plan.passes
    piped = np.asarray(plan.pipeline) > 1
    stage = np.where(piped, np.minimum(plan.zero_stage, 1), plan.zero_stage)
    waits: dict[tuple[Kind, bool], Any] = dict.fromkeys(itertools.product(get_args(Kind), (False, True)), 0.0)
    for number in np.unique(stage):
        left: dict[Phase, Any] = {"forward": forward_s, "backward": stage_s - forward_s}
        for each in SENT_BY_STAGE[number]:
            seconds, key = prices[each.operation], (each.kind, each.repeats)
            waited = exposed_comm_s(seconds, left[each.behind])
            waits[key] = waits[key] + np.where(stage == number, waited, 0.0)
            left[each.behind] = np.maximum(0.0, left[each.behind] - seconds)
    waits["gradients", False] = waits["gradients", False] + prices["tied"]
    return waits


def send_s(model: ModelDimensions, plan: ParallelPlan, prices: Prices, network: Network | None) -> Any:
    """Activations to the next stage and their gradients back, of which each rank of TP sends a share.

    Narayanan et al. 2021, section 4.1; as DeepSpeed does.
    """
    if not np.any(np.asarray(plan.pipeline) > 1):
        return 0.0
    size = plan.element_bytes * plan.tokens * model.hidden / plan.tensor
    return 2 * prices.collective("send_receive", size, 2, _stages_together(plan), network).seconds


def _stages_together(plan: ParallelPlan) -> Any:
    """How many of two stages' ranks share a node: both where a whole stage leaves room for another."""
    return np.where(2 * plan.tensor * plan.shards <= plan.ranks_per_node, 2, 1)[()]


# Adam in mixed precision reads and writes weights and both moments in single precision (24), writes half weights (2),
# reads gradients for their norm and for the update and clears them (10): Rajbhandari et al. 2020, ZeRO, section 3.
OPTIMIZER_BYTES_PER_PARAMETER = 36
# Bytes of copying a sharded parameter twice a micro-batch out of the gathered ones: read and written in 16 bits.
COPIED_BYTES = 8
# DeepSpeed's pipeline in bf16 writes each micro-batch's gradient in single precision (6), adds that to the sum of those
# before (12) and clears it (2): update_hp_grads of deepspeed/runtime/bf16_optimizer.py.
ADDED_BY_DEEPSPEED = 20
# Once a step of several ranks gradients are scaled and copied: read and written twice, in single precision.
SCALED_BYTES = 16


@dataclass(frozen=True)
class PricedStep:
    """A plan's kernels and collectives, priced: all that a step takes but for the constants of its framework.

    `prices` are those of `price_work` and `price_exchange`, of the update of parameters (`optimizer`) and of one byte
    a parameter moved (`gradient_byte`).
    """

    model: ModelDimensions
    plan: ParallelPlan
    prices: Mapping[str, Any]


def price_step(
    model: ModelDimensions, plan: ParallelPlan, prices: Prices, network: Network | None = None
) -> PricedStep:
    """Price a plan, or a grid of them, in which each different piece is requested once.

    Raises UserError for more stages than layers, and dimensions that do not divide over TP.
    """
    groups = plan.pipeline * np.asarray(plan.chunks)
    if np.any(model.layers < groups):
        raise UserError(f"{model.layers} layers cannot fill {plan.pipeline} stages of {plan.chunks} chunks.")
    if plan.shape:
        pieces, back = plan.distinct()
        found = price_work(model, pieces, prices, network)
        count = np.size(pieces.micro_batch)
        work = {kind: np.broadcast_to(each, (count,))[back].reshape(plan.shape) for kind, each in found.items()}
    else:
        work = price_work(model, plan, prices, network)
    moved = {"optimizer": _updated_bytes(model, plan), "gradient_byte": as_plain(sum(stage_parameters(model, plan)))}
    others = {name: prices.memory_bound(nbytes).seconds for name, nbytes in moved.items()}
    return PricedStep(model, plan, work | price_exchange(model, plan, prices, network) | others)


def step_parts(priced: PricedStep, constants: StepConstants) -> dict[str, Any]:
    """Return the parts of a priced step's seconds under a framework's constants; they add up to the iteration."""
    model, plan, c = priced.model, priced.plan, constants
    layer, ends = layer_work(priced.prices, plan, c), ends_work(priced.prices, plan, c)
    layer_s, sends = sum(layer.values()), priced.prices["sends"]
    layers, with_ends = _slowest_stage(model.layers, plan, layer_s, sum(ends.values()))
    m, others, chunks = plan.micro_batches, plan.pipeline - 1, np.asarray(plan.chunks)
    mean = model.layers / plan.pipeline
    parts = {part: m * (layers * each + with_ends * ends.get(part, 0.0)) for part, each in layer.items()}
    sent = exposed(plan, priced.prices, mean * layer_s)
    fill_s = (mean * layer_s + sent["gradients", True] + sent["parameters", True]) / plan.chunks
    # In between, one chunk a stage waits for what it sends, the last stage to one side, and several send during others.
    between_s = np.where(chunks > 1, chunks * exposed_comm_s(sends, fill_s), sends / (1 + with_ends))
    parts["bubble"] = others * (fill_s + sends) + (others > 0) * m * between_s
    for kind in get_args(Kind):
        parts[kind] = sent[kind, False] + m * sent[kind, True]
    nodes = np.ceil(plan.ranks / plan.ranks_per_node)
    parts["stragglers"] = c.step_s * (nodes > 1)
    parts["optimizer"] = c.slowdown * priced.prices["optimizer"] + _gradient_passes_s(priced, c)
    return parts


def _gradient_passes_s(priced: PricedStep, constants: StepConstants) -> Any:
    """Gradients added up, or copied, in each micro-batch, and gone over once more where there are several ranks."""
    plan, stage, m = priced.plan, np.asarray(priced.plan.zero_stage), priced.plan.micro_batches
    # A gradient that is scattered is copied to where that is done from; else a product adds it to the ones before, of
    # whose reading and writing its law counts one result in 16 bits, or torch does (DeepSpeed): two are read.
    sent = np.asarray(plan.gradient_bytes)
    added = m * (2 * sent - HALF)
    if plan.framework == "deepspeed":
        in_full = (np.asarray(plan.pipeline) > 1) & (plan.dtype != "fp16")
        added = np.where(in_full, m * ADDED_BY_DEEPSPEED, (m - 1) * 3 * sent)
    each = np.where(stage > 1, m * (HALF + sent), added) + m * COPIED_BYTES * (stage == LAST_STAGE)
    once = SCALED_BYTES * ((np.asarray(plan.ranks) > 1) & (stage < LAST_STAGE))
    return constants.slowdown * (each + once) * priced.prices["gradient_byte"]


def step_time(
    gpu: str | GpuSpec | Calibration,
    model: ModelDimensions,
    plan: ParallelPlan,
    constants: StepConstants | None = None,
    prices: Prices | None = None,
    network: Network | None = None,
) -> Explained:
    """The time of one iteration of training `model` on GPUs of that kind, as `plan` says.

    Micro-batches go through the stages one forward, one backward: the slowest stage as often as there are
    micro-batches, and all others once, with v chunks of layers a stage 1/v of once (Narayanan et al. 2021, section
    2.2). The last stage is the slowest, for it computes the logits. Stages send during the computation of other
    micro-batches, save where the pipeline fills and drains. Not counted: reading data and saving.

    Parts are of all micro-batches on the slowest stage: products, attention, memory bound and host (waiting for
    launches), what is waited for of tensor, context and experts' exchange; then bubble (the pipeline fills, drains and
    sends), gradients, parameters (as ZeRO gathers them), stragglers (what many nodes cost), optimizer, and offload.
    `extrapolated`: no run of the framework on that GPU was published; `error_percent` is None, the interval wider.

    Args:
        gpu: its name, its `GpuSpec`, or a `Calibration`.
        model: the transformer.
        plan: batch, parallelism and options; one plan, or a grid of them.
        constants: by default those of the plan's framework, of the GPU's calibration or of published runs.
        prices: what kernels cost, by default `Prices` of that GPU under a sustained load.
        network: what a GPU sends between nodes, by default as the maker's servers have.

    Raises:
        UserError: more stages than layers, dimensions that do not divide over TP, or an unknown GPU.
    """
    if plan.framework is None:
        plan = replace(plan, framework=usual_framework(int(np.max(plan.zero_stage)), plan.offload))
    fitted = FoundConstants(constants, False) if constants is not None else found_constants(gpu, str(plan.framework))
    constants = fitted.constants
    priced = price_step(model, plan, prices or prices_of(gpu, plan.dtype), network)
    parts, on_host = step_parts(priced, constants), 0.0
    if plan.offload != "none":
        # The optimizer runs on the CPU, and what the bus carries is waited for.
        host = plan.host or usual_host(spec_of(gpu))
        layer_s = sum(layer_work(priced.prices, plan, constants).values())
        stage_s = plan.overlap_gradients * model.layers / plan.pipeline * layer_s
        updated = _updated_bytes(model, plan) / OPTIMIZER_BYTES_PER_PARAMETER
        waited = waited_for_host(plan, host, updated, (1 - BACKWARD_SHARE) * stage_s, BACKWARD_SHARE * stage_s)
        adam = adam_on_host_s(host, updated) + _gradient_passes_s(priced, constants)
        parts, on_host = parts | {"optimizer": adam, "offload": waited}, adam + waited
    seconds, around = sum(parts.values()), {}
    if fitted.ends:
        width = float(np.exp(fitted.ends[kind_of(model, plan.dtype)]))
        ends = {"low": (1 / width, min(1 / width, 1 / UNSURE)), "high": (width, max(width, UNSURE))}
        around = {name: (seconds - on_host) * law + on_host * host for name, (law, host) in ends.items()}
    error = None if fitted.is_transferred else fitted.error_percent(kind_of(model, plan.dtype))
    return Explained(seconds, parts, fitted.is_transferred, error, fitted.origin, **around)


def adam_on_host_s(host: Host, parameters: Any) -> Any:
    """Seconds of Adam on the CPU."""
    return parameters * OPTIMIZER_BYTES_PER_PARAMETER / host.host


def waited_for_host(plan: ParallelPlan, host: Host, parameters: Any, forward_s: Any, backward_s: Any) -> Any:
    """Seconds of an iteration that a rank, which updates `parameters` parameters, waits for the bus and drives.

    Gradients leave during backward: under DeepSpeed from ZeRO 2 on, and FSDP, those of each micro-batch, to which the
    ones before are added (by DeepSpeed on the GPU, so they come back meanwhile; by FSDP on the CPU); else those of an
    iteration. Megatron sends them when backward is over. Parameters that lie in the host's memory are fetched during
    forward and again during backward; those that do not are sent back when Adam is through.
    """
    out, back = parameters * plan.gradient_bytes / host.bus, parameters * HALF / host.bus
    if plan.framework == "megatron":
        return out + back
    stays, drives, m = plan.offload == "optimizer", min(host.bus, host.nvme_bytes_per_s), plan.micro_batches
    each = (np.asarray(plan.zero_stage) >= 2) | (not stays)
    added = np.where(each & (np.asarray(m) > 1), out if plan.framework == "deepspeed" else 0.0, 0.0)
    sent = 0 if stays else SENT_BYTES.get(str(plan.framework), HALF)
    fetched = parameters * sent / (drives if plan.offload == "nvme" else host.bus)
    # Both directions of the bus at once; each has what is computed meanwhile.
    waited = np.where(each, m, 1) * np.maximum(0.0, np.maximum(out, fetched + added) - backward_s)
    waited = waited + m * np.maximum(0.0, fetched - forward_s) + (back if stays else 0.0)
    if plan.framework != "deepspeed":
        waited = waited + (m - 1) * parameters * ADDED_BYTES / host.host
    if plan.offload == "nvme":
        waited = waited + np.maximum(0.0, parameters * DRIVE_BYTES / drives - adam_on_host_s(host, parameters))
    return waited


def prices_of(gpu: str | GpuSpec | Calibration, dtype: str) -> Prices:
    """Return the prices of kernels on a GPU where products of layers are computed in that dtype.

    Of mxfp8 and nvfp4 no table of products is published: they are priced as fp8, and the constants know the rest.
    Raises UserError where the GPU has no units for the dtype.
    """
    spec_of(gpu).peak(UNITS_OF.get(dtype, dtype))
    if dtype in UNITS_OF and "fp4" not in spec_of(gpu).peak_flop_per_s:
        raise UserError(f"{spec_of(gpu)} has no units for {dtype}, which came with Blackwell: choose fp8 or bf16.")
    return Prices(gpu, "fp8" if dtype in LOW_PRECISION else dtype)


def kind_of(model: ModelDimensions, dtype: str) -> int:
    """The place among KINDS of runs that err as much."""
    return 2 * (model.experts > 1) + (dtype in LOW_PRECISION)


# Whose units compute the blocked types.
UNITS_OF = {"mxfp8": "fp8", "nvfp4": "fp4"}


def _slowest_stage(layers: int, plan: ParallelPlan, layer_s: Any, ends_s: Any) -> tuple[Any, Any]:
    """Layers of the slowest stage, and 1 where it computes the logits too, else 0."""
    stages, groups = np.asarray(plan.pipeline), np.asarray(plan.pipeline) * plan.chunks
    if not np.any(layers % groups):
        return layers // plan.pipeline, 1
    most = -(-layers // stages)
    # The last stage has one layer less than the fullest where layers do not divide.
    in_the_middle = (most * layer_s > (most - 1) * layer_s + ends_s) & (stages > 1)
    even = layers % groups == 0
    return np.where(even | (stages == 1), layers // stages, np.where(in_the_middle, most, most - 1)), np.where(
        even, 1, np.where(in_the_middle, 0, 1)
    )


def _updated_bytes(model: ModelDimensions, plan: ParallelPlan) -> Any:
    """Bytes moved to update a rank's parameters, which ZeRO shares among all who have the same."""
    shared, experts = stage_parameters(model, plan)
    like, sharing = np.maximum(1, plan.shards * plan.expert_groups // plan.expert), plan.sharing
    shares = np.asarray(plan.zero_stage) > 0
    updated = shared / np.where(shares, sharing, 1) + experts / np.where(shares, np.minimum(like, sharing), 1)
    moved = OPTIMIZER_BYTES_PER_PARAMETER / (2 if plan.state_dtype == "bf16" else 1)
    return as_plain(moved * updated)
