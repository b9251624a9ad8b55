// Page-aligned memory for packed panels and partial sums, touched once so that no page fault falls in a timed region.
#pragma once

#include <cstddef>

namespace pyperf::cpu {

class Workspace {
  public:
    // Zero-filled; asked for as a double because the sum of what a schedule wants may not fit an integer.
    // Throws InputError when the machine has not that much memory.
    explicit Workspace(double bytes);
    ~Workspace();
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;

    char* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

  private:
    std::size_t bytes_;
    char* data_;
};

}  // namespace pyperf::cpu
