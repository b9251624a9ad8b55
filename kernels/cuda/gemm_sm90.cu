// C[M,N] = A[M,K]·B[K,N] on Hopper: the copy engine (TMA) feeds a ring of stages in shared memory, warpgroups multiply
// out of it with wgmma, and results leave through shared memory and the copy engine again.
//
// One thread of the producer warpgroup issues all loads; CONSUMERS warpgroups multiply. Both walk the same Schedule, so
// nothing but the ring's barriers passes between them. In a cluster, a unit of the schedule belongs to the cluster: its
// tile is CLUSTER_M × CLUSTER_N tiles of the CTAs, which load what they share once, each a slice, to all (multicast).
//
//   A: fp16, bf16 or e4m3, [M,K] or transposed [K,M]; B: the same type, [K,N] or transposed [N,K]; e4m3 only [M,K]
//   and [N,K], because wgmma reads 8-bit types K-major only. C: fp32, fp16 or bf16 [M,N]. All row-major, any leading
//   dimension whose rows start at multiples of 16 bytes. Sums are fp32.
//   kernels/gemm_sm90.py has the options, the tensor maps and the launch.
//
// Where units share tiles (split_k, stream_k: compiled with SHARED_TILES=1), sums pass from one to the next in ascending
// k through the workspace: each warp by itself, as its rows are its own. A flag says up to which k-tile the sum in the
// workspace goes; whoever finishes the tile sets it back to 0, so flags need clearing once, not before each launch.
#include "ptx.cuh"
#include "tile.cuh"
#include "wgmma.cuh"

namespace pyperf {
namespace {

constexpr Specialisation spec{
    {TILE_M, TILE_N, TILE_K}, STAGES, CLUSTER_M, CLUSTER_N, CONSUMERS, STORE_BUFFERS, Type::IN_TYPE, Type::OUT_TYPE,
    LAYOUT_A_TRANSPOSED == 1, LAYOUT_B_TRANSPOSED == 1};

static_assert(TILE_M % wgmma_m == 0 && TILE_M <= 256, "wgmma has 64 rows, and a box at most 256");
static_assert(TILE_N % 8 == 0 && TILE_N >= 16 && TILE_N <= 256, "wgmma takes n in steps of 8; 16 to 256 are supported");
static_assert(spec.steps() == 2 || spec.steps() == 4, "a row of a K-major tile is one swizzle span, 64 or 128 bytes");
static_assert(spec.consumers >= 1 && spec.consumers <= 3, "one to three consumers share the registers");
static_assert(TILE_M % (wgmma_m * CONSUMERS) == 0, "each consumer takes whole blocks of 64 rows");
static_assert(spec.b().panel_rows() % (8 * CLUSTER_M) == 0, "slices of B end where the swizzle pattern does");
static_assert(spec.in != Type::fp32 && spec.out != Type::e4m3, "fp32 is for results, e4m3 for operands");
static_assert(spec.in != Type::e4m3 || (!spec.a_transposed && spec.b_transposed), "wgmma reads e4m3 K-major only: TN");
static_assert(spec.shared_bytes() <= most_shared_bytes, "the stages and store buffers exceed 227 KB of shared memory");
static_assert(spec.shared_bytes() == SHARED_BYTES, "the launch gives another amount of shared memory than this");
static_assert(spec.consumers == 1 || spec.consumers * spec.consumer_registers() + spec.producer_registers() <=
                                         (spec.consumers + 1) * spec.launch_registers(),
              "setmaxnreg would wait for registers that nobody gives back");
static_assert(CLUSTER_M == 1 || CLUSTER_N == 1, "a cluster is a row or a column of CTAs");
static_assert(STAGES >= 2 && STORE_BUFFERS >= 1, "loading and multiplying overlap from two stages on");

// This CTA's place in its cluster, of which one side has a single CTA.
struct ClusterPlace {
    int rank;
    __device__ __forceinline__ int m() const { return CLUSTER_M == 1 ? 0 : rank; }
    __device__ __forceinline__ int n() const { return CLUSTER_M == 1 ? rank : 0; }
};

// First row and column of C that this CTA computes of a segment.
__device__ __forceinline__ int first_row(const Segment& segment, ClusterPlace place) {
    return (segment.tile_m * CLUSTER_M + place.m()) * TILE_M;
}
__device__ __forceinline__ int first_column(const Segment& segment, ClusterPlace place) {
    return (segment.tile_n * CLUSTER_N + place.n()) * TILE_N;
}

// Loads this CTA's slice of one operand for the k elements from `k` and the rows of M or columns of N from `first`.
// `slice` is its index among the CTAs that share the operand, `ctas` has their bits.
template <Type in, int extent, bool mn_major, int shared_by>
__device__ __forceinline__ void load(const ptx::TensorMap& map, ptx::SharedAddress destination, ptx::SharedAddress full,
                                     int first, int k, int slice, unsigned short ctas) {
    constexpr Operand operand{extent, TILE_K, bytes_of(in), mn_major, shared_by};
#pragma unroll 4
    for (int panel = 0; panel < operand.panels(); ++panel) {
        const int contiguous = mn_major ? first + panel * operand.box_columns() : k;
        const int row = (mn_major ? k : first) + slice * operand.box_rows();
        const ptx::SharedAddress to = destination + panel * operand.panel_bytes() + slice * operand.box_bytes();
        if constexpr (shared_by == 1)
            ptx::cp_async_bulk_tensor_load(to, map, contiguous, row, full);
        else
            ptx::cp_async_bulk_tensor_load_multicast(to, map, contiguous, row, full, ctas);
    }
}

// One thread: keeps the ring full.
__device__ __forceinline__ void produce(const ptx::TensorMap& map_a, const ptx::TensorMap& map_b,
                                        const Schedule& schedule, Count unit, ptx::SharedAddress shared,
                                        ClusterPlace place) {
    // A's sharers are the CTAs in the same row of the cluster, B's those in the same column.
    const unsigned short a_ctas = ((1u << CLUSTER_N) - 1) << place.m() * CLUSTER_N;
    const unsigned short b_ctas = (CLUSTER_M == 1 ? 1u : 1u | 1u << CLUSTER_N) << place.n();
    RingPlace<STAGES> ring;
    Cursor cursor = schedule.begin<SHARED_TILES>(unit);
    Segment segment;
    while (schedule.next<SHARED_TILES>(cursor, segment)) {
        const int row = first_row(segment, place), column = first_column(segment, place);
        for (int k_tile = segment.k_begin; k_tile < segment.k_end; ++k_tile) {
            const ptx::SharedAddress full = shared + spec.full_offset(ring.stage);
            // A fresh barrier takes the phase before its first, of parity 1, as complete: the ring starts empty.
            ptx::mbarrier_try_wait_parity(shared + spec.empty_offset(ring.stage), ring.parity ^ 1);
            // All that arrives here, loaded by this CTA or by its sharers; zeros beyond the edges count too.
            ptx::mbarrier_arrive_expect_tx(full, spec.stage_bytes());
            load<spec.in, TILE_M, spec.a().mn_major, CLUSTER_N>(map_a, shared + spec.a_offset(ring.stage), full, row,
                                                              k_tile * TILE_K, place.n(), a_ctas);
            load<spec.in, TILE_N, spec.b().mn_major, CLUSTER_M>(map_b, shared + spec.b_offset(ring.stage), full, column,
                                                              k_tile * TILE_K, place.m(), b_ctas);
            ring.advance();
        }
    }
}

using Sums = float[spec.blocks()][spec.block_registers()];

// This warp has read the stage: tells each CTA that writes to it. Per warp, because each waits for its own quarter of a
// wgmma only.
__device__ __forceinline__ void release(ptx::SharedAddress shared, int stage, int lane) {
    if constexpr (spec.cluster() == 1) {
        if (lane == 0) ptx::mbarrier_arrive(shared + spec.empty_offset(stage));
    } else {
        if (lane < spec.cluster()) ptx::mbarrier_arrive_cluster(shared + spec.empty_offset(stage), lane);
    }
}

// One warpgroup: sums = the product of its rows over the k-tiles of the segment. One group of wgmmas is left in flight
// while the next is issued, so a stage is released one k-tile late; the last group and its stage, which is returned,
// are left to `finish`.
__device__ __forceinline__ int multiply(Sums& sums, const Segment& segment, RingPlace<STAGES>& ring,
                                        ptx::SharedAddress shared, int consumer, int lane) {
    const unsigned window = shared & descriptor_window;
    // In units of 16 bytes, as descriptors count.
    const unsigned a = (window + spec.a_offset(0) + spec.a().offset(consumer * spec.blocks() * wgmma_m, 0)) / 16;
    const unsigned b = (window + spec.b_offset(0)) / 16;
    constexpr unsigned a_stage = spec.a_offset(1) / 16, b_stage = (spec.b_offset(1) - spec.b_offset(0)) / 16;
    int previous = ring.stage;
    for (int k_tile = segment.k_begin; k_tile < segment.k_end; ++k_tile) {
        ptx::mbarrier_try_wait_parity(shared + spec.full_offset(ring.stage), ring.parity);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < spec.steps(); ++step) {
#pragma unroll
            for (int block = 0; block < spec.blocks(); ++block) {
                ptx::wgmma_mma_async(
                    sums[block],
                    spec.a().descriptor(a + ring.stage * a_stage + spec.a().offset(block * wgmma_m, step) / 16),
                    spec.b().descriptor(b + ring.stage * b_stage + spec.b().offset(0, step) / 16),
                    k_tile != segment.k_begin || step != 0);
            }
        }
        ptx::wgmma_commit_group();
        ptx::wgmma_wait_group<1>();
        if (k_tile != segment.k_begin) release(shared, previous, lane);
        previous = ring.stage;
        ring.advance();
    }
    return previous;
}

// Waits for the sums, and releases the last stage.
__device__ __forceinline__ void finish(Sums& sums, ptx::SharedAddress shared, int stage, int lane) {
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int block = 0; block < spec.blocks(); ++block) ptx::wgmma_hold(sums[block]);
    release(shared, stage, lane);
}

// Adds the sum of the k-tiles before the segment, as soon as it is there.
__device__ __forceinline__ void add_partial(Sums& sums, const float* partial, const int* flag, int k_begin, int lane) {
    if (lane == 0)
        while (ptx::ld_acquire(flag) != k_begin) __nanosleep(20);
    __syncwarp();
#pragma unroll
    for (int block = 0; block < spec.blocks(); ++block) {
#pragma unroll
        for (int i = 0; i < spec.block_registers(); i += 4) {
            const float4 before = __ldcg(reinterpret_cast<const float4*>(partial + spec.partial_step(block, i)));
            sums[block][i] += before.x;
            sums[block][i + 1] += before.y;
            sums[block][i + 2] += before.z;
            sums[block][i + 3] += before.w;
        }
    }
}

// Leaves the sum for the unit that has the next k-tiles.
__device__ __forceinline__ void pass_on(const Sums& sums, float* partial, int* flag, int k_end, int lane) {
#pragma unroll
    for (int block = 0; block < spec.blocks(); ++block) {
#pragma unroll
        for (int i = 0; i < spec.block_registers(); i += 4) {
            __stcg(reinterpret_cast<float4*>(partial + spec.partial_step(block, i)),
                   make_float4(sums[block][i], sums[block][i + 1], sums[block][i + 2], sums[block][i + 3]));
        }
    }
    __syncwarp();  // orders the other lanes' writes before the release
    if (lane == 0) ptx::st_release(flag, k_end);
}

// Writes 16 rows × store_columns of the sums, registers from `first`, to a store buffer, swizzled. `to` is where the
// lane's first elements go; swizzling is linear under xor, so columns further on are at the address xored with their
// distance, and 8 rows make a whole pattern.
__device__ __forceinline__ void write_buffer(const float (&sums)[spec.block_registers()], int first,
                                             ptx::SharedAddress to, int buffer_offset) {
    constexpr int span = spec.store_span();
    if constexpr (spec.out == Type::fp32) {
#pragma unroll
        for (int i = 0; i < span / 8; i += 2)
            ptx::st_shared_v2((to ^ i / 4 * 32) + i / 2 % 2 * 8 * span + buffer_offset, sums[first + i],
                              sums[first + i + 1]);
    } else {
        const auto packed = [&](int i) {
            if constexpr (spec.out == Type::bf16) return ptx::cvt_bf16x2(sums[first + i], sums[first + i + 1]);
            else return ptx::cvt_f16x2(sums[first + i], sums[first + i + 1]);
        };
        if constexpr (span == 16) {
            ptx::stmatrix_x2(to + buffer_offset, packed(0), packed(2));
        } else {
#pragma unroll
            for (int i = 0; i < span / 4; i += 8)
                ptx::stmatrix_x4((to ^ i / 8 * 32) + buffer_offset, packed(i), packed(i + 2), packed(i + 4),
                                 packed(i + 6));
        }
    }
}

// Rounds the sums and stores them to C, the rows and columns from (row, column), box by box from `count`; what is
// beyond the edges is clipped by the copy engine. Each warp stores its own rows, so that no warp waits for another.
// Recursion, because the compiler leaves a loop over many boxes rolled, and then the sums go to local memory.
template <int count = 0>
__device__ __forceinline__ void store(const Sums& sums, const ptx::TensorMap& map_c, ptx::SharedAddress buffers,
                                      int row, int column, int warp, int lane) {
    constexpr int columns = spec.store_columns(), boxes = TILE_N / columns;
    constexpr int block = count / boxes, box = count % boxes;
    constexpr int buffer_offset = count % STORE_BUFFERS * spec.store_bytes();
    // The copy engine must have read what the buffer held before; the last tile's stores are long done.
    if (lane == 0) {
        if constexpr (count == 0) ptx::cp_async_bulk_wait_group_read<0>();
        if constexpr (count >= STORE_BUFFERS) ptx::cp_async_bulk_wait_group_read<STORE_BUFFERS - 1>();
    }
    __syncwarp();
    write_buffer(sums[block], box * columns / 2, buffers + spec.store_lane_offset(lane), buffer_offset);
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
        ptx::cp_async_bulk_tensor_store(map_c, column + box * columns, row + warp_row(warp, block, spec.blocks()),
                                        buffers + buffer_offset);
        ptx::cp_async_bulk_commit_group();
    }
    if constexpr (count + 1 < spec.blocks() * boxes) store<count + 1>(sums, map_c, buffers, row, column, warp, lane);
}

// One warp of a consumer warpgroup.
__device__ __forceinline__ void consume(const ptx::TensorMap& map_c, const Schedule& schedule, Count unit,
                                        ptx::SharedAddress shared, ClusterPlace place, float* workspace, int* flags) {
    // Uniform over the warp, and known to be: the shuffle is what tells the compiler.
    const int warp = __shfl_sync(~0u, threadIdx.x / warp_threads, 0), lane = threadIdx.x % warp_threads;
    const ptx::SharedAddress buffers = shared + spec.store_offset(0) + warp * STORE_BUFFERS * spec.store_bytes();
    RingPlace<STAGES> ring;
    Cursor cursor = schedule.begin<SHARED_TILES>(unit);
    Segment segment, following;
    Sums sums;
    for (bool more = schedule.next<SHARED_TILES>(cursor, segment); more; segment = following) {
        const int last = multiply(sums, segment, ring, shared, warp / warpgroup_warps, lane);
        // How the schedule finds the next segment hides behind the last wgmmas of this one. Where tiles are shared,
        // registers to keep it in are missing.
        if constexpr (!SHARED_TILES) more = schedule.next<SHARED_TILES>(cursor, following);
        finish(sums, shared, last, lane);
        const bool owner = segment.k_end == schedule.k_tiles;
        if (SHARED_TILES && (segment.k_begin != 0 || !owner)) {
            const long long slot = segment.tile - (schedule.tiles() - schedule.shared_tiles());
            float* const partial =
                workspace + slot * spec.partial_floats() + spec.partial_offset(place.rank, warp, lane);
            int* const flag = flags + (slot * spec.cluster() + place.rank) * spec.consumer_warps() + warp;
            if (segment.k_begin != 0) add_partial(sums, partial, flag, segment.k_begin, lane);
            // The owner is the last to touch the flag, so it may say already that the next launch finds nothing.
            if (!owner) pass_on(sums, partial, flag, segment.k_end, lane);
            else if (lane == 0) *flag = 0;
        }
        if (!SHARED_TILES || owner)
            store(sums, map_c, buffers, first_row(segment, place), first_column(segment, place), warp, lane);
        if constexpr (SHARED_TILES) more = schedule.next<SHARED_TILES>(cursor, following);
    }
    if (lane == 0) ptx::cp_async_bulk_wait_group_read<0>();  // shared memory outlives its readers
}

}  // namespace
}  // namespace pyperf

// Grid: units of the schedule × CTAs of the cluster, one unit to each cluster. Flags must be 0 at the first launch.
extern "C" __global__ void __launch_bounds__(pyperf::spec.threads(), 1)
    pyperf_gemm(const __grid_constant__ pyperf::ptx::TensorMap map_a,
                const __grid_constant__ pyperf::ptx::TensorMap map_b,
                const __grid_constant__ pyperf::ptx::TensorMap map_c,
                const __grid_constant__ pyperf::Schedule schedule, float* workspace, int* flags) {
    using namespace pyperf;
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    const ptx::SharedAddress shared = ptx::shared_address(shared_memory);
    const ClusterPlace place{spec.cluster() == 1 ? 0 : ptx::cluster_ctarank()};

    if (threadIdx.x == 0) {
        if (shared % 1024 != 0) __trap();  // the swizzle patterns are counted from the start
        for (int stage = 0; stage < STAGES; ++stage) {
            ptx::mbarrier_init(shared + spec.full_offset(stage), 1);
            ptx::mbarrier_init(shared + spec.empty_offset(stage), spec.consumer_warps() * spec.cluster());
        }
        ptx::fence_mbarrier_init();
    }
    // In a cluster nobody may write to a CTA or arrive at its barriers before they are there, nor after it has left.
    // The barriers are all that the others must see, and their fence is above.
    if constexpr (spec.cluster() != 1) ptx::barrier_cluster_arrive_relaxed();
    if (threadIdx.x == 0) {
        ptx::prefetch_tensormap(map_a);
        ptx::prefetch_tensormap(map_b);
        ptx::prefetch_tensormap(map_c);
    }
    if constexpr (spec.cluster() == 1) __syncthreads();
    else ptx::barrier_cluster_wait();

    const Count unit = blockIdx.x / spec.cluster();
    if (threadIdx.x / warpgroup_threads == CONSUMERS) {
        if constexpr (CONSUMERS > 1) ptx::setmaxnreg_dec<spec.producer_registers()>();
        if (threadIdx.x == CONSUMERS * warpgroup_threads) produce(map_a, map_b, schedule, unit, shared, place);
        __syncwarp();
    } else {
        if constexpr (CONSUMERS > 1) ptx::setmaxnreg_inc<spec.consumer_registers()>();
        consume(map_c, schedule, unit, shared, place, workspace, flags);
    }
    if constexpr (spec.cluster() != 1) {
        ptx::barrier_cluster_arrive();
        ptx::barrier_cluster_wait();
    }
}
