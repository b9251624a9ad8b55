#include "cuda/errors.h"

#include "check.h"

#include <string>

namespace pyperf::cuda {
namespace {

enum class Outcome { other, not_available, out_of_memory, context_lost };

struct Advice {
    int code;  // CUresult
    Outcome outcome;
    const char* words;
};

// Numbers from the CUDA Driver API reference, "Data types used by CUDA driver", CUresult.
constexpr Advice advices[] = {
    {1, Outcome::other, "an argument is outside what this GPU or driver accepts"},
    {2, Outcome::out_of_memory, "free what else uses this GPU, or take a smaller problem or fewer operand sets"},
    {34, Outcome::not_available,
     "the libcuda found is the toolkit's stub: let the driver's own come first in the path"},
    {36, Outcome::not_available, "update the NVIDIA driver"},
    {46, Outcome::not_available, "another process uses this GPU exclusively: wait for it, or ask for another GPU"},
    {100, Outcome::not_available, "the driver sees no GPU: look at nvidia-smi and at CUDA_VISIBLE_DEVICES"},
    {101, Outcome::not_available, "ask for a GPU that nvidia-smi lists"},
    {200, Outcome::not_available,
     "the driver is older than the NVRTC that made the kernel: update it, or install the NVRTC of its CUDA"},
    {209, Outcome::not_available, "the kernel was compiled for another GPU than this one"},
    {214, Outcome::context_lost,
     "the GPU's memory had an uncorrectable error: start a new process, and have the GPU checked"},
    {220, Outcome::context_lost,
     "an NVLink had an uncorrectable error: start a new process, and have the link checked"},
    {226, Outcome::context_lost,
     "the GPU's memory had an uncorrectable error: start a new process, and have the GPU checked"},
    {500, Outcome::other, "the module has no such symbol"},
    {700, Outcome::context_lost, "a kernel left its memory: start a new process, and run compute-sanitizer"},
    {701, Outcome::other, "the launch needs more registers or shared memory than an SM has: take a smaller tile"},
    {702, Outcome::context_lost, "a kernel ran longer than this GPU's display allows: start a new process"},
    {709, Outcome::context_lost, "something in this process reset the device: start a new process"},
    {710, Outcome::context_lost, "an assertion in a kernel failed: start a new process"},
    {714, Outcome::context_lost, "a kernel ran out of stack: start a new process"},
    {715, Outcome::context_lost, "a kernel met an instruction this GPU does not have: start a new process"},
    {716, Outcome::context_lost, "a kernel used a misaligned address: start a new process"},
    {717, Outcome::context_lost, "a kernel used an address of the wrong memory space: start a new process"},
    {718, Outcome::context_lost, "a kernel jumped to nowhere: start a new process"},
    {719, Outcome::context_lost, "a kernel failed: start a new process, and run compute-sanitizer"},
    {721, Outcome::context_lost, "a kernel kept tensor memory it had taken: start a new process"},
    {801, Outcome::not_available, "this GPU or driver does not have what was asked for"},
    {802, Outcome::not_available, "the system is not ready to use its GPUs: is the fabric manager running?"},
    {803, Outcome::not_available,
     "the libcuda found does not fit the kernel's driver: reinstall the driver, or restart"},
    {804, Outcome::not_available, "the libcuda found is too new for this GPU's driver: update the driver"},
    {900, Outcome::other, "a launch waited or allocated, which a graph cannot hold: time it with an open queue"},
    {901, Outcome::other, "a launch waited or allocated, which a graph cannot hold: time it with an open queue"},
    {912, Outcome::other, "this GPU cannot hold a cluster of that size with so much shared memory: take a smaller one"},
};

const Advice& advice_on(int code) {
    static constexpr Advice none{0, Outcome::other, "see the CUDA Driver API reference"};
    for (const Advice& advice : advices)
        if (advice.code == code) return advice;
    return none;
}

}  // namespace

void throw_result(const char* call, int code, const char* name, const char* words) {
    const Advice& advice = advice_on(code);
    const std::string message = text(call, " failed with ", name ? name : "an unknown result", " (", code,
                                     words ? ", " : "", words ? words : "", "): ", advice.words, ".");
    switch (advice.outcome) {
        case Outcome::not_available: throw NotAvailable(message);
        case Outcome::out_of_memory: throw OutOfMemory(message);
        case Outcome::context_lost: throw LaunchFailed(message);
        case Outcome::other: break;
    }
    throw CudaError(message);
}

}  // namespace pyperf::cuda
