#include "nccl/errors.h"

#include "check.h"

#include <string>

namespace pyperf::nccl {
namespace {

struct Advice {
    int code;  // ncclResult_t
    const char* name;
    const char* words;
};

// Meanings from NCCL's user guide, "Types", ncclResult_t.
constexpr Advice advices[] = {
    {1, "ncclUnhandledCudaError",
     "CUDA failed under NCCL: run again with NCCL_DEBUG=WARN, and check the GPUs and the driver of every rank"},
    {2, "ncclSystemError",
     "a call of the system failed: run again with NCCL_DEBUG=WARN; shared memory (/dev/shm), locked memory or the "
     "network interface (NCCL_SOCKET_IFNAME) are the usual causes"},
    {3, "ncclInternalError",
     "NCCL failed in itself: run again with NCCL_DEBUG=WARN; every rank must have the same version of it"},
    {4, "ncclInvalidArgument", "NCCL refused an argument: run again with NCCL_DEBUG=WARN, which names it"},
    {5, "ncclInvalidUsage",
     "NCCL was used as it cannot be: each rank needs a GPU of its own, and all must ask for the same"},
    {6, "ncclRemoteError", "another rank was lost or its connection broke: look at what the other ranks say"},
    {8, "ncclTimeout", "another rank did not answer NCCL in time: look at what the other ranks say"},
};

const Advice& advice_on(int code) {
    static constexpr Advice none{0, "an unknown result", "run again with NCCL_DEBUG=WARN"};
    for (const Advice& advice : advices)
        if (advice.code == code) return advice;
    return none;
}

// The library's words end lines and sentences as they like; they are to be part of one sentence.
std::string phrase(const char* words) {
    std::string out = words ? words : "";
    for (char& letter : out)
        if (letter == '\n') letter = ' ';
    while (!out.empty() && (out.back() == ' ' || out.back() == '.')) out.pop_back();
    return out;
}

}  // namespace

void throw_result(const char* call, int code, const char* words, const char* detail) {
    const Advice& advice = advice_on(code);
    std::string said = phrase(words);
    const std::string more = phrase(detail);
    if (!more.empty()) said += (said.empty() ? "" : "; ") + more;
    throw NcclError(text(call, " failed with ", advice.name, " (", code, said.empty() ? "" : ", ", said,
                         "): ", advice.words, "."));
}

}  // namespace pyperf::nccl
