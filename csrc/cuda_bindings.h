// The submodule `_native.cuda`.
#pragma once

#include <pybind11/pybind11.h>

namespace pyperf {

void bind_cuda(pybind11::module_& module);

}  // namespace pyperf
