// One entry point per instruction set: its kernels, or nullptr where this processor cannot run them.
#pragma once

#include "cpu/kernels.h"

#include <initializer_list>
#include <utility>

namespace pyperf::cpu {

const KernelSet* amx_kernels();
const KernelSet* avx512_bf16_kernels();
const KernelSet* avx512_vnni_kernels();
const KernelSet* avx512_kernels();
const KernelSet* avx2_kernels();
const KernelSet* neon_bf16_kernels();
const KernelSet* neon_dot_kernels();
const KernelSet* baseline_kernels();  // "neon" on AArch64, "portable" elsewhere

// The set before, if there is one, under another name and with other products of some types.
inline KernelSet with(const KernelSet* before, const char* name,
                      std::initializer_list<std::pair<DataType, const ProductKernels*>> products) {
    KernelSet set = before ? *before : KernelSet{};
    set.name = name;
    for (const auto& [type, product] : products) set.products[static_cast<int>(type)] = *product;
    return set;
}

}  // namespace pyperf::cpu
