"""What one GPU does of one micro-batch: products, attention, passes over memory, and what has to be waited for.

Every figure may be of one cut of the layers or of a grid of them; then all are arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.prices import KernelPrices
from pyperf_suite.laws.training.plan import HALF, MicroBatch
from pyperf_suite.laws.transformer import PHASES, Sizes, attention_call, products

# All of these are of 16 bits an element, and more for wider ones in proportion.
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
# all_reduces of the activations, a layer, of TP in one pass (Shoeybi et al. 2019, Megatron-LM, section 3).
ALL_REDUCES_PER_PASS = 2
# Ring attention adds each piece's result to what is there, in single precision, and scales it: reads both, writes one;
# backward adds gradients of queries, keys and values likewise.
MERGED_BYTES_PER_ELEMENT = 12
# Of a GPU's multiprocessors, what a collective takes from the computation beside it: over NVLink, over the network
# (Isaev et al. 2023, Calculon: a tool for high-level co-design of LLMs; systems/a100_80e.json, processor_usage).
TAKEN_IN_NODE, TAKEN_BY_NETWORK = 0.15, 0.02


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
class Work:
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

    def at(self, places: NDArray[np.intp], shape: tuple[int, ...]) -> Work:
        """The works at those places of a grid, in that shape."""
        taken = (np.broadcast_to(getattr(self, field.name), np.shape(self.products))[places] for field in fields(self))
        return Work(*(each.reshape(shape) for each in taken))


def waited_s(sent_s: Any, beside_s: Any, taken: Any) -> Any:
    """What sending beside computation of `beside_s` costs: what is longer, and what it takes from the computation."""
    longer = np.maximum(0.0, sent_s - beside_s)
    return longer + taken * (sent_s - longer)


def taken_share(ranks: Sizes, per_node: Sizes) -> Any:
    """Of the multiprocessors, by a collective among so many ranks."""
    return np.where(np.asarray(ranks) > per_node, TAKEN_BY_NETWORK, TAKEN_IN_NODE)


def work_of_layer(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, constants: StepConstants) -> Work:
    """One layer's passes over one micro-batch; what is computed again in backward counts twice forward."""
    forward = 2 if piece.recompute == "layers" else 1
    products_s = _products_s(model, piece, prices, outside_layers=False) / model.layers
    forward_s, backward_s, scores_s = _attention_s(model, piece, prices)
    wider = piece.element_bytes / HALF
    whole = wider * WHOLE_BYTES_PER_ELEMENT * piece.tokens * model.hidden / piece.sequence_ranks
    width = model.top_k * model.expert_ffn + model.shared_ffn
    mlp = wider * MLP_BYTES_PER_ELEMENT * (2 if model.gated else 1) * piece.tokens * width / piece.tensor
    passes = forward + BACKWARD_BYTES_RATIO
    memory_s = passes * (prices.memory_bound(whole).seconds + prices.memory_bound(mlp).seconds) + scores_s
    slowdown, network = constants.slowdown, constants.network_bytes_per_s
    tensor_s = (forward + 1) * ALL_REDUCES_PER_PASS * _summed_s(model, piece, prices, network)
    if piece.sequence_parallel:
        # Backward of products has a third of their time for each gradient, and none of a computed-again forward.
        tensor_s = tensor_s + _gathered_again_s(model, piece, prices, network, slowdown * products_s / (forward + 2))
    work = Work(
        slowdown * products_s,
        slowdown * (forward_s + backward_s),
        slowdown * memory_s,
        tensor_s,
        _ring_s(model, piece, prices, network, slowdown * forward_s, slowdown * backward_s),
        _experts_s(model, piece, prices, network),
    )
    return replace(work, host=np.maximum(0.0, piece.passes * constants.host_s_per_layer - work.seconds))


def work_of_ends(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, constants: StepConstants) -> Work:
    """The logits and their loss, and what TP sums up at either end."""
    logits = LOSS_BYTES_PER_ELEMENT * piece.tokens * model.vocab / piece.tensor
    return Work(
        constants.slowdown * _products_s(model, piece, prices, outside_layers=True),
        0.0,
        constants.slowdown * prices.memory_bound(logits).seconds,
        2 * _summed_s(model, piece, prices, constants.network_bytes_per_s),
    )


def _products_s(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, outside_layers: bool) -> Any:
    """Seconds of all products of one micro-batch, of all layers together or of what stands outside of them."""
    total: Any = 0.0
    for product in products(model, piece.tokens, piece.sharding, phases=PHASES):
        if product.outside_layers == outside_layers:
            again = 2 if piece.recompute == "layers" and product.phase == "fprop" and not outside_layers else 1
            seconds = prices.gemm(product.layout, _size(product.m), _size(product.n), _size(product.k)).seconds
            total = total + again * _size(product.calls) * seconds
    return total


def _attention_s(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices) -> tuple[Any, Any, Any]:
    """Seconds of one layer's attention, forward and backward, and of the passes over scores that lie in memory.

    With CP over c ranks each has its share of the queries and meets one share of the keys after the other: c kernels
    of a c-th of the sequence, as causal as the whole where queries are dealt out evenly (Liu et al. 2023, Ring
    Attention; Brandon et al. 2023, Striped Attention).
    """
    call = attention_call(model, piece.sequences, piece.seq, piece.sharding)
    batch, seq, heads = _size(call.batch), piece.seq, _size(call.heads)
    # Queries and values of latent attention differ in width: as much work is done at their mean.
    head_dim = (int(call.head_dim) + int(call.value_head_dim)) // 2
    forward = 1 if piece.recompute == "nothing" else 2
    if piece.fused_attention:
        pieces = piece.context
        shape = (batch, seq // pieces, heads, _size(call.kv_heads), head_dim)
        merged: Any = MERGED_BYTES_PER_ELEMENT * batch * (seq // pieces) * head_dim
        merged_s = prices.memory_bound(merged * heads).seconds
        both_s = merged_s + 2 * prices.memory_bound(merged * call.kv_heads).seconds
        return (
            forward * (pieces * prices.attention(call.causal, False, *shape).seconds + (pieces - 1) * merged_s),
            pieces * prices.attention(call.causal, True, *shape).seconds + (pieces - 1) * both_s,
            0.0,
        )
    # One product for each head, all of them as one as wide: as much is computed, written and read.
    ours = piece.context
    scores_s = prices.gemm("TN", seq, _size(batch * heads * seq), int(call.head_dim)).seconds / ours
    values_s = prices.gemm("TN", seq, _size(batch * heads * int(call.value_head_dim)), seq).seconds / ours
    wider = piece.element_bytes / HALF
    memory_s = prices.memory_bound(wider * SCORE_BYTES_PER_ELEMENT * batch * heads * seq**2 / ours).seconds
    # Backward has two of each, one for either operand.
    both_s = scores_s + values_s
    return forward * both_s, 2 * both_s, (forward + BACKWARD_BYTES_RATIO) * memory_s


def _summed_s(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, network: float | None) -> Any:
    """Of one micro-batch's activations over TP: an all_reduce, or with SP its two halves, a layer between them."""
    size, ranks, per_node = piece.element_bytes * piece.tokens * model.hidden, piece.tensor, piece.ranks_per_node
    if not piece.sequence_parallel:
        return prices.collective("all_reduce", size, ranks, per_node, network).seconds
    return sum(prices.collective(op, size, ranks, per_node, network).seconds for op in ("reduce_scatter", "all_gather"))


def _gathered_again_s(
    model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, network: float | None, beside_s: Any
) -> Any:
    """SP keeps a share of each block's input, which backward gathers once more, beside products of `beside_s`.

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
    network: float | None,
    forward_s: Any,
    backward_s: Any,
) -> Any:
    """What attention does not hide of a ring of CP: keys and values forward, with their gradients backward.

    Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, section 3.
    """
    if not np.any(np.asarray(piece.context) > 1):
        return 0.0
    call = attention_call(model, piece.sequences, piece.seq, piece.sharding)
    size: Any = piece.element_bytes * call.batch * call.seq * call.kv_heads * (call.head_dim + call.value_head_dim)
    once_s = prices.collective("all_gather", size, piece.context, piece.per_node_beside_tensor, network).seconds
    forward = 1 if piece.recompute == "nothing" else 2
    taken = taken_share(piece.context, piece.per_node_beside_tensor)
    return waited_s(forward * once_s, forward_s, taken) + waited_s(2 * once_s, backward_s, taken)


def _experts_s(model: ModelDimensions, piece: MicroBatch, prices: KernelPrices, network: float | None) -> Any:
    """Tokens to their experts and back, forward and backward: four all_to_alls a sparse layer, as `expert_parallel`."""
    if not np.any(np.asarray(piece.expert) > 1):
        return 0.0
    size = piece.element_bytes * piece.tokens * model.hidden * model.top_k / piece.sequence_ranks
    once_s = prices.collective("all_to_all", size, piece.expert, piece.per_node_beside_tensor, network).seconds
    calls = 6 if piece.recompute == "layers" else 4
    return calls * once_s * model.sparse_layers / model.layers


def _size(size: Any) -> Any:
    """A plain number of one plan's, an array of a grid's."""
    return int(size) if np.ndim(size) == 0 else size
