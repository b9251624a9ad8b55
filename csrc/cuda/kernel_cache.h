// Compiled kernels kept on disk between processes. A file that is damaged, or another's under the same name, is a miss:
// it is compiled again and replaced.
#pragma once

#include <optional>
#include <string>

namespace pyperf::cuda {

struct CachedKernel {
    std::string cubin;
    std::string log;
};

class KernelCache {
  public:
    // The folder is made when the first kernel is stored. An empty name keeps nothing.
    explicit KernelCache(std::string folder) : folder_(std::move(folder)) {}

    // `key` is all that the kernel depends on, in full.
    std::optional<CachedKernel> load(const std::string& key) const;

    // Why it could not be stored, as a sentence; empty if it was. Readers see the old file or the new, never a part.
    std::string store(const std::string& key, const CachedKernel& kernel) const;

  private:
    std::string path_of(const std::string& key) const;

    std::string folder_;
};

}  // namespace pyperf::cuda
