// The most that cores multiply: a loop on registers alone, and the clock at which it ran.
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

// Each of the cores at the same time as the others, for so many seconds. Throws InputError on values out of range.
std::vector<CorePeak> measure_peak(const KernelSet& kernels, DataType type, std::int64_t workers, double seconds);

}  // namespace pyperf::cpu
