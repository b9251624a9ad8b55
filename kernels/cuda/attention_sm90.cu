// O = softmax(scale · Q·Kᵀ)·V on Hopper: the copy engine (TMA) feeds rings of K and V, warpgroups of 64 queries each
// multiply out of them with wgmma and keep scores, weights and results in registers.
//
// One thread of the producer warpgroup issues all loads. The consumers take turns: each issues the scores of its next
// step and, behind them, the results of the step before; while the tensor cores are at those of the others it computes
// the weights of its new scores. Sums are kept as in Dao 2023, "FlashAttention-2": a reference and a total of each row,
// and one division at the end. The reference is the largest score so far or up to 2^RISE below it: only a row that leaves
// more than that behind has its sums scaled, because the division takes out any reference.
//
//   Q, O: [heads, seq_q, head_dim], K, V: [heads / group, seq_k, head_dim], bf16 or fp16, head_dim a multiple of 8 up to
//   HEAD_DIM; lse: fp32 [heads, seq_q], ln Σ exp of each query's scaled scores. Causal is bottom-right aligned: query i
//   sees keys j ≤ i + seq_k − seq_q. A unit of the schedule is one block of queries of one head: its tiles_m are heads,
//   its tiles_n blocks. kernels/attention_sm90.py has the options, the tensor maps and the launch.
#include "ptx.cuh"
#include "attention_tile.cuh"
#include "wgmma.cuh"

namespace pyperf {

// Arguments that are not known when this is compiled.
struct Attention {
    int seq_q;
    int seq_k;
    int group;  // heads of Q that share one of K and V
    Reciprocal by_group;
    int causal;
    float scale;  // of scores, for powers of 2
};

namespace {

constexpr AttentionTile spec{TILE_N, HEAD_DIM, STAGES, CONSUMERS};

static_assert(TILE_N % wgmma_k == 0 && TILE_N >= 16 && TILE_N <= 256, "keys are the k of a wgmma in steps of 16");
static_assert(HEAD_DIM % wgmma_k == 0 && HEAD_DIM >= 64 && HEAD_DIM <= 256, "head_dim is k and n: steps of 16");
static_assert(CONSUMERS >= 1 && CONSUMERS <= 3, "one to three consumers share the registers");
static_assert(STAGES >= 2, "scores of a step are computed before the values of the one before");
static_assert(spec.shared_bytes() == SHARED_BYTES, "the launch gives another amount of shared memory than this");
static_assert(SHARED_BYTES <= most_shared_bytes, "Q and the stages exceed 227 KB of shared memory");
static_assert(POLYNOMIAL >= 0 && POLYNOMIAL <= 8, "of eight powers so many are computed by a polynomial");

// How far above its reference a score may be before it becomes the reference: 2^8 times the weight 1 fits fp16.
constexpr float RISE = 8;
constexpr float LN_2 = 0.693147181f;

// A block of queries of one head, and the steps of keys that any of them sees.
struct Block {
    int head;
    int first;
    int steps;

    __device__ __forceinline__ Block(const Segment& segment, const Schedule& schedule, const Attention& attention)
        : head(segment.tile_m) {
        // The last block sees the most, so it goes first.
        first = (attention.causal ? schedule.tiles_n - 1 - segment.tile_n : segment.tile_n) * spec.queries();
        const int last = first + spec.queries() + attention.seq_k - attention.seq_q;
        steps = ((attention.causal ? min(last, attention.seq_k) : attention.seq_k) + TILE_N - 1) / TILE_N;
    }
};

// Loads all panels of the rows of a head from `row` and reports them to `full`.
__device__ __forceinline__ void load(const ptx::TensorMap& map, ptx::SharedAddress destination, ptx::SharedAddress full,
                                     const Operand& panel, int row, int head) {
    ptx::mbarrier_arrive_expect_tx(full, spec.panels() * panel.bytes());
#pragma unroll
    for (int i = 0; i < spec.panels(); ++i)
        ptx::cp_async_bulk_tensor_load(destination + i * panel.bytes(), map, i * spec.panel_columns(), row, head, full);
}

// Waits until a stage is free. A fresh barrier takes the phase before its first, of parity 1, as complete.
__device__ __forceinline__ ptx::SharedAddress free_stage(ptx::SharedAddress barrier, int parity) {
    ptx::mbarrier_try_wait_parity(barrier + 8, parity ^ 1);
    return barrier;
}

// One thread: keeps the rings full, the values of a step behind the keys of the next, which are read before.
__device__ __forceinline__ void produce(const ptx::TensorMap& map_q, const ptx::TensorMap& map_k,
                                        const ptx::TensorMap& map_v, const Schedule& schedule,
                                        const Attention& attention, ptx::SharedAddress shared) {
    RingPlace<STAGES> k, v;
    int q_parity = 0;
    Cursor cursor = schedule.begin<false>(blockIdx.x);
    Segment segment;
    for (; schedule.next<false>(cursor, segment); q_parity ^= 1) {
        const Block block(segment, schedule, attention);
        const int key_head = quotient(block.head, attention.group, attention.by_group);
        load(map_q, shared, free_stage(shared + spec.q_barrier(), q_parity), spec.q(), block.first, block.head);
        for (int step = 0; step <= block.steps; ++step) {
            if (step < block.steps) {
                load(map_k, shared + spec.k_offset(k.stage), free_stage(shared + spec.k_barrier(k.stage), k.parity),
                     spec.k(), step * TILE_N, key_head);
                k.advance();
            }
            if (step > 0) {
                load(map_v, shared + spec.v_offset(v.stage), free_stage(shared + spec.v_barrier(v.stage), v.parity),
                     spec.k(), (step - 1) * TILE_N, key_head);
                v.advance();
            }
        }
    }
}

// 2^x by a polynomial on the units of multiply-adds, whose relative error is 3e-6: the power of the whole number next to
// x is put together from bits, that of the rest is Σ cᵢ·xⁱ.
__device__ __forceinline__ float power_by_polynomial(float x) {
    constexpr float round = 12582912 + 127;  // 1.5 · 2^23: its last bits are whole numbers, here the exponent's field
    x = ptx::max_nan(x, -126);
    const float rounded = x + round, rest = x - (rounded - round);
    float power = 0.0095701f;
    power = power * rest + 0.05591786f;
    power = power * rest + 0.24024745f;
    power = power * rest + 0.69312181f;
    power = power * rest + 0.99999926f;
    return power * __uint_as_float(__float_as_uint(rounded) << 23);
}

// One warp of a consumer warpgroup: what its lanes hold of 16 rows. Lane l has rows l / 4 and l / 4 + 8, register i of
// scores and results the second of these where i / 2 is odd.
struct Consumer {
    const Attention& attention;
    const ptx::SharedAddress shared;
    const int warp;  // of all consumers'
    const int lane;
    RingPlace<STAGES> k, v;
    float scores[TILE_N / 2];
    unsigned weights[TILE_N / 4];  // of the step before, in pairs
    float results[HEAD_DIM / 2];
    float reference[2];       // of each row, in powers of 2
    float total[2] = {0, 0};  // of this lane's columns
    float shrink[2];          // by what sums are to be multiplied where a reference rose

    // The warp is uniform over its lanes, and known to be: the shuffle is what tells the compiler.
    __device__ __forceinline__ Consumer(const Attention& attention, ptx::SharedAddress shared)
        : attention(attention),
          shared(shared),
          warp(__shfl_sync(~0u, threadIdx.x / warp_threads, 0)),
          lane(threadIdx.x % warp_threads) {}

    __device__ __forceinline__ int consumer() const { return warp / warpgroup_warps; }

    // In units of 16 bytes, as descriptors count.
    __device__ __forceinline__ unsigned units(int offset) const { return ((shared & descriptor_window) + offset) / 16; }

    __device__ __forceinline__ void release(ptx::SharedAddress barrier) {
        if (lane == 0) ptx::mbarrier_arrive(barrier + 8);
    }

    // Waits for the next stage of K. No total is below 0, which the compiler does not know: so it computes all weights
    // before this wait and what is behind it, the wait for the values, which else it puts before the first of them.
    __device__ __forceinline__ void await_keys() {
        const bool is_negative = __any_sync(~0u, total[0] + total[1] < 0);
        ptx::mbarrier_try_wait_parity(shared + spec.k_barrier(k.stage), k.parity ^ is_negative);
    }

    // Issues the wgmmas of Q·Kᵀ with the next stage of K.
    __device__ __forceinline__ void multiply_keys() {
        const unsigned q = units(consumer() * spec.q().offset(wgmma_m, 0)), keys = units(spec.k_offset(k.stage));
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < HEAD_DIM / wgmma_k; ++step)
            ptx::wgmma_mma_async(scores, spec.q().descriptor(q + spec.offset(spec.q(), 0, step) / 16),
                                 spec.k().descriptor(keys + spec.offset(spec.k(), 0, step) / 16), step != 0);
        ptx::wgmma_commit_group();
    }

    // Issues the wgmmas of the weights times the next stage of V.
    __device__ __forceinline__ void multiply_values() {
        ptx::mbarrier_try_wait_parity(shared + spec.v_barrier(v.stage), v.parity);
        const unsigned values = units(spec.v_offset(v.stage));
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < TILE_N / wgmma_k; ++step)
            ptx::wgmma_mma_async(results, weights + 4 * step,
                                 spec.v().descriptor(values + spec.v().offset(0, step) / 16));
        ptx::wgmma_commit_group();
    }

    // Hides what a query does not see: the step's first key is `first_key`, the row's first query `query`.
    __device__ __forceinline__ void mask(int query, int first_key) {
        const float hidden = __uint_as_float(0xff800000);  // minus infinity
        int seen[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = query + fragment_row(lane, 2 * half);
            const int end = row + 1 + attention.seq_k - attention.seq_q;
            seen[half] = (attention.causal ? min(end, attention.seq_k) : attention.seq_k) - first_key -
                         fragment_column(lane, 0);
        }
#pragma unroll
        for (int i = 0; i < TILE_N / 2; ++i)
            if (fragment_column(0, i) >= seen[i / 2 % 2]) scores[i] = hidden;
    }

    // Makes weights of the scores, unpacked, and tells whether the reference of any of the warp's rows rose.
    template <bool is_first, bool is_masked>
    __device__ __forceinline__ bool weigh() {
        // Two chains a row, which the units take turns at.
        float highest[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
        for (int i = 4; i < TILE_N / 2; ++i) highest[i % 4] = fmaxf(highest[i % 4], scores[i]);
        float higher[2];
        bool is_risen = false;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float row = fmaxf(highest[2 * half], highest[2 * half + 1]);
            row = fmaxf(row, __shfl_xor_sync(~0u, row, 1));
            higher[half] = fmaxf(row, __shfl_xor_sync(~0u, row, 2)) * attention.scale;
            is_risen |= !is_first && higher[half] > reference[half] + RISE;
        }
        is_risen = !is_first && __any_sync(~0u, is_risen);
        if (is_first || is_risen) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (!is_first) higher[half] = fmaxf(higher[half], reference[half]);
                shrink[half] = is_first ? 0 : ptx::ex2(reference[half] - higher[half]);
                total[half] = is_first ? 0 : total[half] * shrink[half];
                reference[half] = higher[half];
            }
        }
        float sums[4] = {total[0], 0, total[1], 0};
#pragma unroll
        for (int i = 0; i < TILE_N / 2; ++i) {
            const float power = scores[i] * attention.scale - reference[i / 2 % 2];
            scores[i] = !is_masked && i % 8 < POLYNOMIAL ? power_by_polynomial(power) : ptx::ex2(power);
            sums[i % 4] += scores[i];
        }
        total[0] = sums[0] + sums[1];
        total[1] = sums[2] + sums[3];
        return is_risen;
    }

    __device__ __forceinline__ unsigned packed(float low, float high) const {
        return Type::IN_TYPE == Type::bf16 ? ptx::cvt_bf16x2(low, high) : ptx::cvt_f16x2(low, high);
    }

    __device__ __forceinline__ void pack_weights() {
#pragma unroll
        for (int i = 0; i < TILE_N / 2; i += 2) weights[i / 2] = packed(scores[i], scores[i + 1]);
    }

    // The first step, whose scores have nothing to hide behind.
    template <bool is_masked>
    __device__ __forceinline__ void begin(int query) {
        await_keys();
        multiply_keys();
        ptx::wgmma_wait_group<0>();
        ptx::wgmma_hold(scores);
        release(shared + spec.k_barrier(k.stage));
        k.advance();
        if constexpr (is_masked) mask(query, 0);
        weigh<true, is_masked>();
        pack_weights();
#pragma unroll
        for (float& result : results) result = 0;
    }

    // Another step: its scores, behind them the results of the step before, and weights while those are computed.
    template <bool is_masked>
    __device__ __forceinline__ void go_on(int query, int first_key, bool is_last) {
        if constexpr (CONSUMERS > 1) ptx::bar_sync(1 + consumer(), 2 * warpgroup_threads);
        multiply_keys();
        multiply_values();
        pass_turn();
        ptx::wgmma_wait_group<1>();
        ptx::wgmma_hold(scores);
        release(shared + spec.k_barrier(k.stage));
        k.advance();
        if constexpr (is_masked) mask(query, first_key);
        const bool is_risen = weigh<false, is_masked>();
        ptx::wgmma_hold(scores);
        if (!is_last) await_keys();
        finish_values();
        ptx::wgmma_hold(scores);
        pack_weights();
        if (is_risen) {
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; ++i) results[i] *= shrink[i / 2 % 2];
        }
    }

    // Lets the next consumer issue its products.
    __device__ __forceinline__ void pass_turn() {
        if constexpr (CONSUMERS > 1)
            ptx::bar_arrive(1 + (consumer() + 1 == CONSUMERS ? 0 : consumer() + 1), 2 * warpgroup_threads);
    }

    __device__ __forceinline__ void finish_values() {
        ptx::wgmma_wait_group<0>();
        ptx::wgmma_hold(results);
        release(shared + spec.v_barrier(v.stage));
        v.advance();
    }

    // Divides by the totals, and writes 16 rows: results by way of where the warp's rows of Q were, which all of the
    // warpgroup have read. The copy engine clips rows and columns beyond the last.
    __device__ __forceinline__ void store(const ptx::TensorMap& map_o, float* lse, int query, int head) {
        float inverse[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float sum = total[half] + __shfl_xor_sync(~0u, total[half], 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            inverse[half] = ptx::rcp(sum);
            const int row = query + fragment_row(lane, 2 * half);
            if (lane % 4 == 0 && row < attention.seq_q)
                lse[static_cast<long long>(head) * attention.seq_q + row] = (reference[half] + __log2f(sum)) * LN_2;
        }
        ptx::bar_sync(1 + CONSUMERS + consumer(), warpgroup_threads);
        const ptx::SharedAddress to = shared + spec.store_offset(warp, lane);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i += 8) {
            const auto pair = [&](int at) {
                return packed(results[at] * inverse[at / 2 % 2], results[at + 1] * inverse[at / 2 % 2]);
            };
            const int panel = i / (spec.panel_columns() / 2), chunk = i % (spec.panel_columns() / 2) / 8;
            ptx::stmatrix_x4((to ^ chunk * 32) + panel * spec.q().bytes(), pair(i), pair(i + 2), pair(i + 4),
                             pair(i + 6));
        }
        ptx::fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
#pragma unroll
            for (int panel = 0; panel < spec.panels(); ++panel)
                ptx::cp_async_bulk_tensor_store(map_o, panel * spec.panel_columns(), query, head,
                                                shared + spec.q().offset(warp * warp_m, 0) + panel * spec.q().bytes());
            ptx::cp_async_bulk_commit_group();
            ptx::cp_async_bulk_wait_group_read<0>();
        }
        release(shared + spec.q_barrier());
    }

    __device__ __forceinline__ void consume(const ptx::TensorMap& map_o, float* lse, const Schedule& schedule) {
        int q_parity = 0;
        Cursor cursor = schedule.begin<false>(blockIdx.x);
        Segment segment;
        if (CONSUMERS > 1 && consumer() == CONSUMERS - 1) pass_turn();
        for (; schedule.next<false>(cursor, segment); q_parity ^= 1) {
            const Block block(segment, schedule, attention);
            const int query = block.first + warp * warp_m, first = block.first + consumer() * wgmma_m;
            // Steps that every query of the warpgroup sees whole.
            int whole = attention.seq_k / TILE_N;
            if (attention.causal) whole = min(whole, (first + 1 + attention.seq_k - attention.seq_q) / TILE_N);
            ptx::mbarrier_try_wait_parity(shared + spec.q_barrier(), q_parity);
            if (whole > 0) begin<false>(query);
            else begin<true>(query);
            if (block.steps > 1) await_keys();
            int step = 1;
            for (; step < whole; ++step) go_on<false>(query, 0, step + 1 == block.steps);
            for (; step < block.steps; ++step) go_on<true>(query, step * TILE_N, step + 1 == block.steps);
            multiply_values();
            finish_values();
            store(map_o, lse, query, block.head);
        }
    }
};

}  // namespace
}  // namespace pyperf

// Grid: units of the schedule.
extern "C" __global__ void __launch_bounds__(pyperf::spec.threads(), 1)
    pyperf_attention(const __grid_constant__ pyperf::ptx::TensorMap map_q,
                     const __grid_constant__ pyperf::ptx::TensorMap map_k,
                     const __grid_constant__ pyperf::ptx::TensorMap map_v,
                     const __grid_constant__ pyperf::ptx::TensorMap map_o,
                     const __grid_constant__ pyperf::Schedule schedule,
                     const __grid_constant__ pyperf::Attention attention, float* lse) {
    using namespace pyperf;
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    const ptx::SharedAddress shared = ptx::shared_address(shared_memory);
    if (threadIdx.x == 0) {
        if (shared % 1024 != 0) __trap();  // the swizzle patterns are counted from the start
        for (int barrier = spec.k_barrier(0); barrier <= spec.q_barrier(); barrier += 16) {
            ptx::mbarrier_init(shared + barrier, 1);                         // full
            ptx::mbarrier_init(shared + barrier + 8, spec.consumer_warps());  // and free again
        }
        ptx::fence_mbarrier_init();
        for (const ptx::TensorMap* map : {&map_q, &map_k, &map_v, &map_o}) ptx::prefetch_tensormap(*map);
    }
    __syncthreads();
    if (threadIdx.x / warpgroup_threads == CONSUMERS) {
        if constexpr (CONSUMERS > 1) ptx::setmaxnreg_dec<spec.producer_registers()>();
        if (threadIdx.x == CONSUMERS * warpgroup_threads) produce(map_q, map_k, map_v, schedule, attention, shared);
    } else {
        if constexpr (CONSUMERS > 1) ptx::setmaxnreg_inc<spec.consumer_registers()>();
        Consumer(attention, shared).consume(map_o, lse, schedule);
    }
}
