// The tile to take when none is asked for.
#pragma once

#include "cpu/kernels.h"
#include "schedule.cuh"

namespace pyperf::cpu {

// Bytes of a core's second cache, 512 KiB to 2 MiB whatever the machine reports.
std::int64_t l2_bytes();

// Throws InputError on a dimension or a worker count below 1.
Tile default_tile(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t workers, const ProductKernels& product);

}  // namespace pyperf::cpu
