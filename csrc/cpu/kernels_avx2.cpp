// AVX2 kernels: 16 registers of 8 lanes hold 12 sums, two B vectors and two broadcasts of A.
#include "cpu/kernels_isa.h"

#if defined(__x86_64__)
#include <cstring>
#include <utility>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace pyperf::cpu {
namespace {

constexpr int LANES = 8, MR = 6, VECTORS = 2;
typedef float Vec __attribute__((vector_size(32), may_alias));

#include "cpu/kernels_template.h"

constexpr KernelSet kernels = kernel_set("avx2", std::make_integer_sequence<int, MR>{});

}  // namespace

const KernelSet* avx2_kernels() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kernels : nullptr;
}

}  // namespace pyperf::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
namespace pyperf::cpu {
const KernelSet* avx2_kernels() { return nullptr; }
}  // namespace pyperf::cpu
#endif
