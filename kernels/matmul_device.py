"""The Triton matrix product as the device runs it: the k loop, the fix-up of shared tiles and the store of C."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import triton
import triton.language as tl

from pyperf_suite.kernels import schedule
from pyperf_suite.kernels.triton_host import shared_with_host

boundary = shared_with_host(schedule.boundary)
visits = shared_with_host(schedule.visits)
segment = shared_with_host(schedule.segment)
place = shared_with_host(schedule.place)


# The values that a sweep varies most must not make Triton compile anew when they divide by 16 or are 1.
@triton.jit(do_not_specialize=["tiles_m", "tiles_n", "k_tiles", "streamed", "splits", "workers", "group"])
def matmul(
    a,  # the addresses, or descriptors, of A, B and C as stored
    b,
    c,
    partial_sums,  # fp32 or, of int8, int32[shared tiles, BLOCK_M, BLOCK_N]
    summed,  # int32[shared tiles], zeros: k-tiles already in a tile's partial sum
    m,
    n,
    k,
    a_row_stride,  # in elements, of the logical A[M,K], B[K,N] and C[M,N]; read where operands are addresses
    a_column_stride,
    b_row_stride,
    b_column_stride,
    c_row_stride,
    tiles_m,
    tiles_n,
    k_tiles,
    streamed,
    splits,
    workers,
    group,
    POLICY: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    HALVES: tl.constexpr,  # C leaves through a descriptor in halves of BLOCK_N
    K_IS_WHOLE: tl.constexpr,  # K is a multiple of BLOCK_K
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One unit of the schedule: each of its segments multiplied, summed with those before it, and stored."""
    SUMS: tl.constexpr = partial_sums.dtype.element_ty
    unit = tl.program_id(0)
    tiles = tiles_m * tiles_n
    begin = 0
    end = 0
    if POLICY == "split_k":
        begin = boundary(unit % splits, k_tiles, splits)
        end = boundary(unit % splits + 1, k_tiles, splits)
    elif POLICY == "stream_k":
        begin = boundary(unit, streamed * k_tiles, workers)
        end = boundary(unit + 1, streamed * k_tiles, workers)

    # As one loop over all k-tiles of all segments, so that the pipeline fills with the next tile while one is stored.
    FLATTEN: tl.constexpr = POLICY == "persistent"
    segments = visits(POLICY, unit, tiles, k_tiles, streamed, workers, begin, end)
    for visit in tl.range(0, segments, flatten=FLATTEN):
        tile, k_begin, k_end = segment(POLICY, unit, visit, tiles, k_tiles, streamed, splits, workers, begin, end)
        tile_m, tile_n = place(tile, tiles_m, tiles_n, group)
        row = tile_m * BLOCK_M
        column = tile_n * BLOCK_N
        if DESCRIPTORS:
            sums = multiply_descriptors(
                a, b, row, column, k_begin, k_end,
                BLOCK_M, BLOCK_N, BLOCK_K, A_TRANSPOSED, B_TRANSPOSED, SUMS, PRECISION, WIDEN,
            )  # fmt: skip
        else:
            sums = multiply_addresses(
                a, b, row, column, k_begin, k_end, m, n, k,
                a_row_stride, a_column_stride, b_row_stride, b_column_stride,
                BLOCK_M, BLOCK_N, BLOCK_K, K_IS_WHOLE, SUMS, PRECISION, WIDEN,
            )  # fmt: skip
        if POLICY == "split_k" or POLICY == "stream_k":
            slot = tile if POLICY == "split_k" else tile - (tiles - streamed)
            sums = add_earlier(sums, k_begin, slot, partial_sums, summed, BLOCK_M, BLOCK_N)
            if k_end < k_tiles:
                hand_on(sums, k_end, slot, partial_sums, summed, BLOCK_M, BLOCK_N)
        if k_end == k_tiles:
            if DESCRIPTORS:
                store_descriptor(c, sums, row, column, BLOCK_M, BLOCK_N, HALVES)
            else:
                store(c, sums, row, column, m, n, c_row_stride, BLOCK_M, BLOCK_N)


@triton.jit
def multiply_addresses(
    a, b, row, column, k_begin, k_end, m, n, k,
    a_row_stride, a_column_stride, b_row_stride, b_column_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    K_IS_WHOLE: tl.constexpr, SUMS: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """A[row:row+BLOCK_M, k]·B[k, column:column+BLOCK_N] over k-tiles [k_begin, k_end), any strides, zeros outside."""
    rows = row + tl.arange(0, BLOCK_M)
    columns = column + tl.arange(0, BLOCK_N)
    steps = k_begin * BLOCK_K + tl.arange(0, BLOCK_K)
    # Offsets in 64 bits: a row times a stride may not fit 32.
    a_block = a + rows.to(tl.int64)[:, None] * a_row_stride + steps.to(tl.int64)[None, :] * a_column_stride
    b_block = b + steps.to(tl.int64)[:, None] * b_row_stride + columns.to(tl.int64)[None, :] * b_column_stride
    a_step = tl.full((), BLOCK_K, tl.int64) * a_column_stride
    b_step = tl.full((), BLOCK_K, tl.int64) * b_row_stride
    a_inside = (rows < m)[:, None]
    b_inside = (columns < n)[None, :]
    sums = tl.zeros((BLOCK_M, BLOCK_N), SUMS)
    # A loop that may not run at all makes ptxas wait for each wgmma by itself: its warning C7515, of Triton 3.6.
    tl.assume(k_begin < k_end)
    for k_tile in range(k_begin, k_end):
        if K_IS_WHOLE:
            a_values = tl.load(a_block, mask=a_inside, other=0.0)
            b_values = tl.load(b_block, mask=b_inside, other=0.0)
        else:
            inside = k_tile * BLOCK_K + tl.arange(0, BLOCK_K) < k
            a_values = tl.load(a_block, mask=a_inside & inside[None, :], other=0.0)
            b_values = tl.load(b_block, mask=b_inside & inside[:, None], other=0.0)
        if WIDEN:
            a_values = a_values.to(tl.float32)
            b_values = b_values.to(tl.float32)
        sums = tl.dot(a_values, b_values, sums, input_precision=PRECISION, out_dtype=SUMS)
        a_block += a_step
        b_block += b_step
    return sums


@triton.jit
def multiply_descriptors(
    a, b, row, column, k_begin, k_end,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    SUMS: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """The same through tensor descriptors (TMA), which put zeros where a block hangs over the matrix by themselves."""
    sums = tl.zeros((BLOCK_M, BLOCK_N), SUMS)
    # A loop that may not run at all makes ptxas wait for each wgmma by itself: its warning C7515, of Triton 3.6.
    tl.assume(k_begin < k_end)
    for k_tile in range(k_begin, k_end):
        step = k_tile * BLOCK_K
        if A_TRANSPOSED:
            a_values = a.load([step, row]).T
        else:
            a_values = a.load([row, step])
        if B_TRANSPOSED:
            b_values = b.load([column, step]).T
        else:
            b_values = b.load([step, column])
        if WIDEN:
            a_values = a_values.to(tl.float32)
            b_values = b_values.to(tl.float32)
        sums = tl.dot(a_values, b_values, sums, input_precision=PRECISION, out_dtype=SUMS)
    return sums


@triton.jit
def add_earlier(sums, k_begin, slot, partial_sums, summed, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The sums of this tile's earlier k-tiles, once they are there, plus these: always in ascending k.

    Only units with a lower number are waited for, so programs that start in order never wait for one that has not
    started, and an interpreter that runs them one after the other never waits at all.
    """
    if k_begin > 0:
        while tl.atomic_add(summed + slot, 0, sem="acquire") != k_begin:
            pass
        # Past the L1 cache, which does not see what other multiprocessors write.
        sums = tl.load(slot_addresses(partial_sums, slot, BLOCK_M, BLOCK_N), cache_modifier=".cg") + sums
        # This unit alone holds the tile now. Zero is what the next launch expects of a finished tile.
        tl.atomic_xchg(summed + slot, 0)
    return sums


@triton.jit
def hand_on(sums, k_end, slot, partial_sums, summed, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Write the partial sum for the unit that computes the next k-tiles of this tile, and then say so."""
    tl.store(slot_addresses(partial_sums, slot, BLOCK_M, BLOCK_N), sums)
    tl.debug_barrier()  # all threads have written before one of them says so
    tl.atomic_xchg(summed + slot, k_end, sem="release")


@triton.jit
def slot_addresses(partial_sums, slot, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The addresses of a shared tile's partial sum."""
    inside = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    return partial_sums + slot.to(tl.int64) * (BLOCK_M * BLOCK_N) + inside


@triton.jit
def store_descriptor(
    c, sums, row, column, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HALVES: tl.constexpr
):  # fmt: skip
    """Round the sums to C's element type and store them; in halves the shared memory on the way is half as much."""
    if HALVES:
        halves = sums.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1)
        left, right = halves.split()
        c.store([row, column], left.to(c.dtype))
        c.store([row, column + BLOCK_N // 2], right.to(c.dtype))
    else:
        c.store([row, column], sums.to(c.dtype))


@triton.jit
def store(c, sums, row, column, m, n, c_row_stride, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Round the sums to C's element type and write what lies inside C[M,N], row-major."""
    rows = row + tl.arange(0, BLOCK_M)
    columns = column + tl.arange(0, BLOCK_N)
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    tl.store(c + rows.to(tl.int64)[:, None] * c_row_stride + columns[None, :], sums.to(c.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tiles", "tiles_n", "workers"])
def grouped_matmul(
    a,  # A[rows of all experts, K], B[experts, K, N] and C[rows, N] as stored; rows of A, C and B contiguous
    b,
    c,
    first_rows,  # int32[experts + 1]: where each expert's rows begin, and where the last one's end
    first_tiles,  # int32[experts + 1]: the same of its tiles
    n,
    k,
    tiles,
    tiles_n,
    workers,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    K_IS_WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """C's rows of each expert = A's rows of it times its B: workers that take tiles of all experts in turn."""
    for tile in range(tl.program_id(0), tiles, workers):
        expert = 0
        while tl.load(first_tiles + expert + 1) <= tile:
            expert += 1
        inside = tile - tl.load(first_tiles + expert)
        first = tl.load(first_rows + expert).to(tl.int64)
        rows = tl.load(first_rows + expert + 1) - tl.load(first_rows + expert)
        row = inside // tiles_n * BLOCK_M
        column = inside % tiles_n * BLOCK_N
        sums = multiply_addresses(
            a + first * k, b + tl.full((), k, tl.int64) * n * expert, row, column, 0, tl.cdiv(k, BLOCK_K), rows, n, k,
            k, 1, n, 1,
            BLOCK_M, BLOCK_N, BLOCK_K, K_IS_WHOLE, tl.float32, PRECISION, WIDEN,
        )  # fmt: skip
        store(c + first * n, sums, row, column, rows, n, n, BLOCK_M, BLOCK_N)
