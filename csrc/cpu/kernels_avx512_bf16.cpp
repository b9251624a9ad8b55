// AVX-512 with VDPBF16PS, which sums two products of bfloat16 into a lane.
#include "cpu/kernels_isa.h"
#include "cpu/processor.h"

#if defined(__x86_64__)
#include <cstring>
#include <utility>

#include <immintrin.h>

#if defined(PYPERF_EMULATED)
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")
#endif

namespace pyperf::cpu {
namespace {

#include "cpu/kernels_avx512.h"
#include "cpu/kernels_template.h"
#include "cpu/words_template.h"

struct Bfloat16Pairs {
    static Vec dot(Vec sum, Vec a, Vec b) {
        return reinterpret_cast<Vec>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(a),
                                                      reinterpret_cast<__m512bh>(b)));
    }
};

template <int ROWS>
void micro_of_words(std::int64_t depth, const void* a_memory, const void* b_memory, float* c, std::int64_t ldc,
                    bool accumulate) {
    const auto* a_panel = static_cast<const std::int32_t*>(a_memory);
    const auto* b_panel = static_cast<const float*>(b_memory);
    const std::int64_t words = (depth + IN_WORD - 1) / IN_WORD;
    Vec sum[ROWS][VECTORS] = {};
    for (std::int64_t word = 0; word < words; ++word, ++a_panel, b_panel += NR) {
        for (int lane = 0; lane < NR; lane += 16) __builtin_prefetch(b_panel + 32 * NR + lane);
        Vec b[VECTORS];
#pragma GCC unroll 4
        for (int vector = 0; vector < VECTORS; ++vector) b[vector] = load(b_panel + vector * LANES);
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; ++row) {
            const Vec a = reinterpret_cast<Vec>(LanesOfInt{} + a_panel[row * A_STRIDE]);
#pragma GCC unroll 4
            for (int vector = 0; vector < VECTORS; ++vector)
                sum[row][vector] = Bfloat16Pairs::dot(sum[row][vector], a, b[vector]);
        }
    }
    finish<ROWS, VECTORS>(sum, c, ldc, accumulate);
}

template <int... ROWS> constexpr ProductKernels pair_products(std::integer_sequence<int, ROWS...>) {
    return word_products<IN_WORD, MR>("vdpbf16ps", 2, spin_registers<Bfloat16Pairs>, MR * NR * IN_WORD,
                                      micro_of_words<ROWS + 1>...);
}
constexpr ProductKernels bfloat16_product = pair_products(std::make_integer_sequence<int, MR>{});

}  // namespace
}  // namespace pyperf::cpu

#if defined(PYPERF_EMULATED)
#elif defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace pyperf::cpu {

const KernelSet* avx512_bf16_kernels() {
    static const KernelSet set = with_bfloat16(avx512_kernels(), "avx512_bf16", bfloat16_product);
    return avx512_kernels() && processor().avx512_bf16 ? &set : nullptr;
}

}  // namespace pyperf::cpu
#else
namespace pyperf::cpu {
const KernelSet* avx512_bf16_kernels() { return nullptr; }
}  // namespace pyperf::cpu
#endif
