// Stands in for kernels/cuda/ptx.cuh and wgmma.cuh when a Hopper kernel is compiled by the host's compiler and run without
// a GPU: emulated_grid_sm90.h runs its threads as fibers.
//
// Each instruction does what the PTX ISA says, written from its tables and not from the kernel. Beyond that it refuses
// what a GPU would fault on or silently get wrong: too many arrivals at a barrier, results stored that no fence made
// visible, shared memory used after its block left, lanes of a warp at different instructions. The copy engine's copies
// arrive in any order, and a warp's quarter of a wgmma reads its operands as late as it may.
#pragma once

#include "emulated_kernel.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#define PYPERF_EMULATED_GPU  // the schedule is that of a GPU
#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads, blocks)
#define threadIdx (emulation::thread_index())
#define blockIdx (emulation::block_index())
#define __syncthreads() emulation::wait_for_block()
#define __syncwarp() emulation::wait_for_warp(emulation::Meeting::syncwarp)
#define __nanosleep(nanoseconds) emulation::yield()
#define __trap() emulation::fault("trapped")

struct alignas(16) float4 {
    float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace pyperf::ptx {

// Descriptor that the kernel's author asks cuTensorMapEncodeTiled for.
struct alignas(128) TensorMap : EmulatedTensorMap {};

using SharedAddress = unsigned;

}  // namespace pyperf::ptx

namespace emulation {

using pyperf::ptx::SharedAddress;
using pyperf::ptx::TensorMap;

// Begin of dynamic shared memory on sm_90, and the bit from which an address has its block's rank in the cluster.
constexpr unsigned shared_begin = 1024, rank_bit = 24;
constexpr unsigned shared_capacity = 256 << 10;

struct Index {
    int x;
};
enum class Meeting { none, syncwarp, shuffle, vote, stmatrix, fence, multiply, commit, wait, setmaxnreg };

struct Barrier {
    int count = 0, pending = 0, phase = 0;
    long long bytes = 0;
};

// One of a block's sixteen named barriers.
struct NamedBarrier {
    int threads = 0, arrived = 0, phases = 0;
};

// A warp's quarter of a wgmma: 16 rows. A is in registers where `words` are those of each lane.
struct Quarter {
    unsigned long long a, b;
    bool accumulate;
    int columns;
    float* sums[32];
    const unsigned* words[32];
};

struct Warp {
    std::vector<std::vector<Quarter>> groups;  // committed, oldest first
    std::vector<Quarter> open;
    bool fenced = false;
};

struct Lane {
    unsigned words[8];           // what it brings to an instruction of its warp
    float* sums;
    const unsigned* operand;
    unsigned long long a, b;
    std::vector<int> groups;     // stores not yet read, of each committed group
    int open_stores = 0;
    std::vector<unsigned> unfenced;  // bytes of shared memory written and not made visible to the copy engine
};

struct Block {
    std::vector<unsigned char> memory;
    std::vector<char> unfenced;  // for each byte, whether the copy engine could miss it
    std::map<unsigned, Barrier> barriers;
    std::map<int, NamedBarrier> named;
    std::vector<Warp> warps;
    bool initialised = false;  // its barriers are, for all the cluster to see
    int running = 0;
    int rank = 0;
    long long index = 0;
};

Index thread_index();
Index block_index();
Block& this_block();
Block& block_of_cluster(int rank);
Warp& this_warp();
Lane& lane_of_warp(int lane);
Lane& this_lane();
void yield();
void progress();
void wait_for_block();
void arrive_at_cluster();
void wait_for_cluster();
// Returns when all lanes of the warp have come to it; the last of them acts.
void wait_for_warp(Meeting meeting, const std::function<void()>& act = [] {});
void multiplied(int columns);  // by a lane's part of a wgmma, which takes its time
void queue_load(std::function<void()> copy);
void queue_store(std::function<void()> copy);
void require_global(const void* address, std::size_t bytes);
bool late();  // whether a wgmma that may still be under way is
[[noreturn]] void fault(const char* what);

// The address that has the same place in another block of the cluster (mapa).
inline SharedAddress mapped(SharedAddress address, int rank) {
    return (address & ((1u << rank_bit) - 1)) | static_cast<unsigned>(rank) << rank_bit;
}

// First byte, in the block's shared memory, of the `bytes` at an address.
inline unsigned place_of(const Block& block, SharedAddress address, unsigned bytes) {
    const SharedAddress begin = mapped(shared_begin, block.rank);
    if (block.running == 0) fault("uses shared memory of a block that has left");
    if (address < begin || address + bytes > begin + block.memory.size())
        fault("uses shared memory outside of its allocation");
    if (address % bytes != 0 && bytes <= 16) fault("uses shared memory misaligned");
    return address - begin;
}

inline unsigned char* shared(Block& block, SharedAddress address, unsigned bytes) {
    return block.memory.data() + place_of(block, address, bytes);
}

// "Tensor swizzling": within 1024, 512 or 256 bytes, 16-byte columns are xored with the number of the 128-byte line.
inline unsigned swizzle(unsigned address, int span) { return address ^ ((address >> 7 & (span / 16 - 1)) << 4); }

inline Barrier& barrier_at(Block& block, SharedAddress address) {
    shared(block, address, 8);
    const auto found = block.barriers.find(address);
    if (found == block.barriers.end()) fault("uses a barrier that nobody initialised");
    return found->second;
}

inline void finish_phase(Barrier& barrier) {
    if (barrier.pending != 0 || barrier.bytes != 0) return;
    barrier.pending = barrier.count;
    barrier.phase ^= 1;
    progress();
}

inline void arrive(Barrier& barrier) {
    if (--barrier.pending < 0) fault("arrives at a barrier that expects nobody more");
    finish_phase(barrier);
}

inline void write_shared(SharedAddress address, const void* value, unsigned bytes) {
    const unsigned first = place_of(this_block(), address, bytes);
    std::memcpy(this_block().memory.data() + first, value, bytes);
    for (unsigned byte = first; byte < first + bytes; ++byte) {
        this_block().unfenced[byte] = 1;
        this_lane().unfenced.push_back(byte);
    }
}

// Begin of the matrix of a place; a place of two coordinates is in the only one.
constexpr int only = -1;
inline char* matrix_of(const TensorMap& map, int matrix) {
    if (map.magic != EMULATED_MAP) fault("is given no tensor map where it copies by one");
    if ((map.matrices == 0) != (matrix == only)) fault("copies by a tensor map of another number of dimensions");
    if (matrix != only && matrix >= map.matrices) fault("copies a box of a matrix that is not there");
    return map.base + std::max(matrix, 0) * map.matrix_bytes;
}

inline void load_box(const TensorMap& map, int column, int row, int matrix, SharedAddress destination,
                     SharedAddress barrier, const std::vector<Block*>& blocks) {
    const int row_bytes = map.box_columns * map.element_bytes, span = map.swizzle_bytes;
    const char* const base = matrix_of(map, matrix);
    if (destination % 128 != 0) fault("copies to an address that is not a multiple of 128");
    if (span && row_bytes != span) fault("copies rows that are not one swizzle span");
    queue_load([=] {
        for (Block* block : blocks) {
            for (int y = 0; y < map.box_rows; ++y) {
                for (int x = 0; x < row_bytes; ++x) {
                    const long long from_row = row + static_cast<long long>(y);
                    const long long from_column = column + static_cast<long long>(x / map.element_bytes);
                    const bool inside =
                        from_row >= 0 && from_row < map.rows && from_column >= 0 && from_column < map.columns;
                    const char* from = base + from_row * map.stride_bytes + from_column * map.element_bytes +
                                       x % map.element_bytes;
                    const unsigned to = destination + y * row_bytes + x;
                    const SharedAddress there = mapped(span ? swizzle(to, span) : to, block->rank);
                    *shared(*block, there, 1) = inside ? *from : 0;
                }
            }
            Barrier& full = barrier_at(*block, mapped(barrier, block->rank));
            full.bytes -= row_bytes * map.box_rows;
            finish_phase(full);
        }
    });
}

template <class Type>
Type at(const unsigned char* from) {
    Type value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline float widen_minifloat(unsigned bits, int exponent_bits, int fraction_bits, int bias) {
    const unsigned fraction = bits & ((1u << fraction_bits) - 1);
    const int exponent = bits >> fraction_bits & ((1u << exponent_bits) - 1);
    if (exponent == 31) return fraction ? NAN : bits >> 15 ? -INFINITY : INFINITY;  // of fp16
    const float magnitude = exponent == 0
                                ? std::ldexp(static_cast<float>(fraction), 1 - bias - fraction_bits)
                                : std::ldexp(static_cast<float>(fraction + (1u << fraction_bits)),
                                             exponent - bias - fraction_bits);
    return bits >> (exponent_bits + fraction_bits) & 1 ? -magnitude : magnitude;
}

enum class Kind { bf16, fp16, e4m3 };

inline float widen(const unsigned char* from, Kind kind) {
    if (kind == Kind::e4m3) return widen_minifloat(*from, 4, 3, 7);
    if (kind == Kind::fp16) {
        static const std::vector<float> values = [] {
            std::vector<float> all(1 << 16);
            for (unsigned bits = 0; bits < all.size(); ++bits) all[bits] = widen_minifloat(bits, 5, 10, 15);
            return all;
        }();
        return values[at<std::uint16_t>(from)];
    }
    const unsigned word = unsigned{at<std::uint16_t>(from)} << 16;
    return at<float>(reinterpret_cast<const unsigned char*>(&word));
}

// Element (mn, k) of an operand, by "Canonical layouts" and "Matrix descriptor format".
inline float element(unsigned long long descriptor, int mn, int k, bool mn_major, Kind kind) {
    const int bytes = kind == Kind::e4m3 ? 1 : 2, t = 16 / bytes;
    const unsigned start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
    const unsigned stride = (descriptor >> 32 & 0x3fff) << 4, mode = descriptor >> 62;
    if (descriptor >> 46 & 0xffff) fault("gives a descriptor with a base offset or a reserved bit");
    const int w = mode == 0 ? 1 : 16 >> mode;  // 16-byte units of a span
    unsigned offset;
    if (mn_major) {
        const unsigned panels = mn / (t * w) * (mode == 0 ? stride : leading);
        const unsigned groups = k / 8 * (mode == 0 ? leading : stride);
        offset = mn % t * bytes + mn / t % w * 16 + panels + k % 8 * w * 16 + groups;
    } else {
        const unsigned column = mode == 0 ? k / t * leading + k % t * bytes : k * bytes;
        offset = mn % 8 * w * 16 + mn / 8 * stride + column;
    }
    const SharedAddress address = mapped(swizzle(start + offset, w * 16), this_block().rank);
    return widen(shared(this_block(), address, bytes), kind);
}

constexpr Kind kind = Kind::IN_TYPE;
constexpr int depth = kind == Kind::e4m3 ? 32 : 16;

// Element (m, k) of a warp's A in registers, of 16 bits, by "Register fragments": words 0 and 2 are of the first 8 rows, 2
// and 3 of the last 8 columns.
inline float element(const unsigned* const (&words)[32], int m, int k) {
    const unsigned word = words[m % 8 * 4 + k % 8 / 2][m / 8 + k / 8 * 2];
    const std::uint16_t half = word >> 16 * (k % 2);
    return widen(reinterpret_cast<const unsigned char*>(&half), kind);
}

inline void multiply(const Quarter& quarter, int warp) {
    static float a[16][depth], b[256][depth];
    const bool from_registers = quarter.words[0] != nullptr;
    for (int k = 0; k < depth; ++k) {
        for (int m = 0; m < 16; ++m)
            a[m][k] = from_registers ? element(quarter.words, m, k)
                                     : element(quarter.a, warp % 4 * 16 + m, k, LAYOUT_A_TRANSPOSED, kind);
        for (int n = 0; n < quarter.columns; ++n)
            b[n][k] = element(quarter.b, n, k, from_registers || !LAYOUT_B_TRANSPOSED, kind);
    }
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < quarter.columns / 2; ++i) {
            const int row = lane / 4 + (i & 2 ? 8 : 0), column = i / 4 * 8 + lane % 4 * 2 + (i & 1);
            float sum = quarter.accumulate ? quarter.sums[lane][i] : 0.0f;
            for (int k = 0; k < depth; ++k) sum += a[row][k] * b[column][k];
            quarter.sums[lane][i] = sum;
        }
    }
}

inline void finish_groups(std::size_t pending) {
    Warp& warp = this_warp();
    while (warp.groups.size() > pending) {
        for (const Quarter& quarter : warp.groups.front()) multiply(quarter, thread_index().x / 32);
        warp.groups.erase(warp.groups.begin());
    }
}

}  // namespace emulation

// Result of each lane of the warp of that which all of them bring.
template <class Got>
unsigned exchanged(emulation::Meeting meeting, unsigned brought, Got got) {
    emulation::this_lane().words[0] = brought;
    emulation::wait_for_warp(meeting, [=] {
        for (int lane = 0; lane < 32; ++lane) emulation::lane_of_warp(lane).words[1] = got(lane);
    });
    return emulation::this_lane().words[1];
}
inline int __shfl_sync(unsigned, int value, int from) {
    return exchanged(emulation::Meeting::shuffle, value, [=](int) { return emulation::lane_of_warp(from).words[0]; });
}
inline unsigned __float_as_uint(float value) { return emulation::at<unsigned>(reinterpret_cast<unsigned char*>(&value)); }
inline float __uint_as_float(unsigned word) { return emulation::at<float>(reinterpret_cast<unsigned char*>(&word)); }
inline float __shfl_xor_sync(unsigned, float value, int mask) {
    return __uint_as_float(exchanged(emulation::Meeting::shuffle, __float_as_uint(value),
                                     [=](int lane) { return emulation::lane_of_warp(lane ^ mask).words[0]; }));
}
inline bool __any_sync(unsigned, bool value) {
    return exchanged(emulation::Meeting::vote, value, [](int) {
        unsigned any = 0;
        for (int lane = 0; lane < 32; ++lane) any |= emulation::lane_of_warp(lane).words[0];
        return any;
    });
}
inline float __log2f(float x) { return std::log2(x); }
using std::min;
inline float4 __ldcg(const float4* address) {
    emulation::require_global(address, sizeof *address);
    return *address;
}
inline void __stcg(float4* address, float4 value) {
    emulation::require_global(address, sizeof *address);
    *address = value;
}

namespace pyperf::ptx {

inline SharedAddress shared_address(const void*) {
    return emulation::mapped(emulation::shared_begin, emulation::this_block().rank);
}

inline void mbarrier_init(SharedAddress barrier, int arrivals) {
    emulation::this_block().barriers[barrier] = {arrivals, arrivals, 0, 0};
}
inline void fence_mbarrier_init() { emulation::this_block().initialised = true; }
inline void mbarrier_arrive_expect_tx(SharedAddress barrier, int bytes) {
    emulation::Barrier& at = emulation::barrier_at(emulation::this_block(), barrier);
    at.bytes += bytes;
    emulation::arrive(at);
}
// Whoever arrives may be held up right after, while others go on.
inline void mbarrier_arrive(SharedAddress barrier) {
    emulation::arrive(emulation::barrier_at(emulation::this_block(), barrier));
    emulation::yield();
}
inline void mbarrier_arrive_cluster(SharedAddress barrier, int rank) {
    emulation::arrive(emulation::barrier_at(emulation::block_of_cluster(rank), emulation::mapped(barrier, rank)));
    emulation::yield();
}
inline void mbarrier_try_wait_parity(SharedAddress barrier, int parity) {
    while (emulation::barrier_at(emulation::this_block(), barrier).phase == parity) emulation::yield();
}

inline void arrive_at_named(int barrier, int threads, bool waits) {
    emulation::NamedBarrier& at = emulation::this_block().named[barrier];
    if (barrier < 0 || barrier > 15) emulation::fault("names a barrier that a block does not have");
    if (at.arrived != 0 && at.threads != threads) emulation::fault("expects others at a barrier than those before it");
    at.threads = threads;
    const int phases = at.phases;
    if (++at.arrived == threads) {
        at.arrived = 0;
        ++at.phases;
        emulation::progress();
    } else if (waits) {
        while (at.phases == phases) emulation::yield();
    }
}
inline void bar_arrive(int barrier, int threads) { arrive_at_named(barrier, threads, false); }
inline void bar_sync(int barrier, int threads) { arrive_at_named(barrier, threads, true); }

inline int cluster_ctarank() { return emulation::this_block().rank; }
inline void barrier_cluster_arrive_relaxed() {
    if (!emulation::this_block().initialised && emulation::thread_index().x == 0)
        emulation::fault("arrives, relaxed, before a fence has made its barriers visible");
    emulation::arrive_at_cluster();
}
inline void barrier_cluster_arrive() { emulation::arrive_at_cluster(); }
inline void barrier_cluster_wait() { emulation::wait_for_cluster(); }
inline void prefetch_tensormap(const TensorMap&) {}

inline void cp_async_bulk_tensor_load(SharedAddress destination, const TensorMap& map, int column, int row, int matrix,
                                      SharedAddress barrier) {
    emulation::load_box(map, column, row, matrix, destination, barrier, {&emulation::this_block()});
}
inline void cp_async_bulk_tensor_load(SharedAddress destination, const TensorMap& map, int column, int row,
                                      SharedAddress barrier) {
    cp_async_bulk_tensor_load(destination, map, column, row, emulation::only, barrier);
}
inline void cp_async_bulk_tensor_load_multicast(SharedAddress destination, const TensorMap& map, int column, int row,
                                                SharedAddress barrier, unsigned short ctas) {
    std::vector<emulation::Block*> blocks;
    for (int rank = 0; rank < 16; ++rank)
        if (ctas >> rank & 1) blocks.push_back(&emulation::block_of_cluster(rank));
    emulation::load_box(map, column, row, emulation::only, destination, barrier, blocks);
}
inline void cp_async_bulk_tensor_store(const TensorMap& map, int column, int row, int matrix, SharedAddress source) {
    char* const base = emulation::matrix_of(map, matrix);
    emulation::Block& block = emulation::this_block();
    emulation::Lane& lane = emulation::this_lane();
    const int row_bytes = map.box_columns * map.element_bytes;
    const auto group = lane.groups.size();
    ++lane.open_stores;
    const unsigned first = emulation::place_of(block, source, map.box_rows * row_bytes);
    for (unsigned byte = first; byte < first + map.box_rows * row_bytes; ++byte)
        if (block.unfenced[byte]) emulation::fault("stores what no fence made visible");
    emulation::queue_store([=, &map, &block, &lane] {
        for (int y = 0; y < map.box_rows; ++y) {
            for (int x = 0; x < row_bytes; ++x) {
                // An H200 clips rows, but of a row it writes whole 16 bytes.
                const long long to_row = row + y, to_byte = static_cast<long long>(column) * map.element_bytes + x;
                if (to_row >= map.rows || to_byte >= (map.columns * map.element_bytes + 15) / 16 * 16) continue;
                const unsigned plain = source + y * row_bytes + x;
                const unsigned from = map.swizzle_bytes ? emulation::swizzle(plain, map.swizzle_bytes) : plain;
                base[to_row * map.stride_bytes + to_byte] = *emulation::shared(block, from, 1);
            }
        }
        --lane.groups[group];
    });
}
inline void cp_async_bulk_tensor_store(const TensorMap& map, int column, int row, SharedAddress source) {
    cp_async_bulk_tensor_store(map, column, row, emulation::only, source);
}
inline void cp_async_bulk_commit_group() {
    emulation::Lane& lane = emulation::this_lane();
    lane.groups.push_back(lane.open_stores);
    lane.open_stores = 0;
}
template <int pending>
void cp_async_bulk_wait_group_read() {
    const auto& groups = emulation::this_lane().groups;
    for (std::size_t group = 0; group + pending < groups.size(); ++group)
        while (groups[group] > 0) emulation::yield();
}
inline void fence_proxy_async() {
    for (const unsigned byte : emulation::this_lane().unfenced) emulation::this_block().unfenced[byte] = 0;
    emulation::this_lane().unfenced.clear();
}

template <int registers>
void setmaxnreg_inc() {
    emulation::wait_for_warp(emulation::Meeting::setmaxnreg);
}
template <int registers>
void setmaxnreg_dec() {
    emulation::wait_for_warp(emulation::Meeting::setmaxnreg);
}

inline float ex2(float x) { return std::exp2(x); }
inline float rcp(float x) { return 1 / x; }
inline float max_nan(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b); }

// To the nearest, ties to even.
inline unsigned narrow_bf16(float value) {
    if (std::isnan(value)) return 0x7fff;
    const unsigned word = emulation::at<unsigned>(reinterpret_cast<const unsigned char*>(&value));
    return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}
inline unsigned narrow_f16(float value) {
    const float magnitude = std::fabs(value);
    if (!(magnitude < 65520)) return std::isnan(value) ? 0x7fff : std::signbit(value) ? 0xfc00 : 0x7c00;
    const int exponent = std::max(magnitude == 0 ? -14 : std::ilogb(magnitude), -14);
    const unsigned steps = static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
    const unsigned bits = steps < 1024 ? steps : (static_cast<unsigned>(exponent + 14) << 10) + steps;
    return bits | (std::signbit(value) ? 0x8000 : 0);
}
inline unsigned cvt_bf16x2(float low, float high) { return narrow_bf16(low) | narrow_bf16(high) << 16; }
inline unsigned cvt_f16x2(float low, float high) { return narrow_f16(low) | narrow_f16(high) << 16; }

template <int matrices>
void stmatrix(SharedAddress row, const unsigned (&words)[matrices]) {
    emulation::Lane& mine = emulation::this_lane();
    mine.words[0] = row;
    std::memcpy(mine.words + 1, words, sizeof words);
    emulation::wait_for_warp(emulation::Meeting::stmatrix, [] {
        for (int matrix = 0; matrix < matrices; ++matrix) {
            unsigned banks = 0;
            for (int lane = 0; lane < 8; ++lane) {
                const unsigned address = emulation::lane_of_warp(matrix * 8 + lane).words[0];
                emulation::shared(emulation::this_block(), address, 16);
                banks |= 1u << address / 16 % 8;
            }
            if (banks != 0xff) emulation::fault("writes rows that share banks");
        }
    });
    // Each lane writes its own words, so that its fence covers them as the ISA asks of the writing thread.
    const int lane = emulation::thread_index().x % 32;
    for (int matrix = 0; matrix < matrices; ++matrix) {
        const unsigned to = emulation::lane_of_warp(matrix * 8 + lane / 4).words[0] + lane % 4 * 4;
        emulation::write_shared(to, &words[matrix], 4);
    }
    emulation::wait_for_warp(emulation::Meeting::stmatrix);
}
inline void stmatrix_x4(SharedAddress row, unsigned a, unsigned b, unsigned c, unsigned d) {
    stmatrix<4>(row, {a, b, c, d});
}
inline void stmatrix_x2(SharedAddress row, unsigned a, unsigned b) { stmatrix<2>(row, {a, b}); }
inline void st_shared_v2(SharedAddress address, float a, float b) {
    const float values[] = {a, b};
    emulation::write_shared(address, values, 8);
}

inline int ld_acquire(const int* address) {
    emulation::require_global(address, sizeof *address);
    return *address;
}
inline void st_release(int* address, int value) {
    emulation::require_global(address, sizeof *address);
    *address = value;
    emulation::progress();
}

inline void wgmma_fence() {
    emulation::wait_for_warp(emulation::Meeting::fence, [] { emulation::this_warp().fenced = true; });
}
inline void multiply_async(float* d, int columns, const unsigned* operand, unsigned long long descriptor_a,
                           unsigned long long descriptor_b, int accumulate) {
    emulation::Lane& mine = emulation::this_lane();
    mine.sums = d;
    mine.operand = operand;
    mine.a = descriptor_a;
    mine.b = descriptor_b;
    emulation::multiplied(columns);
    emulation::wait_for_warp(emulation::Meeting::multiply, [=] {
        emulation::Warp& warp = emulation::this_warp();
        if (!warp.fenced) emulation::fault("multiplies into registers without a fence");
        emulation::Quarter quarter{descriptor_a, descriptor_b, accumulate != 0, columns, {}, {}};
        for (int lane = 0; lane < 32; ++lane) {
            const emulation::Lane& other = emulation::lane_of_warp(lane);
            if (other.a != descriptor_a || other.b != descriptor_b) emulation::fault("has lanes that do not agree");
            quarter.sums[lane] = other.sums;
            quarter.words[lane] = other.operand;
        }
        warp.open.push_back(quarter);
    });
}
inline void wgmma_mma_async(float (&d)[TILE_N / 2], unsigned long long descriptor_a, unsigned long long descriptor_b,
                            int accumulate) {
    multiply_async(d, TILE_N, nullptr, descriptor_a, descriptor_b, accumulate);
}
#ifdef HEAD_DIM
inline void wgmma_mma_async(float (&d)[HEAD_DIM / 2], const unsigned* a, unsigned long long descriptor_b) {
    multiply_async(d, HEAD_DIM, a, 0, descriptor_b, 1);
}
#endif
template <int count>
void wgmma_hold(float (&d)[count]) {
    for (const auto& group : emulation::this_warp().groups)
        for (const emulation::Quarter& quarter : group)
            if (quarter.sums[emulation::thread_index().x % 32] == d)
                emulation::fault("reads sums that are still under way");
}
inline void wgmma_commit_group() {
    emulation::wait_for_warp(emulation::Meeting::commit, [] {
        emulation::Warp& warp = emulation::this_warp();
        warp.groups.push_back(std::move(warp.open));
        warp.open.clear();
        if (!emulation::late()) emulation::finish_groups(0);
    });
}
template <int pending>
void wgmma_wait_group() {
    emulation::wait_for_warp(emulation::Meeting::wait, [] {
        emulation::finish_groups(pending);
        emulation::this_warp().fenced = false;
    });
}

}  // namespace pyperf::ptx
