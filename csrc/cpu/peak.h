// The most that cores multiply, and how fast they are at a moment: loops on registers alone, and the clock of them.
#pragma once

#include "cpu/kernels.h"

#include <cstdint>
#include <vector>

namespace pyperf::cpu {

struct CorePeak {
    double flop_per_s;
    double clock_hz;       // while it multiplied
    double idle_clock_hz;  // of plain integers, before it did
};

// Peak of each core at the same time as the others, over `seconds` seconds. Throws InputError on values out of range.
std::vector<CorePeak> measure_peak(const KernelSet& kernels, DataType type, std::int64_t workers, double seconds);

// Seconds that each of the first `workers` usable cores takes for the same work on registers, all at the same time: how
// fast they are at that moment. Of one worker the core is that of the calling thread, wherever it runs. Throws
// InputError for more workers than usable cores.
std::vector<double> pace_of_cores(const KernelSet& kernels, std::int64_t workers);

}  // namespace pyperf::cpu
