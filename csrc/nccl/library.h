// libnccl, opened at run time: which copy it is, what it can do, and its functions.
#pragma once

#include "nccl/nccl_api.h"
#include "shared_library.h"

#include <map>
#include <string>
#include <vector>

namespace pyperf::nccl {

// Whole numbers of a communicator's configuration, by NCCL's names.
using Settings = std::map<std::string, int>;

// NCCL's name of each, with the version it came with.
std::map<std::string, int> known_settings();

class Library {
  public:
    // PYPERF_LIBNCCL names the library; else the copy in the process, then `candidates` (where a Python package may
    // keep it), then the system's. Throws NotAvailable: none there, older than 2.14, or not what its name says.
    explicit Library(const std::vector<std::string>& candidates);

    const NcclApi& api() const { return api_; }
    int version() const { return version_; }  // 22809 is 2.28.9
    std::string version_text() const;
    const std::string& path() const { return library_.path(); }
    // True for each symbol that came after 2.14 and is there.
    std::map<std::string, bool> optional_symbols() const;
    ncclUniqueId unique_id() const;
    // The configuration of a communicator with these settings, one that does not block unless asked for. Throws
    // InputError for a name that NCCL has not, NotAvailable for one that came with a later version.
    ncclConfig_t configuration(const Settings& settings) const;

    // Throws what a result other than success means; `call` is the function that returned it.
    void check(ncclResult_t result, const char* call) const {
        if (result != success) fail(result, call);
    }
    // The same for a function of a communicator, whose last error is then told.
    [[noreturn]] void fail(ncclResult_t result, const char* call, ncclComm_t communicator = nullptr) const;

  private:
    SharedLibrary library_;
    NcclApi api_;
    int version_ = 0;
};

}  // namespace pyperf::nccl
