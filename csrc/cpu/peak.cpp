#include "cpu/peak.h"

#include "check.h"
#include "cpu/pool.h"

#include <algorithm>
#include <chrono>

namespace pyperf::cpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double most_seconds = 10;
constexpr double slice_s = 200e-6;  // long beside a look at the time, short beside what else disturbs a core
constexpr int fewest_slices = 5;    // also where one of them was disturbed for longer than all should take
constexpr std::int64_t steps = 1 << 13;
constexpr std::int64_t pace_rounds = 1 << 15;  // 0.05 to 0.2 ms of the portable loop, the same on every machine
constexpr int paces = 2;                       // of which the faster one counts: an interrupt is not the core's pace

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Additions that each wait for the one before: every processor does one a cycle. A licence for wide vectors lasts
// longer than these do, so right after a loop they tell the clock it ran at.
double clock_hz() {
    std::uint64_t sum = 1, each = 3;
    const auto begin = Clock::now();
    for (std::int64_t step = 0; step < steps; step += 16) {
#pragma GCC unroll 16
        for (int unrolled = 0; unrolled < 16; ++unrolled) {
            sum += each;
            __asm__ volatile("" : "+r"(sum), "+r"(each));
        }
    }
    return static_cast<double>(steps) / since(begin);
}

// Small integers: nothing overflows, and no sum is a denormal.
void fill(float (&values)[spin_values]) {
    for (int index = 0; index < spin_values; ++index) values[index] = static_cast<float>(index % 7 + 1) * 0x1p-10f;
}

std::vector<int> first_cores(std::int64_t workers) {
    std::vector<int> cores = usable_cores();
    CHECK_INPUT(workers >= 1 && workers <= static_cast<std::int64_t>(cores.size()), "workers = ", workers,
                " is out of range: this process may use ", cores.size(), " cores.");
    cores.resize(workers);
    return cores;
}

CorePeak peak_of_this_core(const ProductKernels& product, double seconds) {
    alignas(64) float values[spin_values];
    CorePeak best{0, 0, 0};
    for (int look = 0; look < 8; ++look) best.idle_clock_hz = std::max(best.idle_clock_hz, clock_hz());
    std::int64_t rounds = 64;
    const auto begin = Clock::now();
    int slices = 0;
    do {
        fill(values);
        const auto slice = Clock::now();
        product.spin(rounds, values);
        const double taken = since(slice);
        if (taken < slice_s / 2) {
            rounds *= 2;
            continue;
        }
        ++slices;
        best.flop_per_s = std::max(best.flop_per_s, 2 * product.multiply_adds * static_cast<double>(rounds) / taken);
        best.clock_hz = std::max(best.clock_hz, clock_hz());
    } while (slices < fewest_slices || since(begin) < seconds);
    return best;
}

}  // namespace

std::vector<CorePeak> measure_peak(const KernelSet& kernels, DataType type, std::int64_t workers, double seconds) {
    const std::vector<int> cores = first_cores(workers);
    CHECK_INPUT(seconds > 0 && seconds <= most_seconds, "seconds = ", seconds, " is out of range: ask for at most ",
                most_seconds, ".");
    CHECK_INTERNAL(kernels.of(type).spin, "every product has a loop on registers");
    std::vector<CorePeak> found(workers);
    run_on_workers(cores, true, [&](int worker) {
        found[worker] = peak_of_this_core(kernels.of(type), seconds);
        if (kernels.leave) kernels.leave();
    });
    return found;
}

std::vector<double> pace_of_cores(const KernelSet& kernels, std::int64_t workers) {
    const std::vector<int> cores = first_cores(workers);
    std::vector<double> seconds(workers, most_seconds);
    run_on_workers(cores, workers > 1, [&](int worker) {
        alignas(64) float values[spin_values];
        for (int pace = 0; pace < paces; ++pace) {
            fill(values);
            const auto begin = Clock::now();
            kernels.of(DataType::float32).spin(pace_rounds, values);
            seconds[worker] = std::min(seconds[worker], since(begin));
        }
    });
    return seconds;
}

}  // namespace pyperf::cpu
