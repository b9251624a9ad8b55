// The few prototypes of libcuda, declared by us so that no toolkit is needed to build; a test compares them with
// NVIDIA's header where one is at hand. Names, numbers and layouts: CUDA Driver API reference, 12.0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace pyperf::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = std::uint64_t;
using CUcontext = struct Context_st*;
using CUmodule = struct Module_st*;
using CUfunction = struct Function_st*;
using CUstream = struct Stream_st*;
using CUevent = struct Event_st*;
using CUgraph = struct Graph_st*;
using CUgraphNode = struct GraphNode_st*;
using CUgraphExec = struct GraphExec_st*;

struct CUuuid {
    unsigned char bytes[16];
};

// Descriptor that TMA reads instead of pointer, shape and strides; opaque, and aligned as the instruction wants it.
struct alignas(128) CUtensorMap {
    std::uint64_t opaque[16];
};

struct CUlaunchAttribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        struct {
            unsigned int x, y, z;
        } cluster;
    } value;
};

struct CUlaunchConfig {
    unsigned int grid_x, grid_y, grid_z;
    unsigned int block_x, block_y, block_z;
    unsigned int shared_bytes;
    CUstream stream;
    CUlaunchAttribute* attributes;
    unsigned int attribute_count;
};

enum DeviceAttribute : int {
    max_threads_per_block = 1,
    multiprocessor_count = 16,
    pci_bus = 33,
    pci_device = 34,
    l2_cache_bytes = 38,
    max_threads_per_multiprocessor = 39,
    pci_domain = 50,
    compute_capability_major = 75,
    compute_capability_minor = 76,
    max_shared_bytes_per_multiprocessor = 81,
    max_registers_per_multiprocessor = 82,
    max_shared_bytes_per_block_optin = 97,
    max_blocks_per_multiprocessor = 106,
    reserved_shared_bytes_per_block = 111,
    cluster_launch = 120,
    tensor_map_access = 127,
};

enum FunctionAttribute : int {
    function_max_threads_per_block = 0,
    function_static_shared_bytes = 1,
    function_local_bytes = 3,
    function_registers = 4,
    function_max_dynamic_shared_bytes = 8,
    function_non_portable_cluster = 14,
};

constexpr int launch_attribute_cluster = 4;
constexpr unsigned int stream_non_blocking = 1;
constexpr unsigned int event_record_external = 1;  // inside a capture: a node that records, not a dependency
constexpr int capture_thread_local = 1;
constexpr int capture_relaxed = 2;  // a launch may allocate while it is captured
constexpr unsigned int host_memory_mapped = 2;

// X(symbol as exported, its prototype). All exist since CUDA 12.0, the oldest driver taken.
#define PYPERF_DRIVER_FUNCTIONS(X)                                                                                   \
    X(cuInit, CUresult(unsigned int flags))                                                                          \
    X(cuDriverGetVersion, CUresult(int* version))                                                                    \
    X(cuGetErrorName, CUresult(CUresult, const char** name))                                                         \
    X(cuGetErrorString, CUresult(CUresult, const char** words))                                                      \
    X(cuDeviceGetCount, CUresult(int* count))                                                                        \
    X(cuDeviceGet, CUresult(CUdevice*, int ordinal))                                                                 \
    X(cuDeviceGetName, CUresult(char* name, int length, CUdevice))                                                   \
    X(cuDeviceGetUuid_v2, CUresult(CUuuid*, CUdevice))                                                               \
    X(cuDeviceGetAttribute, CUresult(int* value, int attribute, CUdevice))                                           \
    X(cuDeviceTotalMem_v2, CUresult(std::size_t* bytes, CUdevice))                                                   \
    X(cuDevicePrimaryCtxRetain, CUresult(CUcontext*, CUdevice))                                                      \
    X(cuDevicePrimaryCtxRelease_v2, CUresult(CUdevice))                                                              \
    X(cuCtxPushCurrent_v2, CUresult(CUcontext))                                                                      \
    X(cuCtxPopCurrent_v2, CUresult(CUcontext*))                                                                      \
    X(cuCtxSynchronize, CUresult())                                                                                  \
    X(cuMemGetInfo_v2, CUresult(std::size_t* free_bytes, std::size_t* total_bytes))                                  \
    X(cuMemAlloc_v2, CUresult(CUdeviceptr*, std::size_t bytes))                                                      \
    X(cuMemFree_v2, CUresult(CUdeviceptr))                                                                           \
    X(cuMemcpyHtoD_v2, CUresult(CUdeviceptr, const void* host, std::size_t bytes))                                   \
    X(cuMemcpyDtoH_v2, CUresult(void* host, CUdeviceptr, std::size_t bytes))                                         \
    X(cuMemcpyDtoD_v2, CUresult(CUdeviceptr to, CUdeviceptr from, std::size_t bytes))                                \
    X(cuMemsetD8_v2, CUresult(CUdeviceptr, unsigned char value, std::size_t bytes))                                  \
    X(cuMemHostAlloc, CUresult(void** host, std::size_t bytes, unsigned int flags))                                  \
    X(cuMemHostGetDevicePointer_v2, CUresult(CUdeviceptr*, void* host, unsigned int flags))                          \
    X(cuMemFreeHost, CUresult(void* host))                                                                           \
    X(cuModuleLoadData, CUresult(CUmodule*, const void* image))                                                      \
    X(cuModuleUnload, CUresult(CUmodule))                                                                            \
    X(cuModuleGetFunction, CUresult(CUfunction*, CUmodule, const char* name))                                        \
    X(cuFuncGetAttribute, CUresult(int* value, int attribute, CUfunction))                                           \
    X(cuFuncSetAttribute, CUresult(CUfunction, int attribute, int value))                                            \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor,                                                                   \
      CUresult(int* blocks, CUfunction, int threads, std::size_t dynamic_shared_bytes))                              \
    X(cuOccupancyMaxActiveClusters, CUresult(int* clusters, CUfunction, const CUlaunchConfig*))                      \
    X(cuLaunchKernelEx, CUresult(const CUlaunchConfig*, CUfunction, void** arguments, void** extra))                 \
    X(cuTensorMapEncodeTiled,                                                                                        \
      CUresult(CUtensorMap*, int type, std::uint32_t rank, void* address, const std::uint64_t* dimensions,           \
               const std::uint64_t* strides_bytes, const std::uint32_t* box, const std::uint32_t* element_strides,   \
               int interleave, int swizzle, int l2_promotion, int out_of_bounds_fill))                               \
    X(cuStreamCreate, CUresult(CUstream*, unsigned int flags))                                                       \
    X(cuStreamDestroy_v2, CUresult(CUstream))                                                                        \
    X(cuStreamSynchronize, CUresult(CUstream))                                                                       \
    X(cuStreamQuery, CUresult(CUstream))                                                                             \
    X(cuStreamBeginCapture_v2, CUresult(CUstream, int mode))                                                         \
    X(cuStreamEndCapture, CUresult(CUstream, CUgraph*))                                                              \
    X(cuEventCreate, CUresult(CUevent*, unsigned int flags))                                                         \
    X(cuEventDestroy_v2, CUresult(CUevent))                                                                          \
    X(cuEventQuery, CUresult(CUevent))                                                                               \
    X(cuEventRecordWithFlags, CUresult(CUevent, CUstream, unsigned int flags))                                       \
    X(cuEventElapsedTime, CUresult(float* milliseconds, CUevent begin, CUevent end))                                 \
    X(cuGraphGetNodes, CUresult(CUgraph, CUgraphNode*, std::size_t* count))                                          \
    X(cuGraphInstantiateWithFlags, CUresult(CUgraphExec*, CUgraph, unsigned long long flags))                        \
    X(cuGraphUpload, CUresult(CUgraphExec, CUstream))                                                                \
    X(cuGraphLaunch, CUresult(CUgraphExec, CUstream))                                                                \
    X(cuGraphExecDestroy, CUresult(CUgraphExec))                                                                     \
    X(cuGraphDestroy, CUresult(CUgraph))

// Since CUDA 12.4: null where the driver is older.
#define PYPERF_OPTIONAL_DRIVER_FUNCTIONS(X)                                                                          \
    X(cuFuncGetParamInfo, CUresult(CUfunction, std::size_t index, std::size_t* offset, std::size_t* bytes))

struct DriverApi {
#define PYPERF_DECLARE(name, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
    PYPERF_DRIVER_FUNCTIONS(PYPERF_DECLARE)
    PYPERF_OPTIONAL_DRIVER_FUNCTIONS(PYPERF_DECLARE)
#undef PYPERF_DECLARE
};

}  // namespace pyperf::cuda
