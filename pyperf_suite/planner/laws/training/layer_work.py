"""Cost of a layer and of a model's ends for a rank and micro-batch: priced by kernel, then as a framework runs.

Prices are apart from constants, so that a fit prices once and tries many constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyperf_suite.laws.training.messages import exposed_comm_s
from pyperf_suite.laws.transformer import PHASES, ModelDimensions, Sharding, attention_call, attention_calls, products
from pyperf_suite.planner.laws.collectives import Network
from pyperf_suite.planner.laws.prices import Prices
from pyperf_suite.planner.laws.training.framework import LOW_PRECISION, StepConstants
from pyperf_suite.planner.laws.training.plan import HALF, ParallelPlan

# All of these are of 16 bits an element, and more for wider ones in proportion.
# Forward passes over a layer's b·s·h elements that TP leaves whole, in bytes an element: two norms read and write (8);
# two additions of bias, dropout and residual read two, write one and a mask of one byte (14).
WHOLE_BYTES_PER_ELEMENT = 22
# Over the b·s·ffn/t elements of an MLP: the activation function reads and writes.
MLP_BYTES_PER_ELEMENT = 4
# Over the b·(a/t)·s² scores where attention is not fused: a causal softmax reads half and writes all, dropout reads and
# writes, with its mask; backward they read what they wrote, and the gradient.
SCORE_BYTES_PER_ELEMENT, SCORE_GRADIENT_BYTES = 8, 11
# Backward of what is bound by memory reads the gradient and what the forward read, and writes as much as that.
BACKWARD_BYTES_RATIO = 1.5
# Bytes of the logits, in single precision: the loss reads and writes them forward and backward.
LOSS_BYTES_PER_ELEMENT = 16
# all_reduces of the activations, a layer, of TP in one pass (Shoeybi et al. 2019, Megatron-LM, section 3).
ALL_REDUCES_PER_PASS = 2
# An operand of a product of 8 bits is read in 16 bits and written in 8, once as it is and once transposed.
CAST_BYTES_PER_ELEMENT = 4
# Operations that the host hands over in one layer's forward pass, as small layers on one node show (vTrain: 0.84 ms);
# those that cast operands in 8 bits; and those that route, sort and exchange tokens of experts.
LAUNCHES, CAST_LAUNCHES, EXPERT_LAUNCHES = 60, 20, 60
# Launches an expert of a rank, for Transformer Engine's grouped products call cuBLAS one by one: two products, as
# many casts of their operands, and for each bias a product with the router's weight and a sum.
PRODUCTS_AN_EXPERT, LAUNCHES_A_BIAS = 2, 2
# The host's time for an operation, waited for where the GPU's queue runs dry; fits were held within 2 to 15 us.
LAUNCH_S = 14e-6
# Time that the host waits for each operation: about 5 microseconds from launch to start, and as many from end to host.
BLOCKED_S = 10e-6
# Tokens are sorted by the rank of their expert, there by expert, and both back: each reads and writes 16 bits.
PERMUTED_BYTES_PER_ELEMENT = 16
# Megatron-Core adds experts' biases apart (TEGroupedMLP._apply_bias), in single precision: bias times the router's
# weight is written (4), added to the result (10), joined (8) and cast (6); backward casts (6), multiplies by either
# (16), adds up both (8), casts and joins (10). The mean of both passes, for each element of both products' results.
BIASED_BYTES_PER_ELEMENT = 34
# Slowdown of batched products of heads whose width no tensor core takes whole: BigScience's 150 to 224.
UNALIGNED_HEADS = 4.5
ALIGNED_HEAD_DIM = 8


def layer_work(prices: Mapping[str, Any], plan: ParallelPlan, constants: StepConstants) -> dict[str, Any]:
    """Seconds of a layer's micro-batch, forward and backward, by part of the iteration, under these constants.

    `prices` are those of `price_work`. What no computation hides of the exchange of TP, CP and EP is `tensor`,
    `context` and `experts`; `host` is waiting for launches.
    """
    attended = 1 + plan.attention_recompute_fraction

    def of(*kinds: str) -> Any:
        return sum(times[kind][0] * times[kind][1] * prices[kind] for kind in kinds)

    times = passes_and_slowdown(plan, constants)
    products_s = of("forward", "backward")
    routed_s = of("experts_forward", "experts_backward")
    tensor_s, once_s = of("summed"), (products_s + routed_s) / plan.passes
    # Between nodes a gradient's product hides no more than it lasts.
    between = np.asarray(plan.tensor) > plan.ranks_per_node
    sums_s = between * (times["summed"][0] * prices["summed"] - tensor_s)
    tensor_s = tensor_s + exposed_comm_s(sums_s, once_s)
    forward_s, backward_s = of("attention_forward"), of("attention_backward")
    context_s = exposed_comm_s(attended * prices["ring"], forward_s)
    context_s = context_s + exposed_comm_s(2 * prices["ring"], backward_s)
    tokens_s = of("all_to_all")
    if plan.fuses_experts:
        tokens_s = exposed_comm_s(tokens_s, routed_s)
    work = {
        "products": products_s + routed_s,
        "attention": forward_s + backward_s,
        "memory bound": of("memory", "scores", "cast"),
        "tensor": tensor_s,
        "context": context_s,
        "experts": of("permuted") + tokens_s,
    }
    launches, launch_s = plan.passes * prices["launches"], LAUNCH_S + BLOCKED_S * plan.blocks
    hidden_s = 0.0 if plan.blocks else sum(work.values())
    return work | {"host": np.maximum(0.0, launches * launch_s - hidden_s)}


def ends_work(prices: Mapping[str, Any], plan: ParallelPlan, constants: StepConstants) -> dict[str, Any]:
    """The same of what stands outside of the layers."""
    slower = {kind: slowdown for kind, (_, slowdown) in passes_and_slowdown(plan, constants).items()}
    return {
        "products": slower["ends"] * prices["ends"],
        "memory bound": slower["loss"] * prices["loss"],
        "tensor": slower["summed"] * ALL_REDUCES_PER_PASS * prices["summed"],
    }


def passes_and_slowdown(plan: ParallelPlan, constants: StepConstants) -> dict[str, tuple[Any, Any]]:
    """Return by kind of kernel calls their number in a micro-batch, forward and backward, and their slowdown.

    The slowdown is time in the step / time by the law, below 1 where it is hidden.
    """
    c, forward, attended = constants, 1 + plan.recompute_fraction, 1 + plan.attention_recompute_fraction
    plain = c.of_products(plan.dtype)
    # One product an expert gains nothing from scales of whole tensors, by which single products beat their law.
    experts = c.experts * (c.slowdown if plan.dtype == "fp8" else plain)
    attention = c.slowdown * (c.attention * plan.slower_attention if plan.fused_attention else 1.0)
    # Megatron's backward hides TP's sums behind products (LinearWithGradAccumulationAndAsyncCommunication).
    waited = forward + (plan.framework != "megatron")
    # Kernels that hide TP's exchange behind products need NVLink (NeMo's user buffers).
    hides_tensor = plan.overlap_tensor & (np.asarray(plan.tensor) <= plan.ranks_per_node)
    summed = np.where(hides_tensor, c.tensor_overlapped, waited / (forward + 1))[()]
    return {
        "forward": (forward, plain),
        "backward": (1.0, plain),
        "experts_forward": (forward, experts),
        "experts_backward": (1.0, experts),
        "attention_forward": (attended, attention),
        "attention_backward": (1.0, attention),
        "scores": (attended + SCORE_GRADIENT_BYTES / SCORE_BYTES_PER_ELEMENT, c.slowdown),
        "memory": (forward + BACKWARD_BYTES_RATIO, c.slowdown),
        "cast": ((forward + 1) / 2, c.slowdown),
        "permuted": (forward + 1, (not plan.fuses_experts) * c.slowdown),
        "all_to_all": (4 + 2 * plan.recompute_fraction, 1.0),
        "summed": (ALL_REDUCES_PER_PASS * (forward + 1), summed),
        "ends": (1.0, c.slowdown),
        "loss": (1.0, c.slowdown),
    }


@dataclass(frozen=True)
class KernelCall:
    """One kind of work of a rank's micro-batch: `calls` of a method `law` of the prices, in all layers, each pass once.

    `kind` is the one of `price_work` that it counts in; `fixed` arguments come before the sizes, `flags`
    after them. `wide` work stays in 16 bits where products have fewer.
    """

    name: str
    law: str
    kind: str
    sizes: tuple[Any, ...]
    calls: Any
    fixed: tuple[Any, ...] = ()
    flags: tuple[Any, ...] = ()
    wide: bool = False

    def seconds(self, prices: Prices) -> Any:
        """Seconds of all calls."""
        prices = prices.wide if self.wide else prices
        sizes = self.sizes if self.law in ("memory_bound", "collective") else map(_size, self.sizes)
        found = getattr(prices, self.law)(*self.fixed, *sizes, *self.flags)
        return as_plain(self.calls) * found.seconds


def kernel_calls(model: ModelDimensions, plan: ParallelPlan, network: Network | None = None) -> Iterator[KernelCall]:
    """Yield a rank's kernels and messages over TP for a micro-batch: the one list that `size` and `layout` use.

    Sizes may be arrays over a grid of models or of plans. A grid has places where ranks are more than what they share;
    laws refuse such sizes, so there they get the nearest possible ones.
    """
    yield from _product_calls(model, plan)
    yield from _expert_calls(model, plan)
    yield from (_fused_attention_calls if plan.fused_attention else _plain_attention_calls)(model, plan)
    yield from _memory_calls(model, plan)
    tensor = np.asarray(plan.tensor)
    if np.any(tensor > 1):
        calls = np.where(tensor > 1, np.asarray(model.layers), 0)
        sizes = (plan.element_bytes * plan.tokens * model.hidden, _size(np.maximum(tensor, 2)))
        flags = (plan.ranks_per_node, network)
        for op in ("reduce_scatter", "all_gather") if plan.sequence_parallel else ("all_reduce",):
            yield KernelCall(op, "collective", "summed", sizes, calls, (op,), flags)


def _product_calls(model: ModelDimensions, plan: ParallelPlan) -> Iterator[KernelCall]:
    cast_elements: Any = 0.0
    for product in products(model, plan.tokens, plan, phases=PHASES):
        if product.routed:
            continue
        kind = "ends" if product.outside_layers else "forward" if product.phase == "fprop" else "backward"
        sizes = tuple(np.maximum(size, 1) for size in (product.m, product.n, product.k))
        yield KernelCall(
            f"{product.part}, {product.phase}", "gemm", kind, sizes, product.calls, (product.layout,),
            wide=product.outside_layers or product.part == "router",
        )  # fmt: skip
        if kind == "forward":
            elements = product.m * (1.0 * product.n + product.k)
            cast_elements = cast_elements + product.calls / model.layers * elements
    if plan.dtype in LOW_PRECISION:
        routed = _routed_tokens(model, plan) * (2.0 * model.hidden + 3.0 * model.expert_ffn / plan.tensor)
        nbytes = CAST_BYTES_PER_ELEMENT * (cast_elements + routed)
        yield KernelCall("casts of operands", "memory_bound", "cast", (nbytes,), np.asarray(model.layers))


def _expert_calls(model: ModelDimensions, plan: ParallelPlan) -> Iterator[KernelCall]:
    """Routed experts: those of a rank are one grouped product, with the rows of all of them, and so are gradients."""
    groups = plan.expert_groups
    sharding = Sharding(plan.tensor // groups, plan.sequence_parallel, plan.expert)
    if model.experts == 1:
        return
    for product in products(model, -(-plan.tokens // groups), sharding, phases=PHASES):
        if not product.routed:
            continue
        together = model.experts // np.asarray(sharding.expert)
        sizes = tuple(np.maximum(size, 1) for size in (product.m * together, product.n, product.k))
        kind = "experts_forward" if product.phase == "fprop" else "experts_backward"
        yield KernelCall(
            f"{product.part}, {product.phase}", "gemm", kind, sizes, np.asarray(product.calls) / together,
            (product.layout,),
        )  # fmt: skip
    routed = _routed_tokens(model, plan)
    gate = MLP_BYTES_PER_ELEMENT * (2 if model.gated else 1) * model.expert_ffn / sharding.tensor
    results = model.hidden + (2 if model.gated else 1) * model.expert_ffn / sharding.tensor
    biased = BIASED_BYTES_PER_ELEMENT * results * model.bias
    nbytes = routed * (PERMUTED_BYTES_PER_ELEMENT * model.hidden + gate + biased)
    if np.any(nbytes):
        yield KernelCall("tokens sorted by expert", "memory_bound", "permuted", (nbytes,), np.asarray(model.layers))


def _routed_tokens(model: ModelDimensions, plan: ParallelPlan) -> Any:
    """Tokens of a rank times the experts of each, in a layer; of a model with dense layers too their mean."""
    if model.experts == 1:
        return 0.0
    return model.sparse_layers / model.layers * plan.tokens / plan.expert_groups * model.top_k


def _fused_attention_calls(model: ModelDimensions, plan: ParallelPlan) -> Iterator[KernelCall]:
    """One kernel a layer, by kinds of layers.

    With CP over c ranks each has its share of the queries and meets one share of the keys after the other: c kernels
    of a c-th of the sequence, as causal as the whole where queries are dealt out evenly (Liu et al. 2023, Ring
    Attention; Brandon et al. 2023, Striped Attention). A window reaches its own share alone, and chunks are dealt out.
    """
    pieces = np.asarray(plan.context)
    for call in attention_calls(model, plan.micro_batch, plan.seq, plan):
        batch, seq, times = call.batch, call.seq // pieces, np.asarray(1) if call.is_windowed else pieces
        if call.is_windowed and not call.window:
            batch, seq = -(-call.batch // pieces), call.seq
        heads = np.maximum(call.heads, 1)
        kv_heads = np.where(heads % call.kv_heads == 0, call.kv_heads, 1)
        # Queries and values of latent attention differ in width: as much work is done at their mean.
        head_dim = (np.asarray(call.head_dim) + call.value_head_dim) // 2
        # A window as long as the sequence is none.
        window = np.where(np.asarray(seq) > call.window, call.window, 0)
        sizes = (batch, seq, heads, kv_heads, head_dim, window)
        for name, backward in (("forward", False), ("backward", True)):
            fixed, calls = (call.causal, backward), times * np.asarray(call.calls)
            yield KernelCall(f"{call.name}, {name}", "attention", f"attention_{name}", sizes, calls, fixed)


def _plain_attention_calls(model: ModelDimensions, plan: ParallelPlan) -> Iterator[KernelCall]:
    """One product for each head, all of them as one as wide: as much is computed, written and read.

    Scores lie in memory, those outside of a window too.
    """
    call = attention_call(model, plan.micro_batch, plan.seq, plan)
    seq, heads, calls = plan.seq, call.batch * call.heads, np.asarray(call.calls) / plan.context
    unaligned = UNALIGNED_HEADS if int(call.head_dim) % ALIGNED_HEAD_DIM else 1.0
    # Backward has two of each, one for either operand.
    for name, times in (("forward", 1), ("backward", 2)):
        for n, k in ((heads * seq, int(call.head_dim)), (heads * int(call.value_head_dim), seq)):
            yield KernelCall(
                f"attention, {name}", "gemm", f"attention_{name}", (seq, n, k), unaligned * times * calls, ("TN",),
                wide=True,
            )  # fmt: skip
    scores = plan.element_bytes / HALF * SCORE_BYTES_PER_ELEMENT * heads * seq**2
    yield KernelCall("softmax", "memory_bound", "scores", (scores / plan.context,), np.asarray(call.calls))


def _memory_calls(model: ModelDimensions, plan: ParallelPlan) -> Iterator[KernelCall]:
    wider, tokens, layers = plan.element_bytes / HALF, plan.tokens, np.asarray(model.layers)
    stream = wider * WHOLE_BYTES_PER_ELEMENT * tokens * model.hidden / plan.sequence_ranks
    yield KernelCall("norms and residuals", "memory_bound", "memory", (stream,), layers)
    # The work of routed experts is counted with the sorting of their tokens.
    sparse = model.ffn if model.experts == 1 else model.shared_ffn
    dense = "dense activation function", model.ffn, model.dense_layers
    for name, width, those in ("activation function", sparse, model.sparse_layers), dense:
        if not np.any(np.asarray(width) * those):
            continue
        mlp = wider * MLP_BYTES_PER_ELEMENT * (2 if model.gated else 1) * tokens * np.asarray(width) / plan.tensor
        yield KernelCall(name, "memory_bound", "memory", (mlp,), np.asarray(those))
    logits = LOSS_BYTES_PER_ELEMENT * tokens * np.asarray(model.vocab) / plan.tensor
    yield KernelCall("loss", "memory_bound", "loss", (logits,), np.asarray(1))


def price_work(model: ModelDimensions, plan: ParallelPlan, prices: Prices, network: Network | None) -> dict[str, Any]:
    """Seconds of each kind of work by its law, once and forward unless said.

    Of one layer, of a model with several kinds of layers their mean: `forward` and `backward` of products,
    `experts_...` of those of experts, `scores` of passes over scores that lie in memory, `cast` of operands converted,
    `permuted` of tokens sorted by experts and back; `summed` is one exchange of TP, `ring` one round of CP,
    `all_to_all` one way to the experts; `launches` are kernels of a forward pass. Of the model: `ends` is the logits,
    forward and backward together, `loss` the passes over them.
    """
    prices_by_kind: dict[str, Any] = dict.fromkeys(passes_and_slowdown(plan, StepConstants(1.0)), 0.0)
    for each in kernel_calls(model, plan, network):
        once = 1 if each.kind in ("ends", "loss") else model.layers
        prices_by_kind[each.kind] = prices_by_kind[each.kind] + each.seconds(prices) / once
    is_narrow = plan.dtype in LOW_PRECISION
    launches: Any = LAUNCHES + CAST_LAUNCHES * is_narrow
    if model.experts > 1:
        of_expert = PRODUCTS_AN_EXPERT * (1 + is_narrow + LAUNCHES_A_BIAS * model.bias) * (not plan.fuses_experts)
        routed = EXPERT_LAUNCHES + of_expert * model.experts / np.asarray(plan.expert)
        launches = launches + routed * model.sparse_layers / model.layers
    ring_s: Any = 0.0
    if np.any(np.asarray(plan.context) > 1):
        # Keys and values (Liu et al. 2023, Ring Attention with Blockwise Transformers); a window or a chunk needs next
        # to nothing from other ranks.
        call = attention_call(model, plan.micro_batch, plan.seq, plan)
        size: Any = plan.element_bytes * call.batch * call.seq * call.kv_heads * (call.head_dim + call.value_head_dim)
        ring_s = prices.collective("all_gather", size, plan.context, plan.per_node_next_to_tensor, network).seconds
        ring_s = ring_s * ((model.layers - model.windowed_layers) / model.layers)
    return prices_by_kind | {
        "ring": ring_s,
        "all_to_all": _all_to_all_s(model, plan, prices, network),
        "launches": launches,
    }


def exchange_of_tokens(model: ModelDimensions, plan: ParallelPlan, network: Network | None = None) -> KernelCall:
    """Tokens to their experts within a node, or back."""
    size = plan.element_bytes * plan.tokens * model.hidden / plan.sequence_ranks * model.top_k
    sizes = (as_plain(size), _size(np.minimum(plan.expert, _next_to_experts(plan))))
    flags = (plan.ranks_per_node, network)
    return KernelCall("all_to_all", "collective", "all_to_all", sizes, model.sparse_layers, ("all_to_all",), flags)


def _next_to_experts(plan: ParallelPlan) -> Any:
    """GPUs of a node that have different experts."""
    return np.where(np.asarray(plan.expert_groups) > 1, plan.ranks_per_node, plan.per_node_next_to_tensor)


def _all_to_all_s(model: ModelDimensions, plan: ParallelPlan, prices: Prices, network: Network | None) -> Any:
    """Tokens to their experts, or back, in a layer: once to each node that has some of them, meanwhile within nodes."""
    if not np.any(np.asarray(plan.expert) > 1):
        return 0.0
    once_s = replace(exchange_of_tokens(model, plan, network), calls=1).seconds(prices)
    nodes = np.maximum(1, np.asarray(plan.expert) // _next_to_experts(plan))
    if np.any(nodes > 1):
        size = plan.element_bytes * plan.tokens * model.hidden / plan.sequence_ranks
        visited = (nodes - 1) * (1 - (1 - 1 / nodes) ** model.top_k)
        between_s = prices.collective("send_receive", as_plain(size * visited), 2, 1, network).seconds
        once_s = np.maximum(once_s, np.where(nodes > 1, between_s, 0.0))
    return once_s * model.sparse_layers / model.layers


def as_plain(size: Any) -> Any:
    """A float, or the array that it is."""
    return float(size) if np.ndim(size) == 0 else size


def _size(size: Any) -> Any:
    return int(size) if np.ndim(size) == 0 else size
