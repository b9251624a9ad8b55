// The limits are those of cuTensorMapEncodeTiled (CUDA Driver API reference, "Tensor Map Object Management"); the
// driver would answer all of them with CUDA_ERROR_INVALID_VALUE alone.
#include "cuda/tensor_map.h"

#include "check.h"

namespace pyperf::cuda {
namespace {

struct ElementType {
    const char* name;
    int code;  // CUtensorMapDataType; fp8 travels as bytes
    int bytes;
};

constexpr ElementType element_types[] = {
    {"uint8", 0, 1}, {"float8_e4m3", 0, 1}, {"float16", 6, 2}, {"float32", 7, 4}, {"bfloat16", 9, 2},
};

const ElementType& element_type(const std::string& name) {
    for (const ElementType& type : element_types)
        if (name == type.name) return type;
    throw InputError(text("A tensor map of ", name,
                          " was asked for: it can be of uint8, float8_e4m3, float16, float32 or bfloat16."));
}

// The driver's number of a size out of 0, smallest, 2·smallest, 4·smallest; −1 where it is none of them.
int choice(int bytes, int smallest) {
    for (int number = 0; number < 4; ++number)
        if (bytes == (number == 0 ? 0 : smallest << (number - 1))) return number;
    return -1;
}

}  // namespace

void check_tensor_map(const TensorMap& map) {
    const ElementType& type = element_type(map.dtype);
    CHECK_INPUT(map.address % 16 == 0, "TMA cannot take the address ", map.address, ": it must be a multiple of 16 bytes.");
    for (const std::int64_t side : map.shape)
        CHECK_INPUT(side >= 1 && side <= (std::int64_t{1} << 32), "TMA cannot take a matrix of ", map.shape[1], "x",
                    map.shape[0], ": each side must be between 1 and 2^32.");
    CHECK_INPUT(map.stride_bytes % 16 == 0, "TMA cannot take rows ", map.stride_bytes,
                " bytes apart: the distance must be a multiple of 16, so a leading dimension of ", map.dtype,
                " a multiple of ", 16 / type.bytes, ".");
    CHECK_INPUT(map.stride_bytes >= map.shape[0] * type.bytes && map.stride_bytes < (std::int64_t{1} << 40),
                "TMA cannot take rows ", map.stride_bytes, " bytes apart: it must be at least the ",
                map.shape[0] * type.bytes, " bytes of a row and below 2^40.");
    CHECK_INPUT(map.matrices >= 0 && map.matrices <= (std::int64_t{1} << 32), "TMA cannot take ", map.matrices,
                " matrices: ask for 1 to 2^32, or for 0, which is one whose place has two coordinates.");
    CHECK_INPUT(map.matrices == 0 || (map.matrix_bytes % 16 == 0 && map.matrix_bytes >= 0 &&
                                      map.matrix_bytes < (std::int64_t{1} << 40)),
                "TMA cannot take matrices ", map.matrix_bytes,
                " bytes apart: the distance must be a multiple of 16 below 2^40.");
    for (const std::int64_t side : map.box)
        CHECK_INPUT(side >= 1 && side <= 256, "TMA cannot copy a box of ", map.box[1], "x", map.box[0],
                    ": each side must be between 1 and 256.");
    const std::int64_t row_bytes = map.box[0] * type.bytes;
    CHECK_INPUT(row_bytes % 16 == 0, "TMA cannot copy a box of ", map.box[1], "x", map.box[0], " ", map.dtype,
                ": its rows have ", row_bytes, " bytes, and it must be a multiple of 16.");
    CHECK_INPUT(choice(map.swizzle_bytes, 32) >= 0, "A swizzle of ", map.swizzle_bytes,
                " bytes was asked for: it can be 0, 32, 64 or 128.");
    CHECK_INPUT(map.swizzle_bytes == 0 || row_bytes <= map.swizzle_bytes, "TMA cannot copy a box with rows of ",
                row_bytes, " bytes with a swizzle of ", map.swizzle_bytes, ": a row must fit into the swizzle.");
    CHECK_INPUT(choice(map.l2_promotion_bytes, 64) >= 0, "An L2 promotion of ", map.l2_promotion_bytes,
                " bytes was asked for: it can be 0, 64, 128 or 256.");
}

CUtensorMap encode_tensor_map(const Context& context, const TensorMap& map) {
    check_tensor_map(map);
    if (!context.properties().tensor_maps)
        throw NotAvailable(text(context.properties().name,
                                " has no bulk tensor copy engine (TMA), which came with sm_90: take an sm_80 kernel."));
    const std::uint64_t shape[] = {static_cast<std::uint64_t>(map.shape[0]), static_cast<std::uint64_t>(map.shape[1]),
                                   static_cast<std::uint64_t>(map.matrices)};
    const std::uint64_t strides_bytes[] = {static_cast<std::uint64_t>(map.stride_bytes),  // the inner one is implied
                                           static_cast<std::uint64_t>(map.matrix_bytes)};
    const std::uint32_t box[] = {static_cast<std::uint32_t>(map.box[0]), static_cast<std::uint32_t>(map.box[1]), 1};
    const std::uint32_t element_strides[] = {1, 1, 1};
    constexpr int no_interleave = 0, fill_with_zeros = 0;
    CUtensorMap encoded;
    const CurrentContext current(context);
    PYPERF_CALL(context.driver(), cuTensorMapEncodeTiled, &encoded, element_type(map.dtype).code, map.matrices == 0 ? 2 : 3,
                reinterpret_cast<void*>(map.address), shape, strides_bytes, box, element_strides, no_interleave,
                choice(map.swizzle_bytes, 32), choice(map.l2_promotion_bytes, 64), fill_with_zeros);
    return encoded;
}

}  // namespace pyperf::cuda
