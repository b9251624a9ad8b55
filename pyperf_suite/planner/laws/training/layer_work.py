"""What one layer and the ends of a model cost a rank, a micro-batch: priced kernel by kernel, then as a framework runs.

Prices are apart from constants, so that a fit prices once and tries many constants.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.laws import layer_kinds
from pyperf_suite.laws.transformer import (
    PHASES,
    ModelDimensions,
    Recompute,
    Sharding,
    Sizes,
    products,
)
from pyperf_suite.planner.laws.explained import KernelPrices
from pyperf_suite.planner.laws.internode import Network
from pyperf_suite.planner.laws.training.framework import LOW_PRECISION, ExpertKernels, StepConstants

# Bytes of an element of activations and parameters in mixed precision.
HALF = 2


@dataclass(frozen=True)
class MicroBatch:
    """What one GPU sees of a micro-batch of `sequences`: its cut of every layer and of the sequence.

    Only these decide what a layer costs, so plans that differ otherwise share its price. `dtype` is that of products.
    `expert_groups` of the ranks of TP have experts of their own, which are then cut over the others alone.
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
    dtype: str = "bf16"
    recompute_share: float = 1.0
    overlap_tensor: bool = False
    expert_groups: Sizes = 1
    expert_kernels: ExpertKernels = "launched"

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
    def again(self) -> float:
        """The share of a layer's forward pass that backward computes again."""
        return self.recompute_share if self.recompute == "layers" else 0.0

    @property
    def attention_again(self) -> float:
        return 1.0 if self.recompute == "attention" else self.again

    @property
    def passes(self) -> float:
        """Forward passes' worth of launches of a layer: backward launches twice as many kernels."""
        return 3 + self.again


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
# An operand of a product of 8 bits is read in 16 bits and written in 8, once as it is and once transposed.
CAST_BYTES_PER_ELEMENT = 4
# Tokens are sorted by the rank of their expert, there by expert, and both back: each reads and writes 16 bits.
PERMUTED_BYTES_PER_ELEMENT = 16
# Batched products of heads whose width no tensor core takes whole are so many times slower (BLOOM's 14400 with 150).
UNALIGNED_HEADS = 2.5
ALIGNED_HEAD_DIM = 8
# Of a GPU's multiprocessors, what a collective takes from computation it overlaps: over NVLink, over the network
# (Isaev et al. 2023, Calculon: a tool for high-level co-design of LLMs; systems/a100_80e.json, processor_usage).
TAKEN_IN_NODE, TAKEN_BY_NETWORK = 0.15, 0.02


@dataclass(frozen=True)
class LayerPrices:
    """Seconds of one layer's kernels and collectives as their laws price them, forward unless said, each once.

    `forward` and `backward` are of products, `experts_...` those of experts; `scores` are passes over scores that lie
    in memory; `merged` what adds up pieces of ring attention; `cast` converts operands; `permuted` sorts tokens by
    experts and back. `summed` is one exchange of TP, `gathered` its half, `ring` one round of CP, `all_to_all` one way
    to the experts. `local_experts` are those of a rank in a layer, of all layers the mean.
    """

    forward: Any
    backward: Any
    experts_forward: Any
    experts_backward: Any
    attention_forward: Any
    attention_backward: Any
    scores: Any
    memory: Any
    cast: Any
    summed: Any
    gathered: Any
    ring: Any
    all_to_all: Any
    taken_tensor: Any
    taken_context: Any
    permuted: Any
    local_experts: Any


@dataclass(frozen=True)
class EndPrices:
    """The same of the logits, forward and backward together, of the passes over them, and of TP's exchange."""

    products: Any
    loss: Any
    summed: Any


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


def gather_prices(prices: Any, places: NDArray[np.intp], shape: tuple[int, ...]) -> Any:
    """Prices of distinct pieces, at the places of a grid's plans."""
    count = max(np.size(getattr(prices, field.name)) for field in fields(prices))
    whole = {field.name: np.broadcast_to(getattr(prices, field.name), (count,)) for field in fields(prices)}
    return type(prices)(**{name: each[places].reshape(shape) for name, each in whole.items()})


def exposed_comm_s(sent_s: Any, beside_s: Any, taken: Any) -> Any:
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
    return layer_work(price_layer(model, piece, prices, constants.network), piece, constants)


def work_of_ends(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, constants: StepConstants) -> StepWork:
    """The logits and their loss, and what TP sums up at either end."""
    return ends_work(price_ends(model, piece, prices, constants.network), piece, constants)


def layer_work(layer: LayerPrices, piece: MicroBatch, constants: StepConstants) -> StepWork:
    """What a framework with these constants takes for a layer of those prices."""
    c, forward, attended = constants, 1 + piece.again, 1 + piece.attention_again
    slower = c.of_products(piece.dtype)
    plain = slower * (forward * layer.forward + layer.backward)
    # Grouped products of 8 bits have a law of their own, with the casts of their operands.
    narrow = c.narrow_experts if piece.dtype in LOW_PRECISION else 1.0
    fused = c.fused_experts if piece.expert_kernels == "fused" else 1.0
    routed = fused * narrow * c.slowdown * c.experts * (forward * layer.experts_forward + layer.experts_backward)
    kernel = c.slowdown * (c.attention if piece.fused_attention else c.scores)
    attention_forward, attention_backward = kernel * layer.attention_forward, kernel * layer.attention_backward
    passes = forward + BACKWARD_BYTES_RATIO
    memory = c.memory * (passes * layer.memory + (attended + BACKWARD_BYTES_RATIO) * layer.scores)
    memory = memory + c.cast * (forward + 1) / 2 * layer.cast
    summed = ALL_REDUCES_PER_PASS * (forward + 1) * layer.summed
    if piece.overlap_tensor:
        tensor = c.tensor_overlapped * summed
    else:
        # SP gathers each block's input once more, during a gradient's product: backward is two such passes.
        beside = (plain + routed) / (forward + 2)
        tensor = c.tensor * (summed + exposed_comm_s(ALL_REDUCES_PER_PASS * layer.gathered, beside, layer.taken_tensor))
    context = exposed_comm_s(attended * layer.ring, attended * attention_forward, layer.taken_context) + exposed_comm_s(
        2 * layer.ring, attention_backward, layer.taken_context
    )
    work = StepWork(
        plain + routed,
        attended * attention_forward + attention_backward,
        c.slowdown * memory,
        tensor,
        context,
        fused * c.slowdown * c.permute * (forward + 1) * layer.permuted
        + fused * c.all_to_all * (4 + 2 * piece.again) * layer.all_to_all,
    )
    launched = c.host_s_per_layer + (
        layer.local_experts * c.expert_host_s if piece.expert_kernels == "launched" else 0.0
    )
    return replace(work, host=np.maximum(0.0, piece.passes * launched - work.seconds))


def ends_work(ends: EndPrices, piece: MicroBatch, constants: StepConstants) -> StepWork:
    """The same of what stands outside of the layers."""
    c = constants
    exposed = c.tensor_overlapped if piece.overlap_tensor else c.tensor
    return StepWork(
        c.slowdown * ends.products, 0.0, c.slowdown * c.memory * ends.loss, exposed * ALL_REDUCES_PER_PASS * ends.summed
    )


def price_layer(
    model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, network: Network | None
) -> LayerPrices:
    """The kernels and collectives of one layer, of a model with dense and sparse ones their mean."""
    plain = dict.fromkeys(PHASES, 0.0)
    cast_elements: Any = 0.0
    for product in products(model, piece.tokens, piece.sharding, phases=PHASES):
        if product.outside_layers or product.routed:
            continue
        kept = wide(prices) if product.part == "router" else prices
        each = kept.gemm(product.layout, _size(product.m), _size(product.n), _size(product.k)).seconds
        plain[product.phase] += _size(product.calls) * each / model.layers
        if product.phase == "fprop":
            cast_elements = cast_elements + product.calls / model.layers * product.m * (1.0 * product.n + product.k)
    experts_s, rows = _expert_prices(model, piece, prices)
    cast_elements = cast_elements + rows * (2.0 * model.hidden + 3.0 * model.expert_ffn / piece.tensor)
    forward_s, backward_s, scores_s = _attention_prices(model, piece, prices)
    wider = piece.element_bytes / HALF
    whole = wider * WHOLE_BYTES_PER_ELEMENT * piece.tokens * model.hidden / piece.sequence_ranks
    moved_s = prices.memory_bound(whole).seconds
    for _, width, layers in layer_kinds.activation_widths(model):
        mlp = wider * MLP_BYTES_PER_ELEMENT * (2 if model.gated else 1) * piece.tokens * width / piece.tensor
        moved_s = moved_s + prices.memory_bound(mlp).seconds * (layers / model.layers)
    cast: Any = 0.0
    if piece.dtype in LOW_PRECISION:
        cast = prices.memory_bound(CAST_BYTES_PER_ELEMENT * cast_elements).seconds
    tensor_taken = taken_share(piece.tensor, piece.ranks_per_node)
    context_taken = taken_share(piece.context, piece.per_node_beside_tensor)
    gathered: Any = 0.0
    if piece.sequence_parallel:
        size = piece.element_bytes * piece.tokens * model.hidden
        gathered = prices.collective("all_gather", size, piece.tensor, piece.ranks_per_node, network).seconds
    local_experts = model.sparse_layers / model.layers * model.experts / piece.expert if model.experts > 1 else 0.0
    return LayerPrices(
        plain["fprop"],
        plain["dgrad"] + plain["wgrad"],
        experts_s[0],
        experts_s[1],
        forward_s,
        backward_s,
        scores_s,
        moved_s,
        cast,
        _summed_s(model, piece, prices, network),
        gathered,
        _ring_s(model, piece, prices, network),
        _all_to_all_s(model, piece, prices, network),
        tensor_taken,
        context_taken,
        prices.memory_bound(PERMUTED_BYTES_PER_ELEMENT * rows * model.hidden).seconds if np.any(rows) else 0.0,
        local_experts + np.zeros(np.shape(moved_s)),
    )


def price_ends(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, network: Network | None) -> EndPrices:
    """The logits, which stay in 16 bits, their loss, and one exchange of TP."""
    total: Any = 0.0
    for product in products(model, piece.tokens, piece.sharding, phases=PHASES):
        if product.outside_layers:
            each = wide(prices).gemm(product.layout, _size(product.m), _size(product.n), _size(product.k)).seconds
            total = total + _size(product.calls) * each
    logits = LOSS_BYTES_PER_ELEMENT * piece.tokens * model.vocab / piece.tensor
    return EndPrices(total, prices.memory_bound(logits).seconds, _summed_s(model, piece, prices, network))


def wide(prices: Any) -> KernelPrices:
    """The prices of the same GPU in 16 bits, for what stays in them."""
    found: KernelPrices = getattr(prices, "wide", prices)
    return found


def _expert_prices(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices) -> tuple[tuple[Any, Any], Any]:
    """Of a layer's routed experts their grouped products, forward and backward, and the rows of a rank's tokens."""
    groups = piece.expert_groups
    sharding = Sharding(piece.tensor // groups, piece.sequence_parallel, piece.expert)
    block = layer_kinds.expert_block(model, -(-piece.tokens // groups), sharding)
    if block is None:
        return (0.0, 0.0), 0.0
    share = block.calls / model.layers
    forward_s, backward_s = (
        prices.grouped_gemm(*block.sizes, block.gated, way).seconds * share for way in (False, True)
    )
    return (forward_s, backward_s), share * piece.tokens / groups * model.top_k


def _attention_prices(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices) -> tuple[Any, Any, Any]:
    """Seconds of one layer's attention, forward and backward, and of the forward passes over scores in memory.

    It is the mean of all layers. Scores that lie in memory are all there, also those outside of a window.
    """
    if piece.fused_attention:
        kinds = [
            (call.calls / model.layers, *_fused_attention_s(model, call, piece, prices))
            for call in layer_kinds.attention_calls(model, piece.sequences, piece.seq, piece.sharding)
        ]
        forward_s, backward_s = (sum(kind[0] * kind[way] for kind in kinds) for way in (1, 2))
        return forward_s, backward_s, 0.0
    call = layer_kinds.attention_call(model, piece.sequences, piece.seq, piece.sharding)
    batch, seq, heads = _size(call.batch), piece.seq, _size(call.heads)
    # One product for each head, all of them as one as wide: as much is computed, written and read.
    ours = piece.context * model.layers / call.calls
    in_16_bits = wide(prices)
    scores_s = in_16_bits.gemm("TN", seq, _size(batch * heads * seq), int(call.head_dim)).seconds / ours
    values_s = in_16_bits.gemm("TN", seq, _size(batch * heads * int(call.value_head_dim)), seq).seconds / ours
    wider = piece.element_bytes / HALF
    memory_s = prices.memory_bound(wider * SCORE_BYTES_PER_ELEMENT * batch * heads * seq**2 / ours).seconds
    unaligned = UNALIGNED_HEADS if int(call.head_dim) % ALIGNED_HEAD_DIM else 1.0
    # Backward has two of each, one for either operand.
    both_s = unaligned * (scores_s + values_s)
    return both_s, 2 * both_s, memory_s


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


def _ring_s(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, network: Network | None) -> Any:
    """One round of CP's ring: keys and values (Liu et al. 2023, Ring Attention with Blockwise Transformers)."""
    if not np.any(np.asarray(piece.context) > 1):
        return 0.0
    call = layer_kinds.attention_call(model, piece.sequences, piece.seq, piece.sharding)
    size: Any = piece.element_bytes * call.batch * call.seq * call.kv_heads * (call.head_dim + call.value_head_dim)
    once_s = prices.collective("all_gather", size, piece.context, piece.per_node_beside_tensor, network).seconds
    # A window or a chunk needs next to nothing from other ranks.
    return once_s * ((model.layers - model.windowed_layers) / model.layers)


def _all_to_all_s(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, network: Network | None) -> Any:
    """Tokens to their experts, or back, in a layer: as `expert_parallel`."""
    if not np.any(np.asarray(piece.expert) > 1):
        return 0.0
    per_node = np.where(np.asarray(piece.expert_groups) > 1, piece.ranks_per_node, piece.per_node_beside_tensor)
    # A token is sent to a node once, however many of its experts are there.
    nodes = np.maximum(1, np.asarray(piece.expert) // per_node)
    copies = np.where(nodes > 1, nodes * (1 - (1 - 1 / nodes) ** model.top_k), model.top_k)
    size = piece.element_bytes * piece.tokens * model.hidden * copies / piece.sequence_ranks
    once_s = prices.collective("all_to_all", as_plain(size), piece.expert, _size(per_node), network).seconds
    return once_s * model.sparse_layers / model.layers


def as_plain(size: Any) -> Any:
    """A float, or the array that it is."""
    return float(size) if np.ndim(size) == 0 else size


def _size(size: Any) -> Any:
    return int(size) if np.ndim(size) == 0 else size
