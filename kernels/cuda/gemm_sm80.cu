// C[M,N] = A[M,K] · B[K,N] with cp.async, ldmatrix and mma.sync: compute capability 8.0 and everything later.
//
// C is row-major. A is stored [M,K] or, transposed, [K,M]; B is stored [K,N] or, transposed, [N,K]; a leading dimension
// counts elements from one stored row to the next and may be any that is at least a row. Sums are fp32. One CTA is one
// unit of the schedule (schedule.cuh); edge tiles are filled up with zeros and cost what whole tiles cost, along K too.
// kernels/gemm_sm80.py chooses the macros below and the launch that belongs to them.
#include "operand_sm80.cuh"
#include "ptx_sm80.cuh"
#include "schedule.cuh"

namespace pyperf {

struct Specialisation {
    Tile tile;
    int stages;   // k-tiles in shared memory: one is read, the others are on their way
    int warps_m;  // warps along M and N of the tile
    int warps_n;
    Element in;
    Element out;
    bool a_transposed;
    bool b_transposed;
    int access_a;  // bytes of one access to global memory: what pointer and leading dimension allow
    int access_b;
    int access_c;

    constexpr int threads() const { return 32 * warps_m * warps_n; }
    constexpr int warp_m() const { return tile.m / warps_m; }
    constexpr int warp_n() const { return tile.n / warps_n; }
    constexpr int out_bytes() const { return out == Element::fp32 ? 4 : 2; }
};

constexpr Specialisation spec{
    .tile = {TILE_M, TILE_N, TILE_K},
    .stages = STAGES,
    .warps_m = WARPS_M,
    .warps_n = WARPS_N,
    .in = Element::IN_TYPE,
    .out = Element::OUT_TYPE,
    .a_transposed = LAYOUT_A_TRANSPOSED,
    .b_transposed = LAYOUT_B_TRANSPOSED,
    .access_a = ACCESS_A,
    .access_b = ACCESS_B,
    .access_c = ACCESS_C,
};

constexpr OperandTile a_tile{.lanes = spec.tile.m,
                             .depth = spec.tile.k,
                             .depth_contiguous = !spec.a_transposed,
                             .access_bytes = spec.access_a,
                             .threads = spec.threads()};
constexpr OperandTile b_tile{.lanes = spec.tile.n,
                             .depth = spec.tile.k,
                             .depth_contiguous = spec.b_transposed,
                             .access_bytes = spec.access_b,
                             .threads = spec.threads()};

constexpr bool is_power_of_two(int value) { return value > 0 && (value & (value - 1)) == 0; }

static_assert(spec.warps_m >= 1 && spec.warps_n >= 1 && spec.threads() <= 1024, "a CTA has 1 to 32 warps");
static_assert(spec.tile.m % (spec.warps_m * 16) == 0, "each warp computes a multiple of 16 rows: mma's m");
static_assert(spec.tile.n % (spec.warps_n * 16) == 0, "each warp computes a multiple of 16 columns: two of mma's n");
static_assert(spec.tile.k >= 32 && is_power_of_two(spec.tile.k), "k is a power of two from 32: two steps or more");
static_assert(spec.stages >= 2, "one stage is read while another is filled");
static_assert(spec.in != Element::fp32, "mma.sync m16n8k16 takes bf16 or fp16");
static_assert(is_power_of_two(spec.access_a) && spec.access_a >= 2 && spec.access_a <= 16, "access of 2 to 16 bytes");
static_assert(is_power_of_two(spec.access_b) && spec.access_b >= 2 && spec.access_b <= 16, "access of 2 to 16 bytes");
static_assert(is_power_of_two(spec.access_c) && spec.access_c >= spec.out_bytes() && spec.access_c <= 16,
              "access to C of one element to 16 bytes");

constexpr int k_steps = spec.tile.k / fragment_extent;
constexpr int stage_bytes = a_tile.bytes() + b_tile.bytes();

// On its way to C each warp turns 16 rows of its tile at a time in shared memory, so that whole lines are written. The
// eight elements between rows keep the stores of a warp in different banks.
constexpr int patch_rows = 16;
constexpr int patch_ld = spec.warp_n() + 8;
constexpr int patch_bytes = patch_rows * patch_ld * spec.out_bytes();

constexpr int pipeline_bytes = spec.stages * stage_bytes;
constexpr int patches_bytes = patch_bytes * spec.warps_m * spec.warps_n;
static_assert(pipeline_bytes == PIPELINE_BYTES && patches_bytes == PATCHES_BYTES, "the host counted otherwise");

using AFragments = FragmentReader<a_tile, spec.warp_m(), Order::lanes_first>;
using BFragments = FragmentReader<b_tile, spec.warp_n(), Order::depth_first>;

// A thread's share of a warp's sums: mma's four for each 16 × 8 of them.
constexpr int sums_m = spec.warp_m() / 16;
constexpr int sums_n = spec.warp_n() / 8;
struct Sums {
    float at[sums_m][sums_n][4];
};

struct Problem {
    const void* a;
    const void* b;
    void* c;
    long long lda;
    long long ldb;
    long long ldc;
    int m;
    int n;
    int k;
};

// One thread follows the schedule for all: while they multiply, its state would cost each of them 20 registers.
struct Work {
    Cursor cursor;
    Segment segment;
    long long slot;  // of the segment's tile among those that segments share; read only where they do
    bool found;
};
constexpr int work_bytes = 128;
static_assert(sizeof(Work) <= work_bytes, "the pipeline begins behind it, aligned to a line of the banks");

PYPERF_DEVICE int warp_row(int thread) { return thread / 32 / spec.warps_n * spec.warp_m(); }

PYPERF_DEVICE int warp_column(int thread) { return thread / 32 % spec.warps_n * spec.warp_n(); }

// The k-tiles of one segment. Copies run stages − 1 k-tiles ahead, fragments one step of 16 ahead.
PYPERF_DEVICE void multiply(const Problem& problem, const Segment& segment, unsigned pipeline, Sums& sums) {
    const int k = segment.k_begin * spec.tile.k;
    const int thread = ptx::mov_tid_x();
    TileCopy<a_tile> a_copy(problem.a, problem.lda, problem.m, segment.tile_m * spec.tile.m, k, thread);
    TileCopy<b_tile> b_copy(problem.b, problem.ldb, problem.n, segment.tile_n * spec.tile.n, k, thread);
    const AFragments a_reader(warp_row(thread), thread);
    const BFragments b_reader(warp_column(thread), thread);
    const int k_end = segment.k_end;
    const auto copy = [&](int k_tile, int stage) {
        if (k_tile < k_end) {
            const unsigned address = pipeline + stage * stage_bytes;
            const int depth_left = problem.k - k_tile * spec.tile.k;
            a_copy.copy_to(address, depth_left);
            b_copy.copy_to(address + a_tile.bytes(), depth_left);
        }
        // A group for each k-tile, for those behind the last one too: the wait below counts groups.
        ptx::cp_async_commit_group();
    };

#pragma unroll 1
    for (int stage = 0; stage < spec.stages - 1; ++stage) copy(segment.k_begin + stage, stage);
    ptx::cp_async_wait_group<spec.stages - 2>();
    __syncthreads();

    unsigned a[2][AFragments::count][4], b[2][BFragments::count][4];
    int reading = 0, filling = spec.stages - 1;
    const auto load = [&](int buffer, int k_step) {
        a_reader.load(a[buffer], pipeline + reading * stage_bytes, k_step);
        b_reader.load(b[buffer], pipeline + reading * stage_bytes + a_tile.bytes(), k_step);
    };
    load(0, 0);
    for (int k_tile = segment.k_begin; k_tile < k_end; ++k_tile) {
#pragma unroll
        for (int step = 0; step < k_steps; ++step) {
            // A stage is refilled after the barrier behind which nobody reads it: that of the k-tile before.
            if (step == 0) {
                copy(k_tile + spec.stages - 1, filling);
                filling = reading;
            }
            if (step == k_steps - 1) {
                ptx::cp_async_wait_group<spec.stages - 2>();
                __syncthreads();
                reading = reading + 1 == spec.stages ? 0 : reading + 1;
            }
            // Behind the last k-tile this reads a stage that nobody fills, and nothing is made of it.
            load((step + 1) % 2, (step + 1) % k_steps);
#pragma unroll
            for (int i = 0; i < sums_m; ++i)
#pragma unroll
                for (int j = 0; j < sums_n; ++j) {
                    const auto& columns = b[step % 2][j / 2];
                    ptx::mma_m16n8k16<spec.in>(sums.at[i][j], a[step % 2][i], columns[j % 2 * 2],
                                               columns[j % 2 * 2 + 1]);
                }
        }
    }
}

// Segments that share a tile are summed in ascending k, whichever is ready first: results do not depend on
// timing. A tile's flag holds up to which k-tile its partial sums in the workspace reach. It is zero before a launch and
// is left zero. Whoever is waited for has a lower CTA index (schedule.cuh), so it has started, and there is no deadlock.
class SharedTile {
    static constexpr int sums_per_tile = spec.tile.m * spec.tile.n;
    float* workspace_;
    int* flags_;
    const long long& slot_;  // in shared memory, so that it costs registers only where it is read

public:
    PYPERF_DEVICE SharedTile(float* workspace, int* flags, const long long& slot)
        : workspace_(workspace), flags_(flags), slot_(slot) {}

    PYPERF_DEVICE void add_sums_before(int k_begin, Sums& sums) const {
        if (ptx::mov_tid_x() == 0)
            while (ptx::ld_acquire_gpu(flags_ + slot_) != k_begin) __nanosleep(64);
        __syncthreads();
        const float* partial = first();
#pragma unroll
        for (int i = 0; i < sums_m; ++i)
#pragma unroll
            for (int j = 0; j < sums_n; ++j) {
                float before[4];
                ptx::ld_global_cg_v4(before, partial + place(i, j));
#pragma unroll
                for (int element = 0; element < 4; ++element)
                    sums.at[i][j][element] = before[element] + sums.at[i][j][element];
            }
    }

    PYPERF_DEVICE void leave_sums(int k_end, const Sums& sums) const {
        float* partial = first();
#pragma unroll
        for (int i = 0; i < sums_m; ++i)
#pragma unroll
            for (int j = 0; j < sums_n; ++j) ptx::st_global_cg_v4(partial + place(i, j), sums.at[i][j]);
        __syncthreads();  // orders all threads' stores before the release by one of them
        if (ptx::mov_tid_x() == 0) ptx::st_release_gpu(flags_ + slot_, k_end);
    }

    PYPERF_DEVICE void reset() const {
        if (ptx::mov_tid_x() == 0) ptx::st_release_gpu(flags_ + slot_, 0);
    }

private:
    // Sums lie in the order of registers and threads, so that every access of a warp is of whole lines.
    PYPERF_DEVICE float* first() const { return workspace_ + slot_ * sums_per_tile + ptx::mov_tid_x() * 4; }

    PYPERF_DEVICE static constexpr int place(int i, int j) { return (i * sums_n + j) * spec.threads() * 4; }
};

template <int bytes>
struct AccessOf;
template <>
struct AccessOf<16> {
    using Type = uint4;
};
template <>
struct AccessOf<8> {
    using Type = uint2;
};
template <>
struct AccessOf<4> {
    using Type = unsigned;
};
template <>
struct AccessOf<2> {
    using Type = unsigned short;
};

// Rounds two neighbours of a row and puts them into the patch.
PYPERF_DEVICE void put_pair(char* row, int column, float low, float high) {
    char* place = row + column * spec.out_bytes();
    if constexpr (spec.out == Element::fp32)
        *reinterpret_cast<float2*>(place) = float2{low, high};
    else
        *reinterpret_cast<unsigned*>(place) = ptx::cvt_rn_x2<spec.out>(low, high);
}

PYPERF_DEVICE void store(const Problem& problem, const Segment& segment, char* patches, const Sums& sums) {
    using Access = typename AccessOf<spec.access_c>::Type;
    using Single = typename AccessOf<spec.out_bytes()>::Type;
    constexpr int piece_elements = spec.access_c / spec.out_bytes();
    constexpr int pieces_per_row = spec.warp_n() / piece_elements;
    const int thread = ptx::mov_tid_x(), lane = thread % 32;
    const int first_row = segment.tile_m * spec.tile.m + warp_row(thread);
    const int first_column = segment.tile_n * spec.tile.n + warp_column(thread);
    const int columns_left = problem.n - first_column;
    char* patch = patches + thread / 32 * patch_bytes;

    __syncthreads();  // the patches lie where the pipeline was
#pragma unroll
    for (int i = 0; i < sums_m; ++i) {
#pragma unroll
        for (int j = 0; j < sums_n; ++j) {
            char* row = patch + lane / 4 * patch_ld * spec.out_bytes();
            const int column = j * 8 + lane % 4 * 2;
            put_pair(row, column, sums.at[i][j][0], sums.at[i][j][1]);
            put_pair(row + 8 * patch_ld * spec.out_bytes(), column, sums.at[i][j][2], sums.at[i][j][3]);
        }
        __syncwarp();
        const int rows_left = problem.m - (first_row + i * patch_rows);
        for (int piece = lane; piece < patch_rows * pieces_per_row; piece += 32) {
            const int row = piece / pieces_per_row, column = piece % pieces_per_row * piece_elements;
            if (row >= rows_left || column >= columns_left) continue;
            const char* from = patch + (row * patch_ld + column) * spec.out_bytes();
            char* to = static_cast<char*>(problem.c) +
                       ((first_row + i * patch_rows + row) * problem.ldc + first_column + column) * spec.out_bytes();
            if (column + piece_elements <= columns_left) {
                *reinterpret_cast<Access*>(to) = *reinterpret_cast<const Access*>(from);
            } else {
#pragma unroll 1
                for (int element = 0; element < columns_left - column; ++element)
                    reinterpret_cast<Single*>(to)[element] = reinterpret_cast<const Single*>(from)[element];
            }
        }
        __syncwarp();
    }
}

}  // namespace pyperf

// grid: schedule.units() CTAs in x. workspace: tile.m · tile.n floats and flags: one int, both for each of
// schedule.shared_tiles(); flags are zero before the first launch.
extern "C" __global__ void __launch_bounds__(pyperf::spec.threads(), RESIDENT_BLOCKS)
    pyperf_gemm(const void* a, const void* b, void* c, long long lda, long long ldb, long long ldc, int m, int n, int k,
                pyperf::Schedule schedule, float* workspace, int* flags) {
    using namespace pyperf;
    extern __shared__ __align__(128) char shared_memory[];
    auto& work = *reinterpret_cast<Work*>(shared_memory);
    char* pipeline = shared_memory + work_bytes;
    const Problem problem{a, b, c, lda, ldb, ldc, m, n, k};
    if (ptx::mov_tid_x() == 0) work.cursor = schedule.begin(blockIdx.x);
    while (true) {
        if (ptx::mov_tid_x() == 0) {
            work.found = schedule.next(work.cursor, work.segment);
            work.slot = work.segment.tile - (schedule.tiles() - schedule.shared_tiles());
        }
        __syncthreads();
        if (!work.found) return;
        const Segment& segment = work.segment;
        Sums sums{};
        multiply(problem, segment, ptx::shared_address(pipeline), sums);
        const SharedTile shared_tile(workspace, flags, work.slot);
        if (segment.k_begin > 0) shared_tile.add_sums_before(segment.k_begin, sums);
        if (segment.owner) {
            if (segment.k_begin > 0) shared_tile.reset();
            store(problem, segment, pipeline, sums);
        } else {
            shared_tile.leave_sums(segment.k_end, sums);
        }
        __syncthreads();  // before the next segment takes the place of this one and its operands that of the patches
    }
}
