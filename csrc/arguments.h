// What the bindings of the CPU's operators read alike from Python.
#pragma once

#include "check.h"
#include "cpu/kernels.h"

#include <optional>
#include <string>

namespace pyperf {

inline cpu::DataType data_type(const char* argument, const std::string& name) {
    if (name == "float32") return cpu::DataType::float32;
    if (name == "bfloat16") return cpu::DataType::bfloat16;
    if (name == "int8") return cpu::DataType::int8;
    if (name == "int32") return cpu::DataType::int32;
    throw InputError(text(argument, " '", name, "' is unknown: choose float32, bfloat16, int8 or int32."));
}

inline cpu::DataType operand_type(const std::string& name) {
    const cpu::DataType type = data_type("dtype", name);
    if (type == cpu::DataType::int32) throw InputError("A product of int32 is not computed: ask for int8, or float32.");
    return type;
}

inline const cpu::KernelSet& kernels_of(const std::optional<std::string>& isa) {
    return cpu::kernels_named(isa.value_or(""));
}

}  // namespace pyperf
