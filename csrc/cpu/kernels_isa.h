// One entry point per instruction set: its kernels, or nullptr where this processor cannot run them.
#pragma once

#include "cpu/kernels.h"

namespace pyperf::cpu {

const KernelSet* amx_kernels();
const KernelSet* avx512_bf16_kernels();
const KernelSet* avx512_kernels();
const KernelSet* avx2_kernels();
const KernelSet* baseline_kernels();  // "neon" on AArch64, "portable" elsewhere

// The set before, if there is one, under another name and with other products of bfloat16.
inline KernelSet with_bfloat16(const KernelSet* before, const char* name, const ProductKernels& product) {
    KernelSet set = before ? *before : KernelSet{};
    set.name = name;
    set.products[static_cast<int>(DataType::bfloat16)] = product;
    return set;
}

}  // namespace pyperf::cpu
