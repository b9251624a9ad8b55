// Streams are non-blocking: copies and fills go through the default stream and are waited for there, so that they
// neither wait for a collective that hangs nor are waited for by one.
#include "nccl/cuda_device.h"

#include "check.h"
#include "cuda/errors.h"

namespace pyperf::nccl {
namespace {

using namespace cuda;

constexpr CUresult not_ready = 600;

CUstream stream_of(Stream stream) { return static_cast<CUstream>(stream); }
CUevent event_of(Event event) { return static_cast<CUevent>(event); }
CUgraphExec graph_of(Graph graph) { return static_cast<CUgraphExec>(graph); }

}  // namespace

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
