// What the extension binds beside the CPU's operators, left out of the build that emulates instruction sets.
#include "cuda_bindings.h"
#include "nccl_bindings.h"

namespace pyperf {

void bind_cuda(pybind11::module_&) {}
void bind_nccl(pybind11::module_&) {}

}  // namespace pyperf
