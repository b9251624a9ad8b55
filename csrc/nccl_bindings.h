// The submodule `_native.nccl`.
#pragma once

#include <pybind11/pybind11.h>

namespace pyperf {

// After bind_cuda, whose NotAvailable it shares.
void bind_nccl(pybind11::module_& module);

}  // namespace pyperf
