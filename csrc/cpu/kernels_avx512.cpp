// AVX-512 kernels: 32 registers of 16 lanes hold 28 sums, two B vectors and one broadcast of A.
#include "cpu/kernels_isa.h"

#if defined(__x86_64__)
#include <cstring>
#include <utility>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#endif

namespace pyperf::cpu {
namespace {

constexpr int LANES = 16, MR = 14, VECTORS = 2;
typedef float Vec __attribute__((vector_size(64), may_alias));

#include "cpu/kernels_template.h"

constexpr KernelSet kernels = kernel_set("avx512", std::make_integer_sequence<int, MR>{});

}  // namespace

const KernelSet* avx512_kernels() {
    const bool usable = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("fma");
    return usable ? &kernels : nullptr;
}

}  // namespace pyperf::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
namespace pyperf::cpu {
const KernelSet* avx512_kernels() { return nullptr; }
}  // namespace pyperf::cpu
#endif
