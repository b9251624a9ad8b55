// Device memory for tests, workspaces and readings; the operands of torch's kernels stay torch's own.
#pragma once

#include "cuda/driver.h"

namespace pyperf::cuda {

class DeviceMemory {
  public:
    // Throws OutOfMemory, saying how much was asked for and how much is free; InputError for less than one byte.
    DeviceMemory(std::shared_ptr<const Context> context, std::int64_t bytes);
    ~DeviceMemory();
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;

    CUdeviceptr address() const { return address_; }
    std::int64_t bytes() const { return bytes_; }
    // Each returns when the device is done; InputError where offset and bytes leave the allocation.
    void write(const void* host, std::int64_t bytes, std::int64_t offset = 0);
    void read(void* host, std::int64_t bytes, std::int64_t offset = 0) const;
    void fill(unsigned char value);

  private:
    void check_range(std::int64_t bytes, std::int64_t offset) const;

    std::shared_ptr<const Context> context_;
    std::int64_t bytes_;
    CUdeviceptr address_ = 0;
};

// Page-locked host memory that kernels see under the address `device()`.
class MappedMemory {
  public:
    MappedMemory(std::shared_ptr<const Context> context, std::size_t bytes);
    ~MappedMemory();
    MappedMemory(const MappedMemory&) = delete;
    MappedMemory& operator=(const MappedMemory&) = delete;

    void* host() const { return host_; }
    CUdeviceptr device() const { return device_; }

  private:
    std::shared_ptr<const Context> context_;
    void* host_ = nullptr;
    CUdeviceptr device_ = 0;
};

}  // namespace pyperf::cuda
