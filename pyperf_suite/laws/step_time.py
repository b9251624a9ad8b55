"""The time of a training iteration from the laws of its kernels and collectives, layer by layer and stage by stage.

Nothing of a step is fitted as a whole. The few constants that no kernel's law can know — how much slower kernels run
within a step, what the host takes to launch a layer, what a network really carries — are given by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.calibration import Block, Calibration, shipped_calibration
from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.kernel_prices import KernelPrices, LawPrices
from pyperf_suite.laws.transformer import PHASES, Sharding, attention_call, products

BLOCK = "step"
# The only GPU whose iterations were published with all that they depend on; its constants stand for others too.
MEASURED_GPU = "A100 SXM"
# Bytes of an element of activations and parameters in mixed precision.
HALF = 2
# Forward passes over a layer's b·s·h elements that TP leaves whole, in bytes an element: two norms read and write (8);
# two additions of bias, dropout and residual read two, write one and a mask of one byte (14).
WHOLE_BYTES_PER_ELEMENT = 22
# Over the b·s·ffn/t elements of an MLP: the activation function reads and writes.
MLP_BYTES_PER_ELEMENT = 4
# Over the b·(a/t)·s² scores where attention is not fused: softmax reads and writes, dropout too, with its mask.
SCORE_BYTES_PER_ELEMENT = 9
# Backward of what is bound by memory reads the gradient beside what the forward read, and writes as much as that.
BACKWARD_BYTES_RATIO = 1.5
# Of the logits, in single precision: the loss reads and writes them forward and backward.
LOSS_BYTES_PER_ELEMENT = 16
# Adam in mixed precision reads and writes weights and both moments in single precision (24), writes half weights (2),
# reads gradients for their norm and for the update and clears them (10): Rajbhandari et al. 2020, ZeRO, section 3.
OPTIMIZER_BYTES_PER_PARAMETER = 36
# all_reduces of the activations, a layer, of TP in one pass (Shoeybi et al. 2019, Megatron-LM, section 3).
ALL_REDUCES_PER_PASS = 2


@dataclass(frozen=True)
class Plan:
    """How an iteration is run: `global_batch` sequences of `seq` tokens, over tensor · data · pipeline GPUs.

    Ranks are placed as Megatron-LM does, TP innermost, then DP, then PP, on nodes of `ranks_per_node`. `recompute` is
    full activation checkpointing: backward computes each layer's forward again. `fused_attention` keeps no scores in
    memory, as FlashAttention. `overlap_gradients` sends gradients beside the last backward pass. `gradient_bytes` is
    one element of a gradient as it is sent. Raises UserError for numbers below 1, or a batch that does not divide.
    """

    global_batch: int
    micro_batch: int
    seq: int
    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    recompute: bool = False
    fused_attention: bool = True
    overlap_gradients: bool = False
    gradient_bytes: int = HALF
    ranks_per_node: int = 8

    def __post_init__(self) -> None:
        sizes = (self.global_batch, self.micro_batch, self.seq, self.tensor, self.data, self.pipeline)
        if min(*sizes, self.gradient_bytes, self.ranks_per_node) < 1:
            raise UserError(f"An iteration needs sizes of at least 1 throughout, but {self} was asked for.")
        if self.global_batch % (self.micro_batch * self.data):
            raise UserError(
                f"A global batch of {self.global_batch} cannot be cut into micro-batches of {self.micro_batch} on "
                f"{self.data} data-parallel ranks evenly."
            )

    @property
    def micro_batches(self) -> int:
        """Of one data-parallel rank in an iteration."""
        return self.global_batch // (self.micro_batch * self.data)

    @property
    def tokens(self) -> int:
        """Of one micro-batch."""
        return self.micro_batch * self.seq

    @property
    def passes(self) -> int:
        """Forward passes' worth of launches of a layer and micro-batch: backward launches twice as many kernels."""
        return 4 if self.recompute else 3


@dataclass(frozen=True)
class StepConstants:
    """What no kernel's law knows, as found on published iterations.

    Attributes:
        slowdown: kernels within a step take so many times as long as alone under a sustained load.
        host_s_per_layer: in which the host launches one layer's forward pass; a GPU that is faster than that waits.
        network_bytes_per_s: what a GPU really sends between nodes, one direction; None: what its maker's servers have.
    """

    slowdown: float
    host_s_per_layer: float
    network_bytes_per_s: float | None = None


@dataclass(frozen=True)
class StepTime:
    """Seconds of an iteration and where they go; the parts add up to the whole.

    `parts` are products, attention, memory bound, tensor parallelism and host (waiting for launches), each of all
    micro-batches on the slowest stage; bubble (waiting for the pipeline to fill and drain, with its transfers),
    gradients, optimizer. `extrapolated` says that the constants are of another GPU than the one asked for, and
    `error_percent` how far the law was off on iterations that were left out where its constants were found; None where
    they are another GPU's, of which no iteration was measured.
    """

    seconds: float
    parts: Mapping[str, float]
    extrapolated: bool = False
    error_percent: float | None = None


@dataclass(frozen=True)
class _Work:
    """Seconds of one micro-batch, forward and backward."""

    products: float
    attention: float
    memory_bound: float
    tensor: float
    host: float = 0.0

    @property
    def seconds(self) -> float:
        return self.products + self.attention + self.memory_bound + self.tensor + self.host


def step_time(
    gpu: str | GpuSpec | Calibration,
    model: ModelDimensions,
    plan: Plan,
    constants: StepConstants | None = None,
    prices: KernelPrices | None = None,
) -> StepTime:
    """The time of one iteration of training `model` on GPUs of that kind, as `plan` says.

    Micro-batches go through the stages one forward, one backward: the slowest stage as often as there are
    micro-batches, and all others once (Narayanan et al. 2021, section 2.2). The last stage is the slowest, for it
    computes the logits. Stages send beside the computation of other micro-batches, save where the pipeline fills and
    drains. Not counted: reading data, saving, and the gradients of tied embeddings between the first and last stage.

    Args:
        gpu: its name, its `GpuSpec`, or a `Calibration`.
        model: the transformer.
        plan: batch, parallelism and options.
        constants: by default those of the GPU's calibration, or of the A100, where iterations were published.
        prices: what kernels cost, by default the laws of `pyperf_suite.laws` on that GPU.

    Raises:
        UserError: layers that do not divide over stages, dimensions that do not over TP, or an unknown GPU.
    """
    if model.layers % plan.pipeline:
        raise UserError(f"{model.layers} layers cannot be cut into {plan.pipeline} stages evenly.")
    found = _Found(constants, False, None) if constants is not None else _found_constants(gpu)
    constants, prices = found.constants, prices or LawPrices(gpu)
    layer, ends = _work_of_layer(model, plan, prices, constants), _work_of_ends(model, plan, prices, constants)
    layers, m, others = model.layers // plan.pipeline, plan.micro_batches, plan.pipeline - 1
    parts = {
        part.replace("_", " "): m * (layers * getattr(layer, part) + getattr(ends, part))
        for part in ("products", "attention", "memory_bound", "tensor", "host")
    }
    parts["bubble"] = others * (layers * layer.seconds + _send_s(model, plan, prices, constants))
    gradients_s = _gradients_s(model, plan, prices, constants)
    if plan.overlap_gradients:
        # Two of three passes' worth are backward's, recomputing aside.
        gradients_s = max(0.0, gradients_s - 2 / 3 * layers * layer.seconds)
    parts["gradients"] = gradients_s
    updated = OPTIMIZER_BYTES_PER_PARAMETER * _rank_parameters(model, plan)
    parts["optimizer"] = constants.slowdown * prices.memory_bound(updated)
    return StepTime(sum(parts.values()), parts, found.of_another_gpu, found.error_percent)


def pack_constants(constants: StepConstants, held_out: Mapping[str, float | int | str], origin: str) -> Block:
    """Constants as the block "step" of a calibration; `network_bytes_per_s` must be given there."""
    arrays = {
        name: np.array(getattr(constants, name)) for name in ("slowdown", "host_s_per_layer", "network_bytes_per_s")
    }
    return Block(arrays, held_out, {}, origin)


@dataclass(frozen=True)
class _Found:
    """Constants, whether they are of another GPU, and their stated error in %."""

    constants: StepConstants
    of_another_gpu: bool
    error_percent: float | None


def _found_constants(gpu: str | GpuSpec | Calibration) -> _Found:
    """Those of the GPU itself, or of the one whose iterations are published, whose network is not the GPU's."""
    if isinstance(gpu, Calibration) and BLOCK in gpu.blocks:
        return _of_block(gpu.blocks[BLOCK], False)
    spec = find_gpu(gpu.gpu if isinstance(gpu, Calibration) else gpu) if not isinstance(gpu, GpuSpec) else gpu
    measured = shipped_calibration(MEASURED_GPU)
    if measured is None:
        raise UserError(f"No iterations are calibrated for {spec} or {MEASURED_GPU}: give the constants of a step.")
    return _of_block(measured.block(BLOCK), spec.name != MEASURED_GPU)


def _of_block(block: Block, of_another_gpu: bool) -> _Found:
    slowdown, host_s, network = (
        float(block.arrays[name]) for name in ("slowdown", "host_s_per_layer", "network_bytes_per_s")
    )
    constants = StepConstants(slowdown, host_s, None if of_another_gpu else network)
    return _Found(constants, of_another_gpu, None if of_another_gpu else float(block.held_out["mape"]))


def _work_of_layer(model: ModelDimensions, plan: Plan, prices: KernelPrices, constants: StepConstants) -> _Work:
    """One layer's passes over one micro-batch; what is computed again in backward counts twice forward."""
    forward = 2 if plan.recompute else 1
    products_s = _products_s(model, plan, prices, outside_layers=False) / model.layers
    attention_s, scores_s = _attention_s(model, plan, prices)
    whole = WHOLE_BYTES_PER_ELEMENT * plan.tokens * model.hidden
    width = model.top_k * model.expert_ffn + model.shared_ffn
    mlp = MLP_BYTES_PER_ELEMENT * (2 if model.gated else 1) * plan.tokens * width / plan.tensor
    passes = forward + BACKWARD_BYTES_RATIO
    memory_s = passes * (prices.memory_bound(whole) + prices.memory_bound(mlp)) + scores_s
    work = _Work(
        constants.slowdown * products_s,
        constants.slowdown * attention_s,
        constants.slowdown * memory_s,
        (forward + 1) * ALL_REDUCES_PER_PASS * _all_reduce_s(model, plan, prices, constants),
    )
    return replace(work, host=max(0.0, plan.passes * constants.host_s_per_layer - work.seconds))


def _work_of_ends(model: ModelDimensions, plan: Plan, prices: KernelPrices, constants: StepConstants) -> _Work:
    """The logits and their loss, and what TP sums up at either end."""
    logits = LOSS_BYTES_PER_ELEMENT * plan.tokens * model.vocab / plan.tensor
    return _Work(
        constants.slowdown * _products_s(model, plan, prices, outside_layers=True),
        0.0,
        constants.slowdown * prices.memory_bound(logits),
        2 * _all_reduce_s(model, plan, prices, constants),
    )


def _products_s(model: ModelDimensions, plan: Plan, prices: KernelPrices, outside_layers: bool) -> float:
    """Seconds of all products of one micro-batch, of all layers together or of what stands outside of them."""
    total = 0.0
    for product in products(model, plan.tokens, Sharding(tensor=plan.tensor), phases=PHASES):
        if product.outside_layers == outside_layers:
            again = 2 if plan.recompute and product.phase == "fprop" and not outside_layers else 1
            seconds = prices.gemm(product.layout, int(product.m), int(product.n), int(product.k))
            total += again * int(product.calls) * seconds
    return total


def _attention_s(model: ModelDimensions, plan: Plan, prices: KernelPrices) -> tuple[float, float]:
    """Seconds of one layer's attention, forward and backward, and of the passes over scores that lie in memory."""
    call = attention_call(model, plan.micro_batch, plan.seq, Sharding(tensor=plan.tensor))
    batch, seq, heads, head_dim = (int(size) for size in (call.batch, call.seq, call.heads, call.head_dim))
    forward = 2 if plan.recompute else 1
    if plan.fused_attention:
        shape = (batch, seq, heads, int(call.kv_heads), head_dim)
        return forward * prices.attention(call.causal, False, *shape) + prices.attention(call.causal, True, *shape), 0.0
    # One product for each head, all of them as one as wide: as much is computed, written and read.
    scores_s = prices.gemm("TN", seq, batch * heads * seq, head_dim)
    values_s = prices.gemm("TN", seq, batch * heads * int(call.value_head_dim), seq)
    memory_s = prices.memory_bound(SCORE_BYTES_PER_ELEMENT * batch * heads * seq**2)
    # Backward has two of each, one for either operand.
    return (forward + 2) * (scores_s + values_s), (forward + BACKWARD_BYTES_RATIO) * memory_s


def _all_reduce_s(model: ModelDimensions, plan: Plan, prices: KernelPrices, constants: StepConstants) -> float:
    """Of one micro-batch's activations over TP."""
    size = HALF * plan.tokens * model.hidden
    return prices.collective("all_reduce", size, plan.tensor, plan.ranks_per_node, constants.network_bytes_per_s)


def _gradients_s(model: ModelDimensions, plan: Plan, prices: KernelPrices, constants: StepConstants) -> float:
    """The all_reduce of a rank's gradients over DP. Of its ranks TP leaves every t-th of a node."""
    size = plan.gradient_bytes * _rank_parameters(model, plan)
    per_node = max(1, plan.ranks_per_node // plan.tensor)
    return prices.collective("all_reduce", size, plan.data, per_node, constants.network_bytes_per_s)


def _send_s(model: ModelDimensions, plan: Plan, prices: KernelPrices, constants: StepConstants) -> float:
    """Activations to the next stage and their gradients back. Stages share a node where a whole one leaves room."""
    together = 2 if 2 * plan.tensor * plan.data <= plan.ranks_per_node else 1
    size = HALF * plan.tokens * model.hidden
    return 2 * prices.collective("send_receive", size, 2, together, constants.network_bytes_per_s)


def _rank_parameters(model: ModelDimensions, plan: Plan) -> float:
    """Parameters of a rank of the stage that has the output matrix."""
    return (model.layers // plan.pipeline * model.layer_parameters + model.hidden * model.vocab) / plan.tensor
