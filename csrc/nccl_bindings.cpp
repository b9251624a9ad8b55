// Python bindings of csrc/nccl and nothing else; what each function means is said where it is implemented.
#include "nccl_bindings.h"

#include "check.h"
#include "nccl/collective.h"
#include "nccl/cuda_device.h"
#include "nccl/errors.h"
#include "nccl/host_device.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

namespace py = pybind11;

namespace pyperf {
namespace {

using namespace nccl;
using without_gil = py::gil_scoped_release;
using Pattern = std::vector<std::pair<int, int>>;

// Ids of 128 bytes each, one after the other.
std::vector<ncclUniqueId> unique_ids_of(const std::string& bytes) {
    std::vector<ncclUniqueId> ids(bytes.size() / sizeof(ncclUniqueId));
    CHECK_INPUT(!ids.empty() && bytes.size() % sizeof ids[0] == 0, "A unique id of ", bytes.size(),
                " bytes was given: it has ", sizeof ids[0], ", several a multiple of that.");
    std::memcpy(ids.data(), bytes.data(), bytes.size());
    return ids;
}

// Its end may wait a second for the library, and other threads, such as one that watches over the ranks, are to go on.
std::shared_ptr<Communicator> ending_without_gil(std::unique_ptr<Communicator> communicator) {
    if (!communicator) return nullptr;
    return {communicator.release(), [](Communicator* ended) {
                std::optional<without_gil> released;
                if (PyGILState_Check()) released.emplace();
                delete ended;
            }};
}

CollectiveOptions options_of(const std::string& operation, std::int64_t count, const std::string& dtype,
                             const std::string& reduction, double factor, int root, bool in_place,
                             const Pattern& pattern) {
    CollectiveOptions options;
    options.operation = operation_named(operation);
    options.count = count;
    options.type = &data_type_named(dtype);
    options.reduction = reduction;
    options.factor = factor;
    options.root = root;
    options.in_place = in_place;
    for (const auto& [first, second] : pattern) options.pattern.push_back({first, second});
    return options;
}

void write(Buffer& buffer, const py::buffer& data, std::int64_t offset) {
    const py::buffer_info info = data.request();
    std::int64_t contiguous = info.itemsize;
    for (py::ssize_t axis = info.ndim - 1; axis >= 0; --axis) {
        CHECK_INPUT(info.shape[axis] <= 1 || info.strides[axis] == contiguous,
                    "An array with gaps was given to write: give a contiguous one.");
        contiguous *= info.shape[axis];
    }
    const without_gil released;
    buffer.write(info.ptr, contiguous, offset);
}

void repeat(Buffer& buffer, const py::array& period, std::int64_t bytes, std::int64_t offset) {
    CHECK_INPUT(period.flags() & py::array::c_style, "An array with gaps was given to repeat: give a contiguous one.");
    const without_gil released;
    buffer.repeat(period.data(), period.nbytes(), bytes, offset);
}

std::pair<std::int64_t, std::int64_t> outside(const Buffer& buffer, const py::array& low, const py::array& high,
                                              std::int64_t count, std::int64_t offset) {
    CHECK_INPUT((low.flags() & high.flags() & py::array::c_style) && low.nbytes() == high.nbytes() &&
                    low.itemsize() == high.itemsize(),
                "Bounds of ", low.nbytes(), " and ", high.nbytes(),
                " bytes were given: give two contiguous arrays of one size and type.");
    const Bounds bounds{low.data(), high.data(), static_cast<std::int64_t>(low.size()),
                        static_cast<int>(low.itemsize())};
    const without_gil released;
    const Outside found = buffer.outside(count, offset, bounds);
    return {found.count, found.first};
}

py::bytes read(const Buffer& buffer, const std::optional<std::int64_t>& bytes, std::int64_t offset) {
    const std::int64_t rest = buffer.bytes() - std::clamp<std::int64_t>(offset, 0, buffer.bytes());
    const std::int64_t count = bytes.value_or(rest);
    const auto out = py::reinterpret_steal<py::bytes>(
        PyBytes_FromStringAndSize(nullptr, std::clamp<std::int64_t>(count, 0, rest)));
    if (!out) throw py::error_already_set();
    char* memory = PyBytes_AS_STRING(out.ptr());
    const without_gil released;
    buffer.read(memory, count, offset);
    return out;
}

template <typename Value> py::array_t<Value> array_of(const std::vector<Value>& values) {
    return py::array_t<Value>(static_cast<py::ssize_t>(values.size()), values.data());
}

void bind_errors(py::module_& module) {
    // The one registered last is tried first, so the base comes first.
    const auto base = py::register_exception<NcclError>(module, "NcclError", PyExc_RuntimeError);
    py::register_exception<DeadlineExceeded>(module, "DeadlineExceeded", base);
    py::register_exception<Aborted>(module, "Aborted", base);
}

void bind_library(py::module_& module) {
    py::class_<Library, std::shared_ptr<Library>>(
        module, "Library",
        "libnccl: $PYPERF_LIBNCCL, the copy in the process, one of the candidate paths, or the system's. Raises "
        "NotAvailable.")
        .def(py::init<const std::vector<std::string>&>(), py::arg("candidates") = std::vector<std::string>{})
        .def_property_readonly("version", &Library::version, "As NCCL codes it: 22809 is 2.28.9.")
        .def_property_readonly("version_text", &Library::version_text)
        .def_property_readonly("path", &Library::path)
        .def_property_readonly("optional", &Library::optional_symbols,
                               "Whether each symbol that came after NCCL 2.14 is there.")
        .def(
            "unique_id",
            [](const Library& library) {
                const ncclUniqueId id = library.unique_id();
                return py::bytes(id.internal, sizeof id);
            },
            "128 bytes that all ranks of one new communicator are to be given.")
        .def(
            "check_settings", [](const Library& library, const Settings& settings) { library.configuration(settings); },
            py::arg("settings"),
            "Whether a communicator can be made with these whole numbers of NCCL's configuration, by NCCL's names. "
            "Raises ValueError for an unknown name, NotAvailable for one that this version does not have yet.");
}

void bind_devices(py::module_& module) {
    py::class_<Device, std::shared_ptr<Device>>(module, "Device").def_property_readonly("name", &Device::name);
    py::class_<HostDevice, Device, std::shared_ptr<HostDevice>>(
        module, "HostDevice", "The host's own memory and streams, for a double of libnccl.")
        .def(py::init<>());
    py::class_<CudaDevice, Device, std::shared_ptr<CudaDevice>>(module, "CudaDevice", "A GPU: the one of a context.")
        .def(py::init([](std::shared_ptr<cuda::Context> context, const py::bytes& cubin) {
                 return std::make_shared<CudaDevice>(std::move(context), cubin);
             }),
             py::arg("context"), py::arg("cubin") = py::bytes(),
             "`cubin` is kernels/cuda/periodic.cu compiled, for Buffer.outside.");
}

void bind_communicator(py::module_& module) {
    py::class_<Communicator, std::shared_ptr<Communicator>>(
        module, "Communicator",
        "One rank's part of a communicator; every wait ends at its deadline, and the communicator is then aborted. "
        "Raises DeadlineExceeded, NcclError, ValueError.")
        .def(py::init([](std::shared_ptr<Library> library, std::shared_ptr<Device> device, const py::bytes& unique_ids,
                         int rank, int ranks, double deadline_s, const Settings& settings) {
                 std::vector<ncclUniqueId> ids = unique_ids_of(unique_ids);
                 const without_gil released;
                 return ending_without_gil(std::make_unique<Communicator>(std::move(library), std::move(device),
                                                                          std::move(ids), rank, ranks, deadline_s,
                                                                          settings));
             }),
             py::arg("library"), py::arg("device"), py::arg("unique_ids"), py::arg("rank"), py::arg("ranks"),
             py::arg("deadline_s"), py::arg("settings") = Settings{})
        .def_property_readonly("rank", &Communicator::rank)
        .def_property_readonly("ranks", &Communicator::ranks)
        .def_property_readonly("alive", &Communicator::alive, "Neither aborted nor finalized.")
        .def_property_readonly("lost", &Communicator::lost,
                               "The library did not give it up within a second: end the process without cleaning up.")
        .def(
            "split",
            [](Communicator& communicator, int color, int key, double deadline_s) {
                const without_gil released;
                return ending_without_gil(communicator.split(color, key, deadline_s));
            },
            py::arg("color"), py::arg("key"), py::arg("deadline_s"),
            "The communicator of the ranks that gave the same colour, ordered by key; None for a negative colour. "
            "Raises NotAvailable before NCCL 2.18.")
        .def("finalize", &Communicator::finalize, py::arg("deadline_s"), py::call_guard<without_gil>(),
             "Ends it together with all other ranks.")
        .def("abort", &Communicator::abort, py::call_guard<without_gil>(), "Ends it whatever other ranks do.")
        .def("request_abort", &Communicator::request_abort, py::arg("reason"),
             "Makes what it waits for, now or next, raise Aborted with that reason. From any thread.")
        .def("async_error", &Communicator::async_error,
             "What went wrong in the background, as a sentence, or None. It aborts nothing.");

    py::class_<Buffer, std::shared_ptr<Buffer>>(
        module, "Buffer",
        "Device memory of a communicator; registered with it if asked and the library can, or as a symmetric window, "
        "which all ranks make together within that time. Raises ValueError.")
        .def(py::init<std::shared_ptr<Communicator>, std::int64_t, bool, std::optional<double>>(),
             py::arg("communicator"), py::arg("bytes"), py::arg("registered") = false,
             py::arg("window_within_s") = py::none(), py::call_guard<without_gil>())
        .def_property_readonly("address", &Buffer::address)
        .def_property_readonly("bytes", &Buffer::bytes)
        .def_property_readonly("registered", &Buffer::registered, "Whether it was, where that was asked for.")
        .def("write", &write, py::arg("data"), py::arg("offset") = 0, "Copies a contiguous buffer's bytes into it.")
        .def("read", &read, py::arg("bytes") = py::none(), py::arg("offset") = 0, "Its bytes, all from offset on.")
        .def("fill", &Buffer::fill, py::arg("value"), py::call_guard<without_gil>(), "Sets every byte.")
        .def("repeat", &repeat, py::arg("period"), py::arg("bytes"), py::arg("offset") = 0,
             "Fills so many bytes from offset on with a contiguous buffer's, which repeat.")
        .def("outside", &outside, py::arg("low"), py::arg("high"), py::arg("count"), py::arg("offset") = 0,
             "(how many, the first or -1) of so many elements from byte offset on whose bits, as unsigned integers, "
             "are not from low to high; both repeat.");
}

void bind_collective(py::module_& module) {
    module.def(
        "buffer_bytes",
        [](const std::string& operation, std::int64_t count, const std::string& dtype, int rank, int ranks, int root,
           bool in_place, const Pattern& pattern) {
            CHECK_INPUT(ranks >= 1 && rank >= 0 && rank < ranks, "Rank ", rank, " of ", ranks,
                        " was asked for: there must be at least one rank, and they count from 0.");
            const CollectiveOptions options = options_of(operation, count, dtype, "sum", 1, root, in_place, pattern);
            check_options(options, ranks);
            const Needs needs = needs_of(options, rank, ranks);
            return std::pair(needs.send, needs.receive);
        },
        py::arg("operation"), py::arg("count"), py::arg("dtype"), py::arg("rank"), py::arg("ranks"), py::kw_only(),
        py::arg("root") = 0, py::arg("in_place") = false, py::arg("pattern") = Pattern{},
        "(send, receive): the bytes that rank needs of each buffer of a Collective, 0 for none.");

    py::class_<Collective>(
        module, "Collective",
        "A collective made ready. operation: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, "
        "gather, scatter, send_receive (a ring), ping_pong, bisection, pairs. count: what one rank sends to one other. "
        "reduction: sum, prod, max, min, avg, premulsum. In place there is `send` alone. pattern: (source, "
        "destination) ranks of ping_pong and pairs. Raises ValueError.")
        .def(py::init([](std::shared_ptr<Communicator> communicator, const std::string& operation, std::int64_t count,
                         const std::string& dtype, std::shared_ptr<Buffer> send, std::shared_ptr<Buffer> receive,
                         const std::string& reduction, double factor, int root, bool in_place, const Pattern& pattern) {
                 return std::make_unique<Collective>(
                     std::move(communicator),
                     options_of(operation, count, dtype, reduction, factor, root, in_place, pattern), std::move(send),
                     std::move(receive));
             }),
             py::arg("communicator"), py::arg("operation"), py::arg("count"), py::arg("dtype"),
             py::arg("send") = py::none(), py::arg("receive") = py::none(), py::kw_only(),
             py::arg("reduction") = "sum", py::arg("factor") = 1.0, py::arg("root") = 0, py::arg("in_place") = false,
             py::arg("pattern") = Pattern{})
        .def("run", &Collective::run, py::arg("deadline_s"), py::call_guard<without_gil>(), "Once, and waits.")
        .def(
            "time",
            [](Collective& collective, std::int64_t iterations, double deadline_s, bool synchronise_each,
               int graph_calls) {
                const Timing timing = [&] {
                    const without_gil released;
                    return collective.time(iterations, deadline_s, synchronise_each, graph_calls);
                }();
                return py::make_tuple(array_of(timing.seconds), array_of(timing.arrival_ns),
                                      array_of(timing.completion_ns));
            },
            py::arg("iterations"), py::arg("deadline_s"), py::kw_only(), py::arg("synchronise_each") = true,
            py::arg("graph_calls") = 0,
            "(seconds, arrival_ns, completion_ns), one of each per iteration: seconds by events of the device, host "
            "stamps of CLOCK_MONOTONIC; a completion is seen at once only if each is waited for. Runs it once before "
            "if it never ran; with graph_calls one capture of so many calls is replayed at each iteration.");
}

}  // namespace

void bind_nccl(py::module_& parent) {
    py::module_ module = parent.def_submodule("nccl", "NCCL's collectives, each wait with a deadline.");
    module.attr("NotAvailable") = parent.attr("cuda").attr("NotAvailable");
    module.attr("SETTINGS") = known_settings();  // NCCL's name of each, with the version it came with
    bind_errors(module);
    bind_library(module);
    bind_devices(module);
    bind_communicator(module);
    bind_collective(module);
}

}  // namespace pyperf
