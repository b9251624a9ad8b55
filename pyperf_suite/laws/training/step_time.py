"""The time of a training iteration from the laws of its kernels and collectives, layer by layer and stage by stage.

Nothing of a step is fitted as a whole. The few constants that no kernel's law can know — how much slower kernels run
within a step, what the host takes to launch a layer, what a network really carries — are given by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.calibration import Block, Calibration, shipped_calibration
from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.explained import Explained
from pyperf_suite.laws.prices import KernelPrices, Prices
from pyperf_suite.laws.training.exchange import exposed, interleaved_sends_s, rank_parameters, send_s
from pyperf_suite.laws.training.micro_batch import StepConstants, Work, work_of_ends, work_of_layer
from pyperf_suite.laws.training.plan import Plan

BLOCK = "step"
# The only GPU whose iterations were published with all that they depend on; its constants stand for others too.
MEASURED_GPU = "A100 SXM"
# Adam in mixed precision reads and writes weights and both moments in single precision (24), writes half weights (2),
# reads gradients for their norm and for the update and clears them (10): Rajbhandari et al. 2020, ZeRO, section 3.
OPTIMIZER_BYTES_PER_PARAMETER = 36


@dataclass(frozen=True)
class FoundConstants:
    """Constants, whether they are of another GPU, and their stated error in %."""

    constants: StepConstants
    of_another_gpu: bool
    error_percent: float | None


def step_time(
    gpu: str | GpuSpec | Calibration,
    model: ModelDimensions,
    plan: Plan,
    constants: StepConstants | None = None,
    prices: KernelPrices | None = None,
) -> Explained:
    """The time of one iteration of training `model` on GPUs of that kind, as `plan` says.

    Micro-batches go through the stages one forward, one backward: the slowest stage as often as there are
    micro-batches, and all others once, with v chunks of layers a stage 1/v of once (Narayanan et al. 2021, section
    2.2). The last stage is the slowest, for it computes the logits. Stages send beside the computation of other
    micro-batches, save where the pipeline fills and drains. Not counted: reading data, saving, and the gradients of
    tied embeddings between the first and last stage.

    The parts are products, attention, memory bound and host (waiting for launches), and what is waited for of tensor,
    context and experts' exchange, each of all micro-batches on the slowest stage; bubble (waiting for the pipeline to
    fill and drain, with its transfers), gradients, parameters (as ZeRO gathers them) and optimizer. `extrapolated` says
    that the constants are another GPU's; then no iteration was measured, and `error_percent` is None.

    Args:
        gpu: its name, its `GpuSpec`, or a `Calibration`.
        model: the transformer.
        plan: batch, parallelism and options; one plan, or a grid of them.
        constants: by default those of the GPU's calibration, or of the A100, where iterations were published.
        prices: what kernels cost, by default the laws of `pyperf_suite.laws` on that GPU.

    Raises:
        UserError: layers that do not divide over stages, dimensions that do not over TP, or an unknown GPU.
    """
    if np.any(model.layers % (plan.pipeline * np.asarray(plan.chunks))):
        chunks = f" of {plan.chunks} chunks" if np.any(np.asarray(plan.chunks) > 1) else ""
        raise UserError(f"{model.layers} layers cannot be cut into {plan.pipeline} stages{chunks} evenly.")
    found = FoundConstants(constants, False, None) if constants is not None else found_constants(gpu)
    constants, prices = found.constants, prices or Prices(gpu)
    layer, ends = _works(model, plan, prices, constants)
    network = constants.network_bytes_per_s
    layers, m, others = model.layers // plan.pipeline, plan.micro_batches, plan.pipeline - 1
    parts = {
        part.replace("_", " "): m * (layers * getattr(layer, part) + getattr(ends, part))
        for part in ("products", "attention", "memory_bound", "tensor", "context", "experts", "host")
    }
    waited = exposed(model, plan, prices, network, layers * layer.seconds)
    fill_s = (layers * layer.seconds + waited.each) / plan.chunks
    sends_s = send_s(model, plan, prices, network)
    parts["bubble"] = others * (fill_s + sends_s)
    if np.any(np.asarray(plan.chunks) > 1):
        parts["bubble"] = parts["bubble"] + interleaved_sends_s(plan, sends_s, fill_s)
    parts["gradients"] = waited.gradients_once + m * waited.gradients_each
    parts["parameters"] = waited.parameters_once + m * waited.parameters_each
    parts["optimizer"] = constants.slowdown * prices.memory_bound(_updated_bytes(model, plan)).seconds
    return Explained(sum(parts.values()), parts, found.of_another_gpu, found.error_percent)


def pack_constants(constants: StepConstants, held_out: Mapping[str, float | int | str], origin: str) -> Block:
    """Constants as the block "step" of a calibration; `network_bytes_per_s` must be given there."""
    arrays = {
        name: np.array(getattr(constants, name)) for name in ("slowdown", "host_s_per_layer", "network_bytes_per_s")
    }
    return Block(arrays, held_out, {}, origin)


def found_constants(gpu: str | GpuSpec | Calibration) -> FoundConstants:
    """Those of the GPU itself, or of the one whose iterations are published, whose network is not the GPU's."""
    if isinstance(gpu, Calibration) and BLOCK in gpu.blocks:
        return _of_block(gpu.blocks[BLOCK], False)
    spec = find_gpu(gpu.gpu if isinstance(gpu, Calibration) else gpu) if not isinstance(gpu, GpuSpec) else gpu
    measured = shipped_calibration(MEASURED_GPU)
    if measured is None:
        raise UserError(f"No iterations are calibrated for {spec} or {MEASURED_GPU}: give the constants of a step.")
    return _of_block(measured.block(BLOCK), spec.name != MEASURED_GPU)


def _of_block(block: Block, of_another_gpu: bool) -> FoundConstants:
    slowdown, host_s, network = (
        float(block.arrays[name]) for name in ("slowdown", "host_s_per_layer", "network_bytes_per_s")
    )
    constants = StepConstants(slowdown, host_s, None if of_another_gpu else network)
    return FoundConstants(constants, of_another_gpu, None if of_another_gpu else float(block.held_out["mape"]))


def _works(model: ModelDimensions, plan: Plan, prices: KernelPrices, constants: StepConstants) -> tuple[Work, Work]:
    """Of one micro-batch in a layer and outside of the layers; of a grid each different piece is asked for once."""
    if not plan.shape:
        return tuple(work(model, plan.piece, prices, constants) for work in (work_of_layer, work_of_ends))  # type: ignore[return-value]
    pieces, back = plan.distinct_pieces()
    layer, ends = (work(model, pieces, prices, constants) for work in (work_of_layer, work_of_ends))
    return layer.at(back, plan.shape), ends.at(back, plan.shape)


def _updated_bytes(model: ModelDimensions, plan: Plan) -> Any:
    """What the optimizer moves: with ZeRO, of each rank's share alone."""
    ours = rank_parameters(model, plan)
    shared = np.where(np.asarray(plan.zero_stage) > 0, plan.shards, 1)
    of_experts = np.where(np.asarray(plan.zero_stage) > 0, plan.shards // plan.expert, 1)
    nbytes = OPTIMIZER_BYTES_PER_PARAMETER * (ours.shared / shared + ours.experts / of_experts)
    return float(nbytes) if np.ndim(nbytes) == 0 else nbytes
