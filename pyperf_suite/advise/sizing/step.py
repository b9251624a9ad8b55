"""The work of one micro-batch, forward and backward, on one GPU: every product, attention, the rest, what TP sends.

Left out, as no dimension here changes what it costs beside the rest: data-parallel traffic, the optimizer, pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyperf_suite.advise.sizing.candidates import Shapes
from pyperf_suite.advise.sizing.prices import Part
from pyperf_suite.laws.transformer import attention_call, products

ACTIVATION_BYTES = 2
# Backward of what is bound by memory reads the gradient beside the input and writes another: twice the forward.
FORWARD_AND_BACKWARD = 3


def parts_of(shapes: Shapes) -> list[Part]:
    """Every kind of work, its sizes and calls broadcasting over the axes of the shapes.

    A grid has places where a group is larger than what it is to share; laws refuse such sizes, so there they are asked
    for the nearest ones that can be, and `Candidates.trainable` leaves those places out.
    """
    return [*_products(shapes), *_attention(shapes), *_memory_bound(shapes), *_collectives(shapes)]


def _products(shapes: Shapes) -> Iterator[Part]:
    for product in products(shapes.model, shapes.tokens, shapes.sharding):
        sizes = tuple(np.maximum(size, 1) for size in (product.m, product.n, product.k))
        yield Part(f"{product.part}, {product.phase}", "gemm", (product.layout,), sizes, product.calls)


def _attention(shapes: Shapes) -> Iterator[Part]:
    call = attention_call(shapes.model, shapes.micro_batch, shapes.seq, shapes.sharding)
    # Queries and values of latent attention differ in width: as much work is done at their mean.
    head_dim = (np.asarray(call.head_dim) + call.value_head_dim) // 2
    heads = np.maximum(call.heads, 1)
    kv_heads = np.where(heads % call.kv_heads == 0, call.kv_heads, 1)
    for backward in (False, True):
        yield Part(
            f"attention, {'backward' if backward else 'forward'}",
            "attention",
            (call.causal, backward),
            (call.batch, call.seq, heads, kv_heads, head_dim),
            call.calls,
        )


def _memory_bound(shapes: Shapes) -> Iterator[Part]:
    """Norms with the addition beside them, activation functions, and the softmax of the loss.

    Bytes of the forward pass: a norm reads the residual and a block's output, and writes their sum and itself; an
    activation function reads what came in and writes what goes out; the loss reads and writes the logits in float32.
    """
    model, tokens, tp = shapes.model, shapes.tokens, shapes.tp
    stream = 4 * ACTIVATION_BYTES * tokens * model.hidden
    yield Part("norms", "memory_bound", (), (stream,), FORWARD_AND_BACKWARD * model.norms * np.asarray(model.layers))
    element = (3 if model.gated else 2) * ACTIVATION_BYTES * tokens
    width = model.top_k * np.asarray(model.expert_ffn) + model.shared_ffn
    sparse = FORWARD_AND_BACKWARD * np.asarray(model.sparse_layers)
    yield Part("activation function", "memory_bound", (), (element * (width // tp),), sparse)
    if np.any(model.dense_layers):
        dense = FORWARD_AND_BACKWARD * np.asarray(model.dense_layers)
        yield Part("dense activation function", "memory_bound", (), (element * (np.asarray(model.ffn) // tp),), dense)
    logits = 2 * 4 * tokens * -(-np.asarray(model.vocab) // tp)
    yield Part("loss", "memory_bound", (), (logits,), np.asarray(2))


def _collectives(shapes: Shapes) -> Iterator[Part]:
    """Tensor parallelism: two all_reduces of the activations a layer forward, two backward, two for both ends.

    None of them is hidden (Shoeybi et al. 2019, Megatron-LM, section 3).
    """
    tp = np.asarray(shapes.tp)
    if not np.any(tp > 1):
        return
    nbytes = ACTIVATION_BYTES * shapes.tokens * shapes.model.hidden
    # Among one rank nothing is sent; laws need at least two to be asked.
    calls = np.where(tp > 1, 4 * np.asarray(shapes.model.layers) + 2, 0)
    yield Part("all_reduce", "collective", ("all_reduce",), (nbytes, np.maximum(tp, 2)), calls)
