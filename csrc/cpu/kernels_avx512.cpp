// AVX-512 kernels: 32 registers of 16 lanes hold 28 sums, two B vectors and one broadcast of A.
#include "cpu/kernels_isa.h"
#include "cpu/processor.h"

#if defined(__x86_64__)
#include <cstring>
#include <utility>

#if defined(PYPERF_EMULATED)
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#endif

namespace pyperf::cpu {
namespace {

#include "cpu/kernels_avx512.h"
#include "cpu/kernels_template.h"

constexpr KernelSet kernels = kernel_set("avx512", std::make_integer_sequence<int, MR>{});

}  // namespace

const KernelSet* avx512_kernels() {
    return processor().avx512 ? &kernels : nullptr;
}

}  // namespace pyperf::cpu

#if defined(PYPERF_EMULATED)
#elif defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
namespace pyperf::cpu {
const KernelSet* avx512_kernels() { return nullptr; }
}  // namespace pyperf::cpu
#endif
