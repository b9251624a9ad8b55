#include "nccl/buffer.h"

#include "check.h"

#include <algorithm>
#include <cstdint>

namespace pyperf::nccl {

Buffer::Buffer(std::shared_ptr<Communicator> communicator, std::int64_t bytes, bool registered,
               std::optional<double> window_within_s)
    : communicator_(std::move(communicator)), bytes_(bytes) {
    CHECK_INPUT(bytes >= 1, "A buffer of ", bytes, " bytes was asked for: ask for at least 1.");
    communicator_->handle();  // throws where it has ended
    const NcclApi& api = communicator_->api();
    of_library_ = (registered || window_within_s) && api.ncclMemAlloc && api.ncclMemFree;
    if (!of_library_) {
        address_ = communicator_->device().allocate(bytes);
        return;
    }
    const auto current = communicator_->device().current();
    void* memory = nullptr;
    communicator_->check(api.ncclMemAlloc(&memory, static_cast<std::size_t>(bytes)), "ncclMemAlloc");
    address_ = reinterpret_cast<Address>(memory);
    try {
        registration_ = window_within_s
                            ? communicator_->register_window(address_, bytes, Deadline(*window_within_s))
                            : communicator_->register_memory(address_, bytes);
    } catch (...) {
        free();
        throw;
    }
}

Buffer::~Buffer() {
    communicator_->deregister(registration_);
    // Freeing would wait for a collective that never ends.
    if (!communicator_->lost()) free();
}

void Buffer::free() noexcept {
    if (!of_library_) return communicator_->device().free(address_);
    try {
        const auto current = communicator_->device().current();
        communicator_->api().ncclMemFree(reinterpret_cast<void*>(address_));
    } catch (const std::runtime_error&) {  // the device is lost, and its memory with it
    }
}

void Buffer::check_range(std::int64_t bytes, std::int64_t offset) const {
    CHECK_INPUT(offset >= 0 && bytes >= 0 && offset <= bytes_ && bytes <= bytes_ - offset, bytes,
                " bytes from byte ", offset, " on were asked for and the buffer has ", bytes_, ".");
}

void Buffer::write(const void* host, std::int64_t bytes, std::int64_t offset) {
    check_range(bytes, offset);
    communicator_->device().write(address_ + static_cast<Address>(offset), host, bytes);
}

void Buffer::read(void* host, std::int64_t bytes, std::int64_t offset) const {
    check_range(bytes, offset);
    communicator_->device().read(host, address_ + static_cast<Address>(offset), bytes);
}

void Buffer::fill(unsigned char value) { communicator_->device().fill(address_, value, bytes_); }

void Buffer::repeat(const void* period, std::int64_t period_bytes, std::int64_t bytes, std::int64_t offset) {
    CHECK_INPUT(period_bytes >= 1, "Nothing was given to repeat: give at least one byte.");
    check_range(bytes, offset);
    const Address begin = address_ + static_cast<Address>(offset);
    Device& device = communicator_->device();
    std::int64_t filled = std::min(period_bytes, bytes);
    device.write(begin, period, filled);
    for (; filled < bytes; filled += std::min(filled, bytes - filled))  // always whole periods are copied from
        device.copy(begin + static_cast<Address>(filled), begin, std::min(filled, bytes - filled));
}

Outside Buffer::outside(std::int64_t count, std::int64_t offset, const Bounds& bounds) const {
    CHECK_INPUT(bounds.period >= 1 && bounds.period <= UINT32_MAX, "Bounds of ", bounds.period,
                " elements were given: give at least one.");
    CHECK_INPUT(bounds.element_bytes == 1 || bounds.element_bytes == 2 || bounds.element_bytes == 4, "Elements of ",
                bounds.element_bytes, " bytes were to be compared: they can have 1, 2 or 4.");
    CHECK_INPUT(count >= 0 && offset % bounds.element_bytes == 0, count, " elements from byte ", offset,
                " on were to be compared: they begin at a whole element.");
    check_range(count * bounds.element_bytes, offset);
    return communicator_->device().outside(address_ + static_cast<Address>(offset), count, bounds);
}

}  // namespace pyperf::nccl
