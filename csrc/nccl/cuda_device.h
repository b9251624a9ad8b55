// A GPU under collectives, by the CUDA driver.
#pragma once

#include "cuda/launch.h"
#include "nccl/device.h"

#include <memory>

namespace pyperf::nccl {

class CudaDevice : public Device {
  public:
    // `cubin` is kernels/cuda/periodic.cu compiled for the device; without it `outside` cannot be asked.
    explicit CudaDevice(std::shared_ptr<const cuda::Context> context, const std::string& cubin = "");

    std::string name() const override { return context_->properties().name; }
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
    std::shared_ptr<void> current() override;

  private:
    const cuda::DriverApi& api() const { return context_->driver()->api(); }
    // False where `result` says that the work is still under way. Throws any other failure.
    bool done(cuda::CUresult result, const char* call) const;

    std::shared_ptr<const cuda::Context> context_;
    std::shared_ptr<const cuda::Module> kernels_;
};

}  // namespace pyperf::nccl
