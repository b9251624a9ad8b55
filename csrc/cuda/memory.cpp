// Copies and fills go through the default stream, which other streams need not wait for: hence the synchronising.
#include "cuda/memory.h"

#include "check.h"
#include "cuda/errors.h"

namespace pyperf::cuda {

DeviceMemory::DeviceMemory(std::shared_ptr<const Context> context, std::int64_t bytes)
    : context_(std::move(context)), bytes_(bytes) {
    CHECK_INPUT(bytes >= 1, "Device memory of ", bytes, " bytes was asked for: ask for at least 1.");
    const CurrentContext current(*context_);
    const Driver* driver = context_->driver();
    try {
        PYPERF_CALL(driver, cuMemAlloc_v2, &address_, static_cast<std::size_t>(bytes));
    } catch (const OutOfMemory& error) {
        const auto [free_bytes, total_bytes] = context_->free_and_total_bytes();
        throw OutOfMemory(text(bytes / 1e9, " GB of device memory were asked for and ", free_bytes / 1e9, " of ",
                               total_bytes / 1e9, " GB are free: ", error.what()));
    }
}

DeviceMemory::~DeviceMemory() {
    try {
        const CurrentContext current(*context_);
        context_->driver()->api().cuMemFree_v2(address_);
    } catch (const std::runtime_error&) {  // the context is lost, and its memory with it
    }
}

void DeviceMemory::check_range(std::int64_t bytes, std::int64_t offset) const {
    CHECK_INPUT(offset >= 0 && bytes >= 0 && offset <= bytes_ && bytes <= bytes_ - offset, bytes,
                " bytes from byte ", offset, " on were asked for and the allocation has ", bytes_, ".");
}

void DeviceMemory::write(const void* host, std::int64_t bytes, std::int64_t offset) {
    check_range(bytes, offset);
    const CurrentContext current(*context_);
    const Driver* driver = context_->driver();
    PYPERF_CALL(driver, cuMemcpyHtoD_v2, address_ + static_cast<CUdeviceptr>(offset), host,
                static_cast<std::size_t>(bytes));
    PYPERF_CALL(driver, cuCtxSynchronize);
}

void DeviceMemory::read(void* host, std::int64_t bytes, std::int64_t offset) const {
    check_range(bytes, offset);
    const CurrentContext current(*context_);
    const Driver* driver = context_->driver();
    PYPERF_CALL(driver, cuCtxSynchronize);
    PYPERF_CALL(driver, cuMemcpyDtoH_v2, host, address_ + static_cast<CUdeviceptr>(offset),
                static_cast<std::size_t>(bytes));
}

void DeviceMemory::fill(unsigned char value) {
    const CurrentContext current(*context_);
    const Driver* driver = context_->driver();
    PYPERF_CALL(driver, cuMemsetD8_v2, address_, value, static_cast<std::size_t>(bytes_));
    PYPERF_CALL(driver, cuCtxSynchronize);
}

MappedMemory::MappedMemory(std::shared_ptr<const Context> context, std::size_t bytes) : context_(std::move(context)) {
    const CurrentContext current(*context_);
    const Driver* driver = context_->driver();
    PYPERF_CALL(driver, cuMemHostAlloc, &host_, bytes, host_memory_mapped);
    try {
        PYPERF_CALL(driver, cuMemHostGetDevicePointer_v2, &device_, host_, 0);
    } catch (...) {
        driver->api().cuMemFreeHost(host_);
        throw;
    }
}

MappedMemory::~MappedMemory() {
    try {
        const CurrentContext current(*context_);
        context_->driver()->api().cuMemFreeHost(host_);
    } catch (const std::runtime_error&) {  // the context is lost, and its memory with it
    }
}

}  // namespace pyperf::cuda
