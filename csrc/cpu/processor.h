// Features for the kernels that the processor has and the operating system lets a program use.
#pragma once

namespace pyperf::cpu {

struct Processor {
    bool avx512 = false;  // F, BW, DQ and VL, as all server processors since 2017 have together
    bool avx512_bf16 = false;
    bool amx = false;  // tiles of bfloat16, allowed to this process
    const char* amx_refused = "";  // why not, where the processor has it
};

// Asked once; the first call asks Linux for the permission to use AMX.
const Processor& processor();

}  // namespace pyperf::cpu
