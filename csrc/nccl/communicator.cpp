// Communicators do not block unless asked for (ncclConfig_t::blocking): only those can be aborted while they wait.
//
// ncclCommGetAsyncError does not see a peer that was killed on the same host, hence the deadline beside it.
#include "nccl/communicator.h"

#include "check.h"
#include "nccl/errors.h"

#include <condition_variable>
#include <utility>

namespace pyperf::nccl {
namespace {

constexpr auto abort_grace = std::chrono::seconds(1);
constexpr auto between_async_checks = std::chrono::milliseconds(1);

// ncclCommAbort may wait for ranks that are gone, so it has a thread of its own to wait in. Returns whether it is done.
bool abort_within_grace(const std::shared_ptr<const Library>& library, const std::shared_ptr<Device>& device,
                        ncclComm_t handle) {
    struct Progress {
        std::mutex mutex;
        std::condition_variable wake;
        bool done = false;
    };
    const auto progress = std::make_shared<Progress>();
    std::thread([library, device, handle, progress] {
        try {
            const auto current = device->current();
            library->api().ncclCommAbort(handle);
        } catch (const std::runtime_error&) {  // the device is lost, and the communicator with it
        }
        const std::lock_guard<std::mutex> locked(progress->mutex);
        progress->done = true;
        progress->wake.notify_all();
    }).detach();
    std::unique_lock<std::mutex> locked(progress->mutex);
    return progress->wake.wait_for(locked, abort_grace, [&] { return progress->done; });
}

// Queued operations end by themselves once its communicator is aborted.
bool idle_within_grace(Device& device, Stream stream) {
    const Clock::time_point end = Clock::now() + abort_grace;
    try {
        while (!device.idle(stream)) {
            if (Clock::now() >= end) return false;
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
    } catch (const std::runtime_error&) {  // the device is lost: nothing runs on it
    }
    return true;
}

}  // namespace

Communicator::Communicator(std::shared_ptr<const Library> library, std::shared_ptr<Device> device,
                           std::vector<ncclUniqueId> unique_ids, int rank, int ranks, double deadline_s,
                           const Settings& settings)
    : library_(std::move(library)),
      device_(std::move(device)),
      rank_(rank),
      ranks_(ranks),
      config_(library_->configuration(settings)) {
    CHECK_INPUT(ranks >= 1 && rank >= 0 && rank < ranks, "Rank ", rank, " of ", ranks,
                " was asked for: there must be at least one rank, and they count from 0.");
    const int ids = static_cast<int>(unique_ids.size());
    CHECK_INPUT(ids >= 1 && ids <= ranks, ids, " unique ids were given for ", ranks,
                " ranks: give at least one and at most one for each.");
    if (ids > 1 && !api().ncclCommInitRankScalable)
        throw NotAvailable(text("NCCL ", library_->version_text(), " takes one unique id, 2.23 or later several: ",
                                "update it, or give one."));
    const Deadline deadline(deadline_s);
    const auto current = device_->current();
    stream_ = device_->create_stream();
    try {
        if (ids == 1)
            check(api().ncclCommInitRankConfig(&handle_, ranks, unique_ids[0], rank, &config_),
                  "ncclCommInitRankConfig");
        else
            check(api().ncclCommInitRankScalable(&handle_, ranks, rank, ids, unique_ids.data(), &config_),
                  "ncclCommInitRankScalable");
        settle("the meeting of all ranks (ncclCommInitRankConfig)", deadline);
    } catch (...) {
        abort();
        if (!lost_) device_->destroy_stream(stream_);
        throw;
    }
}

Communicator::Communicator(const Communicator& parent, ncclComm_t handle)
    : library_(parent.library_), device_(parent.device_), handle_(handle), config_(parent.config_) {
    library_->check(api().ncclCommCount(handle_, &ranks_), "ncclCommCount");
    library_->check(api().ncclCommUserRank(handle_, &rank_), "ncclCommUserRank");
    stream_ = device_->create_stream();
}

Communicator::~Communicator() {
    abort();
    if (!lost_) device_->destroy_stream(stream_);
}

std::unique_ptr<Communicator> Communicator::split(int color, int key, double deadline_s) {
    if (!api().ncclCommSplit)
        throw NotAvailable(text("NCCL ", library_->version_text(), " cannot split a communicator, 2.18 or later can: ",
                                "update it, or make one from a new unique id."));
    const Deadline deadline(deadline_s);
    const auto current = device_->current();
    child_ = nullptr;
    const ncclResult_t result = api().ncclCommSplit(handle(), color < 0 ? -1 : color, key, &child_, &config_);
    if (result != success && result != in_progress) give_up(result, "ncclCommSplit");
    settle("the split (ncclCommSplit)", deadline);
    if (!child_) return nullptr;
    wait("the new communicator of a split (ncclCommSplit)", [&] {
        const ncclResult_t state = async_result(child_);
        if (state != success && state != in_progress) give_up(state, "ncclCommSplit");
        return state == success;
    }, deadline);
    std::unique_ptr<Communicator> child(new Communicator(*this, child_));
    child_ = nullptr;
    return child;
}

void Communicator::finalize(double deadline_s) {
    const Deadline deadline(deadline_s);
    const auto current = device_->current();
    while (!registrations_.empty()) deregister(registrations_.begin()->first);
    const ncclResult_t result = api().ncclCommFinalize(handle());
    if (result != success && result != in_progress) give_up(result, "ncclCommFinalize");
    settle("the end of the communicator on all ranks (ncclCommFinalize)", deadline);
    const ncclComm_t handle = handle_;
    handle_ = nullptr;
    ended_ = "finalized";
    library_->check(api().ncclCommDestroy(handle), "ncclCommDestroy");
}

void Communicator::abort() noexcept {
    if (!handle_) return;
    ended_ = "aborted";
    registrations_.clear();  // they go with it
    for (ncclComm_t* handle : {&child_, &handle_})  // the child of a split that failed
        if (*handle) lost_ |= !abort_within_grace(library_, device_, std::exchange(*handle, nullptr));
    lost_ = lost_ || !idle_within_grace(*device_, stream_);
}

void Communicator::request_abort(const std::string& reason) {
    const std::lock_guard<std::mutex> locked(reason_mutex_);
    reason_ = reason;
    abort_requested_.store(true, std::memory_order_release);
}

ncclComm_t Communicator::handle() const {
    if (!handle_)
        throw Aborted(text("The communicator of ", me(), " was ", ended_, " and takes no more work: make a new one."));
    return handle_;
}

ncclResult_t Communicator::async_result(ncclComm_t handle) const {
    ncclResult_t state = success;
    const ncclResult_t result = api().ncclCommGetAsyncError(handle, &state);
    return result == success ? state : result;
}

std::optional<std::string> Communicator::async_error() const {
    const ncclResult_t result = async_result(handle());
    if (result == success || result == in_progress) return std::nullopt;
    try {
        fail(result, "a collective in the background");
    } catch (const NcclError& error) {
        return error.what();
    }
}

void Communicator::settle(const char* what, const Deadline& deadline) {
    wait(what, [&] {
        const ncclResult_t state = async_result(handle());
        if (state != success && state != in_progress) give_up(state, what);
        return state == success;
    }, deadline);
}

void Communicator::fail(ncclResult_t result, const char* what) const {
    library_->fail(result, text("On ", me(), ", ", what).c_str(), handle_);
}

void Communicator::give_up(ncclResult_t result, const char* what) {
    try {
        fail(result, what);
    } catch (...) {
        abort();
        throw;
    }
}

void Communicator::watch(const char* what, Clock::time_point now, const Deadline& deadline) {
    if (abort_requested_.load(std::memory_order_acquire)) {
        abort();
        const std::lock_guard<std::mutex> locked(reason_mutex_);
        throw Aborted(text("On ", me(), ", ", what, " was given up: ", reason_));
    }
    if (deadline.passed(now)) {
        abort();
        throw DeadlineExceeded(text("On ", me(), ", ", what, " did not end within ", deadline.seconds(),
                                    " s and was aborted: another rank has died, hangs, or is somewhere else."));
    }
    if (now - asked_ < between_async_checks) return;
    asked_ = now;
    const ncclResult_t state = async_result(handle());
    if (state != success && state != in_progress) give_up(state, what);
}

void* Communicator::register_memory(Address address, std::int64_t bytes) {
    if (!api().ncclCommRegister || !api().ncclCommDeregister) return nullptr;
    const auto current = device_->current();
    void* registration = nullptr;
    check(api().ncclCommRegister(handle(), reinterpret_cast<void*>(address), static_cast<std::size_t>(bytes),
                                 &registration),
          "ncclCommRegister");
    if (registration) registrations_.emplace(registration, false);
    return registration;
}

void* Communicator::register_window(Address address, std::int64_t bytes, const Deadline& deadline) {
    if (!api().ncclCommWindowRegister || !api().ncclCommWindowDeregister)
        throw NotAvailable(text("NCCL ", library_->version_text(), " has no symmetric windows, 2.27 or later has: ",
                                "update it, or leave them out."));
    const auto current = device_->current();
    window_ = nullptr;
    const ncclResult_t result =
        api().ncclCommWindowRegister(handle(), reinterpret_cast<void*>(address), static_cast<std::size_t>(bytes),
                                     &window_, window_symmetric);
    if (result != success && result != in_progress) give_up(result, "ncclCommWindowRegister");
    settle("the window of all ranks (ncclCommWindowRegister)", deadline);
    if (window_) registrations_.emplace(window_, true);
    return window_;
}

void Communicator::deregister(void* registration) noexcept {
    const auto known = registrations_.find(registration);
    if (known == registrations_.end()) return;
    const bool is_window = known->second;
    registrations_.erase(known);
    try {
        const auto current = device_->current();
        if (is_window) api().ncclCommWindowDeregister(handle_, static_cast<ncclWindow_t>(registration));
        else api().ncclCommDeregister(handle_, registration);
    } catch (const std::runtime_error&) {  // the device is lost, and what was registered with it
    }
}

}  // namespace pyperf::nccl
