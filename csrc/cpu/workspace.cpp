// Huge pages are asked for: panels of a few MiB would otherwise need more entries than the TLB has.
#include "cpu/workspace.h"

#include "check.h"

#include <cstdlib>
#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#endif
#include <unistd.h>

namespace pyperf::cpu {

constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

namespace {

// Refused before it is tried: an allocation beyond physical memory may succeed and then end the process.
std::size_t whole_pages(double bytes) {
    const double physical = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
    CHECK_INPUT(bytes < physical, "A workspace of ", bytes / 1e9, " GB is needed and this machine has ", physical / 1e9,
                " GB of memory: ask for a smaller tile, fewer workers, or a schedule without splits.");
    return (static_cast<std::size_t>(bytes) / huge_page_bytes + 1) * huge_page_bytes;
}

}  // namespace

Workspace::Workspace(double bytes)
    : bytes_(whole_pages(bytes)), data_(static_cast<char*>(std::aligned_alloc(huge_page_bytes, bytes_))) {
    CHECK_INPUT(data_, "A workspace of ", bytes_ / 1e9,
                " GB cannot be allocated: ask for a smaller tile or fewer workers.");
#if defined(__linux__)
    madvise(data_, bytes_, MADV_HUGEPAGE);  // a wish: where it is refused, small pages serve
#endif
    std::memset(data_, 0, bytes_);
}

Workspace::~Workspace() { std::free(data_); }

}  // namespace pyperf::cpu
