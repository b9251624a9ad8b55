// Interface that collectives need of a device, and no more: a GPU's by the CUDA driver or the host's own, so that a
// double of libnccl drives the same loops where there is no GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace pyperf::nccl {

using Address = std::uint64_t;
// Streams, events and graphs, each kind's own behind a pointer.
using Stream = void*;
using Event = void*;
using Graph = void*;

// Bounds of each element, as unsigned integers of its bits, in the host's memory; both repeat.
struct Bounds {
    const void* low;
    const void* high;
    std::int64_t period;  // elements of each, at least 1
    int element_bytes;    // 1, 2 or 4
};

struct Outside {
    std::int64_t count;
    std::int64_t first;  // -1 where there is none
};

class Device {
  public:
    virtual ~Device() = default;

    virtual std::string name() const = 0;

    // Throws where there is not so much memory.
    virtual Address allocate(std::int64_t bytes) = 0;
    virtual void free(Address address) noexcept = 0;
    // Each returns when it is done; none waits for a stream made here, so that none hangs with a collective.
    virtual void write(Address to, const void* host, std::int64_t bytes) = 0;
    virtual void read(void* host, Address from, std::int64_t bytes) = 0;
    virtual void fill(Address address, unsigned char value, std::int64_t bytes) = 0;
    virtual void copy(Address to, Address from, std::int64_t bytes) = 0;
    virtual Outside outside(Address data, std::int64_t count, const Bounds& bounds) = 0;

    virtual Stream create_stream() = 0;
    // Destroys a stream with nothing left to do.
    virtual void destroy_stream(Stream stream) noexcept = 0;
    // True if all that was queued is done. Throws the device's error.
    virtual bool idle(Stream stream) = 0;

    virtual Event create_event() = 0;
    virtual void destroy_event(Event event) noexcept = 0;
    virtual void record(Event event, Stream stream) = 0;
    virtual bool reached(Event event) = 0;
    virtual double seconds_between(Event begin, Event end) = 0;

    // Operations queued on a stream from begin_capture to end_capture are kept instead of run; launch queues it again.
    virtual void begin_capture(Stream stream) = 0;
    virtual Graph end_capture(Stream stream) = 0;
    // Leaves a stream whose capture has failed as it was before; never throws.
    virtual void abandon_capture(Stream stream) noexcept = 0;
    virtual void launch(Graph graph, Stream stream) = 0;
    virtual void destroy_graph(Graph graph) noexcept = 0;

    // Keeps the device the calling thread's own, as libnccl expects it, for as long as what is returned lives.
    virtual std::shared_ptr<void> current() = 0;
};

}  // namespace pyperf::nccl
