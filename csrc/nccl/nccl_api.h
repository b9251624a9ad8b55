// The few prototypes of libnccl, declared by us so that neither its header nor the library is needed to build; a test
// compares them with NVIDIA's header where one is at hand. Names, numbers and layouts: nccl.h of NCCL 2.14 to 2.32.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace pyperf::nccl {

using ncclResult_t = int;
using ncclDataType_t = int;
using ncclRedOp_t = int;
using ncclComm_t = struct Comm_st*;
using cudaStream_t = struct StreamOfRuntime_st*;

struct ncclUniqueId {
    char internal[128];
};

enum Result : int {
    success = 0,
    unhandled_cuda_error = 1,
    system_error = 2,
    internal_error = 3,
    invalid_argument = 4,
    invalid_usage = 5,
    remote_error = 6,
    in_progress = 7,
};

constexpr int undefined_integer = INT_MIN;

// The layout of NCCL 2.18, which every later version takes, as `size` and `version` say which it is; 2.14 to 2.17 read
// less of it.
struct ncclConfig_t {
    std::size_t size = sizeof(ncclConfig_t);
    unsigned int magic = 0xcafebeef;
    unsigned int version = 21800;
    int blocking = undefined_integer;
    int cga_cluster_size = undefined_integer;
    int min_ctas = undefined_integer;
    int max_ctas = undefined_integer;
    const char* net_name = nullptr;
    int split_share = undefined_integer;
};

constexpr int scalar_host_immediate = 1;  // a factor is read before the call that takes it returns

// X(symbol as exported, its prototype). All exist since NCCL 2.14, the oldest taken: the first whose communicators can
// be made without blocking.
#define PYPERF_NCCL_FUNCTIONS(X)                                                                                     \
    X(ncclGetErrorString, const char*(ncclResult_t))                                                                 \
    X(ncclGetLastError, const char*(ncclComm_t))                                                                     \
    X(ncclGetUniqueId, ncclResult_t(ncclUniqueId*))                                                                  \
    X(ncclCommInitRankConfig, ncclResult_t(ncclComm_t*, int ranks, ncclUniqueId, int rank, ncclConfig_t*))           \
    X(ncclCommFinalize, ncclResult_t(ncclComm_t))                                                                    \
    X(ncclCommDestroy, ncclResult_t(ncclComm_t))                                                                     \
    X(ncclCommAbort, ncclResult_t(ncclComm_t))                                                                       \
    X(ncclCommGetAsyncError, ncclResult_t(ncclComm_t, ncclResult_t*))                                                \
    X(ncclCommCount, ncclResult_t(ncclComm_t, int* ranks))                                                           \
    X(ncclCommUserRank, ncclResult_t(ncclComm_t, int* rank))                                                         \
    X(ncclRedOpCreatePreMulSum,                                                                                      \
      ncclResult_t(ncclRedOp_t*, void* factor, ncclDataType_t, int residence, ncclComm_t))                           \
    X(ncclRedOpDestroy, ncclResult_t(ncclRedOp_t, ncclComm_t))                                                       \
    X(ncclGroupStart, ncclResult_t())                                                                                \
    X(ncclGroupEnd, ncclResult_t())                                                                                  \
    X(ncclAllReduce, ncclResult_t(const void* send, void* receive, std::size_t count, ncclDataType_t, ncclRedOp_t,   \
                                  ncclComm_t, cudaStream_t))                                                         \
    X(ncclAllGather, ncclResult_t(const void* send, void* receive, std::size_t send_count, ncclDataType_t,           \
                                  ncclComm_t, cudaStream_t))                                                         \
    X(ncclReduceScatter, ncclResult_t(const void* send, void* receive, std::size_t receive_count, ncclDataType_t,    \
                                      ncclRedOp_t, ncclComm_t, cudaStream_t))                                        \
    X(ncclBroadcast, ncclResult_t(const void* send, void* receive, std::size_t count, ncclDataType_t, int root,      \
                                  ncclComm_t, cudaStream_t))                                                         \
    X(ncclReduce, ncclResult_t(const void* send, void* receive, std::size_t count, ncclDataType_t, ncclRedOp_t,      \
                               int root, ncclComm_t, cudaStream_t))                                                  \
    X(ncclSend, ncclResult_t(const void* send, std::size_t count, ncclDataType_t, int peer, ncclComm_t,              \
                             cudaStream_t))                                                                          \
    X(ncclRecv, ncclResult_t(void* receive, std::size_t count, ncclDataType_t, int peer, ncclComm_t, cudaStream_t))

// Null where the library is older: since 2.18, 2.19 and 2.28.
#define PYPERF_OPTIONAL_NCCL_FUNCTIONS(X)                                                                            \
    X(ncclCommSplit, ncclResult_t(ncclComm_t, int color, int key, ncclComm_t*, ncclConfig_t*))                       \
    X(ncclMemAlloc, ncclResult_t(void** address, std::size_t bytes))                                                 \
    X(ncclMemFree, ncclResult_t(void* address))                                                                      \
    X(ncclCommRegister, ncclResult_t(ncclComm_t, void* address, std::size_t bytes, void** registration))             \
    X(ncclCommDeregister, ncclResult_t(ncclComm_t, void* registration))                                              \
    X(ncclAlltoAll, ncclResult_t(const void* send, void* receive, std::size_t count, ncclDataType_t, ncclComm_t,     \
                                 cudaStream_t))                                                                      \
    X(ncclGather, ncclResult_t(const void* send, void* receive, std::size_t count, ncclDataType_t, int root,         \
                               ncclComm_t, cudaStream_t))                                                            \
    X(ncclScatter, ncclResult_t(const void* send, void* receive, std::size_t count, ncclDataType_t, int root,        \
                                ncclComm_t, cudaStream_t))

struct NcclApi {
#define PYPERF_DECLARE(name, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
    PYPERF_NCCL_FUNCTIONS(PYPERF_DECLARE)
    PYPERF_OPTIONAL_NCCL_FUNCTIONS(PYPERF_DECLARE)
#undef PYPERF_DECLARE
};

}  // namespace pyperf::nccl
