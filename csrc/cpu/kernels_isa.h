// One entry point per instruction set: its kernels, or nullptr where this processor cannot run them.
#pragma once

#include "cpu/kernels.h"

namespace pyperf::cpu {

const KernelSet* avx512_kernels();
const KernelSet* avx2_kernels();
const KernelSet* baseline_kernels();  // "neon" on AArch64, "portable" elsewhere

}  // namespace pyperf::cpu
