// Compiled, never run: our declarations of libcuda against NVIDIA's own header.
//
// That comes first: where its macros turn a name into that of a newer version, they do so in ours as well.
#include <cuda.h>

#include "cuda/driver_api.h"

#include "api_check.h"

namespace ours = pyperf::cuda;

#define CHECK_PROTOTYPE(name, ...) \
    static_assert(Agree<decltype(ours::DriverApi::name), decltype(&::name)>::value, #name " is declared otherwise");
PYPERF_DRIVER_FUNCTIONS(CHECK_PROTOTYPE)
PYPERF_OPTIONAL_DRIVER_FUNCTIONS(CHECK_PROTOTYPE)

static_assert(sizeof(ours::CUtensorMap) == sizeof(::CUtensorMap));
static_assert(alignof(ours::CUtensorMap) >= alignof(::CUtensorMap));
static_assert(sizeof(ours::CUuuid) == sizeof(::CUuuid));
static_assert(sizeof(ours::CUlaunchAttribute) == sizeof(::CUlaunchAttribute));
static_assert(offsetof(ours::CUlaunchAttribute, value) == offsetof(::CUlaunchAttribute, value));
static_assert(sizeof(ours::CUlaunchConfig) == sizeof(::CUlaunchConfig));
static_assert(offsetof(ours::CUlaunchAttribute, id) == offsetof(::CUlaunchAttribute, id));
static_assert(offsetof(ours::CUlaunchAttribute, value.cluster.x) == offsetof(::CUlaunchAttribute, value.clusterDim.x));
static_assert(offsetof(ours::CUlaunchAttribute, value.cluster.y) == offsetof(::CUlaunchAttribute, value.clusterDim.y));
static_assert(offsetof(ours::CUlaunchAttribute, value.cluster.z) == offsetof(::CUlaunchAttribute, value.clusterDim.z));
static_assert(offsetof(ours::CUlaunchConfig, grid_x) == offsetof(::CUlaunchConfig, gridDimX));
static_assert(offsetof(ours::CUlaunchConfig, grid_y) == offsetof(::CUlaunchConfig, gridDimY));
static_assert(offsetof(ours::CUlaunchConfig, grid_z) == offsetof(::CUlaunchConfig, gridDimZ));
static_assert(offsetof(ours::CUlaunchConfig, block_y) == offsetof(::CUlaunchConfig, blockDimY));
static_assert(offsetof(ours::CUlaunchConfig, block_z) == offsetof(::CUlaunchConfig, blockDimZ));
static_assert(offsetof(ours::CUlaunchConfig, block_x) == offsetof(::CUlaunchConfig, blockDimX));
static_assert(offsetof(ours::CUlaunchConfig, shared_bytes) == offsetof(::CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(ours::CUlaunchConfig, stream) == offsetof(::CUlaunchConfig, hStream));
static_assert(offsetof(ours::CUlaunchConfig, attributes) == offsetof(::CUlaunchConfig, attrs));
static_assert(offsetof(ours::CUlaunchConfig, attribute_count) == offsetof(::CUlaunchConfig, numAttrs));

CHECK_NUMBER(max_threads_per_block, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
CHECK_NUMBER(multiprocessor_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
CHECK_NUMBER(pci_bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
CHECK_NUMBER(pci_device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
CHECK_NUMBER(pci_domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
CHECK_NUMBER(l2_cache_bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
CHECK_NUMBER(max_threads_per_multiprocessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
CHECK_NUMBER(compute_capability_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
CHECK_NUMBER(compute_capability_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
CHECK_NUMBER(max_shared_bytes_per_multiprocessor, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
CHECK_NUMBER(max_registers_per_multiprocessor, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
CHECK_NUMBER(max_shared_bytes_per_block_optin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
CHECK_NUMBER(max_blocks_per_multiprocessor, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
CHECK_NUMBER(reserved_shared_bytes_per_block, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
CHECK_NUMBER(cluster_launch, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
CHECK_NUMBER(tensor_map_access, CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED);
CHECK_NUMBER(function_max_threads_per_block, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
CHECK_NUMBER(function_static_shared_bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
CHECK_NUMBER(function_local_bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
CHECK_NUMBER(function_registers, CU_FUNC_ATTRIBUTE_NUM_REGS);
CHECK_NUMBER(function_max_dynamic_shared_bytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
CHECK_NUMBER(function_non_portable_cluster, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
CHECK_NUMBER(launch_attribute_cluster, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
CHECK_NUMBER(stream_non_blocking, CU_STREAM_NON_BLOCKING);
CHECK_NUMBER(event_record_external, CU_EVENT_RECORD_EXTERNAL);
CHECK_NUMBER(capture_thread_local, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
CHECK_NUMBER(capture_relaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
CHECK_NUMBER(host_memory_mapped, CU_MEMHOSTALLOC_DEVICEMAP);
