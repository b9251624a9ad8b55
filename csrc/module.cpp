// Python bindings and nothing else; what each function means is said where it is implemented.
#include "arguments.h"
#include "attention_bindings.h"
#include "check.h"
#include "cpu/default_tile.h"
#include "cpu/gemm.h"
#include "cpu/peak.h"
#include "cuda_bindings.h"
#include "nccl_bindings.h"
#include "schedule.cuh"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <tuple>

namespace py = pybind11;

namespace pyperf {
namespace {

using TileArgument = std::array<std::int64_t, 3>;

ScheduleKind schedule_kind(const std::string& name) {
    if (name == "data_parallel") return ScheduleKind::data_parallel;
    if (name == "persistent") return ScheduleKind::persistent;
    if (name == "split_k") return ScheduleKind::split_k;
    if (name == "stream_k") return ScheduleKind::stream_k;
    throw InputError(text("Schedule '", name, "' is unknown: choose data_parallel, persistent, split_k or stream_k."));
}

Tile narrow(const TileArgument& tile) {
    for (const std::int64_t side : tile)
        CHECK_INPUT(side >= 1 && side <= INT32_MAX, "Tile ", tile[0], "x", tile[1], "x", tile[2],
                    " is out of range: each side must be between 1 and ", INT32_MAX, ".");
    return {static_cast<int>(tile[0]), static_cast<int>(tile[1]), static_cast<int>(tile[2])};
}

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const cpu::KernelSet* kernels : cpu::usable_kernels()) names.emplace_back(kernels->name);
    return names;
}

std::vector<std::tuple<long long, int, int, int, int, bool>> schedule_segments(
    std::int64_t m, std::int64_t n, std::int64_t k, const TileArgument& tile, const std::string& schedule,
    std::int64_t splits, std::int64_t workers, std::int64_t group) {
    const Schedule plan = cpu::make_schedule(m, n, k, narrow(tile), schedule_kind(schedule), splits, workers, group);
    CHECK_INPUT(plan.units() <= 10'000'000, "The schedule has ", plan.units(),
                " units, too many to list: ask for a larger tile or a smaller product.");
    std::vector<std::tuple<long long, int, int, int, int, bool>> segments;
    for (long long unit = 0; unit < plan.units(); ++unit) {
        Cursor cursor = plan.begin(unit);
        Segment segment;
        while (plan.next(cursor, segment))
            segments.emplace_back(unit, segment.tile_m, segment.tile_n, segment.k_begin, segment.k_end, segment.owner);
    }
    return segments;
}

std::unique_ptr<cpu::Gemm> make_gemm(std::int64_t m, std::int64_t n, std::int64_t k, const std::string& dtype,
                                     const std::string& out_dtype, bool a_transposed, bool b_transposed,
                                     const TileArgument& tile, const std::string& schedule, std::int64_t splits,
                                     std::int64_t workers, std::int64_t group, const std::optional<std::string>& isa,
                                     bool pin) {
    cpu::check_tile(tile[0], tile[1], tile[2], kernels_of(isa), data_type("dtype", dtype));
    cpu::GemmOptions options;
    options.m = m;
    options.n = n;
    options.k = k;
    options.type = data_type("dtype", dtype);
    options.out_type = data_type("out_dtype", out_dtype);
    options.a_transposed = a_transposed;
    options.b_transposed = b_transposed;
    options.tile = narrow(tile);
    options.schedule = schedule_kind(schedule);
    options.splits = splits;
    options.workers = workers;
    options.group = group;
    options.isa = isa.value_or("");
    options.pin = pin;
    return std::make_unique<cpu::Gemm>(options);
}

void run(cpu::Gemm& gemm, std::uintptr_t a, std::int64_t lda, std::uintptr_t b, std::int64_t ldb, std::uintptr_t c,
         std::int64_t ldc) {
    gemm.run({reinterpret_cast<const void*>(a), lda, reinterpret_cast<const void*>(b), ldb,
              reinterpret_cast<void*>(c), ldc});
}

std::tuple<int, int, int> default_tile(std::int64_t m, std::int64_t n, std::int64_t k, const std::string& dtype,
                                       std::int64_t workers, const std::optional<std::string>& isa) {
    const Tile tile = cpu::default_tile(m, n, k, workers, kernels_of(isa).of(data_type("dtype", dtype)));
    return {tile.m, tile.n, tile.k};
}

}  // namespace
}  // namespace pyperf

PYBIND11_MODULE(_native, module) {
    using namespace pyperf;
    module.doc() = "Host C++ of pyperf_suite: a CPU GEMM and attention whose tiles are explicit, and the way to a GPU.";
    // InputError derives from std::invalid_argument, which pybind11 turns into ValueError.

    module.def("isas", &isas, "Instruction sets this processor can run, best first.");
    module.def(
        "micro_tile",
        [](const std::string& isa, const std::string& dtype) {
            const cpu::ProductKernels& product = cpu::kernels_named(isa).of(data_type("dtype", dtype));
            return std::pair(product.mr, product.nr);
        },
        py::arg("isa"), py::arg("dtype") = "float32", "(most rows, columns) of the register micro-kernel.");
    module.def(
        "unit",
        [](const std::string& isa, const std::string& dtype) {
            return cpu::kernels_named(isa).of(data_type("dtype", dtype)).unit;
        },
        py::arg("isa"), py::arg("dtype") = "float32", "The instructions that multiply, as a record names them.");
    module.def(
        "check_tile",
        [](std::int64_t m, std::int64_t n, std::int64_t k, const std::string& dtype,
           const std::optional<std::string>& isa) {
            cpu::check_tile(m, n, k, kernels_of(isa), data_type("dtype", dtype));
        },
        py::arg("m"), py::arg("n"), py::arg("k"), py::arg("dtype") = "float32", py::arg("isa") = py::none(),
        "Raises ValueError, naming the limits and the nearest tile that can be computed, unless this one can.");
    module.def("default_tile", &default_tile, py::arg("m"), py::arg("n"), py::arg("k"), py::arg("dtype"),
               py::arg("workers"), py::arg("isa") = py::none(),
               "(m, n, k) of the tile to take when none is asked for.");
    module.def(
        "core_peaks",
        [](const std::string& dtype, std::int64_t workers, double seconds, const std::optional<std::string>& isa) {
            std::vector<std::tuple<double, double, double>> found;
            for (const cpu::CorePeak& core :
                 cpu::measure_peak(kernels_of(isa), data_type("dtype", dtype), workers, seconds))
                found.emplace_back(core.flop_per_s, core.clock_hz, core.idle_clock_hz);
            return found;
        },
        py::arg("dtype") = "float32", py::arg("workers") = 1, py::arg("seconds") = 0.01, py::arg("isa") = py::none(),
        py::call_guard<py::gil_scoped_release>(),
        "(FLOP/s, clock while multiplying, clock before), in Hz, of each of so many cores at the same time: a loop on "
        "registers alone.");
    module.def(
        "pace_of_cores",
        [](std::int64_t workers) { return cpu::pace_of_cores(kernels_of("portable"), workers); },
        py::arg("workers") = 1, py::call_guard<py::gil_scoped_release>(),
        "Seconds of the same work on registers on each of so many cores at the same time; of one, where it is called.");
    module.def("schedule_segments", &schedule_segments, py::arg("m"), py::arg("n"), py::arg("k"), py::arg("tile"),
               py::arg("schedule"), py::arg("splits"), py::arg("workers"), py::arg("group") = 1,
               "Every (unit, tile_m, tile_n, k_begin, k_end, owner), k in k-tiles, in each unit's order.");

    // Local to the module: tests load one more of them, which emulates instruction sets.
    py::class_<cpu::Gemm>(module, "Gemm", py::module_local(),
                          "C[M,N] = A[M,K] B[K,N], row-major, sums in fp32; A stored [K,M] if a_transposed, "
                          "B stored [N,K] if b_transposed. Raises ValueError on bad input.")
        .def(py::init(&make_gemm), py::arg("m"), py::arg("n"), py::arg("k"), py::arg("dtype") = "float32",
             py::arg("out_dtype") = "float32", py::arg("a_transposed") = false, py::arg("b_transposed") = false,
             py::kw_only(), py::arg("tile"), py::arg("schedule") = "data_parallel", py::arg("splits") = 1,
             py::arg("workers") = 1, py::arg("group") = 1, py::arg("isa") = py::none(), py::arg("pin") = true)
        .def("run", &run, py::arg("a"), py::arg("lda"), py::arg("b"), py::arg("ldb"), py::arg("c"), py::arg("ldc"),
             py::call_guard<py::gil_scoped_release>(),
             "Overwrites C. Addresses as integers; leading dimensions in elements, at least the stored row length.")
        .def_property_readonly("isa", [](const cpu::Gemm& gemm) { return gemm.kernels().name; })
        .def_property_readonly("micro_tile",
                               [](const cpu::Gemm& gemm) { return std::pair(gemm.product().mr, gemm.product().nr); })
        .def_property_readonly("unit", [](const cpu::Gemm& gemm) { return gemm.product().unit; })
        .def_property_readonly("workers", &cpu::Gemm::workers)
        .def_property_readonly("workspace_bytes", &cpu::Gemm::workspace_bytes)
        .def_property_readonly("pinned", &cpu::Gemm::pinned);

    bind_attention(module);
    bind_cuda(module);
    bind_nccl(module);
}
