// A collective made ready: all that can be wrong with it is found when it is made. It is run, timed by the device's
// events in a loop that allocates nothing, or captured once and replayed.
#pragma once

#include "nccl/buffer.h"
#include "nccl/operations.h"

#include <memory>
#include <string>
#include <vector>

namespace pyperf::nccl {

// One of each per iteration. Host stamps are nanoseconds of CLOCK_MONOTONIC.
struct Timing {
    std::vector<double> seconds;              // between events before and after it on the stream
    std::vector<std::int64_t> arrival_ns;     // before it was queued
    std::vector<std::int64_t> completion_ns;  // when the host saw that it was done: at once only if it waits for each
};

class Collective {
  public:
    // Buffers that the rank does not need may be null; in place there is `send` alone. Throws InputError where options
    // or buffers do not fit, NotAvailable where the library is too old for the type.
    Collective(std::shared_ptr<Communicator> communicator, CollectiveOptions options, std::shared_ptr<Buffer> send,
               std::shared_ptr<Buffer> receive);
    ~Collective();
    Collective(const Collective&) = delete;
    Collective& operator=(const Collective&) = delete;

    // Runs it once and waits. Like all below it throws DeadlineExceeded, NcclError or Aborted, and the communicator is
    // then aborted.
    void run(double deadline_s);

    // Runs it once unless it has run, which sets up connections, then times it that often. With `synchronise_each` the
    // host waits for each, else it runs ahead by up to 64. With `graph_calls` above 0 one capture of that number of
    // calls is replayed, and an iteration is a replay. The deadline is for all of it.
    Timing time(std::int64_t iterations, double deadline_s, bool synchronise_each, int graph_calls);

  private:
    struct Slot {
        Event begin = nullptr;
        Event end = nullptr;
    };

    void check_buffer(const char* which, const std::shared_ptr<Buffer>& buffer, std::int64_t bytes) const;
    void set_addresses();
    void make_factor();
    void run_once(const Deadline& deadline);
    // Hands it to the library, and waits until the library has put it on the stream.
    void queue(const Deadline& deadline);
    void queue_parts(const Deadline& deadline);
    void play_ping_pong(const Deadline& deadline);
    // The part of the buffer in units of count elements.
    void send_to(int peer, int part, const Deadline& deadline);
    void receive_from(int peer, int part, const Deadline& deadline);
    void capture(int calls, const Deadline& deadline);
    void make_events();

    std::shared_ptr<Communicator> communicator_;
    CollectiveOptions options_;
    std::shared_ptr<Buffer> send_buffer_;
    std::shared_ptr<Buffer> receive_buffer_;
    std::string label_;  // the subject of what is said of it
    char* send_ = nullptr;
    char* receive_ = nullptr;
    ncclRedOp_t reduction_ = 0;
    bool own_reduction_ = false;
    bool has_run_ = false;
    Graph graph_ = nullptr;
    int captured_calls_ = 0;
    std::vector<Slot> events_;
};

}  // namespace pyperf::nccl
