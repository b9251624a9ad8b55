// A communicator whose every wait ends: with what was waited for, at a deadline, with an error of the library's, or
// because another thread asked for it. Whatever else than the first ends a wait aborts the communicator. Where
// the setting `blocking` has the library wait inside its calls, only the end of the process ends those.
//
// One thread works with a communicator; others may call request_abort alone.
#pragma once

#include "nccl/deadline.h"
#include "nccl/device.h"
#include "nccl/library.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace pyperf::nccl {

class Communicator {
  public:
    // Joins the `ranks` ranks that were given the same unique ids: several share the work of meeting, of which each rank
    // then asks one. Throws DeadlineExceeded where they do not all come, NcclError where the library fails, and what
    // Library::configuration throws; NotAvailable for several ids before NCCL 2.23.
    Communicator(std::shared_ptr<const Library> library, std::shared_ptr<Device> device,
                 std::vector<ncclUniqueId> unique_ids, int rank, int ranks, double deadline_s, const Settings& settings);
    // Aborts unless finalized: it waits for no other rank.
    ~Communicator();
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    // A communicator of the ranks that gave the same colour, ordered by key; null for a negative colour. Throws
    // NotAvailable before NCCL 2.18.
    std::unique_ptr<Communicator> split(int color, int key, double deadline_s);

    // Ends it together with all other ranks; buffers stay, unregistered. Nothing is left to do with it afterwards.
    void finalize(double deadline_s);

    // Ends it whatever other ranks do. Where the library does not give it up within a second, it is left behind with
    // its stream and memory (`lost`): the process is then to end.
    void abort() noexcept;

    // Makes what this communicator waits for, now or next, end with Aborted and that reason. From any thread.
    void request_abort(const std::string& reason);

    // Error in the background by the library; nothing where nothing did. It aborts nothing.
    std::optional<std::string> async_error() const;

    int rank() const { return rank_; }
    int ranks() const { return ranks_; }
    bool alive() const { return handle_ != nullptr; }
    bool lost() const { return lost_; }

    const Library& library() const { return *library_; }
    const NcclApi& api() const { return library_->api(); }
    Device& device() const { return *device_; }
    Stream stream() const { return stream_; }

    // Throws Aborted, saying what ended it, where it takes no more work.
    ncclComm_t handle() const;

    // Throws where the result of a function given the handle is neither success nor in_progress. It does not abort:
    // a group may be open.
    void check(ncclResult_t result, const char* call) const {
        if (result != success && result != in_progress) fail(result, call);
    }

    // Waits until `done()`; `what` is the subject of the sentence thrown instead.
    template <typename Done> void wait(const char* what, Done done, const Deadline& deadline) {
        const Clock::time_point begin = Clock::now();
        while (!done()) {
            const Clock::time_point now = Clock::now();
            watch(what, now, deadline);
            // Rarely is anything as long as this; what is, need not be seen to the microsecond.
            if (now - begin < std::chrono::milliseconds(20)) std::this_thread::yield();
            else std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
    }
    // Waits until the library has done what it answered in_progress to.
    void settle(const char* what, const Deadline& deadline);

    // Null where the library cannot register (before 2.19).
    void* register_memory(Address address, std::int64_t bytes);
    // As a symmetric window, which all ranks make together with the same number of bytes. Null where these devices have
    // none. Throws NotAvailable before NCCL 2.27.
    void* register_window(Address address, std::int64_t bytes, const Deadline& deadline);
    void deregister(void* registration) noexcept;

  private:
    // Wraps the communicator that split made.
    Communicator(const Communicator& parent, ncclComm_t handle);

    // Throws if the wait is to end; called at each of its turns.
    void watch(const char* what, Clock::time_point now, const Deadline& deadline);
    ncclResult_t async_result(ncclComm_t handle) const;
    // Throws what the library says of that result, and on which rank.
    [[noreturn]] void fail(ncclResult_t result, const char* what) const;
    // The same, and aborts.
    [[noreturn]] void give_up(ncclResult_t result, const char* what);
    std::string me() const { return text("rank ", rank_, " of ", ranks_); }

    std::shared_ptr<const Library> library_;
    std::shared_ptr<Device> device_;
    int rank_ = 0;
    int ranks_ = 0;
    ncclComm_t handle_ = nullptr;
    ncclConfig_t config_;
    // Filled by the library some time after it is asked.
    ncclComm_t child_ = nullptr;
    ncclWindow_t window_ = nullptr;
    std::string ended_;  // what ended it; empty while it lives
    bool lost_ = false;
    Stream stream_ = nullptr;
    std::map<void*, bool> registrations_;  // true for a window
    Clock::time_point asked_;  // for background errors, last

    std::atomic<bool> abort_requested_{false};
    std::mutex reason_mutex_;
    std::string reason_;
};

}  // namespace pyperf::nccl
