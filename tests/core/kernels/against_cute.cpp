// Answers of CuTe to everything that tile.cuh computes, for the cases that the test lists in cases.h; ours is not known here.
//
// against_cute_tile.cpp says the same of ours, in the same order: 64-bit numbers to the standard output. The argument
// chooses what: maps, descriptors, accumulators, tensor_maps, or fragments of mma.m16n8k16.
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
// As nvcc says it: without, CuTe leaves tensor maps out. And they are encoded by a plain call, which ends below.
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 8
#define CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL 1
#include <cute/tensor.hpp>  // before its parts, which count on it

#include <cute/atom/copy_traits_sm90_tma.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/atom/mma_traits_sm90_gmma_ext.hpp>
#include <cutlass/numeric_types.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include <unistd.h>

using namespace cute;
using Bf16 = cutlass::bfloat16_t;
using Fp16 = cutlass::half_t;
using E4m3 = cutlass::float_e4m3_t;
using Fp32 = float;

// The meaning of the immediates of wgmma, whose text the test compares by itself.
static_assert(int(GMMA::Major::K) == 0 && int(GMMA::Major::MN) == 1 && int(GMMA::ScaleIn::One) == 1);

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
                                std::int64_t(steps[1]), std::int64_t(interleave), std::int64_t(swizzle),
                                std::int64_t(promotion), std::int64_t(fill)})
        put(number);
    return CUDA_SUCCESS;
}
extern "C" CUresult CUDAAPI cuGetErrorString(CUresult, const char** words) {
    *words = "";
    return CUDA_SUCCESS;
}

template <class Element, GMMA::Major major, int span>
auto atom() {
    constexpr bool k_major = major == GMMA::Major::K;
    if constexpr (span == 128)
        return std::conditional_t<k_major, GMMA::Layout_K_SW128_Atom<Element>, GMMA::Layout_MN_SW128_Atom<Element>>{};
    else if constexpr (span == 64)
        return std::conditional_t<k_major, GMMA::Layout_K_SW64_Atom<Element>, GMMA::Layout_MN_SW64_Atom<Element>>{};
    else if constexpr (span == 32)
        return std::conditional_t<k_major, GMMA::Layout_K_SW32_Atom<Element>, GMMA::Layout_MN_SW32_Atom<Element>>{};
    else
        return std::conditional_t<k_major, GMMA::Layout_K_INTER_Atom<Element>, GMMA::Layout_MN_INTER_Atom<Element>>{};
}

// `extent` rows of M or N by `depth` in shared memory, `rows` of them read by one wgmma (0: by none), in matrices of
// `extent_of_all` rows; loaded by one CTA, and where `most_shared` is 2 by two as well.
template <class Element, GMMA::Major major, int extent, int depth, int span, int rows, int most_shared>
void operand(int extent_of_all, int depth_of_all) {
    constexpr bool k_major = major == GMMA::Major::K;
    constexpr int bytes = sizeof(Element);
    using Order = std::conditional_t<k_major, Step<_1, _2>, Step<_2, _1>>;
    using Shaped = Shape<Int<extent>, Int<depth>>;
    const auto layout = tile_to_shape(atom<Element, major, span>(), Shaped{}, Order{});
    if (what == "maps") {
        const auto moved = as_position_independent_swizzle_layout(
            tile_to_shape(atom<Element, major, span>(), make_shape(extent, depth), Order{}));
        for (int shared = 1; shared <= most_shared; ++shared)
            for (int i = 0; i < extent; ++i)
                for (int k = 0; k < depth; ++k) put(moved(i, k) * bytes);
    }
    if constexpr (rows > 0) {
        constexpr int step = 32 / bytes;
        if (what == "descriptors") {
            using Read = Shape<Int<rows>, Int<step>>;
            const auto tile = make_tensor(make_smem_ptr(static_cast<Element*>(nullptr)), composition(layout, Read{}));
            const SM90::GMMA::DescriptorIterator first{GMMA::make_gmma_desc<major>(tile)};
            const auto plain = get_nonswizzle_portion(layout);
            for (int row = 0; row < extent; row += rows)
                for (int k = 0; k < depth; k += step)
                    put(static_cast<std::int64_t>((*(first + plain(row, k) * bytes / 16)).desc_));
        }
    }
    if (what == "tensor_maps") {
        const auto strides = [&] {
            if constexpr (k_major)
                return make_stride(depth_of_all, _1{});
            else
                return make_stride(_1{}, extent_of_all);
        }();
        const auto matrix = make_tensor(make_gmem_ptr(reinterpret_cast<Element*>(MATRIX_ADDRESS)),
                                        make_shape(extent_of_all, depth_of_all), strides);
        const auto tile = make_identity_layout(shape(matrix)).compose(Shaped{});
        const auto basis = detail::construct_tma_gbasis<Element>(matrix, get_nonswizzle_portion(layout), tile);
        for (int shared = 1; shared <= most_shared; ++shared)
            detail::make_tma_copy_desc<Element>(matrix, basis, get_swizzle_portion(layout), shared);
    }
}

// The element of a matrix, counted down its columns, in each register of each thread.
template <class Layout>
void places(Layout layout, int threads) {
    for (int thread = 0; thread < threads; ++thread)
        for (int i = 0; i < size<1>(layout); ++i) put(layout(thread, i));
}

using GMMA::Major;
#define OPERAND(element, major, extent, depth, span, rows, shared, extent_of_all, depth_of_all) \
    operand<element, Major::major, extent, depth, span, rows, shared>(extent_of_all, depth_of_all);
#define ACCUMULATOR(n, ...) \
    if (what == "accumulators") places(MMA_Traits<SM90::GMMA::__VA_ARGS__>::CLayout{}, 128);

int main(int, char** arguments) {
    what = arguments[1];
#include "cases.h"
    if (what == "fragments") {
        using Fragments = MMA_Traits<SM80_16x8x16_F32BF16BF16F32_TN>;
        places(Fragments::ALayout{}, 32);
        places(Fragments::BLayout{}, 32);
        places(Fragments::CLayout{}, 32);
    }
}
