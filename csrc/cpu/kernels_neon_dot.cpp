// NEON with SDOT, which sums four products of 8 bits into a lane.
#include "cpu/kernels_isa.h"
#include "cpu/processor.h"

// Before Clang 16, arm_neon.h has this instruction only where the whole build may use it.
#if defined(__aarch64__) && (defined(__clang__) ? __clang_major__ >= 16 : __GNUC__ >= 10)
#include <cstring>
#include <utility>

#include <arm_neon.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

namespace pyperf::cpu {
namespace {

#include "cpu/kernels_neon.h"
#include "cpu/kernels_template.h"

struct Int8Quads {
    using Source = std::int8_t;
    using Sum = SumVec;
    using Element = std::int32_t;
    static constexpr int GROUP = 4, STEP = 4, HEADER = 0;

    static Vec words(const Source* source) { return load(reinterpret_cast<const float*>(source)); }
    static Vec of_a(Vec words) { return words; }
    static void finish_panel(float*, std::int64_t) {}
    static Sum dot(Sum sum, Vec a, Vec b) {
        return vdotq_s32(sum, reinterpret_cast<int8x16_t>(a), reinterpret_cast<int8x16_t>(b));
    }
};

constexpr ProductKernels int8_product = word_products<Int8Quads>("sdot", 4, std::make_integer_sequence<int, MR>{});

}  // namespace
}  // namespace pyperf::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace pyperf::cpu {

const KernelSet* neon_dot_kernels() {
    static const KernelSet set = with(baseline_kernels(), "neon_dot", {{DataType::int8, &int8_product}});
    return processor().neon_dot ? &set : nullptr;
}

}  // namespace pyperf::cpu
#else
namespace pyperf::cpu {
const KernelSet* neon_dot_kernels() { return nullptr; }
}  // namespace pyperf::cpu
#endif
