// A grid of gemm_sm80.cu, which stands before this, on the host: blocks one after the other, each thread a fiber that runs
// until its warp or block waits.
#pragma once

#include "emulated_kernel.h"

#include <algorithm>
#include <memory>
#include <random>
#include <ucontext.h>

__attribute__((aligned(1024))) char shared_memory[256 << 10];

namespace emulation {

Index block_index;
bool copies_arrive_late;
std::size_t shared_bytes;
std::vector<Region> regions;

namespace {

int threads = pyperf::spec.threads();  // of a launch, which may have others than the kernel was compiled for
// FLOP of an A100's multiprocessor in a nanosecond, by which a grid's time is reported.
constexpr double flop_per_ns = 2800;
constexpr std::size_t stack_bytes = 256 << 10;

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
    Lane lane;
    bool done;
};

struct Gathering {
    int arrived = 0;
    long generation = 0;
    Meeting meeting = Meeting::none;
};

std::vector<Fiber> fibers;
std::vector<Gathering> warps;
Gathering block;
ucontext_t scheduler;
int current;
long arrivals;  // at anything, by any thread
std::vector<double> busy_ns(1);  // of each multiprocessor
std::function<void()> kernel;

void run_fiber() {
    kernel();
    fibers[current].done = true;
}

// True for the last to come; the others return when it has acted.
void gather(Gathering& gathering, int expected, Meeting meeting, const std::function<void()>& act) {
    if (gathering.arrived > 0 && gathering.meeting != meeting) fault("is at another instruction than its warp");
    gathering.meeting = meeting;
    const long generation = gathering.generation;
    ++arrivals;
    if (++gathering.arrived == expected) {
        act();
        gathering.arrived = 0;
        ++gathering.generation;
        return;
    }
    while (gathering.generation == generation) swapcontext(&fibers[current].context, &scheduler);
}

void run_block(std::mt19937& random, int order) {
    std::memset(shared_memory, 0xff, sizeof shared_memory);  // not a number, in any type
    fibers.resize(threads);
    warps.resize(threads / 32);
    std::vector<int> sequence(threads);
    for (int i = 0; i < threads; ++i) {
        sequence[i] = order == 1 ? threads - 1 - i : i;
        Fiber& fiber = fibers[i];
        fiber.done = false;
        fiber.lane = Lane{};
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = stack_bytes;
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, run_fiber, 0);
    }
    for (int running = threads; running > 0;) {
        if (order == 2) std::shuffle(sequence.begin(), sequence.end(), random);
        const int running_before = running;
        const long arrivals_before = arrivals;
        for (const int thread : sequence) {
            if (fibers[thread].done) continue;
            current = thread;
            swapcontext(&scheduler, &fibers[thread].context);
            running -= fibers[thread].done;
        }
        if (running == running_before && arrivals == arrivals_before) fault("waits for ever");
    }
    for (std::size_t i = shared_bytes; i < sizeof shared_memory; ++i)
        if (shared_memory[i] != char(0xff)) fault("wrote to shared memory beyond its allocation");
    for (Fiber& fiber : fibers)
        for (const auto& group : fiber.lane.groups)
            if (!group.empty()) fault("left copies under way");
}

}  // namespace

Index thread_index() { return {current}; }
Lane& lane_of(int warp, int lane) { return fibers[warp * 32 + lane].lane; }
Lane& this_lane() { return fibers[current].lane; }
void wait_for_block() {
    gather(block, threads, Meeting::none, [] {});
}
void wait_for_warp(Meeting meeting, const std::function<void(int)>& act) {
    const int warp = current / 32;
    constexpr double mma_ns = 2.0 * 16 * 8 * 16 / flop_per_ns;
    if (meeting == Meeting::mma) busy_ns[block_index.x % busy_ns.size()] += mma_ns / 32;
    gather(warps[warp], 32, meeting, [&] { act(warp); });
}


// A launch as the double of libcuda has it.
inline void run(EmulatedLaunch* launch, const std::function<void()>& body) {
    threads = static_cast<int>(launch->block[0] * launch->block[1] * launch->block[2]);
    if (threads % 32 != 0) fault("is of a block that is not made of whole warps");
    shared_bytes = launch->shared_bytes;
    regions.clear();
    for (std::size_t each = 0; each < launch->region_count; ++each)
        regions.push_back({launch->regions[each].begin, launch->regions[each].bytes});
    busy_ns.assign(launch->multiprocessors, 0);
    copies_arrive_late = launch->began_ns % 2 != 0;
    kernel = body;
    std::mt19937 random(static_cast<unsigned>(launch->began_ns));
    for (block_index.x = 0; block_index.x < static_cast<int>(launch->grid[0]); ++block_index.x)
        run_block(random, 2);
    launch->lasted_ns = *std::max_element(busy_ns.begin(), busy_ns.end());
}

}  // namespace emulation
