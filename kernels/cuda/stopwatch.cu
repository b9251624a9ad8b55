// Kernels of the stopwatch: one holds a stream while work is queued behind it, one reads the multiprocessors' clocks.

using u32 = unsigned int;
using u64 = unsigned long long;

// Shared with the host, which opens it; laid out as in csrc/cuda/stopwatch.cpp.
struct Gate {
    u32 open;
    u32 timed_out;
};

struct alignas(16) ClockPair {
    u64 cycles;
    u64 nanoseconds;
};

__device__ inline u64 global_timer_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// One thread. Ends when the host opens the gate, or by itself after `limit_ns`: a launch that waits for the device
// while the stream is held would otherwise wait for ever.
extern "C" __global__ void pyperf_hold_stream(volatile Gate* gate, u64 limit_ns) {
    const u64 begin = global_timer_ns();
    while (gate->open == 0) {
        if (global_timer_ns() - begin > limit_ns) {
            gate->timed_out = 1;
            return;
        }
    }
}

// One block of one thread for each multiprocessor; an idle device places them one to each. pairs[s] is written by the
// block on multiprocessor s < slots. The global timer moves in steps of up to a microsecond on some GPUs, so the
// cycles are read just after a step; bounded, should a timer stand still.
extern "C" __global__ void pyperf_read_clocks(ClockPair* pairs, u32 slots) {
    u32 multiprocessor;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    if (multiprocessor >= slots) return;
    const u64 begin = global_timer_ns();
    u64 now = begin;
    for (int turn = 0; turn < 1000 && now == begin; ++turn) now = global_timer_ns();
    ClockPair pair;
    pair.cycles = clock64();
    pair.nanoseconds = now;
    pairs[multiprocessor] = pair;
}
