// Device memory that collectives send from and receive into.
#pragma once

#include "nccl/communicator.h"

namespace pyperf::nccl {

class Buffer {
  public:
    // With `registered` it is the library's own allocation, registered with the communicator, where the library can do
    // that; with `window_within_s` as a symmetric window, which all ranks make together within that time. Throws
    // InputError for less than one byte, and what the device throws where it has not so much.
    Buffer(std::shared_ptr<Communicator> communicator, std::int64_t bytes, bool registered,
           std::optional<double> window_within_s);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    Address address() const { return address_; }
    std::int64_t bytes() const { return bytes_; }
    bool registered() const { return registration_ != nullptr; }
    const Communicator& communicator() const { return *communicator_; }

    // Not while a collective works on it. InputError where offset and bytes leave the buffer.
    void write(const void* host, std::int64_t bytes, std::int64_t offset = 0);
    void read(void* host, std::int64_t bytes, std::int64_t offset = 0) const;
    void fill(unsigned char value);
    // Fills `bytes` from `offset` on with `period`, which repeats; neither needs the host's memory for more than one.
    void repeat(const void* period, std::int64_t period_bytes, std::int64_t bytes, std::int64_t offset);
    // Counts and locates elements, of `count` from byte `offset` on, outside bounds that repeat.
    Outside outside(std::int64_t count, std::int64_t offset, const Bounds& bounds) const;

  private:
    void check_range(std::int64_t bytes, std::int64_t offset) const;
    void free() noexcept;

    std::shared_ptr<Communicator> communicator_;
    std::int64_t bytes_;
    Address address_ = 0;
    bool of_library_ = false;
    void* registration_ = nullptr;
};

}  // namespace pyperf::nccl
