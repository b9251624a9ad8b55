// Arguments that the bindings of the CPU's operators read alike from Python.
#pragma once

#include "check.h"
#include "cpu/kernels.h"

#include <optional>
#include <string>

namespace pyperf {

inline cpu::DataType data_type(const char* argument, const std::string& name) {
    if (name == "float32") return cpu::DataType::float32;
    if (name == "bfloat16") return cpu::DataType::bfloat16;
    throw InputError(text(argument, " '", name, "' is unknown: choose float32 or bfloat16."));
}

inline const cpu::KernelSet& kernels_of(const std::optional<std::string>& isa) {
    return cpu::kernels_named(isa.value_or(""));
}

}  // namespace pyperf
