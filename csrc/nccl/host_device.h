// The host as a device: plain memory, a thread for each stream, the steady clock for events.
//
// An operation that never ends is really pending, as it is on a GPU.
#pragma once

#include "nccl/device.h"

namespace pyperf::nccl {

class HostDevice : public Device {
  public:
    std::string name() const override { return "host"; }
    Address allocate(std::int64_t bytes) override;
    void free(Address address) noexcept override;
    void write(Address to, const void* host, std::int64_t bytes) override;
    void read(void* host, Address from, std::int64_t bytes) override;
    void fill(Address address, unsigned char value, std::int64_t bytes) override;
    void copy(Address to, Address from, std::int64_t bytes) override;
    Outside outside(Address data, std::int64_t count, const Bounds& bounds) override;
    Stream create_stream() override;
    void destroy_stream(Stream stream) noexcept override;
    bool idle(Stream stream) override;
    Event create_event() override;
    void destroy_event(Event event) noexcept override;
    void record(Event event, Stream stream) override;
    bool reached(Event event) override;
    double seconds_between(Event begin, Event end) override;
    void begin_capture(Stream stream) override;
    Graph end_capture(Stream stream) override;
    void abandon_capture(Stream stream) noexcept override;
    void launch(Graph graph, Stream stream) override;
    void destroy_graph(Graph graph) noexcept override;
    std::shared_ptr<void> current() override { return nullptr; }
};

}  // namespace pyperf::nccl
