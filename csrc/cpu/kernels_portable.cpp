// Kernels for the baseline of the architecture: 128-bit vectors, which every 64-bit processor has.
//
// On AArch64 this baseline is NEON with 32 registers, so the micro-tile is larger there and goes by that name.
#include "cpu/kernels_isa.h"

#include <cstring>
#include <utility>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace pyperf::cpu {
namespace {

#if defined(__aarch64__)
constexpr const char* isa_name = "neon";
#include "cpu/kernels_neon.h"
#else
constexpr const char* isa_name = "portable";
constexpr int LANES = 4, MR = 6, VECTORS = 2;
typedef float Vec __attribute__((vector_size(16), may_alias));

// Two products of 16 bits, summed in each lane.
inline auto products_of_shorts(Vec a, Vec b) {
    typedef std::int32_t Sums __attribute__((vector_size(16)));
#if defined(__SSE2__)
    return reinterpret_cast<Sums>(_mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
    const Sums left = reinterpret_cast<Sums>(a), right = reinterpret_cast<Sums>(b);
    return (left << 16 >> 16) * (right << 16 >> 16) + (left >> 16) * (right >> 16);
#endif
}
#endif

#include "cpu/kernels_template.h"

constexpr KernelSet kernels = kernel_set(isa_name, std::make_integer_sequence<int, MR>{});

}  // namespace

const KernelSet* baseline_kernels() { return &kernels; }

}  // namespace pyperf::cpu
