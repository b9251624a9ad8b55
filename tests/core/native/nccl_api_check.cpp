// Compiled, never run: our declarations of libnccl against NVIDIA's own header.
#include <nccl.h>

#include "nccl/nccl_api.h"

#include "api_check.h"

namespace ours = pyperf::nccl;

#define CHECK_PROTOTYPE(name, ...) \
    static_assert(Agree<decltype(ours::NcclApi::name), decltype(&::name)>::value, #name " is declared otherwise");
PYPERF_NCCL_FUNCTIONS(CHECK_PROTOTYPE)
PYPERF_OPTIONAL_NCCL_FUNCTIONS(CHECK_PROTOTYPE)

#define CHECK_MEMBER(type, mine, theirs) static_assert(offsetof(ours::type, mine) == offsetof(::type, theirs))
CHECK_MEMBER(ncclConfig_t, size, size);
CHECK_MEMBER(ncclConfig_t, magic, magic);
CHECK_MEMBER(ncclConfig_t, version, version);
CHECK_MEMBER(ncclConfig_t, netName, netName);
static_assert(sizeof(ours::ncclUniqueId) == sizeof(::ncclUniqueId));

CHECK_NUMBER(success, ncclSuccess);
CHECK_NUMBER(unhandled_cuda_error, ncclUnhandledCudaError);
CHECK_NUMBER(system_error, ncclSystemError);
CHECK_NUMBER(internal_error, ncclInternalError);
CHECK_NUMBER(invalid_argument, ncclInvalidArgument);
CHECK_NUMBER(invalid_usage, ncclInvalidUsage);
CHECK_NUMBER(remote_error, ncclRemoteError);
CHECK_NUMBER(in_progress, ncclInProgress);
CHECK_NUMBER(scalar_host_immediate, ncclScalarHostImmediate);
// Macros, which declarations made from NVIDIA's Python bindings do not have.
#ifdef NCCL_API_MAGIC
CHECK_NUMBER(undefined_integer, NCCL_CONFIG_UNDEF_INT);
static_assert(ours::ncclConfig_t{}.magic == NCCL_API_MAGIC);
CHECK_NUMBER(window_symmetric, NCCL_WIN_COLL_SYMMETRIC);
#endif

// Names of types and reductions in operations.cpp, and the settings that this header has: the test takes them from
// there.
#define CHECK_NAMED(number, theirs) static_assert(number == static_cast<int>(theirs));
#include "numbers.h"
