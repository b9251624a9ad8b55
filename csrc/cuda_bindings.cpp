// Python bindings of csrc/cuda and nothing else; what each function means is said where it is implemented.
#include "cuda_bindings.h"

#include "check.h"
#include "cuda/compiler.h"
#include "cuda/errors.h"
#include "cuda/launch.h"
#include "cuda/memory.h"
#include "cuda/stopwatch.h"
#include "cuda/tensor_map.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>

namespace py = pybind11;

namespace pyperf {
namespace {

using namespace cuda;
using without_gil = py::gil_scoped_release;

// The contiguous bytes behind anything that has a buffer: bytes, numpy arrays and scalars, ctypes structures.
class Bytes {
  public:
    explicit Bytes(const py::handle& object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw py::error_already_set();
    }
    ~Bytes() { PyBuffer_Release(&view_); }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;

    const char* data() const { return static_cast<const char*>(view_.buf); }
    Py_ssize_t size() const { return view_.len; }
    std::string copy() const { return {data(), static_cast<std::size_t>(size())}; }

  private:
    Py_buffer view_{};
};

constexpr std::pair<const char*, Queueing> queueings[] = {
    {"held", Queueing::held}, {"graph", Queueing::graph}, {"open", Queueing::open}};

Queueing queueing_named(const std::string& asked) {
    for (const auto& [name, queueing] : queueings)
        if (asked == name) return queueing;
    throw InputError(text("Queueing '", asked, "' is unknown: choose held, graph or open."));
}

const char* name_of(Queueing asked) {
    for (const auto& [name, queueing] : queueings)
        if (asked == queueing) return name;
    return "";
}

py::bytes read(const DeviceMemory& memory, const std::optional<std::int64_t>& bytes, std::int64_t offset) {
    const std::int64_t rest = memory.bytes() - std::clamp<std::int64_t>(offset, 0, memory.bytes());
    const std::int64_t count = bytes.value_or(rest);
    std::string out(static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, rest)), '\0');
    {
        const without_gil released;
        memory.read(out.data(), count, offset);
    }
    return out;
}

Compiled compile(const Compiler& compiler, const std::string& name, const std::string& source,
                 const std::map<std::string, std::string>& headers, const std::string& architecture,
                 const std::vector<std::string>& options) {
    const without_gil released;
    return compiler.compile({name, source, headers}, architecture, options);
}

std::unique_ptr<Launch> make_launch(std::shared_ptr<Kernel> kernel, const Dimensions& grid, const Dimensions& block,
                                    const std::vector<py::object>& arguments, const Dimensions& cluster,
                                    std::int64_t dynamic_shared_bytes) {
    std::vector<std::string> copies;
    for (const py::object& argument : arguments) copies.push_back(Bytes(argument).copy());
    return std::make_unique<Launch>(std::move(kernel), LaunchShape{grid, block, cluster, dynamic_shared_bytes}, copies);
}

std::vector<std::pair<double, double>> time(Stopwatch& stopwatch, const std::function<void(std::int64_t)>& launch,
                                            std::int64_t first, std::int64_t samples,
                                            std::int64_t launches_per_sample,
                                            const std::optional<std::string>& queueing,
                                            std::int64_t operations_per_launch, std::int64_t wake_launches,
                                            double empty_s) {
    const Queueing asked = queueing ? queueing_named(*queueing) : stopwatch.options().queueing;
    std::vector<std::pair<double, double>> out;
    for (const Sample& sample : stopwatch.time(launch, first, samples, launches_per_sample, asked,
                                               operations_per_launch, wake_launches, empty_s))
        out.emplace_back(sample.seconds, sample.sm_clock_hz);
    return out;
}

void bind_errors(py::module_& module) {
    // The one registered last is tried first, so the base comes first.
    const auto base = py::register_exception<CudaError>(module, "CudaError", PyExc_RuntimeError);
    py::register_exception<NotAvailable>(module, "NotAvailable", base);
    py::register_exception<OutOfMemory>(module, "OutOfMemory", base);
    py::register_exception<LaunchFailed>(module, "LaunchFailed", base);
    py::register_exception<CompileError>(module, "CompileError", base);
    py::register_exception<QueueTimedOut>(module, "QueueTimedOut", base);
}

void bind_device(py::module_& module) {
    py::class_<Driver, std::shared_ptr<Driver>>(module, "Driver", "libcuda, initialised. Raises NotAvailable.")
        .def(py::init<>())
        .def_property_readonly("path", &Driver::path)
        .def_property_readonly(
            "version",
            [](const Driver& driver) { return std::pair(driver.version() / 1000, driver.version() % 1000 / 10); },
            "(major, minor) of the newest CUDA that the driver supports.")
        .def("device_count", &Driver::device_count);

    py::class_<DeviceProperties>(module, "DeviceProperties")
        .def_readonly("name", &DeviceProperties::name)
        .def_readonly("uuid", &DeviceProperties::uuid)
        .def_readonly("pci_address", &DeviceProperties::pci_address)
        .def_readonly("compute_capability", &DeviceProperties::compute_capability)
        .def_readonly("multiprocessors", &DeviceProperties::multiprocessors)
        .def_readonly("memory_bytes", &DeviceProperties::memory_bytes)
        .def_readonly("l2_bytes", &DeviceProperties::l2_bytes)
        .def_readonly("shared_bytes_per_block", &DeviceProperties::shared_bytes_per_block)
        .def_readonly("shared_bytes_per_multiprocessor", &DeviceProperties::shared_bytes_per_multiprocessor)
        .def_readonly("reserved_shared_bytes_per_block", &DeviceProperties::reserved_shared_bytes_per_block)
        .def_readonly("registers_per_multiprocessor", &DeviceProperties::registers_per_multiprocessor)
        .def_readonly("threads_per_multiprocessor", &DeviceProperties::threads_per_multiprocessor)
        .def_readonly("threads_per_block", &DeviceProperties::threads_per_block)
        .def_readonly("blocks_per_multiprocessor", &DeviceProperties::blocks_per_multiprocessor)
        .def_readonly("clusters", &DeviceProperties::clusters)
        .def_readonly("tensor_maps", &DeviceProperties::tensor_maps);

    py::class_<Context, std::shared_ptr<Context>>(
        module, "Context", "The primary context of a device, retained while this lives. Raises NotAvailable.")
        .def(py::init([](std::shared_ptr<Driver> driver, int index) {
                 return std::make_shared<Context>(std::move(driver), index);
             }),
             py::arg("driver"), py::arg("index") = 0)
        .def_property_readonly("properties", &Context::properties)
        .def_property_readonly("architecture", &Context::architecture, "What a compiler is asked for, as in sm_90a.")
        .def("memory_bytes", &Context::free_and_total_bytes, "(free, total) bytes of device memory.")
        .def("synchronize", &Context::synchronize, py::call_guard<without_gil>(),
             "Waits for all work of the device; raises LaunchFailed where a kernel failed.");

    py::class_<DeviceMemory>(module, "DeviceMemory", "Raises OutOfMemory, or ValueError for bytes outside it.")
        .def(py::init([](std::shared_ptr<Context> context, std::int64_t bytes) {
                 return std::make_unique<DeviceMemory>(std::move(context), bytes);
             }),
             py::arg("context"), py::arg("bytes"))
        .def_property_readonly("address", &DeviceMemory::address)
        .def_property_readonly("bytes", &DeviceMemory::bytes)
        .def(
            "write",
            [](DeviceMemory& memory, const py::object& source, std::int64_t offset) {
                const Bytes bytes(source);
                const without_gil released;
                memory.write(bytes.data(), bytes.size(), offset);
            },
            py::arg("source"), py::arg("offset") = 0, "Copies anything with a contiguous buffer to the device.")
        .def("read", &read, py::arg("bytes") = py::none(), py::arg("offset") = 0, "Copies bytes from the device.")
        .def("fill", &DeviceMemory::fill, py::arg("value"), py::call_guard<without_gil>(), "Sets every byte.");
}

void bind_compiler(py::module_& module) {
    py::class_<Compiled>(module, "Compiled")
        .def_property_readonly("cubin", [](const Compiled& compiled) { return py::bytes(compiled.cubin); })
        .def_readonly("log", &Compiled::log, "Warnings, and what the options made the compiler print.");

    py::class_<Compiler>(module, "Compiler",
                         "NVRTC; candidates are paths where a package may keep libnvrtc. Raises NotAvailable.")
        .def(py::init<const std::vector<std::string>&>(), py::arg("candidates"))
        .def_property_readonly("path", &Compiler::path)
        .def_property_readonly("version", &Compiler::version)
        .def("compile", &compile, py::arg("name"), py::arg("source"), py::arg("headers"), py::arg("architecture"),
             py::arg("options"),
             "Machine code of a source for an architecture such as sm_90a; headers by the name they are included by. "
             "Raises CompileError with the log.");
}

void bind_launch(py::module_& module) {
    py::class_<Module, std::shared_ptr<Module>>(module, "Module")
        .def(py::init([](std::shared_ptr<Context> context, const py::bytes& cubin) {
                 return std::make_shared<Module>(std::move(context), cubin);
             }),
             py::arg("context"), py::arg("cubin"));

    py::class_<Kernel, std::shared_ptr<Kernel>>(module, "Kernel")
        .def(py::init([](std::shared_ptr<Module> from, const std::string& name) {
                 return std::make_shared<Kernel>(std::move(from), name);
             }),
             py::arg("module"), py::arg("name"))
        .def_property_readonly("name", &Kernel::name)
        .def_property_readonly("registers", &Kernel::registers, "Per thread.")
        .def_property_readonly("static_shared_bytes", &Kernel::static_shared_bytes, "Per block.")
        .def_property_readonly("local_bytes", &Kernel::local_bytes, "Per thread: spills and arrays.")
        .def_property_readonly("max_threads_per_block", &Kernel::max_threads_per_block)
        .def_property_readonly("parameter_bytes", &Kernel::parameter_bytes,
                               "Size of each parameter; empty where the driver does not tell.")
        .def("max_active_blocks", &Kernel::max_active_blocks, py::arg("threads"), py::arg("dynamic_shared_bytes") = 0,
             "Blocks that one multiprocessor holds at once.")
        .def("max_active_clusters", &Kernel::max_active_clusters, py::arg("threads"), py::arg("cluster"),
             py::arg("dynamic_shared_bytes") = 0,
             "Clusters of `cluster` blocks that the device holds at once. Raises NotAvailable before sm_90.");

    py::class_<Launch>(module, "Launch",
                       "A kernel with its shape (blocks, threads, blocks of a cluster) and arguments: an object with a "
                       "buffer (bytes, a numpy scalar, ...) for each parameter. Raises ValueError on bad input.")
        .def(py::init(&make_launch), py::arg("kernel"), py::arg("grid"), py::arg("block"), py::arg("arguments"),
             py::kw_only(), py::arg("cluster") = Dimensions{1, 1, 1}, py::arg("dynamic_shared_bytes") = 0)
        .def("run", &Launch::run, py::arg("stream") = 0, py::call_guard<without_gil>(),
             "Queues it; errors of the kernel itself show at a later call.");

    // The same arguments for the check alone and for the encoding.
    using Pair = std::array<std::int64_t, 2>;
    module.def(
        "check_tensor_map",
        [](std::uint64_t address, const std::string& dtype, const Pair& shape, std::int64_t stride_bytes,
           const Pair& box, int swizzle_bytes, int l2_promotion_bytes, std::int64_t matrices,
           std::int64_t matrix_bytes) {
            check_tensor_map({address, dtype, shape, stride_bytes, box, swizzle_bytes, l2_promotion_bytes, matrices,
                              matrix_bytes});
        },
        py::arg("address"), py::arg("dtype"), py::arg("shape"), py::arg("stride_bytes"), py::arg("box"),
        py::arg("swizzle_bytes") = 128, py::arg("l2_promotion_bytes") = 256, py::arg("matrices") = 0,
        py::arg("matrix_bytes") = 0,
        "Raises ValueError, naming the limit, unless TMA can take it; needs no GPU.");
    module.def(
        "tensor_map",
        [](const std::shared_ptr<Context>& context, std::uint64_t address, const std::string& dtype, const Pair& shape,
           std::int64_t stride_bytes, const Pair& box, int swizzle_bytes, int l2_promotion_bytes,
           std::int64_t matrices, std::int64_t matrix_bytes) {
            const CUtensorMap map = encode_tensor_map(*context, {address, dtype, shape, stride_bytes, box, swizzle_bytes,
                                                                 l2_promotion_bytes, matrices, matrix_bytes});
            return py::bytes(reinterpret_cast<const char*>(&map), sizeof map);
        },
        py::arg("context"), py::arg("address"), py::arg("dtype"), py::arg("shape"), py::arg("stride_bytes"),
        py::arg("box"), py::arg("swizzle_bytes") = 128, py::arg("l2_promotion_bytes") = 256, py::arg("matrices") = 0,
        py::arg("matrix_bytes") = 0,
        "The 128 bytes of a kernel's tensor map parameter; shape and box with the contiguous dimension first; of one matrix, "
        "or of `matrices` behind each other. "
        "Raises ValueError, and NotAvailable before sm_90.");
}

}  // namespace

void bind_cuda(py::module_& parent) {
    py::module_ module = parent.def_submodule("cuda", "Driver, compiler, launches and clocks of a GPU.");
    bind_errors(module);
    bind_device(module);
    bind_compiler(module);
    bind_launch(module);

    py::class_<Stopwatch>(module, "Stopwatch",
                          "Times launches by events on its own stream; `cubin` is kernels/cuda/stopwatch.cu compiled. "
                          "queueing: held (behind a kernel that holds the stream), graph (replayed), open (neither).")
        .def(py::init([](std::shared_ptr<Context> context, const py::bytes& cubin, const std::string& queueing,
                         bool clocks, double hold_limit_s, std::int64_t queue_limit) {
                 const StopwatchOptions options{queueing_named(queueing), clocks, hold_limit_s, queue_limit};
                 return std::make_unique<Stopwatch>(std::move(context), cubin, options);
             }),
             py::arg("context"), py::arg("cubin"), py::kw_only(), py::arg("queueing") = "held",
             py::arg("clocks") = true, py::arg("hold_limit_s") = StopwatchOptions{}.hold_limit_s,
             py::arg("queue_limit") = StopwatchOptions{}.queue_limit)
        .def_property_readonly("stream", &Stopwatch::stream, "The stream, as an address, that launches must go to.")
        .def_property_readonly("queueing",
                               [](const Stopwatch& stopwatch) { return name_of(stopwatch.options().queueing); })
        .def_property_readonly("queue_limit", [](const Stopwatch& stopwatch) { return stopwatch.options().queue_limit; })
        .def_property_readonly("launches_queued", &Stopwatch::launches_queued,
                               "How many launches the queue took behind the last held stream before one of them waited.")
        .def("time", &time, py::arg("launch"), py::arg("first"), py::arg("samples"), py::arg("launches_per_sample"),
             py::kw_only(), py::arg("queueing") = py::none(), py::arg("operations_per_launch") = 1,
             py::arg("wake_launches") = 0, py::arg("empty_s") = 0.0, py::call_guard<without_gil>(),
             "(seconds, clock of the multiprocessors in Hz or NaN) of each sample; a launch is that many kernels and "
             "copies on the stream. Up to `wake_launches` before the first are run again, uncounted, at the head of each "
             "block; `empty_s` is taken off each pair of events. Raises QueueTimedOut, LaunchFailed, and what `launch` raises.")
        .def("operations_of", &Stopwatch::operations_of, py::arg("launch"), py::arg("index"),
             py::call_guard<without_gil>(),
             "How many kernels and copies a launch puts on the stream, by capturing it without running it; None where "
             "it cannot be captured.")
        .def("synchronize", &Stopwatch::synchronize, py::call_guard<without_gil>());
}

}  // namespace pyperf
