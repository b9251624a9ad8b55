#include "nccl/collective.h"

#include "check.h"
#include "nccl/errors.h"

#include <algorithm>
#include <utility>

namespace pyperf::nccl {
namespace {

// Launches that the host may run ahead of the device: fewer than a driver's queue takes (about 1024), as a full queue
// would block the host without a deadline.
constexpr std::size_t window = 64;

constexpr int most_graph_calls = 1024;

std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

char* pointer(const std::shared_ptr<Buffer>& buffer) {
    return buffer ? reinterpret_cast<char*>(buffer->address()) : nullptr;
}

}  // namespace

// `communicator->check(api.ncclX(...), "ncclX")` without saying ncclX twice; waits where the library is not done.
#define PYPERF_NCCL(function, deadline, ...)                                         \
    do {                                                                             \
        const ncclResult_t result_ = communicator_->api().function(__VA_ARGS__);     \
        communicator_->check(result_, #function);                                    \
        if (result_ == in_progress) communicator_->settle(label_.c_str(), deadline); \
    } while (0)

Collective::Collective(std::shared_ptr<Communicator> communicator, CollectiveOptions options,
                       std::shared_ptr<Buffer> send, std::shared_ptr<Buffer> receive)
    : communicator_(std::move(communicator)),
      options_(std::move(options)),
      send_buffer_(std::move(send)),
      receive_buffer_(std::move(receive)) {
    check_options(options_, communicator_->ranks());
    const Library& library = communicator_->library();
    if (library.version() < options_.type->oldest_version)
        throw NotAvailable(text("NCCL ", library.version_text(), " has no ", options_.type->name,
                                ", 2.24 or later has: update it, or take another dtype."));
    label_ = text(name_of(options_.operation), " of ", options_.count, " ", options_.type->name);
    const Needs needs = needs_of(options_, communicator_->rank(), communicator_->ranks());
    check_buffer("send", send_buffer_, needs.send);
    check_buffer("receive", receive_buffer_, needs.receive);
    CHECK_INPUT(!options_.in_place || !receive_buffer_, label_,
                " was asked for in place with two buffers: give the one as send.");
    set_addresses();
    make_factor();
}

Collective::~Collective() {
    if (own_reduction_ && communicator_->alive()) {
        try {
            const auto current = communicator_->device().current();
            communicator_->api().ncclRedOpDestroy(reduction_, communicator_->handle());
        } catch (const std::runtime_error&) {  // the device is lost, and the reduction with it
        }
    }
    if (communicator_->lost()) return;  // a stream that never ends may still use events and graph
    if (graph_) communicator_->device().destroy_graph(graph_);
    for (const Slot& slot : events_)
        for (Event event : {slot.begin, slot.end})
            if (event) communicator_->device().destroy_event(event);
}

void Collective::check_buffer(const char* which, const std::shared_ptr<Buffer>& buffer, std::int64_t bytes) const {
    CHECK_INPUT(!buffer || &buffer->communicator() == communicator_.get(), label_, " was given a ", which,
                " buffer of another communicator: give one of its own.");
    const std::int64_t there = buffer ? buffer->bytes() : 0;
    CHECK_INPUT(there >= bytes, label_, " needs ", bytes, " bytes to ", which, " on rank ", communicator_->rank(),
                " of ", communicator_->ranks(), " and the buffer has ", there, ": give a larger one.");
}

// In place, the rank's own part of the larger buffer is the smaller one.
void Collective::set_addresses() {
    send_ = pointer(send_buffer_);
    receive_ = options_.in_place ? send_ : pointer(receive_buffer_);
    if (!options_.in_place) return;
    const std::int64_t part = options_.count * options_.type->bytes;
    const bool root = communicator_->rank() == options_.root;
    switch (options_.operation) {
        case Operation::all_gather: send_ += communicator_->rank() * part; break;
        case Operation::reduce_scatter: receive_ += communicator_->rank() * part; break;
        case Operation::gather: send_ += root ? options_.root * part : 0; break;
        case Operation::scatter: receive_ += root ? options_.root * part : 0; break;
        default: break;
    }
}

void Collective::make_factor() {
    if (options_.reduction != "premulsum") {
        reduction_ = reduction_number(options_.reduction);
        return;
    }
    std::vector<unsigned char> factor = encode(options_.factor, *options_.type);
    const auto current = communicator_->device().current();
    communicator_->check(communicator_->api().ncclRedOpCreatePreMulSum(&reduction_, factor.data(),
                                                                       options_.type->number, scalar_host_immediate,
                                                                       communicator_->handle()),
                         "ncclRedOpCreatePreMulSum");
    own_reduction_ = true;
}

void Collective::run(double deadline_s) {
    const Deadline deadline(deadline_s);
    const auto current = communicator_->device().current();
    try {
        run_once(deadline);
    } catch (...) {
        communicator_->abort();
        throw;
    }
}

void Collective::run_once(const Deadline& deadline) {
    queue(deadline);
    communicator_->wait(
        label_.c_str(), [&] { return communicator_->device().idle(communicator_->stream()); }, deadline);
    has_run_ = true;
}

Timing Collective::time(std::int64_t iterations, double deadline_s, bool synchronise_each, int graph_calls) {
    CHECK_INPUT(iterations >= 1 && iterations <= 100'000'000, iterations,
                " iterations were asked for: ask for 1 to 100000000.");
    CHECK_INPUT(graph_calls >= 0 && graph_calls <= most_graph_calls, "A graph of ", graph_calls,
                " calls was asked for: ask for up to ", most_graph_calls, ", or for 0 to use none.");
    communicator_->handle();  // one that has ended is given nothing: an event still queued would outlive this object
    const Deadline deadline(deadline_s);
    const auto count = static_cast<std::size_t>(iterations);
    Timing timing{std::vector<double>(count), std::vector<std::int64_t>(count), std::vector<std::int64_t>(count)};
    Device& device = communicator_->device();
    const Stream stream = communicator_->stream();
    const auto current = device.current();
    std::size_t seen = 0;
    const auto see = [&] {
        const Slot& slot = events_[seen % window];
        communicator_->wait(label_.c_str(), [&] { return device.reached(slot.end); }, deadline);
        timing.completion_ns[seen] = now_ns();
        timing.seconds[seen] = device.seconds_between(slot.begin, slot.end);
        ++seen;
    };
    try {
        make_events();
        if (!has_run_) run_once(deadline);
        if (graph_calls > 0) capture(graph_calls, deadline);
        for (std::size_t index = 0; index < count; ++index) {
            if (index >= seen + window) see();
            const Slot& slot = events_[index % window];
            timing.arrival_ns[index] = now_ns();
            device.record(slot.begin, stream);
            if (graph_calls > 0) device.launch(graph_, stream);
            else queue(deadline);
            device.record(slot.end, stream);
            if (synchronise_each) see();
        }
        while (seen < count) see();
    } catch (...) {
        communicator_->abort();  // what is queued on other ranks has lost its partner
        throw;
    }
    return timing;
}

void Collective::make_events() {
    if (!events_.empty()) return;
    events_.resize(window);
    for (Slot& slot : events_) {
        slot.begin = communicator_->device().create_event();
        slot.end = communicator_->device().create_event();
    }
}

void Collective::capture(int calls, const Deadline& deadline) {
    if (calls == captured_calls_) return;
    Device& device = communicator_->device();
    if (graph_) device.destroy_graph(std::exchange(graph_, nullptr));
    captured_calls_ = 0;
    device.begin_capture(communicator_->stream());
    try {
        for (int call = 0; call < calls; ++call) queue(deadline);
    } catch (...) {
        device.abandon_capture(communicator_->stream());
        throw;
    }
    graph_ = device.end_capture(communicator_->stream());
    captured_calls_ = calls;
}

void Collective::queue(const Deadline& deadline) {
    const NcclApi& api = communicator_->api();
    const ncclComm_t handle = communicator_->handle();
    const auto stream = static_cast<cudaStream_t>(communicator_->stream());
    const auto count = static_cast<std::size_t>(options_.count);
    const int type = options_.type->number;
    const int root = options_.root;
    switch (options_.operation) {
        case Operation::all_reduce:
            PYPERF_NCCL(ncclAllReduce, deadline, send_, receive_, count, type, reduction_, handle, stream);
            return;
        case Operation::all_gather:
            PYPERF_NCCL(ncclAllGather, deadline, send_, receive_, count, type, handle, stream);
            return;
        case Operation::reduce_scatter:
            PYPERF_NCCL(ncclReduceScatter, deadline, send_, receive_, count, type, reduction_, handle, stream);
            return;
        case Operation::broadcast:
            PYPERF_NCCL(ncclBroadcast, deadline, send_, receive_, count, type, root, handle, stream);
            return;
        case Operation::reduce:
            PYPERF_NCCL(ncclReduce, deadline, send_, receive_, count, type, reduction_, root, handle, stream);
            return;
        case Operation::all_to_all:
            if (!api.ncclAlltoAll) break;
            PYPERF_NCCL(ncclAlltoAll, deadline, send_, receive_, count, type, handle, stream);
            return;
        case Operation::gather:
            if (!api.ncclGather) break;
            PYPERF_NCCL(ncclGather, deadline, send_, receive_, count, type, root, handle, stream);
            return;
        case Operation::scatter:
            if (!api.ncclScatter) break;
            PYPERF_NCCL(ncclScatter, deadline, send_, receive_, count, type, root, handle, stream);
            return;
        case Operation::ping_pong: play_ping_pong(deadline); return;
        case Operation::send_receive:
        case Operation::bisection:
        case Operation::pairs: break;
    }
    PYPERF_NCCL(ncclGroupStart, deadline);
    try {
        queue_parts(deadline);
    } catch (...) {
        api.ncclGroupEnd();  // a thread is in a group until it ends, whatever becomes of it
        throw;
    }
    PYPERF_NCCL(ncclGroupEnd, deadline);
}

// Operations made of sends and receives, in one group: each may wait for its partner's.
void Collective::queue_parts(const Deadline& deadline) {
    const int rank = communicator_->rank();
    const int ranks = communicator_->ranks();
    const int root = options_.root;
    switch (options_.operation) {
        case Operation::all_to_all:
            for (int peer = 0; peer < ranks; ++peer) {
                send_to(peer, peer, deadline);
                receive_from(peer, peer, deadline);
            }
            break;
        case Operation::gather:
            send_to(root, 0, deadline);
            for (int peer = 0; rank == root && peer < ranks; ++peer) receive_from(peer, peer, deadline);
            break;
        case Operation::scatter:
            for (int peer = 0; rank == root && peer < ranks; ++peer) send_to(peer, peer, deadline);
            receive_from(root, 0, deadline);
            break;
        case Operation::send_receive:
            send_to((rank + 1) % ranks, 0, deadline);
            receive_from((rank + ranks - 1) % ranks, 0, deadline);
            break;
        case Operation::bisection: {
            const int half = ranks / 2;
            if (rank >= 2 * half) break;
            const int peer = rank < half ? rank + half : rank - half;
            send_to(peer, 0, deadline);
            receive_from(peer, 0, deadline);
            break;
        }
        default: {  // pairs
            int received = 0;
            for (const auto& [source, destination] : options_.pattern) {
                if (rank == source) send_to(destination, 0, deadline);
                if (rank == destination) receive_from(source, received++, deadline);
            }
        }
    }
}

void Collective::play_ping_pong(const Deadline& deadline) {
    for (const auto& [server, returner] : options_.pattern) {
        if (communicator_->rank() == server) {
            send_to(returner, 0, deadline);
            receive_from(returner, 0, deadline);
        } else if (communicator_->rank() == returner) {
            receive_from(server, 0, deadline);
            send_to(server, 0, deadline);
        }
    }
}

void Collective::send_to(int peer, int part, const Deadline& deadline) {
    PYPERF_NCCL(ncclSend, deadline, send_ + part * options_.count * options_.type->bytes,
                static_cast<std::size_t>(options_.count), options_.type->number, peer, communicator_->handle(),
                static_cast<cudaStream_t>(communicator_->stream()));
}

void Collective::receive_from(int peer, int part, const Deadline& deadline) {
    PYPERF_NCCL(ncclRecv, deadline, receive_ + part * options_.count * options_.type->bytes,
                static_cast<std::size_t>(options_.count), options_.type->number, peer, communicator_->handle(),
                static_cast<cudaStream_t>(communicator_->stream()));
}

}  // namespace pyperf::nccl
