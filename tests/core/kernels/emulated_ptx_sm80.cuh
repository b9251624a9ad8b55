// Stands in for kernels/cuda/ptx_sm80.cuh when a kernel is compiled by the host's compiler and run without a GPU.
//
// Each instruction does what the PTX ISA says, written from its tables and not from the kernel. Beyond that it refuses
// what a GPU would fault on or only be slow at: addresses outside of an operand or misaligned, bank conflicts of ldmatrix,
// lanes of a warp at different instructions. Asynchronous copies arrive as early or as late as they may.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define PYPERF_EMULATED_GPU  // the schedule is that of a GPU
#define PYPERF_DEVICE inline
#define __global__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads, blocks)
#define threadIdx (emulation::thread_index())
#define blockIdx (emulation::block_index)
#define __syncthreads() emulation::wait_for_block()
#define __syncwarp() emulation::wait_for_warp(emulation::Meeting::syncwarp)
#define __nanosleep(nanoseconds) emulation::fault("waits for a block that has not started")

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};

extern char shared_memory[];

namespace emulation {

struct Index {
    int x;
};
enum class Meeting { none, syncwarp, ldmatrix, ldmatrix_transposed, mma };

// Global memory that one thread may read and write.
struct Region {
    const char* begin;
    std::size_t bytes;
};

struct Copy {
    unsigned destination;
    const char* source;
    int bytes;
    int valid_bytes;
};

struct Lane {
    unsigned in[6];    // a row's address, or the fragments of A and B
    unsigned out[4];   // what ldmatrix gives
    float* sums;       // of mma
    std::vector<std::vector<Copy>> groups;  // committed, oldest first
    std::vector<Copy> open;                 // not yet committed
};

extern Index block_index;
extern bool copies_arrive_late;
extern std::size_t shared_bytes;
extern std::vector<Region> regions;
Index thread_index();
Lane& lane_of(int warp, int lane);
Lane& this_lane();
void wait_for_block();
// Returns when all lanes of the warp have come to it; the last of them calls `act` with its warp.
void wait_for_warp(Meeting meeting, const std::function<void(int)>& act = [](int) {});

[[noreturn]] inline void fault(const char* what) {
    std::fprintf(stderr, "thread %d of block %d %s\n", thread_index().x, block_index.x, what);
    std::exit(3);
}

inline void require_global(const void* address, std::size_t bytes) {
    const char* begin = static_cast<const char*>(address);
    if (reinterpret_cast<std::uintptr_t>(begin) % bytes != 0) fault("accesses global memory misaligned");
    for (const Region& region : regions)
        if (begin >= region.begin && begin + bytes <= region.begin + region.bytes) return;
    fault("accesses global memory outside of its operands");
}

inline char* require_shared(unsigned address, unsigned bytes) {
    if (address % bytes != 0) fault("accesses shared memory misaligned");
    if (address + bytes > shared_bytes) fault("accesses shared memory outside of its allocation");
    return shared_memory + address;
}

inline void arrive(const Copy& copy) {
    std::memset(shared_memory + copy.destination, 0, copy.bytes);
    std::memcpy(shared_memory + copy.destination, copy.source, copy.valid_bytes);
}

inline float widen(unsigned bits, bool bf16) {
    if (bf16) {
        const unsigned word = bits << 16;
        float value;
        std::memcpy(&value, &word, 4);
        return value;
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                            : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                            : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}

// To the nearest, ties to even.
inline unsigned narrow(float value, bool bf16) {
    unsigned word;
    std::memcpy(&word, &value, 4);
    if (bf16) return std::isnan(value) ? 0x7fff : (word + 0x7fff + (word >> 16 & 1)) >> 16;
    const unsigned sign = word >> 16 & 0x8000;
    const float magnitude = std::fabs(value);
    if (std::isnan(value)) return 0x7fff;
    if (magnitude >= 65520.0f) return sign | 0x7c00;
    const int exponent = std::max(magnitude == 0 ? -14 : std::ilogb(magnitude), -14);
    const unsigned steps = static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
    // A subnormal has fewer than 1024 steps; 2048 of them carry into the exponent by themselves.
    return sign | (steps < 1024 ? steps : (static_cast<unsigned>(exponent + 14) << 10) + steps);
}

inline unsigned half_word(unsigned word, int which) { return word >> 16 * which & 0xffff; }

}  // namespace emulation

namespace pyperf {

enum class Element : int { bf16 = 0, fp16 = 1, fp32 = 2 };

namespace ptx {

inline int mov_tid_x() { return emulation::thread_index().x; }

inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(static_cast<const char*>(pointer) - shared_memory);
}

template <int bytes>
void cp_async(unsigned destination, const void* source, int valid_bytes) {
    emulation::require_shared(destination, bytes);
    if (valid_bytes < 0 || valid_bytes > bytes) emulation::fault("copies more than it may");
    if (reinterpret_cast<std::uintptr_t>(source) % bytes != 0) emulation::fault("copies from a misaligned address");
    for (int i = 0; i < valid_bytes; ++i) emulation::require_global(static_cast<const char*>(source) + i, 1);
    const emulation::Copy copy{destination, static_cast<const char*>(source), bytes, valid_bytes};
    if (emulation::copies_arrive_late)
        emulation::this_lane().open.push_back(copy);
    else
        emulation::arrive(copy);
}

inline void cp_async_commit_group() {
    emulation::Lane& lane = emulation::this_lane();
    lane.groups.push_back(std::move(lane.open));
    lane.open.clear();
}

template <int pending>
void cp_async_wait_group() {
    auto& groups = emulation::this_lane().groups;
    while (groups.size() > pending) {
        for (const emulation::Copy& copy : groups.front()) emulation::arrive(copy);
        groups.erase(groups.begin());
    }
}

template <bool transposed>
void ldmatrix_x4(unsigned (&matrices)[4], unsigned row_address) {
    emulation::this_lane().in[0] = row_address;
    emulation::wait_for_warp(
        transposed ? emulation::Meeting::ldmatrix_transposed : emulation::Meeting::ldmatrix, [](int warp) {
            for (int matrix = 0; matrix < 4; ++matrix) {
                const std::uint16_t* rows[8];
                unsigned banks = 0;
                for (int row = 0; row < 8; ++row) {
                    const unsigned address = emulation::lane_of(warp, matrix * 8 + row).in[0];
                    rows[row] = reinterpret_cast<const std::uint16_t*>(emulation::require_shared(address, 16));
                    banks |= 1u << address / 16 % 8;
                }
                if (banks != 0xff) emulation::fault("reads rows that share banks");
                for (int lane = 0; lane < 32; ++lane) {
                    const int outer = lane / 4, inner = lane % 4 * 2;
                    emulation::lane_of(warp, lane).out[matrix] =
                        transposed ? rows[inner][outer] | unsigned{rows[inner + 1][outer]} << 16
                                   : rows[outer][inner] | unsigned{rows[outer][inner + 1]} << 16;
                }
            }
        });
    std::memcpy(matrices, emulation::this_lane().out, sizeof matrices);
}

// The tables "Matrix Fragments for mma.m16n8k16 with floating point type" of the PTX ISA.
template <Element type>
void mma_m16n8k16(float (&sums)[4], const unsigned (&a)[4], unsigned b_0, unsigned b_1) {
    emulation::Lane& own = emulation::this_lane();
    std::memcpy(own.in, a, sizeof a);
    own.in[4] = b_0;
    own.in[5] = b_1;
    own.sums = sums;
    emulation::wait_for_warp(emulation::Meeting::mma, [](int warp) {
        constexpr bool bf16 = type == Element::bf16;
        float left[16][16], right[16][8];
        for (int lane = 0; lane < 32; ++lane) {
            const unsigned* in = emulation::lane_of(warp, lane).in;
            const int group = lane / 4, in_group = lane % 4;
            for (int i = 0; i < 8; ++i) {
                const int row = i / 2 % 2 == 0 ? group : group + 8;
                left[row][in_group * 2 + i % 2 + (i < 4 ? 0 : 8)] =
                    emulation::widen(emulation::half_word(in[i / 2], i % 2), bf16);
            }
            for (int i = 0; i < 4; ++i)
                right[in_group * 2 + i % 2 + (i < 2 ? 0 : 8)][group] =
                    emulation::widen(emulation::half_word(in[4 + i / 2], i % 2), bf16);
        }
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 4; ++i) {
                const int row = lane / 4 + (i < 2 ? 0 : 8), column = lane % 4 * 2 + i % 2;
                double sum = emulation::lane_of(warp, lane).sums[i];
                for (int k = 0; k < 16; ++k) sum += static_cast<double>(left[row][k]) * right[k][column];
                emulation::lane_of(warp, lane).sums[i] = static_cast<float>(sum);
            }
    });
}

template <Element type>
unsigned cvt_rn_x2(float low, float high) {
    constexpr bool bf16 = type == Element::bf16;
    return emulation::narrow(low, bf16) | emulation::narrow(high, bf16) << 16;
}

inline unsigned ld_global_nc_u16(const void* source) {
    emulation::require_global(source, 2);
    return *static_cast<const std::uint16_t*>(source);
}

inline void st_shared_v4(unsigned destination, const unsigned (&words)[4]) {
    std::memcpy(emulation::require_shared(destination, 16), words, 16);
}

inline void ld_global_cg_v4(float (&values)[4], const float* source) {
    emulation::require_global(source, 16);
    std::memcpy(values, source, 16);
}

inline void st_global_cg_v4(float* destination, const float (&values)[4]) {
    emulation::require_global(destination, 16);
    std::memcpy(destination, values, 16);
}

inline int ld_acquire_gpu(const int* flag) {
    emulation::require_global(flag, 4);
    return *flag;
}

inline void st_release_gpu(int* flag, int value) {
    emulation::require_global(flag, 4);
    *flag = value;
}

}  // namespace ptx
}  // namespace pyperf
