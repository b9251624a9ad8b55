"""The gradients of Triton's attention as the device runs them: dK and dV of a block of keys, dQ of a block of queries.

Importing this needs Triton; `kernels/attention_backward.py` is what launches and compiles it. Dao 2023,
"FlashAttention-2", algorithm 2, but dQ has a program of its own, so that no two programs add to the same element and
every launch gives the same bits.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import triton
import triton.language as tl

from pyperf_suite.kernels import attention_schedule
from pyperf_suite.kernels.attention_device import (
    addresses_of,
    key_steps,
    load_rows,
    multiply,
    place,
    store_rows,
    visible,
)
from pyperf_suite.kernels.triton_host import shared_with_host

query_steps = shared_with_host(attention_schedule.query_steps)

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["rows"])
def row_products(
    o,  # the addresses of O and dO [rows, HEAD_DIM]
    do,
    products,  # fp32[rows]
    rows,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
):
    """⟨O, dO⟩ of each query: what the gradient of its weights loses to their sum being one."""
    first = tl.program_id(0) * ROWS
    block, inside = addresses_of(o, first * 0, first, rows, ROWS, HEAD_DIM, PADDED)
    output = tl.load(block, mask=inside, other=0.0).to(tl.float32)
    block, inside = addresses_of(do, first * 0, first, rows, ROWS, HEAD_DIM, PADDED)
    gradient = tl.load(block, mask=inside, other=0.0).to(tl.float32)
    numbers = first + tl.arange(0, ROWS)
    tl.store(products + numbers, tl.sum(output * gradient, 1), mask=numbers < rows)


# As in attention_device: what a sweep varies must not make Triton compile anew.
@triton.jit(do_not_specialize=["heads", "group", "seq_q", "seq_k", "blocks", "together"])
def dk_dv(
    q,  # the addresses, or descriptors, of Q and dO [heads · group, seq_q, HEAD_DIM], K, V, dK, dV [heads, seq_k, …]
    k,
    v,
    do,
    dk,
    dv,
    lse,  # fp32[heads · group, seq_q]: ln Σ exp of each query's scaled scores
    products,  # fp32[heads · group, seq_q]: ⟨O, dO⟩
    heads,  # of K and V, times the batch
    group,  # heads of Q that share one of K and V
    seq_q,
    seq_k,
    blocks,  # of keys, of one head
    together,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One block of keys of one head: dK and dV, summed over the queries of each head that shares them, in order."""
    head, block = place(tl.program_id(0), blocks, heads, together, False)
    first = block * BLOCK_M
    keys = load_rows(k, head, first, seq_k, BLOCK_M, HEAD_DIM, PADDED, DESCRIPTORS, True)
    values = load_rows(v, head, first, seq_k, BLOCK_M, HEAD_DIM, PADDED, DESCRIPTORS, True)
    key_sums = tl.zeros((BLOCK_M, PADDED), tl.float32)
    value_sums = tl.zeros((BLOCK_M, PADDED), tl.float32)
    begin, whole, end = query_steps(first, BLOCK_M, BLOCK_N, seq_q, seq_k, CAUSAL)
    for member in range(group):
        key_sums, value_sums = attended(
            key_sums, value_sums, keys, values, q, do, lse, products, head * group + member, first, begin, whole, end,
            seq_q, seq_k,
            BLOCK_M, BLOCK_N, HEAD_DIM, PADDED, SCALE, CAUSAL, DESCRIPTORS, PRECISION, WIDEN,
        )  # fmt: skip
    # Scores were scaled by SCALE / log2 e.
    store_rows(dk, key_sums * (SCALE / LOG2_E), head, first, seq_k, BLOCK_M, HEAD_DIM, PADDED, DESCRIPTORS)
    store_rows(dv, value_sums, head, first, seq_k, BLOCK_M, HEAD_DIM, PADDED, DESCRIPTORS)


@triton.jit
def attended(
    key_sums, value_sums, keys, values, q, do, lse, products, head, first, begin, unmasked, end, seq_q, seq_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """The sums of dK (of scaled scores) and dV over query steps [begin, end), scores transposed: [keys, queries].

    One loop that masks the steps before `unmasked`: a loop of their own would spill registers beside the two sums.
    """
    for step in range(begin, end):
        first_query = step * BLOCK_N
        queries = load_rows(q, head, first_query, seq_q, BLOCK_N, HEAD_DIM, PADDED, DESCRIPTORS, True)
        scores = multiply(keys, queries.T, None, PRECISION, WIDEN)
        logarithms = load_of_rows(lse, head, first_query, seq_q, BLOCK_N) * LOG2_E
        weights = tl.exp2(scores * SCALE - logarithms[None, :])
        if CAUSAL:  # noqa: SIM102 (decided when this is compiled, the next when it runs)
            # All steps of the widest rows are masked: with a branch what a step holds spills.
            if PADDED > 128 or step < unmasked:
                rows = first + tl.arange(0, BLOCK_M)
                latest = first_query + tl.arange(0, BLOCK_N) + (seq_k - seq_q)
                weights = tl.where(rows[:, None] <= latest[None, :], weights, 0.0)
        gradients = load_rows(do, head, first_query, seq_q, BLOCK_N, HEAD_DIM, PADDED, DESCRIPTORS, True)
        value_sums = multiply(weights.to(gradients.dtype), gradients, value_sums, PRECISION, WIDEN)
        of_weights = multiply(values, gradients.T, None, PRECISION, WIDEN)
        lost = load_of_rows(products, head, first_query, seq_q, BLOCK_N)
        of_scores = weights * (of_weights - lost[None, :])
        key_sums = multiply(of_scores.to(queries.dtype), queries, key_sums, PRECISION, WIDEN)
    return key_sums, value_sums


@triton.jit(do_not_specialize=["heads", "group", "seq_q", "seq_k", "blocks", "together"])
def dq(
    q,  # the addresses, or descriptors, of Q, dO and dQ [heads, seq_q, HEAD_DIM], K and V [heads / group, seq_k, …]
    k,
    v,
    do,
    dq,
    lse,  # fp32[heads, seq_q], as are the products
    products,
    heads,  # of Q, times the batch
    group,
    seq_q,
    seq_k,
    blocks,  # of queries, of one head
    together,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One block of queries of one head: dQ."""
    head, block = place(tl.program_id(0), blocks, heads, together, CAUSAL)
    first = block * BLOCK_M
    queries = load_rows(q, head, first, seq_q, BLOCK_M, HEAD_DIM, PADDED, DESCRIPTORS, True)
    gradients = load_rows(do, head, first, seq_q, BLOCK_M, HEAD_DIM, PADDED, DESCRIPTORS, True)
    logarithms = load_of_rows(lse, head, first, seq_q, BLOCK_M) * LOG2_E
    lost = load_of_rows(products, head, first, seq_q, BLOCK_M)
    sums = tl.zeros((BLOCK_M, PADDED), tl.float32)
    unmasked, end = key_steps(first, BLOCK_M, BLOCK_N, seq_q, seq_k, CAUSAL)
    sums = attending(
        sums, queries, gradients, logarithms, lost, k, v, head // group, first, 0, unmasked, seq_q, seq_k,
        BLOCK_M, BLOCK_N, HEAD_DIM, PADDED, SCALE, CAUSAL, DESCRIPTORS, False, PRECISION, WIDEN,
    )  # fmt: skip
    sums = attending(
        sums, queries, gradients, logarithms, lost, k, v, head // group, first, unmasked, end, seq_q, seq_k,
        BLOCK_M, BLOCK_N, HEAD_DIM, PADDED, SCALE, CAUSAL, DESCRIPTORS, True, PRECISION, WIDEN,
    )  # fmt: skip
    store_rows(dq, sums * (SCALE / LOG2_E), head, first, seq_q, BLOCK_M, HEAD_DIM, PADDED, DESCRIPTORS)


@triton.jit
def attending(
    sums, queries, gradients, logarithms, lost, k, v, key_head, first, begin, end, seq_q, seq_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, DESCRIPTORS: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """The sums of dQ (of scaled scores) over key steps [begin, end)."""
    for step in range(begin, end):
        first_key = step * BLOCK_N
        keys = load_rows(k, key_head, first_key, seq_k, BLOCK_N, HEAD_DIM, PADDED, DESCRIPTORS, MASKED)
        values = load_rows(v, key_head, first_key, seq_k, BLOCK_N, HEAD_DIM, PADDED, DESCRIPTORS, MASKED)
        scores = multiply(queries, keys.T, None, PRECISION, WIDEN)
        weights = tl.exp2(scores * SCALE - logarithms[:, None])
        if MASKED:
            weights = tl.where(visible(first, first_key, seq_q, seq_k, BLOCK_M, BLOCK_N, CAUSAL), weights, 0.0)
        of_weights = multiply(gradients, values.T, None, PRECISION, WIDEN)
        of_scores = weights * (of_weights - lost[:, None])
        sums = multiply(of_scores.to(keys.dtype), keys, sums, PRECISION, WIDEN)
    return sums


@triton.jit
def load_of_rows(figures, head, first, seq, ROWS: tl.constexpr):
    """One figure of each of the rows [first, first + ROWS) of figures[head, seq], zeros outside."""
    rows = first + tl.arange(0, ROWS)
    return tl.load(figures + head.to(tl.int64) * seq + rows, mask=rows < seq, other=0.0)
