// A grid of a Hopper kernel, which stands before this, on the host: the threads of some clusters at a time as fibers, each
// until it waits for another or for the copy engine. Copies arrive in random order, stores late, and some blocks and warps
// are slow.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <ucontext.h>

namespace emulation {
namespace {

// Threads and cluster of a launch, which may differ from those that the kernel was compiled for.
int threads = pyperf::spec.threads(), cluster = pyperf::spec.cluster();
// FLOP of an H200's multiprocessor in a nanosecond, by which a grid's time is reported.
constexpr double flop_per_ns = 7500;
constexpr std::size_t stack_bytes = 64 << 10;

struct Gathering {
    int arrived = 0;
    long generation = 0;
    Meeting meeting = Meeting::none;
};

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
    Lane lane;
    int arrivals = 0, waits = 0;  // at the cluster's barrier
    bool done = false;
};

// One cluster: its blocks' threads one block after the other.
struct Cluster {
    std::vector<Block> blocks = std::vector<Block>(cluster);
    std::vector<Fiber> fibers = std::vector<Fiber>(cluster * threads);
    std::vector<Gathering> warps = std::vector<Gathering>(cluster * threads / 32);
    std::vector<Gathering> whole_blocks = std::vector<Gathering>(cluster);
    int arrived = 0, phases = 0;  // of the cluster's barrier
    int running = cluster * threads;
    std::vector<int> block_stalls = std::vector<int>(cluster);               // passes that a block sits out
    std::vector<int> warp_stalls = std::vector<int>(cluster * threads / 32);  // and a warp
};

ucontext_t scheduler;
Cluster* current_cluster;
int current;
std::function<void()> kernel;
std::deque<std::function<void()>> loads, stores;
std::vector<std::pair<const char*, std::size_t>> regions;
std::mt19937 generator;
bool progressed;
std::size_t shared_bytes;
std::vector<double> busy_ns(1);  // of each multiprocessor

// True for the last to come, when it has acted; the others return then too.
void gather(Gathering& gathering, int expected, Meeting meeting, const std::function<void()>& act) {
    if (gathering.arrived > 0 && gathering.meeting != meeting) fault("is at another instruction than its warp");
    gathering.meeting = meeting;
    const long generation = gathering.generation;
    if (++gathering.arrived == expected) {
        act();
        gathering.arrived = 0;
        ++gathering.generation;
        progress();
        return;
    }
    while (gathering.generation == generation) yield();
}

void run_fiber() {
    kernel();
    Fiber& fiber = current_cluster->fibers[current];
    for (const int stores : fiber.lane.groups)
        if (stores > 0) fault("leaves before the copy engine has read its results");
    if (fiber.lane.open_stores > 0) fault("leaves stores that no group commits");
    fiber.done = true;
    --current_cluster->running;
    --this_block().running;
    progress();
}

std::unique_ptr<Cluster> start(long long number) {
    auto started = std::make_unique<Cluster>();
    for (int rank = 0; rank < cluster; ++rank) {
        Block& block = started->blocks[rank];
        block.memory.assign(shared_bytes, 0xff);  // not a number, in any type
        block.unfenced.assign(shared_bytes, 0);
        block.warps.resize(threads / 32);
        block.running = threads;
        block.rank = rank;
        block.index = number * cluster + rank;
    }
    for (Fiber& fiber : started->fibers) {
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = stack_bytes;
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, run_fiber, 0);
    }
    return started;
}

bool one_in(int chances) { return std::uniform_int_distribution<int>(1, chances)(generator) == 1; }

// Runs some of the copies under way, the one started last as likely as any.
void run_some(std::deque<std::function<void()>>& copies, int most) {
    for (int left = std::uniform_int_distribution<int>(0, most)(generator); left > 0 && !copies.empty(); --left) {
        const auto chosen = copies.begin() + std::uniform_int_distribution<long>(0, copies.size() - 1)(generator);
        const auto copy = *chosen;
        copies.erase(chosen);
        copy();
        progress();
    }
}

// Lets each thread run until it waits, but for blocks and warps that happen to be slow.
void run_pass(Cluster& one) {
    current_cluster = &one;
    for (int rank = 0; rank < cluster; ++rank) {
        int& block_stall = one.block_stalls[rank];
        if (block_stall == 0 && one_in(200)) block_stall = 100;
        if (block_stall > 0 && --block_stall > 0) continue;
        for (int warp = rank * threads / 32; warp < (rank + 1) * threads / 32; ++warp) {
            int& warp_stall = one.warp_stalls[warp];
            if (warp_stall == 0 && one_in(20)) warp_stall = 10;
            if (warp_stall > 0 && --warp_stall > 0) continue;
            const int first = std::uniform_int_distribution<int>(0, 31)(generator);
            for (int lane = 0; lane < 32; ++lane) {
                current = warp * 32 + (first + lane) % 32;
                if (!one.fibers[current].done) swapcontext(&scheduler, &one.fibers[current].context);
            }
        }
    }
}

void run_grid(long long units, int resident) {
    std::vector<std::unique_ptr<Cluster>> running;
    long long next = 0;
    for (int idle = 0; next < units || !running.empty();) {
        while (next < units && static_cast<int>(running.size()) < resident) running.push_back(start(next++));
        progressed = false;
        for (auto& one : running) {
            run_pass(*one);
            run_some(loads, 8);
            if (one_in(30)) run_some(stores, 8);
        }
        running.erase(std::remove_if(running.begin(), running.end(), [](const auto& one) { return one->running == 0; }),
                      running.end());
        idle = progressed ? 0 : idle + 1;
        if (idle > 1000 && loads.empty() && stores.empty()) fault("waits for ever");
    }
    if (!loads.empty() || !stores.empty()) fault("leaves copies under way");
}

}  // namespace

Index thread_index() { return {current % threads}; }
Index block_index() { return {static_cast<int>(this_block().index)}; }
Block& this_block() { return current_cluster->blocks[current / threads]; }
Block& block_of_cluster(int rank) {
    if (rank >= cluster) fault("reaches for a block that its cluster does not have");
    return current_cluster->blocks[rank];
}
Warp& this_warp() { return this_block().warps[thread_index().x / 32]; }
Lane& lane_of_warp(int lane) { return current_cluster->fibers[current / 32 * 32 + lane].lane; }
Lane& this_lane() { return current_cluster->fibers[current].lane; }
void yield() { swapcontext(&current_cluster->fibers[current].context, &scheduler); }
void progress() { progressed = true; }
void wait_for_block() {
    gather(current_cluster->whole_blocks[current / threads], threads, Meeting::none, [] {});
}
// A thread arrives at each phase once, so that the phase it waits for is the one after those it has seen complete.
void arrive_at_cluster() {
    Fiber& fiber = current_cluster->fibers[current];
    if (fiber.arrivals++ != fiber.waits) fault("arrives at the cluster's barrier twice");
    if (++current_cluster->arrived == cluster * threads) {
        current_cluster->arrived = 0;
        ++current_cluster->phases;
        progress();
    }
}
void wait_for_cluster() {
    Fiber& fiber = current_cluster->fibers[current];
    if (fiber.waits++ == fiber.arrivals) fault("waits at the cluster's barrier without having arrived");
    while (current_cluster->phases < fiber.waits) yield();
}
void wait_for_warp(Meeting meeting, const std::function<void()>& act) {
    gather(current_cluster->warps[current / 32], 32, meeting, act);
}
void multiplied(int columns) {
    busy_ns[this_block().index % busy_ns.size()] += 2.0 * 16 * columns * depth / flop_per_ns / 32;
}
void queue_load(std::function<void()> copy) { loads.push_back(std::move(copy)); }
void queue_store(std::function<void()> copy) { stores.push_back(std::move(copy)); }
void require_global(const void* address, std::size_t bytes) {
    const char* begin = static_cast<const char*>(address);
    if (reinterpret_cast<std::uintptr_t>(begin) % bytes != 0) fault("accesses global memory misaligned");
    for (const auto& [region, size] : regions)
        if (begin >= region && begin + bytes <= region + size) return;
    fault("accesses global memory outside of its allocations");
}
bool late() { return !one_in(4); }
void fault(const char* what) {
    std::fprintf(stderr, "thread %d of block %d %s\n", thread_index().x, block_index().x, what);
    std::exit(3);
}


// A launch as the double of libcuda has it.
inline void run(EmulatedLaunch* launch, const std::function<void()>& body) {
    threads = static_cast<int>(launch->block[0] * launch->block[1] * launch->block[2]);
    cluster = static_cast<int>(launch->cluster);
    if (threads % 32 != 0) fault("is of a block that is not made of whole warps");
    shared_bytes = launch->shared_bytes;
    regions.clear();
    for (std::size_t each = 0; each < launch->region_count; ++each)
        regions.emplace_back(launch->regions[each].begin, launch->regions[each].bytes);
    busy_ns.assign(launch->multiprocessors, 0);
    generator.seed(static_cast<unsigned>(launch->began_ns));
    kernel = body;
    run_grid(launch->grid[0] / launch->cluster, 2);
    launch->lasted_ns = *std::max_element(busy_ns.begin(), busy_ns.end());
}

}  // namespace emulation
