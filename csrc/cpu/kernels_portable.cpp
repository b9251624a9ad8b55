// Kernels for the baseline of the architecture: 128-bit vectors, which every 64-bit processor has.
//
// On AArch64 this baseline is NEON with 32 registers, so the micro-tile is larger there and goes by that name.
#include "cpu/kernels_isa.h"

#include <cstring>
#include <utility>

namespace pyperf::cpu {
namespace {

#if defined(__aarch64__)
constexpr const char* isa_name = "neon";
constexpr int LANES = 4, MR = 12, VECTORS = 2;
// GCC's scheduler before register allocation would read all of A ahead of its use, and then has no registers left for
// five of the 24 sums.
#if !defined(__clang__)
#pragma GCC optimize("no-schedule-insns")
#endif
#else
constexpr const char* isa_name = "portable";
constexpr int LANES = 4, MR = 6, VECTORS = 2;
#endif
typedef float Vec __attribute__((vector_size(16), may_alias));

#include "cpu/kernels_template.h"

constexpr KernelSet kernels = kernel_set(isa_name, std::make_integer_sequence<int, MR>{});

}  // namespace

const KernelSet* baseline_kernels() { return &kernels; }

}  // namespace pyperf::cpu
