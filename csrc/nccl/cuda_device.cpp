// Streams are non-blocking: copies and fills go through the default stream and are waited for there, so that they
// neither wait for a collective that hangs nor are waited for by one.
#include "nccl/cuda_device.h"

#include "check.h"
#include "cuda/errors.h"
#include "cuda/memory.h"

#include <algorithm>

namespace pyperf::nccl {
namespace {

using namespace cuda;

constexpr CUresult not_ready = 600;

constexpr std::int64_t threads_of_a_block = 256;

template <typename Value> std::string bytes_of(const Value& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

CUstream stream_of(Stream stream) { return static_cast<CUstream>(stream); }
CUevent event_of(Event event) { return static_cast<CUevent>(event); }
CUgraphExec graph_of(Graph graph) { return static_cast<CUgraphExec>(graph); }

}  // namespace

CudaDevice::CudaDevice(std::shared_ptr<const Context> context, const std::string& cubin)
    : context_(std::move(context)), kernels_(cubin.empty() ? nullptr : std::make_shared<Module>(context_, cubin)) {}

Address CudaDevice::allocate(std::int64_t bytes) {
    const CurrentContext current(*context_);
    CUdeviceptr address = 0;
    try {
        PYPERF_CALL(context_->driver(), cuMemAlloc_v2, &address, static_cast<std::size_t>(bytes));
    } catch (const OutOfMemory& error) {
        const auto [free_bytes, total_bytes] = context_->free_and_total_bytes();
        throw OutOfMemory(text(bytes / 1e9, " GB of device memory were asked for and ", free_bytes / 1e9, " of ",
                               total_bytes / 1e9, " GB are free: ", error.what()));
    }
    return address;
}

void CudaDevice::free(Address address) noexcept {
    try {
        const CurrentContext current(*context_);
        api().cuMemFree_v2(address);
    } catch (const std::runtime_error&) {  // the context is lost, and its memory with it
    }
}

void CudaDevice::write(Address to, const void* host, std::int64_t bytes) {
    const CurrentContext current(*context_);
    PYPERF_CALL(context_->driver(), cuMemcpyHtoD_v2, to, host, static_cast<std::size_t>(bytes));
    PYPERF_CALL(context_->driver(), cuStreamSynchronize, nullptr);
}

void CudaDevice::read(void* host, Address from, std::int64_t bytes) {
    const CurrentContext current(*context_);
    PYPERF_CALL(context_->driver(), cuMemcpyDtoH_v2, host, from, static_cast<std::size_t>(bytes));
}

void CudaDevice::fill(Address address, unsigned char value, std::int64_t bytes) {
    const CurrentContext current(*context_);
    PYPERF_CALL(context_->driver(), cuMemsetD8_v2, address, value, static_cast<std::size_t>(bytes));
    PYPERF_CALL(context_->driver(), cuStreamSynchronize, nullptr);
}

void CudaDevice::copy(Address to, Address from, std::int64_t bytes) {
    const CurrentContext current(*context_);
    PYPERF_CALL(context_->driver(), cuMemcpyDtoD_v2, to, from, static_cast<std::size_t>(bytes));
    PYPERF_CALL(context_->driver(), cuStreamSynchronize, nullptr);
}

Outside CudaDevice::outside(Address data, std::int64_t count, const Bounds& bounds) {
    CHECK_INPUT(kernels_, "Memory of ", name(), " was to be compared without the kernel for it: give its machine code.");
    const std::int64_t bytes = bounds.period * bounds.element_bytes;
    DeviceMemory low(context_, bytes), high(context_, bytes);
    low.write(bounds.low, bytes);
    high.write(bounds.high, bytes);
    std::uint64_t found[2] = {0, ~std::uint64_t{0}};
    DeviceMemory results(context_, sizeof found);
    results.write(found, sizeof found);
    const auto kernel = std::make_shared<Kernel>(kernels_, text("pyperf_outside_", bounds.element_bytes));
    const std::int64_t blocks = std::min<std::int64_t>((count + threads_of_a_block - 1) / threads_of_a_block,
                                                       8 * context_->properties().multiprocessors);
    const auto elements = static_cast<std::uint64_t>(count);
    const auto period = static_cast<std::uint32_t>(bounds.period);
    Launch launch(kernel, {{std::max<std::int64_t>(1, blocks), 1, 1}, {threads_of_a_block, 1, 1}},
                  {bytes_of(data), bytes_of(elements), bytes_of(low.address()), bytes_of(high.address()),
                   bytes_of(period), bytes_of(results.address())});
    const Stream stream = create_stream();
    try {
        launch.run(reinterpret_cast<std::uintptr_t>(stream));
        const CurrentContext current(*context_);
        PYPERF_CALL(context_->driver(), cuStreamSynchronize, stream_of(stream));
    } catch (...) {
        destroy_stream(stream);
        throw;
    }
    destroy_stream(stream);
    results.read(found, sizeof found);
    return {static_cast<std::int64_t>(found[0]), static_cast<std::int64_t>(found[1])};
}

Stream CudaDevice::create_stream() {
    const CurrentContext current(*context_);
    CUstream stream = nullptr;
    PYPERF_CALL(context_->driver(), cuStreamCreate, &stream, stream_non_blocking);
    return stream;
}

void CudaDevice::destroy_stream(Stream stream) noexcept {
    try {
        const CurrentContext current(*context_);
        api().cuStreamDestroy_v2(stream_of(stream));
    } catch (const std::runtime_error&) {  // the context is lost, and its streams with it
    }
}

bool CudaDevice::done(CUresult result, const char* call) const {
    if (result == not_ready) return false;
    context_->driver()->check(result, call);
    return true;
}

bool CudaDevice::idle(Stream stream) {
    const CurrentContext current(*context_);
    return done(api().cuStreamQuery(stream_of(stream)), "cuStreamQuery");
}

Event CudaDevice::create_event() {
    const CurrentContext current(*context_);
    CUevent event = nullptr;
    PYPERF_CALL(context_->driver(), cuEventCreate, &event, 0);
    return event;
}

void CudaDevice::destroy_event(Event event) noexcept {
    try {
        const CurrentContext current(*context_);
        api().cuEventDestroy_v2(event_of(event));
    } catch (const std::runtime_error&) {  // the context is lost, and its events with it
    }
}

void CudaDevice::record(Event event, Stream stream) {
    const CurrentContext current(*context_);
    PYPERF_CALL(context_->driver(), cuEventRecordWithFlags, event_of(event), stream_of(stream), 0);
}

bool CudaDevice::reached(Event event) {
    const CurrentContext current(*context_);
    return done(api().cuEventQuery(event_of(event)), "cuEventQuery");
}

double CudaDevice::seconds_between(Event begin, Event end) {
    const CurrentContext current(*context_);
    float milliseconds = 0;
    PYPERF_CALL(context_->driver(), cuEventElapsedTime, &milliseconds, event_of(begin), event_of(end));
    return static_cast<double>(milliseconds) * 1e-3;
}

void CudaDevice::begin_capture(Stream stream) {
    const CurrentContext current(*context_);
    PYPERF_CALL(context_->driver(), cuStreamBeginCapture_v2, stream_of(stream), capture_thread_local);
}

Graph CudaDevice::end_capture(Stream stream) {
    const CurrentContext current(*context_);
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    PYPERF_CALL(context_->driver(), cuStreamEndCapture, stream_of(stream), &graph);
    const CUresult result = api().cuGraphInstantiateWithFlags(&executable, graph, 0);
    api().cuGraphDestroy(graph);
    context_->driver()->check(result, "cuGraphInstantiateWithFlags");
    return executable;
}

void CudaDevice::abandon_capture(Stream stream) noexcept {
    try {
        const CurrentContext current(*context_);
        CUgraph graph = nullptr;
        api().cuStreamEndCapture(stream_of(stream), &graph);
        if (graph) api().cuGraphDestroy(graph);
    } catch (const std::runtime_error&) {  // the context is lost, and the capture with it
    }
}

void CudaDevice::launch(Graph graph, Stream stream) {
    const CurrentContext current(*context_);
    PYPERF_CALL(context_->driver(), cuGraphLaunch, graph_of(graph), stream_of(stream));
}

void CudaDevice::destroy_graph(Graph graph) noexcept {
    try {
        const CurrentContext current(*context_);
        api().cuGraphExecDestroy(graph_of(graph));
    } catch (const std::runtime_error&) {  // the context is lost, and its graphs with it
    }
}

std::shared_ptr<void> CudaDevice::current() { return std::make_shared<CurrentContext>(*context_); }

}  // namespace pyperf::nccl
