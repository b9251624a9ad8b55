// AVX-512 with instructions for words: VPDPBUSD sums four products of 8 bits into a lane, VDPBF16PS two of bfloat16.
//
// Each set is the one before it with the products that its instruction multiplies faster.
#include "cpu/kernels_isa.h"
#include "cpu/processor.h"

#if defined(__x86_64__)
#include <cstring>
#include <utility>

#include <immintrin.h>

#if defined(PYPERF_EMULATED)
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma")
#endif

namespace pyperf::cpu {
namespace {

#include "cpu/kernels_avx512.h"
#include "cpu/kernels_template.h"

// The instruction takes bytes of A as unsigned: 128 is added to them, and its share begun with in each sum.
struct Int8Quads {
    using Source = std::int8_t;
    using Sum = SumVec;
    using Element = std::int32_t;
    static constexpr int GROUP = 4, STEP = 4, HEADER = NR * 4;

    static Vec words(const Source* source) { return load(reinterpret_cast<const float*>(source)); }
    static Vec of_a(Vec words) { return reinterpret_cast<Vec>(reinterpret_cast<BitsVec>(words) ^ 0x80808080u); }
    static Sum dot(Sum sum, Vec a, Vec b) {
        return reinterpret_cast<Sum>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(a),
                                                         reinterpret_cast<__m512i>(b)));
    }
    static void finish_panel(float* panel, std::int64_t words) {
        const Vec added = reinterpret_cast<Vec>(BitsVec{} + 0x80808080u);
        Sum shares[VECTORS] = {};
        for (std::int64_t word = 0; word < words; ++word)
            for (int vector = 0; vector < VECTORS; ++vector)
                shares[vector] = dot(shares[vector], added, load(panel + word * NR + vector * LANES));
        for (int vector = 0; vector < VECTORS; ++vector)
            store(panel - NR + vector * LANES, reinterpret_cast<Vec>(-shares[vector]));
    }
};

struct Bfloat16Pairs {
    using Source = std::uint16_t;
    using Sum = Vec;
    using Element = float;
    static constexpr int GROUP = 2, STEP = 2, HEADER = 0;

    static Vec words(const Source* source) { return load(reinterpret_cast<const float*>(source)); }
    static Vec of_a(Vec words) { return words; }
    static Sum dot(Sum sum, Vec a, Vec b) {
        return reinterpret_cast<Sum>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(a),
                                                      reinterpret_cast<__m512bh>(b)));
    }
    static void finish_panel(float*, std::int64_t) {}
};

constexpr ProductKernels int8_product =
    word_products<Int8Quads>("vpdpbusd", 4, std::make_integer_sequence<int, MR>{});
constexpr ProductKernels bfloat16_product =
    word_products<Bfloat16Pairs>("vdpbf16ps", 2, std::make_integer_sequence<int, MR>{}, pack_scores);

}  // namespace
}  // namespace pyperf::cpu

#if defined(PYPERF_EMULATED)
#elif defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace pyperf::cpu {

const KernelSet* avx512_vnni_kernels() {
    static const KernelSet set = with(avx512_kernels(), "avx512_vnni", {{DataType::int8, &int8_product}});
    return avx512_kernels() && processor().avx512_vnni ? &set : nullptr;
}

const KernelSet* avx512_bf16_kernels() {
    static const KernelSet set = with(avx512_vnni_kernels(), "avx512_bf16", {{DataType::bfloat16, &bfloat16_product}});
    return avx512_vnni_kernels() && processor().avx512_bf16 ? &set : nullptr;
}

}  // namespace pyperf::cpu
#else
namespace pyperf::cpu {
const KernelSet* avx512_vnni_kernels() { return nullptr; }
const KernelSet* avx512_bf16_kernels() { return nullptr; }
}  // namespace pyperf::cpu
#endif
