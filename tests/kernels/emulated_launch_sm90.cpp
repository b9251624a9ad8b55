// Runs gemm_sm90.cu on the host: the threads of some clusters at a time as fibers, each until it waits for another or
// for the copy engine. Copies arrive in random order, stores late, and some blocks and warps are slow.
//
// Usage: launch SIZES MAPS SCHEDULE SHARED_BYTES RESIDENT LAUNCHES SEED. SIZES are the bytes of A, B and C; MAPS, for
// each of them, element bytes, columns, rows, stride in bytes, columns and rows of the box, swizzle in bytes; SCHEDULE
// its seven numbers. A, B, C come from standard input; C as each launch leaves it and the flags go to standard output.
#include "gemm_sm90.cu"

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <ucontext.h>

namespace emulation {
namespace {

constexpr int threads = pyperf::spec.threads(), cluster = pyperf::spec.cluster();
constexpr std::size_t stack_bytes = 64 << 10;

struct Gathering {
    int arrived = 0;
    long generation = 0;
    Meeting meeting = Meeting::none;
};

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack = std::make_unique<char[]>(stack_bytes);
    Lane lane;
    int arrivals = 0, waits = 0;  // at the cluster's barrier
    bool done = false;
};

// One cluster: its blocks' threads one block after the other.
struct Cluster {
    Block blocks[cluster];
    std::vector<Fiber> fibers = std::vector<Fiber>(cluster * threads);
    Gathering warps[cluster * threads / 32], whole_blocks[cluster];
    int arrived = 0, phases = 0;  // of the cluster's barrier
    int running = cluster * threads;
    int block_stalls[cluster] = {};               // passes that a block sits out
    int warp_stalls[cluster * threads / 32] = {};  // and a warp
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

}  // namespace emulation

int main(int, char** arguments) {
    const auto next = [&arguments] { return std::atoll(*++arguments); };
    std::vector<char> memory[3];
    for (auto& bytes : memory) bytes.resize(static_cast<std::size_t>(next()));
    pyperf::ptx::TensorMap maps[3];
    for (int i = 0; i < 3; ++i) {
        if (std::fread(memory[i].data(), 1, memory[i].size(), stdin) != memory[i].size()) return 4;
        const int element_bytes = static_cast<int>(next());
        const long long columns = next(), rows = next(), stride_bytes = next();
        const int box_columns = static_cast<int>(next()), box_rows = static_cast<int>(next());
        maps[i] = {memory[i].data(), element_bytes, columns, rows, stride_bytes, box_columns, box_rows,
                   static_cast<int>(next())};
    }
    int numbers[7];
    for (int& number : numbers) number = static_cast<int>(next());
    const pyperf::Schedule schedule{static_cast<pyperf::ScheduleKind>(numbers[0]), numbers[1], numbers[2], numbers[3],
                                    numbers[4], numbers[5], numbers[6]};
    emulation::shared_bytes = static_cast<std::size_t>(next());
    const int resident = static_cast<int>(next()), launches = static_cast<int>(next());
    emulation::generator.seed(static_cast<unsigned>(next()));

    const auto shared_tiles = static_cast<std::size_t>(schedule.shared_tiles());
    std::vector<float4> workspace(shared_tiles * pyperf::spec.partial_floats() / 4 + 1);
    std::vector<int> flags(shared_tiles * pyperf::spec.cluster() * pyperf::spec.consumer_warps());
    emulation::regions = {{reinterpret_cast<char*>(workspace.data()), (workspace.size() - 1) * sizeof(float4)},
                          {reinterpret_cast<char*>(flags.data()), flags.size() * sizeof(int)}};
    emulation::kernel = [&] {
        pyperf_gemm(maps[0], maps[1], maps[2], schedule, reinterpret_cast<float*>(workspace.data()), flags.data());
    };
    const std::vector<char> poisoned = memory[2];
    for (int launch = 0; launch < launches; ++launch) {
        std::copy(poisoned.begin(), poisoned.end(), memory[2].begin());
        std::fill(workspace.begin(), workspace.end(), float4{NAN, NAN, NAN, NAN});
        emulation::run_grid(schedule.units(), resident);
        std::fwrite(memory[2].data(), 1, memory[2].size(), stdout);
    }
    std::fwrite(flags.data(), sizeof(int), flags.size(), stdout);
}
