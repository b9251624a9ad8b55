// Answers of CuTe to everything that attention_tile.cuh computes, for the cases that the test lists in cases.h; it knows
// nothing of ours. against_cute_attention_tile.cpp says the same of ours, in the same order. The argument chooses what.
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
// As nvcc says it: without, CuTe leaves tensor maps out. And they are encoded by a plain call, which ends below.
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 8
#define CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL 1
#include <cute/tensor.hpp>  // before its parts, which count on it

#include <cute/atom/copy_traits_sm90_tma.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cutlass/numeric_types.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include <unistd.h>

using namespace cute;
using Bf16 = cutlass::bfloat16_t;
using GMMA::Major;

static std::string what;

// The standard output, where CuTe does not come: it prints that a host has no addresses in shared memory, and takes 0.
static std::FILE* const answers = fdopen(dup(1), "w");
static const bool quiet = std::freopen("/dev/null", "w", stdout) != nullptr;

static void put(std::int64_t number) { std::fwrite(&number, sizeof number, 1, answers); }

extern "C" CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                                   const cuuint64_t* shape, const cuuint64_t* strides,
                                                   const cuuint32_t* box, const cuuint32_t* steps,
                                                   CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                                   CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    for (std::int64_t number : {std::int64_t(type), std::int64_t(rank), reinterpret_cast<std::int64_t>(address),
                                std::int64_t(shape[0]), std::int64_t(shape[1]), std::int64_t(strides[0]),
                                std::int64_t(box[0]), std::int64_t(box[1]), std::int64_t(steps[0]),
                                std::int64_t(steps[1]), std::int64_t(shape[2]), std::int64_t(strides[1]),
                                std::int64_t(box[2]), std::int64_t(steps[2]), std::int64_t(interleave),
                                std::int64_t(swizzle), std::int64_t(promotion), std::int64_t(fill)})
        put(number);
    return CUDA_SUCCESS;
}
extern "C" CUresult CUDAAPI cuGetErrorString(CUresult, const char** words) {
    *words = "";
    return CUDA_SUCCESS;
}

template <Major major, int span>
auto atom() {
    if constexpr (major == Major::MN)
        return std::conditional_t<span == 128, GMMA::Layout_MN_SW128_Atom<Bf16>, GMMA::Layout_MN_SW64_Atom<Bf16>>{};
    else
        return std::conditional_t<span == 128, GMMA::Layout_K_SW128_Atom<Bf16>, GMMA::Layout_K_SW64_Atom<Bf16>>{};
}

// An operand of `extent` rows of M or N by `depth`: where each element lies, and the descriptor of each step along K.
template <Major major, int extent, int depth, int span>
void operand() {
    using Order = std::conditional_t<major == Major::K, Step<_1, _2>, Step<_2, _1>>;
    using Shaped = Shape<Int<extent>, Int<depth>>;
    const auto layout = tile_to_shape(atom<major, span>(), Shaped{}, Order{});
    if (what == "maps") {
        const auto moved = as_position_independent_swizzle_layout(
            tile_to_shape(atom<major, span>(), make_shape(extent, depth), Order{}));
        for (int i = 0; i < extent; ++i)
            for (int k = 0; k < depth; ++k) put(moved(i, k) * 2);
    }
    if (what == "descriptors") {
        const auto tile = make_tensor(make_smem_ptr(static_cast<Bf16*>(nullptr)),
                                      composition(layout, Shape<Int<extent>, _16>{}));
        const SM90::GMMA::DescriptorIterator first{GMMA::make_gmma_desc<major>(tile)};
        const auto plain = get_nonswizzle_portion(layout);
        for (int k = 0; k < depth; k += 16) put(static_cast<std::int64_t>((*(first + plain(0, k) / 8)).desc_));
    }
}

// The map of such rows of Q, K, V or O in one of `heads` matrices of `seq` rows by `head_dim`.
template <int extent, int depth, int span>
void head_map(int seq, int head_dim, int heads) {
    const auto layout = tile_to_shape(atom<Major::K, span>(), Shape<Int<extent>, Int<depth>>{});
    const auto matrices = make_tensor(make_gmem_ptr(reinterpret_cast<Bf16*>(MATRIX_ADDRESS)),
                                      make_shape(seq, head_dim, heads), make_stride(head_dim, _1{}, seq * head_dim));
    const auto tile = make_identity_layout(shape(matrices)).compose(Shape<Int<extent>, Int<depth>>{});
    const auto basis = detail::construct_tma_gbasis<Bf16>(matrices, get_nonswizzle_portion(layout), tile);
    detail::make_tma_copy_desc<Bf16>(matrices, basis, get_swizzle_portion(layout), 1);
}

#define OPERAND(major, extent, depth, span) operand<Major::major, extent, depth, span>();
#define HEAD_MAP(extent, depth, span, seq, head_dim, heads) \
    if (what == "head_maps") head_map<extent, depth, span>(seq, head_dim, heads);

int main(int, char** arguments) {
    what = arguments[1];
#include "cases.h"
    if (what == "weights") {
        const auto places = MMA_Traits<SM90::GMMA::MMA_64x64x16_F32BF16BF16_RS<Major::K, Major::MN>>::ALayout{};
        for (int thread = 0; thread < 128; ++thread)
            for (int i = 0; i < 8; ++i) put(places(thread, i));
    }
}
