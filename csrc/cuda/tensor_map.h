// Tensor maps for TMA: what the bulk copy engine reads instead of a pointer, a shape and strides.
#pragma once

#include "cuda/driver.h"

#include <array>
#include <string>

namespace pyperf::cuda {

// A matrix in device memory, or several behind each other, and the box of one that a bulk copy moves; inner dimension
// (contiguous) first.
struct TensorMap {
    std::uint64_t address;
    std::string dtype;                   // bfloat16, float16, float32, float8_e4m3, uint8
    std::array<std::int64_t, 2> shape;   // in elements
    std::int64_t stride_bytes;           // from one row to the next
    std::array<std::int64_t, 2> box;     // in elements
    int swizzle_bytes;                   // 0, 32, 64 or 128: the span in which 16-byte chunks are permuted
    int l2_promotion_bytes;              // 0, 64, 128 or 256: how much L2 fetches at once
    std::int64_t matrices;               // 0 for one, whose place has two coordinates; else a place has three
    std::int64_t matrix_bytes;           // from one matrix to the next
};

// Throws InputError, naming the limit, where TMA cannot take it; needs neither driver nor GPU.
void check_tensor_map(const TensorMap& map);

// The 128 bytes that a kernel takes as `const __grid_constant__ CUtensorMap`. Elements outside the shape read as zero
// and are not written. Throws as check_tensor_map, and NotAvailable on a GPU without TMA.
CUtensorMap encode_tensor_map(const Context& context, const TensorMap& map);

}  // namespace pyperf::cuda
