#include "nccl/buffer.h"

#include "check.h"

namespace pyperf::nccl {

Buffer::Buffer(std::shared_ptr<Communicator> communicator, std::int64_t bytes, bool registered)
    : communicator_(std::move(communicator)), bytes_(bytes) {
    CHECK_INPUT(bytes >= 1, "A buffer of ", bytes, " bytes was asked for: ask for at least 1.");
    communicator_->handle();  // throws where it has ended
    const NcclApi& api = communicator_->api();
    of_library_ = registered && api.ncclMemAlloc && api.ncclMemFree;
    if (!of_library_) {
        address_ = communicator_->device().allocate(bytes);
        return;
    }
    const auto current = communicator_->device().current();
    void* memory = nullptr;
    communicator_->check(api.ncclMemAlloc(&memory, static_cast<std::size_t>(bytes)), "ncclMemAlloc");
    address_ = reinterpret_cast<Address>(memory);
    try {
        registration_ = communicator_->register_memory(address_, bytes);
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

}  // namespace pyperf::nccl
