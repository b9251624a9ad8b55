// The CPU's attention in Python.
#pragma once

#include <pybind11/pybind11.h>

namespace pyperf {

void bind_attention(pybind11::module_& module);

}  // namespace pyperf
