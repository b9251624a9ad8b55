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
using ncclWindow_t = struct Window_st*;
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

// The layout of NCCL 2.32 with NCCL's own names. `size` and `version` say which it is: an older library reads the part
// that it knows, and a later one takes its defaults for the rest.
struct ncclConfig_t {
    std::size_t size = sizeof(ncclConfig_t);
    unsigned int magic = 0xcafebeef;
    unsigned int version = 23200;
    int blocking = undefined_integer;
    int cgaClusterSize = undefined_integer;
    int minCTAs = undefined_integer;
    int maxCTAs = undefined_integer;
    const char* netName = nullptr;
    int splitShare = undefined_integer;
    int trafficClass = undefined_integer;
    const char* commName = nullptr;
    int collnetEnable = undefined_integer;
    int CTAPolicy = undefined_integer;
    int shrinkShare = undefined_integer;
    int nvlsCTAs = undefined_integer;
    int nChannelsPerNetPeer = undefined_integer;
    int nvlinkCentricSched = undefined_integer;
    int graphUsageMode = undefined_integer;
    int numRmaCtx = undefined_integer;
    int maxP2pPeers = undefined_integer;
    int graphStreamOrdering = undefined_integer;
    int launchOrderImplicit = undefined_integer;
    int numRmaSig = undefined_integer;
    int rmaEagerInit = undefined_integer;
    int hostCftMode = undefined_integer;
    int nvlsHostMode = undefined_integer;
};

// X(a whole number of the configuration, the version that it came with)
#define PYPERF_NCCL_SETTINGS(X)                                                                                      \
    X(blocking, 21400)                                                                                               \
    X(cgaClusterSize, 21700)                                                                                         \
    X(minCTAs, 21700)                                                                                                \
    X(maxCTAs, 21700)                                                                                                \
    X(splitShare, 21800)                                                                                             \
    X(trafficClass, 22500)                                                                                           \
    X(collnetEnable, 22700)                                                                                          \
    X(CTAPolicy, 22700)                                                                                              \
    X(shrinkShare, 22700)                                                                                            \
    X(nvlsCTAs, 22700)                                                                                               \
    X(nChannelsPerNetPeer, 22800)                                                                                    \
    X(nvlinkCentricSched, 22800)                                                                                     \
    X(graphUsageMode, 22900)                                                                                         \
    X(numRmaCtx, 22900)                                                                                              \
    X(maxP2pPeers, 23000)                                                                                            \
    X(graphStreamOrdering, 23005)                                                                                    \
    X(launchOrderImplicit, 23100)                                                                                    \
    X(numRmaSig, 23100)                                                                                              \
    X(rmaEagerInit, 23100)                                                                                           \
    X(hostCftMode, 23100)                                                                                            \
    X(nvlsHostMode, 23100)

constexpr int scalar_host_immediate = 1;  // a factor is read before the call that takes it returns
constexpr int window_symmetric = 1;       // NCCL_WIN_COLL_SYMMETRIC

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

// Null where the library is older: since 2.18, 2.19, 2.23, 2.27 and 2.28.
#define PYPERF_OPTIONAL_NCCL_FUNCTIONS(X)                                                                            \
    X(ncclCommSplit, ncclResult_t(ncclComm_t, int color, int key, ncclComm_t*, ncclConfig_t*))                       \
    X(ncclMemAlloc, ncclResult_t(void** address, std::size_t bytes))                                                 \
    X(ncclMemFree, ncclResult_t(void* address))                                                                      \
    X(ncclCommRegister, ncclResult_t(ncclComm_t, void* address, std::size_t bytes, void** registration))             \
    X(ncclCommDeregister, ncclResult_t(ncclComm_t, void* registration))                                              \
    X(ncclCommInitRankScalable, ncclResult_t(ncclComm_t*, int ranks, int rank, int ids, ncclUniqueId*,               \
                                             ncclConfig_t*))                                                         \
    X(ncclCommWindowRegister, ncclResult_t(ncclComm_t, void* address, std::size_t bytes, ncclWindow_t*, int flags))  \
    X(ncclCommWindowDeregister, ncclResult_t(ncclComm_t, ncclWindow_t))                                              \
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
