// The tile to take when none is asked for.
#pragma once

#include "cpu/kernels.h"
#include "schedule.cuh"

namespace pyperf::cpu {

// Throws InputError on a dimension or a worker count below 1.
Tile default_tile(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t workers, const ProductKernels& product);

}  // namespace pyperf::cpu
