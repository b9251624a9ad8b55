// Compiled, never run: our declarations of libnccl against NVIDIA's own header.
#include <nccl.h>

#include "nccl/nccl_api.h"

#include <cstddef>
#include <type_traits>

namespace ours = pyperf::nccl;

// Two prototypes agree if they return the same size and take as many parameters, each of the same size and kind: our
// handles are other types than theirs, and our enumerations are int.
template <typename A, typename B>
constexpr bool same_kind = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;

template <typename A, typename B> struct Agree : std::false_type {};
template <typename R, typename... A, typename S, typename... B> struct Agree<R (*)(A...), S (*)(B...)> {
    static constexpr bool all() {
        if constexpr (sizeof...(A) == sizeof...(B))
            return same_kind<R, S> && (same_kind<A, B> && ...);
        else
            return false;
    }
    static constexpr bool value = all();
};

#define CHECK_PROTOTYPE(name, ...) \
    static_assert(Agree<decltype(ours::NcclApi::name), decltype(&::name)>::value, #name " is declared otherwise");
PYPERF_NCCL_FUNCTIONS(CHECK_PROTOTYPE)
PYPERF_OPTIONAL_NCCL_FUNCTIONS(CHECK_PROTOTYPE)

#define CHECK_MEMBER(type, mine, theirs) static_assert(offsetof(ours::type, mine) == offsetof(::type, theirs))
CHECK_MEMBER(ncclConfig_t, magic, magic);
CHECK_MEMBER(ncclConfig_t, version, version);
CHECK_MEMBER(ncclConfig_t, blocking, blocking);
CHECK_MEMBER(ncclConfig_t, cga_cluster_size, cgaClusterSize);
CHECK_MEMBER(ncclConfig_t, min_ctas, minCTAs);
CHECK_MEMBER(ncclConfig_t, max_ctas, maxCTAs);
CHECK_MEMBER(ncclConfig_t, net_name, netName);
CHECK_MEMBER(ncclConfig_t, split_share, splitShare);
CHECK_MEMBER(ncclSimInfo_t, estimated_us, estimatedTime);
static_assert(sizeof(ours::ncclConfig_t) <= sizeof(::ncclConfig_t));
static_assert(sizeof(ours::ncclSimInfo_t) == sizeof(::ncclSimInfo_t));
static_assert(sizeof(ours::ncclUniqueId) == sizeof(::ncclUniqueId));

#define CHECK_NUMBER(mine, theirs) static_assert(static_cast<long long>(ours::mine) == static_cast<long long>(theirs))
CHECK_NUMBER(success, ncclSuccess);
CHECK_NUMBER(invalid_usage, ncclInvalidUsage);
CHECK_NUMBER(remote_error, ncclRemoteError);
CHECK_NUMBER(in_progress, ncclInProgress);
CHECK_NUMBER(undefined_integer, NCCL_CONFIG_UNDEF_INT);
CHECK_NUMBER(scalar_host_immediate, ncclScalarHostImmediate);
static_assert(ours::ncclConfig_t{}.magic == NCCL_API_MAGIC);
