// The version is read before the functions are looked up: "too old" says more than the first symbol that is missing.
#include "nccl/library.h"

#include "check.h"
#include "nccl/errors.h"

namespace pyperf::nccl {
namespace {

constexpr int oldest_version = 21400;

LibrarySearch libnccl(const std::vector<std::string>& candidates) {
    return {"PYPERF_LIBNCCL", "libnccl", candidates, {"libnccl.so.2"},
            "install it (pip install nvidia-nccl-cu13) or let PYPERF_LIBNCCL name a copy, or ask for gloo"};
}

// Major, minor and patch have had two decimals each since 2.9; before, minor and patch had one and two.
std::string text_of(int version) {
    const int major = version >= 10000 ? version / 10000 : version / 1000;
    const int minor = version >= 10000 ? version / 100 % 100 : version / 100 % 10;
    return text(major, ".", minor, ".", version % 100);
}

// The signature's type is lost through dlsym; this is where it is given back.
template <typename Function> void assign(Function& function, void* symbol) {
    function = reinterpret_cast<Function>(symbol);
}

}  // namespace

Library::Library(const std::vector<std::string>& candidates) : library_(libnccl(candidates)) {
    ncclResult_t (*get_version)(int*) = nullptr;
    assign(get_version, library_.require("ncclGetVersion"));
    check(get_version(&version_), "ncclGetVersion");
    if (version_ < oldest_version)
        throw NotAvailable(text(path(), " is NCCL ", version_text(), " and ", text_of(oldest_version),
                                " or later is needed, whose communicators can be given up: update it."));
#define PYPERF_REQUIRE(name, ...) assign(api_.name, library_.require(#name));
    PYPERF_NCCL_FUNCTIONS(PYPERF_REQUIRE)
#undef PYPERF_REQUIRE
#define PYPERF_FIND(name, ...) assign(api_.name, library_.find(#name));
    PYPERF_OPTIONAL_NCCL_FUNCTIONS(PYPERF_FIND)
#undef PYPERF_FIND
}

std::string Library::version_text() const { return text_of(version_); }

std::map<std::string, bool> Library::optional_symbols() const {
    return {
#define PYPERF_PRESENT(name, ...) {#name, api_.name != nullptr},
        PYPERF_OPTIONAL_NCCL_FUNCTIONS(PYPERF_PRESENT)
#undef PYPERF_PRESENT
    };
}

ncclUniqueId Library::unique_id() const {
    ncclUniqueId id{};
    check(api_.ncclGetUniqueId(&id), "ncclGetUniqueId");
    return id;
}

void Library::fail(ncclResult_t result, const char* call, ncclComm_t communicator) const {
    const char* words = api_.ncclGetErrorString ? api_.ncclGetErrorString(result) : nullptr;
    const char* detail = api_.ncclGetLastError ? api_.ncclGetLastError(communicator) : nullptr;
    throw_result(call, result, words, detail);
}

}  // namespace pyperf::nccl
