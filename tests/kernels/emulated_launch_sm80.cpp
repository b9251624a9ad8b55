// Runs gemm_sm80.cu on the host: blocks one after the other, each thread a fiber that runs until its warp or block waits.
//
// Usage: launch A_BYTES B_BYTES C_BYTES A_OFFSET B_OFFSET C_OFFSET LDA LDB LDC M N K KIND TILES_M TILES_N K_TILES SPLITS
// WORKERS GROUP SHARED_BYTES ORDER LATE; the operands come from standard input, and C followed by the flags goes to
// standard output. An offset is that of the first element from a 128-byte boundary.
#include "gemm_sm80.cu"

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

constexpr int threads = pyperf::spec.threads();
constexpr std::size_t stack_bytes = 256 << 10;

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack = std::make_unique<char[]>(stack_bytes);
    Lane lane;
    bool done;
};

struct Gathering {
    int arrived = 0;
    long generation = 0;
    Meeting meeting = Meeting::none;
};

Fiber fibers[threads];
Gathering warps[threads / 32];
Gathering block;
ucontext_t scheduler;
int current;
long arrivals;  // at anything, by any thread
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
    int sequence[threads];
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
        if (order == 2) std::shuffle(sequence, sequence + threads, random);
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
    gather(warps[warp], 32, meeting, [&] { act(warp); });
}

}  // namespace emulation

constexpr char untouched = 0x5a;

int main(int, char** arguments) {
    const auto next = [&arguments] { return std::atoll(*++arguments); };
    struct Operand {
        std::size_t bytes;
        char* data;
    } operands[3];
    std::vector<char> memory[3];
    for (Operand& operand : operands) operand.bytes = next();
    for (int i = 0; i < 3; ++i) {
        memory[i].assign(operands[i].bytes + 512, untouched);
        const auto address = reinterpret_cast<std::uintptr_t>(memory[i].data());
        operands[i].data = memory[i].data() + (128 - address % 128) + next();
        if (std::fread(operands[i].data, 1, operands[i].bytes, stdin) != operands[i].bytes) return 4;
        emulation::regions.push_back({operands[i].data, operands[i].bytes});
    }
    const long long lda = next(), ldb = next(), ldc = next();
    const int m = next(), n = next(), k = next();
    const auto kind = static_cast<pyperf::ScheduleKind>(next());
    const int tiles_m = next(), tiles_n = next(), k_tiles = next(), splits = next(), workers = next(), group = next();
    const pyperf::Schedule schedule{kind, tiles_m, tiles_n, k_tiles, splits, workers, group};
    emulation::shared_bytes = next();
    const int order = next();
    emulation::copies_arrive_late = next() != 0;

    const std::size_t shared_tiles = schedule.shared_tiles();
    const std::size_t sums = shared_tiles * pyperf::spec.tile.m * pyperf::spec.tile.n;
    std::vector<uint4> workspace(sums / 4 + 1, uint4{~0u, ~0u, ~0u, ~0u});
    std::vector<int> flags(shared_tiles);
    emulation::regions.push_back({reinterpret_cast<char*>(workspace.data()), sums * sizeof(float)});
    emulation::regions.push_back({reinterpret_cast<char*>(flags.data()), shared_tiles * sizeof(int)});
    emulation::kernel = [&] {
        pyperf_gemm(operands[0].data, operands[1].data, operands[2].data, lda, ldb, ldc, m, n, k, schedule,
                    reinterpret_cast<float*>(workspace.data()), flags.data());
    };
    std::mt19937 random(0);
    for (long long unit = 0; unit < schedule.units(); ++unit) {
        emulation::block_index.x = static_cast<int>(unit);
        emulation::run_block(random, order);
    }
    const char* c_end = operands[2].data + operands[2].bytes;
    for (const char& byte : memory[2])
        if ((&byte < operands[2].data || &byte >= c_end) && byte != untouched) emulation::fault("wrote beyond C");
    std::fwrite(operands[2].data, 1, operands[2].bytes, stdout);
    if (!flags.empty()) std::fwrite(flags.data(), sizeof(int), flags.size(), stdout);
}
