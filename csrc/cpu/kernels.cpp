// Chooses the kernels at run time, so that one build serves every processor of its architecture.
#include "cpu/kernels.h"

#include "check.h"
#include "cpu/kernels_isa.h"
#include "cpu/processor.h"

namespace pyperf::cpu {

const std::vector<const KernelSet*>& usable_kernels() {
    static const std::vector<const KernelSet*> usable = [] {
        std::vector<const KernelSet*> found;
        for (const KernelSet* kernels :
             {amx_kernels(), avx512_bf16_kernels(), avx512_kernels(), avx2_kernels(), baseline_kernels()})
            if (kernels) found.push_back(kernels);
        return found;
    }();
    return usable;
}

const KernelSet& kernels_named(const std::string& name) {
    if (name.empty()) return *usable_kernels().front();
    std::string names;
    for (const KernelSet* kernels : usable_kernels()) {
        if (name == kernels->name) return *kernels;
        names += (names.empty() ? "" : ", ") + std::string(kernels->name);
    }
    const std::string refused = name == "amx" ? processor().amx_refused : "";
    throw InputError(text("Instruction set '", name, "' cannot be used here: this processor can run ", names,
                          refused.empty() ? "" : ", and " + refused, "."));
}

}  // namespace pyperf::cpu
