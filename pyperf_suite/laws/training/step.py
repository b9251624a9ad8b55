"""The time of a training iteration from the laws of its kernels and collectives, layer by layer and stage by stage.

Nothing of a step is fitted as a whole. The few constants that no kernel's law can know — how much slower kernels run
within a step, what the host takes to launch a layer, what a network really carries — are given by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws import layer_kinds
from pyperf_suite.laws.calibration import Calibration, CalibrationBlock, shipped_calibration
from pyperf_suite.laws.explained import Explained, KernelPrices
from pyperf_suite.laws.internode import Network
from pyperf_suite.laws.prices import Prices
from pyperf_suite.laws.training.memory import LAST_STAGE
from pyperf_suite.laws.transformer import (
    PHASES,
    ModelDimensions,
    Recompute,
    Sharding,
    Sizes,
    check_recompute,
    products,
)

# Bytes of an element of activations and parameters in mixed precision.
HALF = 2


@dataclass(frozen=True)
class MicroBatch:
    """What one GPU sees of a micro-batch of `sequences`: its cut of every layer and of the sequence.

    Only these decide what a layer costs, so plans that differ otherwise share its price.
    """

    sequences: Sizes
    seq: int
    tensor: Sizes = 1
    context: Sizes = 1
    expert: Sizes = 1
    recompute: Recompute = "nothing"
    fused_attention: bool = True
    sequence_parallel: bool = False
    ranks_per_node: int = 8
    element_bytes: int = HALF

    @property
    def tokens(self) -> Any:
        return self.sequences * self.seq // self.context

    @property
    def sharding(self) -> Sharding:
        return Sharding(self.tensor, self.sequence_parallel, self.expert)

    @property
    def sequence_ranks(self) -> Sizes:
        """Over how many ranks the sequence is cut where TP leaves tokens whole."""
        return self.tensor if self.sequence_parallel else 1

    @property
    def per_node_beside_tensor(self) -> Any:
        """Of ranks that differ in all but TP, those that share a node."""
        return np.maximum(1, self.ranks_per_node // self.tensor)

    @property
    def passes(self) -> int:
        """Forward passes' worth of launches of a layer: backward launches twice as many kernels."""
        return 4 if self.recompute == "layers" else 3


@dataclass(frozen=True)
class ParallelPlan:
    """How an iteration is run: `global_batch` sequences of `seq` tokens, over tensor · context · data · pipeline GPUs.

    Ranks are placed as Megatron-LM does, TP innermost, then CP, DP and PP, on nodes of `ranks_per_node`. `pipeline`
    stages hold `chunks` groups of layers each (interleaved schedule, virtual PP); `context` cuts the sequence (ring
    attention), `expert` spreads experts over ranks of DP · CP. ZeRO shares over DP · CP. `recompute` "layers" is full
    activation checkpointing: backward computes each layer's forward again; "attention" the part between projections
    (selective). `fused_attention` keeps no scores in memory, as FlashAttention. `sequence_parallel` cuts along the
    sequence what TP leaves whole. `overlap_gradients` sends gradients, and what ZeRO gathers, during computation.
    `gradient_bytes` is one element of a gradient as it is sent, `element_bytes` one of activations and of parameters as
    they are computed with.

    Counts may be arrays that broadcast together. Raises UserError for numbers below 1, a stage of ZeRO that there is
    not, or a batch, a sequence or experts that do not divide.
    """

    global_batch: int
    micro_batch: Sizes
    seq: int
    tensor: Sizes = 1
    data: Sizes = 1
    pipeline: Sizes = 1
    recompute: Recompute = "nothing"
    fused_attention: bool = True
    overlap_gradients: bool = False
    gradient_bytes: int = HALF
    ranks_per_node: int = 8
    chunks: Sizes = 1
    context: Sizes = 1
    expert: Sizes = 1
    zero_stage: Sizes = 0
    sequence_parallel: bool = False
    element_bytes: int = HALF

    def __post_init__(self) -> None:
        check_recompute(self.recompute)
        sizes = (self.global_batch, self.micro_batch, self.seq, self.tensor, self.data, self.pipeline, self.chunks,
                 self.context, self.expert, self.gradient_bytes, self.ranks_per_node, self.element_bytes)  # fmt: skip
        if min(int(np.min(size)) for size in sizes) < 1:
            raise UserError(f"An iteration needs sizes of at least 1 throughout, but {self} was asked for.")
        if np.min(self.zero_stage) < 0 or np.max(self.zero_stage) > LAST_STAGE:
            raise UserError(f"ZeRO has stages 0 to {LAST_STAGE}, but {self.zero_stage} was asked for.")
        if np.any(self.global_batch % (self.micro_batch * self.data)):
            raise UserError(
                f"A global batch of {self.global_batch} cannot be cut into micro-batches of {self.micro_batch} on "
                f"{self.data} data-parallel ranks evenly."
            )
        if np.any(self.seq % np.asarray(self.context)):
            raise UserError(f"A sequence of {self.seq} tokens cannot be cut over {self.context} ranks evenly.")
        if np.any(self.shards % self.expert):
            raise UserError(f"Experts cannot be spread over {self.expert} of {self.shards} ranks of DP and CP evenly.")
        if np.any((np.asarray(self.chunks) > 1) & (self.micro_batches % self.pipeline != 0)):
            raise UserError(
                f"The interleaved schedule needs a multiple of {self.pipeline} stages of micro-batches, but there are "
                f"{self.micro_batches}."
            )

    @property
    def micro_batches(self) -> Any:
        return self.global_batch // (self.micro_batch * self.data)

    @property
    def shards(self) -> Any:
        """Ranks that have the same parameters, which ZeRO shares among them: DP · CP."""
        return self.data * self.context

    @property
    def shape(self) -> tuple[int, ...]:
        """What its counts broadcast to, () for one plan."""
        counts = (self.micro_batch, self.tensor, self.data, self.pipeline, self.chunks, self.context, self.expert,
                  self.zero_stage)  # fmt: skip
        return np.broadcast_shapes(*map(np.shape, counts))

    @property
    def piece(self) -> MicroBatch:
        return self._piece(self.micro_batch, self.tensor, self.context, self.expert)

    def distinct_pieces(self) -> tuple[MicroBatch, NDArray[np.intp]]:
        """The different ones among a grid's pieces, and for each plan, flat, the place of its own."""
        counts = (self.micro_batch, self.tensor, self.context, self.expert)
        rows = np.stack([np.broadcast_to(count, self.shape).ravel() for count in counts], axis=1)
        distinct, back = np.unique(rows, axis=0, return_inverse=True)
        return self._piece(*np.ascontiguousarray(distinct.T)), np.asarray(back, dtype=np.intp).ravel()

    def _piece(self, sequences: Sizes, tensor: Sizes, context: Sizes, expert: Sizes) -> MicroBatch:
        return MicroBatch(
            sequences, self.seq, tensor, context, expert, self.recompute, self.fused_attention, self.sequence_parallel,
            self.ranks_per_node, self.element_bytes,
        )  # fmt: skip


# All of these are of 16 bits an element, and more for wider ones in proportion.
# Forward passes over a layer's b·s·h elements that TP leaves whole, in bytes an element: two norms read and write (8);
# two additions of bias, dropout and residual read two, write one and a mask of one byte (14).
WHOLE_BYTES_PER_ELEMENT = 22
# Over the b·s·ffn/t elements of an MLP: the activation function reads and writes.
MLP_BYTES_PER_ELEMENT = 4
# Over the b·(a/t)·s² scores where attention is not fused: softmax reads and writes, dropout too, with its mask.
SCORE_BYTES_PER_ELEMENT = 9
# Backward of what is bound by memory reads the gradient and what the forward read, and writes as much as that.
BACKWARD_BYTES_RATIO = 1.5
# Of the logits, in single precision: the loss reads and writes them forward and backward.
LOSS_BYTES_PER_ELEMENT = 16
# all_reduces of the activations, a layer, of TP in one pass (Shoeybi et al. 2019, Megatron-LM, section 3).
ALL_REDUCES_PER_PASS = 2
# Ring attention adds each piece's result to what is there, in single precision, and scales it: reads both, writes one;
# backward adds gradients of queries, keys and values likewise.
MERGED_BYTES_PER_ELEMENT = 12
# Of a GPU's multiprocessors, what a collective takes from computation it overlaps: over NVLink, over the network
# (Isaev et al. 2023, Calculon: a tool for high-level co-design of LLMs; systems/a100_80e.json, processor_usage).
TAKEN_IN_NODE, TAKEN_BY_NETWORK = 0.15, 0.02


@dataclass(frozen=True)
class StepConstants:
    """What no kernel's law knows, as found on published iterations.

    Attributes:
        slowdown: kernels within a step take so many times as long as alone under a sustained load.
        host_s_per_layer: in which the host launches one layer's forward pass; a GPU that is faster than that waits.
        network: what a GPU really sends between nodes in bytes/s, one direction, or measured points of the cluster;
            None: what its maker's servers have.
    """

    slowdown: float
    host_s_per_layer: float
    network: Network | None = None


@dataclass(frozen=True)
class StepWork:
    """Seconds of one micro-batch, forward and backward: what is computed, and what no computation hides.

    `tensor`, `context` and `experts` are what is waited for of TP, CP and EP, `host` waiting for launches.
    """

    products: Any
    attention: Any
    memory_bound: Any
    tensor: Any
    context: Any = 0.0
    experts: Any = 0.0
    host: Any = 0.0

    @property
    def seconds(self) -> Any:
        return sum(getattr(self, field.name) for field in fields(self))

    def at(self, places: NDArray[np.intp], shape: tuple[int, ...]) -> StepWork:
        taken = (np.broadcast_to(getattr(self, field.name), np.shape(self.products))[places] for field in fields(self))
        return StepWork(*(each.reshape(shape) for each in taken))


def waited_s(sent_s: Any, beside_s: Any, taken: Any) -> Any:
    """What sending during a computation of `beside_s` costs: what is longer, and what it takes from the computation."""
    longer = np.maximum(0.0, sent_s - beside_s)
    return longer + taken * (sent_s - longer)


def taken_share(ranks: Sizes, per_node: Sizes) -> Any:
    """Of the multiprocessors, by a collective among so many ranks."""
    return np.where(np.asarray(ranks) > per_node, TAKEN_BY_NETWORK, TAKEN_IN_NODE)


def work_of_layer(
    model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, constants: StepConstants
) -> StepWork:
    """One layer's passes over one micro-batch; what is computed again in backward counts twice forward."""
    forward = 2 if piece.recompute == "layers" else 1
    products_s = _products_s(model, piece, prices, outside_layers=False) / model.layers
    products_s = products_s + _grouped_s(model, piece, prices) / model.layers
    forward_s, backward_s, scores_s = _attention_s(model, piece, prices)
    wider = piece.element_bytes / HALF
    whole = wider * WHOLE_BYTES_PER_ELEMENT * piece.tokens * model.hidden / piece.sequence_ranks
    passes = forward + BACKWARD_BYTES_RATIO
    moved_s = prices.memory_bound(whole).seconds * (model.whole_layers / model.layers)
    for _, width, layers in layer_kinds.activation_widths(model):
        mlp = wider * MLP_BYTES_PER_ELEMENT * (2 if model.gated else 1) * piece.tokens * width / piece.tensor
        moved_s = moved_s + prices.memory_bound(mlp).seconds * (layers / model.layers)
    if model.recurrent_layers:
        scanned = wider * layer_kinds.recurrent_bytes(model, piece.tokens, piece.tensor)
        moved_s = moved_s + prices.memory_bound(scanned).seconds * (model.recurrent_layers / model.layers)
    memory_s = passes * moved_s + scores_s
    slowdown, network = constants.slowdown, constants.network
    sums = (forward + 1) * ALL_REDUCES_PER_PASS * model.whole_layers / model.layers
    tensor_s = sums * _summed_s(model, piece, prices, network)
    if piece.sequence_parallel:
        # Backward of products has a third of their time for each gradient, and none of a computed-again forward.
        tensor_s = tensor_s + _gathered_again_s(model, piece, prices, network, slowdown * products_s / (forward + 2))
    work = StepWork(
        slowdown * products_s,
        slowdown * (forward_s + backward_s),
        slowdown * memory_s,
        tensor_s,
        _ring_s(model, piece, prices, network, slowdown * forward_s, slowdown * backward_s),
        _experts_s(model, piece, prices, network),
    )
    return replace(work, host=np.maximum(0.0, piece.passes * constants.host_s_per_layer - work.seconds))


def work_of_ends(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, constants: StepConstants) -> StepWork:
    """The logits and their loss, and what TP sums up at either end."""
    logits = LOSS_BYTES_PER_ELEMENT * piece.tokens * model.vocab / piece.tensor
    return StepWork(
        constants.slowdown * _products_s(model, piece, prices, outside_layers=True),
        0.0,
        constants.slowdown * prices.memory_bound(logits).seconds,
        2 * _summed_s(model, piece, prices, constants.network),
    )


def _products_s(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, outside_layers: bool) -> Any:
    """Seconds of all products of one micro-batch, of all layers together or of what stands outside of them."""
    total: Any = 0.0
    for product in products(model, piece.tokens, piece.sharding, phases=PHASES):
        if product.outside_layers == outside_layers and not product.routed:
            again = 2 if piece.recompute == "layers" and product.phase == "fprop" and not outside_layers else 1
            seconds = prices.gemm(product.layout, _size(product.m), _size(product.n), _size(product.k)).seconds
            total = total + again * _size(product.calls) * seconds
    return total


def _grouped_s(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices) -> Any:
    """Seconds of the routed experts of all layers, forward and backward, each a grouped product of one micro-batch."""
    block = layer_kinds.expert_block(model, piece.tokens, piece.sharding)
    if block is None:
        return 0.0
    forward_s, backward_s = (prices.grouped_gemm(*block.sizes, block.gated, way).seconds for way in (False, True))
    return block.calls * ((2 if piece.recompute == "layers" else 1) * forward_s + backward_s)


def _attention_s(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices) -> tuple[Any, Any, Any]:
    """Seconds of one layer's attention, forward and backward, and of the passes over scores that lie in memory.

    It is the mean of all layers. Scores that lie in memory are all there, also those outside of a window.
    """
    forward = 1 if piece.recompute == "nothing" else 2
    if piece.fused_attention:
        kinds = [
            (call.calls / model.layers, *_fused_attention_s(model, call, piece, prices))
            for call in layer_kinds.attention_calls(model, piece.sequences, piece.seq, piece.sharding)
        ]
        forward_s, backward_s = (sum(kind[0] * kind[way] for kind in kinds) for way in (1, 2))
        return forward * forward_s, backward_s, 0.0
    call = layer_kinds.attention_call(model, piece.sequences, piece.seq, piece.sharding)
    batch, seq, heads = _size(call.batch), piece.seq, _size(call.heads)
    # One product for each head, all of them as one as wide: as much is computed, written and read.
    ours = piece.context * model.layers / call.calls
    scores_s = prices.gemm("TN", seq, _size(batch * heads * seq), int(call.head_dim)).seconds / ours
    values_s = prices.gemm("TN", seq, _size(batch * heads * int(call.value_head_dim)), seq).seconds / ours
    wider = piece.element_bytes / HALF
    memory_s = prices.memory_bound(wider * SCORE_BYTES_PER_ELEMENT * batch * heads * seq**2 / ours).seconds
    # Backward has two of each, one for either operand.
    both_s = scores_s + values_s
    return forward * both_s, 2 * both_s, (forward + BACKWARD_BYTES_RATIO) * memory_s


def _fused_attention_s(
    model: ModelDimensions, call: layer_kinds.AttentionCall, piece: MicroBatch, prices: KernelPrices
) -> tuple[Any, Any]:
    """Seconds of one layer's attention with a fused kernel, forward and backward.

    With CP over c ranks each has its share of the queries and meets one share of the keys after the other: c kernels
    of a c-th of the sequence, as causal as the whole where queries are dealt out evenly (Liu et al. 2023, Ring
    Attention; Brandon et al. 2023, Striped Attention). A window reaches its own share alone, and chunks are dealt out.
    """
    pieces = piece.context
    batch, seq, heads = _size(call.batch), _size(call.seq // pieces), _size(call.heads)
    if call.is_windowed and not call.window:
        batch, seq = _size(-(-call.batch // pieces)), _size(call.seq)
    # Queries and values of latent attention differ in width: as much work is done at their mean.
    head_dim = (int(call.head_dim) + int(call.value_head_dim)) // 2
    window = _size(np.where(np.asarray(seq) > call.window, call.window, 0))

    def once_s(backward: bool) -> Any:
        if layer_kinds.is_deepseeks_latent(model):
            return prices.latent_attention(backward, batch, seq, heads).seconds
        shape = (batch, seq, heads, _size(call.kv_heads), head_dim, window)
        return prices.attention(call.causal, backward, *shape).seconds

    if call.is_windowed:
        return once_s(False), once_s(True)
    merged: Any = MERGED_BYTES_PER_ELEMENT * batch * seq * head_dim
    merged_s = prices.memory_bound(merged * heads).seconds
    both_s = merged_s + 2 * prices.memory_bound(merged * call.kv_heads).seconds
    return pieces * once_s(False) + (pieces - 1) * merged_s, pieces * once_s(True) + (pieces - 1) * both_s


def _summed_s(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, network: Network | None) -> Any:
    """Of one micro-batch's activations over TP: an all_reduce, or with SP its two halves, a layer between them."""
    size, ranks, per_node = piece.element_bytes * piece.tokens * model.hidden, piece.tensor, piece.ranks_per_node
    if not piece.sequence_parallel:
        return prices.collective("all_reduce", size, ranks, per_node, network).seconds
    return sum(prices.collective(op, size, ranks, per_node, network).seconds for op in ("reduce_scatter", "all_gather"))


def _gathered_again_s(
    model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, network: Network | None, beside_s: Any
) -> Any:
    """SP keeps a share of each block's input, which backward gathers once more, during products of `beside_s`.

    Source: Korthikanti et al. 2022, section 4.2.2.
    """
    size = piece.element_bytes * piece.tokens * model.hidden
    gather_s = prices.collective("all_gather", size, piece.tensor, piece.ranks_per_node, network).seconds
    taken = taken_share(piece.tensor, piece.ranks_per_node)
    return waited_s(ALL_REDUCES_PER_PASS * gather_s, beside_s, taken)


def _ring_s(
    model: ModelDimensions,
    piece: MicroBatch,
    prices: KernelPrices,
    network: Network | None,
    forward_s: Any,
    backward_s: Any,
) -> Any:
    """What attention does not hide of a ring of CP: keys and values forward, with their gradients backward.

    Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, section 3.
    """
    if not np.any(np.asarray(piece.context) > 1):
        return 0.0
    call = layer_kinds.attention_call(model, piece.sequences, piece.seq, piece.sharding)
    size: Any = piece.element_bytes * call.batch * call.seq * call.kv_heads * (call.head_dim + call.value_head_dim)
    once_s = prices.collective("all_gather", size, piece.context, piece.per_node_beside_tensor, network).seconds
    forward = 1 if piece.recompute == "nothing" else 2
    # A window or a chunk needs next to nothing from other ranks.
    once_s = once_s * ((model.attention_layers - model.windowed_layers) / model.layers)
    taken = taken_share(piece.context, piece.per_node_beside_tensor)
    return waited_s(forward * once_s, forward_s, taken) + waited_s(2 * once_s, backward_s, taken)


def _experts_s(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, network: Network | None) -> Any:
    """Tokens to their experts and back, forward and backward: four all_to_alls a sparse layer, as `expert_parallel`."""
    if not np.any(np.asarray(piece.expert) > 1):
        return 0.0
    size = piece.element_bytes * piece.tokens * model.hidden * model.top_k / piece.sequence_ranks
    once_s = prices.collective("all_to_all", size, piece.expert, piece.per_node_beside_tensor, network).seconds
    calls = 6 if piece.recompute == "layers" else 4
    return calls * once_s * model.sparse_layers / model.layers


def _size(size: Any) -> Any:
    return int(size) if np.ndim(size) == 0 else size


# Of the time of a layer, backward's share: two of three passes' worth, computing again aside.
BACKWARD_SHARE = 2 / 3


@dataclass(frozen=True)
class StageParameters:
    """Parameters of a rank of the stage that has the output matrix: routed experts', and all others."""

    shared: Any
    experts: Any


@dataclass(frozen=True)
class Exposed:
    """Seconds of exchange that no computation hides, of gradients and of parameters.

    `once` are of an iteration, `each` of every micro-batch, for which the pipeline waits too.
    """

    gradients_once: Any
    gradients_each: Any
    parameters_once: Any
    parameters_each: Any

    @property
    def each(self) -> Any:
        return self.gradients_each + self.parameters_each


def stage_parameters(model: ModelDimensions, plan: ParallelPlan) -> StageParameters:
    """Matrices are cut over TP, layers over PP, experts over EP too."""
    routed = model.sparse_layers * model.experts * model.expert_parameters if model.experts > 1 else 0
    return StageParameters(
        ((model.inner_parameters - routed) / plan.pipeline + model.hidden * model.vocab) / plan.tensor,
        routed / plan.pipeline / plan.tensor / plan.expert,
    )


def exposed(
    model: ModelDimensions, plan: ParallelPlan, prices: KernelPrices, network: Network | None, stage_s: Any
) -> Exposed:
    """What is waited for, where the layers of a stage take `stage_s` a micro-batch.

    By stage of ZeRO (Rajbhandari et al. 2020, section 7): 0 all_reduces gradients; 1 reduce_scatters them and gathers
    the updated parameters, 2 scatters each micro-batch's; 3 gathers parameters in every forward and backward too.
    """
    hides = 1 if plan.overlap_gradients else 0
    backward_s, forward_s = hides * BACKWARD_SHARE * stage_s, hides * (1 - BACKWARD_SHARE) * stage_s
    taken = taken_share(plan.shards, np.maximum(1, plan.ranks_per_node // plan.tensor))
    stage = np.asarray(plan.zero_stage)
    summed_s = waited_s(_over_data("all_reduce", plan.gradient_bytes, model, plan, prices, network), backward_s, taken)
    if not np.any(stage):
        return Exposed(summed_s, 0.0, 0.0, 0.0)
    scattered_s = _over_data("reduce_scatter", plan.gradient_bytes, model, plan, prices, network)
    gathered_s = _over_data("all_gather", plan.element_bytes, model, plan, prices, network)
    after_backward = waited_s(scattered_s, backward_s, taken)
    before_forward = waited_s(gathered_s, forward_s, taken)
    # Parameters come first, for without them nothing is computed; gradients have what is left of the pass.
    again = waited_s(gathered_s, backward_s, taken)
    last = waited_s(scattered_s, np.maximum(0.0, backward_s - gathered_s), taken)
    zero = np.zeros(plan.shape)
    return Exposed(
        np.where(stage == 0, summed_s, np.where(stage == 1, after_backward, zero)),
        np.where(stage == 2, after_backward, np.where(stage == 3, last, zero)),
        np.where((stage == 1) | (stage == 2), before_forward, zero),
        np.where(stage == 3, before_forward + again, zero),
    )


def send_s(model: ModelDimensions, plan: ParallelPlan, prices: KernelPrices, network: Network | None) -> Any:
    """Activations to the next stage and their gradients back. Stages share a node where a whole one leaves room."""
    together: Any = np.where(2 * plan.tensor * plan.shards <= plan.ranks_per_node, 2, 1)
    piece = plan.piece
    size = piece.element_bytes * piece.tokens * model.hidden / piece.sequence_ranks
    if np.ndim(together) == 0:
        together = int(together)
    return 2 * prices.collective("send_receive", size, 2, together, network).seconds


def interleaved_sends_s(plan: ParallelPlan, sends_s: Any, chunk_s: Any) -> Any:
    """What sending during computation costs where every chunk of `chunk_s` does it, v times as often.

    With one chunk a stage it is part of what the constants of a step were found on.
    """
    each = waited_s(sends_s, chunk_s, taken_share(plan.pipeline * plan.tensor * plan.shards, plan.ranks_per_node))
    chunks = np.asarray(plan.chunks)
    return np.where((chunks > 1) & (np.asarray(plan.pipeline) > 1), plan.micro_batches * chunks * each, 0.0)


def _over_data(
    operation: str,
    element_bytes: int,
    model: ModelDimensions,
    plan: ParallelPlan,
    prices: KernelPrices,
    network: Network | None,
) -> Any:
    """A rank's parameters over the ranks that have the same: of these TP, and EP, leave every so many of a node."""
    ours = stage_parameters(model, plan)
    per_node: Any = np.maximum(1, plan.ranks_per_node // plan.tensor)
    if np.ndim(per_node) == 0:
        per_node = int(per_node)
    seconds = prices.collective(operation, element_bytes * ours.shared, plan.shards, per_node, network).seconds
    if model.experts > 1:
        apart = np.maximum(1, plan.ranks_per_node // (plan.tensor * plan.expert))
        ranks = plan.shards // plan.expert
        seconds = seconds + prices.collective(operation, element_bytes * ours.experts, ranks, apart, network).seconds
    return seconds


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
    plan: ParallelPlan,
    constants: StepConstants | None = None,
    prices: KernelPrices | None = None,
) -> Explained:
    """The time of one iteration of training `model` on GPUs of that kind, as `plan` says.

    Micro-batches go through the stages one forward, one backward: the slowest stage as often as there are
    micro-batches, and all others once, with v chunks of layers a stage 1/v of once (Narayanan et al. 2021, section
    2.2). The last stage is the slowest, for it computes the logits. Stages send during the computation of other
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
        prices: what kernels cost, by default `Prices` of that GPU under a sustained load.

    Raises:
        UserError: layers that do not divide over stages, dimensions that do not over TP, or an unknown GPU.
    """
    if np.any(model.layers % (plan.pipeline * np.asarray(plan.chunks))):
        chunks = f" of {plan.chunks} chunks" if np.any(np.asarray(plan.chunks) > 1) else ""
        raise UserError(f"{model.layers} layers cannot be cut into {plan.pipeline} stages{chunks} evenly.")
    found = FoundConstants(constants, False, None) if constants is not None else found_constants(gpu)
    constants, prices = found.constants, prices or Prices(gpu)
    layer, ends = _works(model, plan, prices, constants)
    network = constants.network
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


def pack_constants(
    constants: StepConstants, held_out: Mapping[str, float | int | str], origin: str
) -> CalibrationBlock:
    """Constants as the block "step" of a calibration; `network` must be a rate there."""
    arrays = {
        "slowdown": np.array(constants.slowdown),
        "host_s_per_layer": np.array(constants.host_s_per_layer),
        "network_bytes_per_s": np.array(constants.network),
    }
    return CalibrationBlock(arrays, held_out, {}, origin)


def found_constants(gpu: str | GpuSpec | Calibration) -> FoundConstants:
    """Those of the GPU itself, or of the one whose iterations are published, whose network is not the GPU's."""
    if isinstance(gpu, Calibration) and BLOCK in gpu.blocks:
        return _of_block(gpu.blocks[BLOCK], False)
    spec = find_gpu(gpu.gpu if isinstance(gpu, Calibration) else gpu) if not isinstance(gpu, GpuSpec) else gpu
    measured = shipped_calibration(MEASURED_GPU)
    if measured is None:
        raise UserError(f"No iterations are calibrated for {spec} or {MEASURED_GPU}: give the constants of a step.")
    return _of_block(measured.block(BLOCK), spec.name != MEASURED_GPU)


def _of_block(block: CalibrationBlock, of_another_gpu: bool) -> FoundConstants:
    slowdown, host_s, network = (
        float(block.arrays[name]) for name in ("slowdown", "host_s_per_layer", "network_bytes_per_s")
    )
    constants = StepConstants(slowdown, host_s, None if of_another_gpu else network)
    return FoundConstants(constants, of_another_gpu, None if of_another_gpu else float(block.held_out["mape"]))


def _works(
    model: ModelDimensions, plan: ParallelPlan, prices: KernelPrices, constants: StepConstants
) -> tuple[StepWork, StepWork]:
    """Of one micro-batch in a layer and outside of the layers; of a grid each different piece is asked for once."""
    if not plan.shape:
        return tuple(work(model, plan.piece, prices, constants) for work in (work_of_layer, work_of_ends))  # type: ignore[return-value]
    pieces, back = plan.distinct_pieces()
    layer, ends = (work(model, pieces, prices, constants) for work in (work_of_layer, work_of_ends))
    return layer.at(back, plan.shape), ends.at(back, plan.shape)


def _updated_bytes(model: ModelDimensions, plan: ParallelPlan) -> Any:
    ours = stage_parameters(model, plan)
    shared = np.where(np.asarray(plan.zero_stage) > 0, plan.shards, 1)
    of_experts = np.where(np.asarray(plan.zero_stage) > 0, plan.shards // plan.expert, 1)
    nbytes = OPTIMIZER_BYTES_PER_PARAMETER * (ours.shared / shared + ours.experts / of_experts)
    return float(nbytes) if np.ndim(nbytes) == 0 else nbytes
