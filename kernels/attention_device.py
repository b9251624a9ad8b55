"""The Triton attention as the device runs it: softmax(scale · Q·Kᵀ)·V of one block of queries, step by step of keys.

Importing this needs Triton; `kernels/attention.py` is what launches and compiles it. The sums are kept as in Dao 2023,
"FlashAttention-2", algorithm 1: a running maximum and total of each row, and one division at the end.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import triton
import triton.language as tl

from pyperf_suite.kernels import attention_schedule
from pyperf_suite.kernels.triton_host import shared_with_host

place = shared_with_host(attention_schedule.place)
key_steps = shared_with_host(attention_schedule.key_steps)

LN_2 = tl.constexpr(0.6931471805599453)


# The values that a sweep varies most must not make Triton compile anew when they divide by 16 or are 1.
@triton.jit(do_not_specialize=["heads", "group", "seq_q", "seq_k", "blocks", "together"])
def forward(
    q,  # the addresses, or descriptors, of Q and O [heads, seq_q, HEAD_DIM], K and V [heads / group, seq_k, HEAD_DIM]
    k,
    v,
    o,
    lse,  # fp32[heads, seq_q]: ln Σ exp of each query's scaled scores
    heads,  # of Q, times the batch
    group,  # heads of Q that share one of K and V
    seq_q,
    seq_k,
    blocks,  # of queries, of one head
    together,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    SCALE: tl.constexpr,  # 1/√HEAD_DIM · log2 e, for exponentials to the base 2
    CAUSAL: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One block of queries of one head: O and the log-sum-exp."""
    head, block = place(tl.program_id(0), blocks, heads, together, CAUSAL)
    first = block * BLOCK_M
    queries = load_rows(q, head, first, seq_q, BLOCK_M, HEAD_DIM, PADDED, DESCRIPTORS, True)
    sums = tl.zeros((BLOCK_M, PADDED), tl.float32)
    maximum = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    unmasked, end = key_steps(first, BLOCK_M, BLOCK_N, seq_q, seq_k, CAUSAL)
    sums, maximum, total = attend(
        sums, maximum, total, queries, k, v, head // group, first, 0, unmasked, seq_q, seq_k,
        BLOCK_M, BLOCK_N, HEAD_DIM, PADDED, SCALE, CAUSAL, DESCRIPTORS, False, PRECISION, WIDEN,
    )  # fmt: skip
    sums, maximum, total = attend(
        sums, maximum, total, queries, k, v, head // group, first, unmasked, end, seq_q, seq_k,
        BLOCK_M, BLOCK_N, HEAD_DIM, PADDED, SCALE, CAUSAL, DESCRIPTORS, True, PRECISION, WIDEN,
    )  # fmt: skip
    store_rows(o, sums / total[:, None], head, first, seq_q, BLOCK_M, HEAD_DIM, PADDED, DESCRIPTORS)
    rows = first + tl.arange(0, BLOCK_M)
    tl.store(lse + head.to(tl.int64) * seq_q + rows, (maximum + tl.log2(total)) * LN_2, mask=rows < seq_q)


@triton.jit
def attend(
    sums, maximum, total, queries, k, v, key_head, first, begin, end, seq_q, seq_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, DESCRIPTORS: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """The sums over key steps [begin, end), by the largest score so far, a number as all see the first key."""
    for step in range(begin, end):
        first_key = step * BLOCK_N
        keys = load_rows(k, key_head, first_key, seq_k, BLOCK_N, HEAD_DIM, PADDED, DESCRIPTORS, MASKED)
        scores = multiply(queries, keys.T, None, PRECISION, WIDEN)
        if MASKED:
            scores = tl.where(visible(first, first_key, seq_q, seq_k, BLOCK_M, BLOCK_N, CAUSAL), scores, float("-inf"))
        higher = tl.maximum(maximum, tl.max(scores, 1) * SCALE)
        weights = tl.exp2(scores * SCALE - higher[:, None])
        shrink = tl.exp2(maximum - higher)
        total = total * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None]
        values = load_rows(v, key_head, first_key, seq_k, BLOCK_N, HEAD_DIM, PADDED, DESCRIPTORS, MASKED)
        sums = multiply(weights.to(values.dtype), values, sums, PRECISION, WIDEN)
        maximum = higher
    return sums, maximum, total


@triton.jit
def visible(first, first_key, seq_q, seq_k, QUERIES: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr):
    """Return the mask of keys of a block [QUERIES, KEYS] that exist and, where causal, are not after their query."""
    keys = first_key + tl.arange(0, KEYS)
    seen = (keys < seq_k)[None, :]
    if CAUSAL:
        queries = first + tl.arange(0, QUERIES)
        seen = seen & (keys[None, :] <= queries[:, None] + (seq_k - seq_q))
    return seen


@triton.jit
def multiply(a, b, sums, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """A·B added to `sums` in fp32, or alone where that is None."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, sums, input_precision=PRECISION)


@triton.jit
def load_rows(
    tensor, head, first, seq, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr,
    DESCRIPTORS: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Rows [first, first + ROWS) of tensor[head, seq, HEAD_DIM] as [ROWS, PADDED], zeros outside; EDGE: some may be."""
    if DESCRIPTORS:
        values = tensor.load([head, first, 0]).reshape(ROWS, PADDED)
    else:
        block, inside = addresses_of(tensor, head, first, seq, ROWS, HEAD_DIM, PADDED)
        if EDGE:
            values = tl.load(block, mask=inside, other=0.0)
        elif PADDED != HEAD_DIM:
            values = tl.load(block, mask=(tl.arange(0, PADDED) < HEAD_DIM)[None, :], other=0.0)
        else:
            values = tl.load(block)
    return values


@triton.jit
def store_rows(
    tensor, values, head, first, seq, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """Round to the tensor's element type and write what lies inside tensor[head, seq, HEAD_DIM]."""
    if DESCRIPTORS:
        tensor.store([head, first, 0], values.to(tensor.dtype).reshape(1, ROWS, PADDED))
    else:
        block, inside = addresses_of(tensor, head, first, seq, ROWS, HEAD_DIM, PADDED)
        tl.store(block, values.to(tensor.dtype.element_ty), mask=inside)


@triton.jit
def addresses_of(tensor, head, first, seq, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr):
    """The addresses of a block of rows and which of them lie inside tensor[head, seq, HEAD_DIM].

    HEAD_DIM is known when this is compiled, so that what divides it tells how many elements are read at once.
    """
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, PADDED)[None, :]
    # In 64 bits up to the block's first element, in 32 within it.
    start = tensor + (head.to(tl.int64) * seq + first) * HEAD_DIM
    return start + (rows * HEAD_DIM + columns), (first + rows < seq) & (columns < HEAD_DIM)
