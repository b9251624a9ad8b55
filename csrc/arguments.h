// What the bindings of the CPU's operators read alike from Python.
#pragma once

#include "check.h"
#include "cpu/kernels.h"

#include <optional>
#include <string>

namespace pyperf {

// A type by its name, out of float32, bfloat16 and the one that this argument may be beside: none, int8 or int32.
inline cpu::DataType data_type(const char* argument, const std::string& name, const char* integers = "") {
    if (name == "float32") return cpu::DataType::float32;
    if (name == "bfloat16") return cpu::DataType::bfloat16;
    const std::string more = integers;
    if (!more.empty() && name == more) return more == "int8" ? cpu::DataType::int8 : cpu::DataType::int32;
    throw InputError(text(argument, " '", name, "' is unknown: choose float32", more.empty() ? " or " : ", ",
                          "bfloat16", more.empty() ? "" : " or " + more, "."));
}

inline const cpu::KernelSet& kernels_of(const std::optional<std::string>& isa) {
    return cpu::kernels_named(isa.value_or(""));
}

}  // namespace pyperf
