// Parts of CUDA C++ for the host's compiler, to run a plain kernel without a GPU: its words, and a grid whose blocks
// run one after the other (those of a cluster together), each thread a fiber that runs until it waits.
//
// Threads are not preempted, and blocks of a grid do not run side by side: a kernel that spins on what another block
// writes never ends here. Shared memory begins as not a number; a warp's lanes meet by what they call, whatever the mask.
#pragma once

#include "emulated_kernel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <type_traits>
#include <ucontext.h>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __constant__ static
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("emulated_shared")))

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
#define EMULATED_VECTOR(Type, Element, bytes2, bytes4)                                                     \
    struct alignas(bytes2) Type##2 { Element x, y; };                                                      \
    struct alignas(bytes4) Type##4 { Element x, y, z, w; };                                                \
    inline Type##2 make_##Type##2(Element x, Element y) { return {x, y}; }                                 \
    inline Type##4 make_##Type##4(Element x, Element y, Element z, Element w) { return {x, y, z, w}; }
EMULATED_VECTOR(float, float, 8, 16)
EMULATED_VECTOR(int, int, 8, 16)
EMULATED_VECTOR(uint, unsigned, 8, 16)
EMULATED_VECTOR(double, double, 16, 16)
#undef EMULATED_VECTOR

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// The section of all __shared__ variables; absent where there are none.
extern char __start_emulated_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_emulated_shared[] __attribute__((weak, visibility("hidden")));

namespace emulation {

constexpr std::size_t stack_bytes = 64 << 10, most_dynamic_bytes = 256 << 10;
constexpr unsigned shared_begin = 1024, rank_bit = 24;
constexpr double thread_ns = 1, timer_step_ns = 1000;

struct Gathering {
    unsigned arrived = 0, running = 0;
    long generation = 0;
};

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
    bool done;
    unsigned long long word;  // what it brings to an instruction of its warp
    int waits;                // at the cluster's barrier
};

struct Block {
    uint3 index;
    Gathering all;
    std::vector<Gathering> warps;
    std::vector<char> memory;  // while another block runs: static and then dynamic shared memory
};

alignas(1024) inline char dynamic_memory[most_dynamic_bytes];
inline EmulatedLaunch* launch;
inline std::function<void()> body;
inline std::vector<std::unique_ptr<Fiber>> fibers;
inline std::vector<Block> blocks;  // of the cluster that runs
inline ucontext_t scheduler;
inline unsigned threads, current_block, current;  // the thread within its block
inline Gathering cluster;
inline bool progressed;
inline std::vector<double> busy_ns;

inline std::size_t static_bytes() { return static_cast<std::size_t>(__stop_emulated_shared - __start_emulated_shared); }
inline std::size_t dynamic_begin() { return (static_bytes() + 1023) / 1024 * 1024; }
inline Fiber& fiber() { return *fibers[current_block * threads + current]; }
inline double& busy() {
    const std::size_t number = blockIdx.x + std::size_t{gridDim.x} * (blockIdx.y + std::size_t{gridDim.y} * blockIdx.z);
    return busy_ns[number % busy_ns.size()];
}

[[noreturn]] inline void fault(const char* what) {
    std::fprintf(stderr, "thread (%u, %u, %u) of block (%u, %u, %u) %s\n", threadIdx.x, threadIdx.y, threadIdx.z,
                 blockIdx.x, blockIdx.y, blockIdx.z, what);
    std::exit(3);
}

inline void yield() {
    if (threads * blocks.size() > 1) swapcontext(&fiber().context, &scheduler);
}

inline void release_if_all(Gathering& gathering) {
    if (gathering.arrived == 0 || gathering.arrived < gathering.running) return;
    gathering.arrived = 0;
    ++gathering.generation;
    progressed = true;
}

inline void gather(Gathering& gathering) {
    const long generation = gathering.generation;
    ++gathering.arrived;
    progressed = true;
    release_if_all(gathering);
    while (gathering.generation == generation) yield();
}

inline Gathering& warp() { return blocks[current_block].warps[current / 32]; }

inline void run_fiber() {
    body();
    fiber().done = true;
    progressed = true;
    for (Gathering* each : {&blocks[current_block].all, &warp(), &cluster}) {
        --each->running;
        release_if_all(*each);
    }
}

inline void save_shared(Block& block) {
    std::memcpy(block.memory.data(), __start_emulated_shared, static_bytes());
    std::memcpy(block.memory.data() + dynamic_begin(), dynamic_memory, launch->shared_bytes);
}
inline void restore_shared(const Block& block) {
    std::memcpy(__start_emulated_shared, block.memory.data(), static_bytes());
    std::memcpy(dynamic_memory, block.memory.data() + dynamic_begin(), launch->shared_bytes);
}

inline void enter(unsigned thread) {
    current = thread;
    threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
}

inline void start_block(Block& block, uint3 index) {
    block.index = index;
    block.all = {0, threads, 0};
    block.warps.assign((threads + 31) / 32, {});
    for (unsigned thread = 0; thread < threads; ++thread) ++block.warps[thread / 32].running;
    block.memory.assign(dynamic_begin() + launch->shared_bytes, static_cast<char>(0xff));
}

// Runs the blocks of one cluster until all their threads have left.
inline void run_cluster() {
    cluster = {0, static_cast<unsigned>(threads * blocks.size()), 0};
    if (threads * blocks.size() == 1) {  // nobody to wait for: no fiber is needed
        restore_shared(blocks[0]);
        blockIdx = blocks[0].index;
        enter(0);
        busy() += thread_ns;
        body();
        return;
    }
    while (fibers.size() < threads * blocks.size()) fibers.push_back(std::make_unique<Fiber>());
    for (std::size_t each = 0; each < threads * blocks.size(); ++each) {
        Fiber& fiber = *fibers[each];
        fiber.done = false;
        fiber.waits = 0;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = stack_bytes;
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, run_fiber, 0);
    }
    for (int idle = 0; cluster.running > 0;) {
        progressed = false;
        for (current_block = 0; current_block < blocks.size(); ++current_block) {
            restore_shared(blocks[current_block]);
            blockIdx = blocks[current_block].index;
            for (unsigned thread = 0; thread < threads; ++thread) {
                enter(thread);
                if (!fiber().done) swapcontext(&scheduler, &fiber().context);
            }
            save_shared(blocks[current_block]);
        }
        idle = progressed ? 0 : idle + 1;
        if (idle > 1000) fault("waits for ever");
    }
    for (const Block& block : blocks) {
        blockIdx = block.index;
        busy() += thread_ns * threads / 32;
    }
}

// Runs every thread of a launch.
inline void run(EmulatedLaunch* asked, const std::function<void()>& kernel) {
    launch = asked;
    body = kernel;
    blockDim = {launch->block[0], launch->block[1], launch->block[2]};
    gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    threads = blockDim.x * blockDim.y * blockDim.z;
    busy_ns.assign(launch->multiprocessors, 0);
    blocks.assign(launch->cluster, {});
    for (unsigned z = 0; z < gridDim.z; ++z)
        for (unsigned y = 0; y < gridDim.y; ++y)
            for (unsigned x = 0; x < gridDim.x; x += launch->cluster) {
                current_block = 0;
                for (unsigned rank = 0; rank < launch->cluster; ++rank) start_block(blocks[rank], {x + rank, y, z});
                run_cluster();
            }
    launch->lasted_ns = *std::max_element(busy_ns.begin(), busy_ns.end());
}

// The clocks of a multiprocessor go on while its blocks run, by a step of the timer each time that one is read.
inline std::uint64_t special_globaltimer() {
    launch->read_clock = 1;
    busy() += timer_step_ns;
    return launch->began_ns + static_cast<std::uint64_t>(busy());
}
inline unsigned special_smid() {
    launch->read_clock = 1;
    return blockIdx.x % launch->multiprocessors;
}

inline void wait_for_warp() { gather(warp()); }

template <class Value>
Value exchange(Value value, unsigned from) {
    static_assert(sizeof value <= 8, "a shuffle moves up to 8 bytes");
    std::memcpy(&fiber().word, &value, sizeof value);
    wait_for_warp();
    const unsigned lane = current / 32 * 32 + from;
    if (lane < threads && !fibers[current_block * threads + lane]->done)
        std::memcpy(&value, &fibers[current_block * threads + lane]->word, sizeof value);
    wait_for_warp();
    return value;
}

inline unsigned ballot(bool vote) {
    fiber().word = vote;
    wait_for_warp();
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32 && current / 32 * 32 + lane < threads; ++lane) {
        const Fiber& each = *fibers[current_block * threads + current / 32 * 32 + lane];
        if (!each.done && each.word) votes |= 1u << lane;
    }
    wait_for_warp();
    return votes;
}

inline std::uint64_t cycles() {
    // Each multiprocessor's counter began at another time.
    return static_cast<std::uint64_t>((launch->began_ns + busy()) * launch->sm_khz / 1e6) + 1000003ull * special_smid();
}

}  // namespace emulation

inline void __syncthreads() { emulation::gather(emulation::blocks[emulation::current_block].all); }
inline void __syncwarp(unsigned = ~0u) { emulation::wait_for_warp(); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) { emulation::yield(); }
[[noreturn]] inline void __trap() { emulation::fault("trapped"); }
inline long long clock64() { return static_cast<long long>(emulation::cycles()); }

template <class Value> Value __shfl_sync(unsigned, Value value, int from, int width = 32) {
    const unsigned lane = emulation::current % 32;
    return emulation::exchange(value, lane / width * width + from % width);
}
template <class Value> Value __shfl_down_sync(unsigned, Value value, unsigned distance, int width = 32) {
    const unsigned lane = emulation::current % 32;
    return emulation::exchange(value, lane % width + distance < static_cast<unsigned>(width) ? lane + distance : lane);
}
template <class Value> Value __shfl_up_sync(unsigned, Value value, unsigned distance, int width = 32) {
    const unsigned lane = emulation::current % 32;
    return emulation::exchange(value, lane % width >= distance ? lane - distance : lane);
}
template <class Value> Value __shfl_xor_sync(unsigned, Value value, int mask, int = 32) {
    return emulation::exchange(value, emulation::current % 32 ^ mask);
}
inline unsigned __ballot_sync(unsigned, int vote) { return emulation::ballot(vote); }
inline int __any_sync(unsigned, int vote) { return emulation::ballot(vote) != 0; }
inline int __all_sync(unsigned, int vote) { return emulation::ballot(!vote) == 0; }

// Threads are not preempted, so that what follows is atomic.
template <class Value, class Update> Value emulated_update(Value* at, Update update) {
    const Value before = *at;
    *at = update(before);
    return before;
}
template <class Value> using Emulated = std::type_identity_t<Value>;
template <class Value> Value atomicAdd(Value* at, Emulated<Value> by) {
    return emulated_update(at, [=](Value value) { return static_cast<Value>(value + by); });
}
template <class Value> Value atomicSub(Value* at, Emulated<Value> by) {
    return emulated_update(at, [=](Value value) { return static_cast<Value>(value - by); });
}
template <class Value> Value atomicMin(Value* at, Emulated<Value> by) {
    return emulated_update(at, [=](Value value) { return std::min(value, by); });
}
template <class Value> Value atomicMax(Value* at, Emulated<Value> by) {
    return emulated_update(at, [=](Value value) { return std::max(value, by); });
}
template <class Value> Value atomicExch(Value* at, Emulated<Value> by) {
    return emulated_update(at, [=](Value) { return by; });
}
template <class Value> Value atomicCAS(Value* at, Emulated<Value> expected, Emulated<Value> by) {
    return emulated_update(at, [=](Value value) { return value == expected ? by : value; });
}

using std::max;
using std::min;
template <class Value> Value __ldg(const Value* at) { return *at; }
inline float rsqrtf(float value) { return 1 / std::sqrt(value); }
inline float __expf(float value) { return std::exp(value); }
inline float __logf(float value) { return std::log(value); }
inline float __fdividef(float above, float below) { return above / below; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(static_cast<unsigned>(bits)) : 32; }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned long long __umul64hi(unsigned long long left, unsigned long long right) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(left) * right >> 64);
}
