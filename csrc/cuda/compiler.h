// NVRTC, opened at run time: CUDA C++ to machine code for a named architecture, without a toolkit and without a GPU.
#pragma once

#include "shared_library.h"

#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pyperf::cuda {

using nvrtcResult = int;
using nvrtcProgram = struct NvrtcProgram_st*;

// X(symbol, its prototype): NVRTC documentation, 12.0.
#define PYPERF_NVRTC_FUNCTIONS(X)                                                                                    \
    X(nvrtcVersion, nvrtcResult(int* major, int* minor))                                                             \
    X(nvrtcGetErrorString, const char*(nvrtcResult))                                                                 \
    X(nvrtcGetNumSupportedArchs, nvrtcResult(int* count))                                                            \
    X(nvrtcGetSupportedArchs, nvrtcResult(int* archs))                                                               \
    X(nvrtcCreateProgram, nvrtcResult(nvrtcProgram*, const char* source, const char* name, int header_count,         \
                                      const char* const* headers, const char* const* header_names))                  \
    X(nvrtcDestroyProgram, nvrtcResult(nvrtcProgram*))                                                               \
    X(nvrtcCompileProgram, nvrtcResult(nvrtcProgram, int option_count, const char* const* options))                  \
    X(nvrtcGetCUBINSize, nvrtcResult(nvrtcProgram, std::size_t* bytes))                                              \
    X(nvrtcGetCUBIN, nvrtcResult(nvrtcProgram, char* cubin))                                                         \
    X(nvrtcGetProgramLogSize, nvrtcResult(nvrtcProgram, std::size_t* bytes))                                         \
    X(nvrtcGetProgramLog, nvrtcResult(nvrtcProgram, char* log))

struct NvrtcApi {
#define PYPERF_DECLARE(name, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
    PYPERF_NVRTC_FUNCTIONS(PYPERF_DECLARE)
#undef PYPERF_DECLARE
};

struct Source {
    std::string name;  // as it stands in the compiler's messages
    std::string text;
    std::map<std::string, std::string> headers;  // by the name they are included by
};

struct Compiled {
    std::string cubin;
    std::string log;  // warnings, and what options such as --ptxas-options=-v print
};

class Compiler {
  public:
    // `candidates` are paths where a Python package keeps libnvrtc. Throws NotAvailable where none opens.
    explicit Compiler(const std::vector<std::string>& candidates);

    std::string version() const;  // "13.0"
    const std::string& path() const { return library_.path(); }

    // `architecture` as in "sm_90a". Throws CompileError with the log, NotAvailable for an architecture that this
    // NVRTC does not know. Safe from several threads.
    Compiled compile(const Source& source, const std::string& architecture,
                     const std::vector<std::string>& options) const;

  private:
    void check(nvrtcResult result, const char* call) const;
    void check_architecture(const std::string& architecture) const;

    SharedLibrary library_;
    NvrtcApi api_;
    std::pair<int, int> version_;
};

}  // namespace pyperf::cuda
