// Python bindings of the CPU's attention and nothing else; what each function means is said where it is implemented.
#include "attention_bindings.h"

#include "arguments.h"
#include "check.h"
#include "cpu/attention.h"

#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <utility>

namespace py = pybind11;

namespace pyperf {
namespace {

using BlocksArgument = std::array<std::int64_t, 2>;

std::unique_ptr<cpu::Attention> make_attention(std::int64_t batch, std::int64_t heads, std::int64_t kv_heads,
                                               std::int64_t seq_q, std::int64_t seq_k, std::int64_t head_dim,
                                               const std::string& dtype, bool causal, const BlocksArgument& blocks,
                                               std::int64_t workers, const std::optional<std::string>& isa, bool pin) {
    cpu::check_blocks(blocks[0], blocks[1], kernels_of(isa));
    cpu::AttentionOptions options;
    options.batch = batch;
    options.heads = heads;
    options.kv_heads = kv_heads;
    options.seq_q = seq_q;
    options.seq_k = seq_k;
    options.head_dim = head_dim;
    options.type = data_type("dtype", dtype);
    options.causal = causal;
    options.blocks = {static_cast<int>(blocks[0]), static_cast<int>(blocks[1])};
    options.workers = workers;
    options.isa = isa.value_or("");
    options.pin = pin;
    return std::make_unique<cpu::Attention>(options);
}

void run(cpu::Attention& attention, std::uintptr_t q, std::uintptr_t k, std::uintptr_t v, std::uintptr_t o) {
    attention.run({reinterpret_cast<const void*>(q), reinterpret_cast<const void*>(k),
                   reinterpret_cast<const void*>(v), reinterpret_cast<void*>(o)});
}

std::pair<int, int> default_blocks(std::int64_t batch, std::int64_t heads, std::int64_t seq_q, std::int64_t seq_k,
                                   std::int64_t head_dim, const std::string& dtype, bool causal,
                                   std::int64_t workers, const std::optional<std::string>& isa) {
    cpu::AttentionOptions options;
    options.batch = batch;
    options.heads = options.kv_heads = heads;  // packed blocks are the same whoever shares them
    options.seq_q = seq_q;
    options.seq_k = seq_k;
    options.head_dim = head_dim;
    options.type = data_type("dtype", dtype);
    options.causal = causal;
    options.workers = workers;
    options.isa = isa.value_or("");
    const cpu::AttentionBlocks blocks = cpu::default_blocks(options);
    return {blocks.m, blocks.n};
}

}  // namespace

void bind_attention(py::module_& module) {
    module.def(
        "check_blocks",
        [](std::int64_t m, std::int64_t n, const std::optional<std::string>& isa) {
            cpu::check_blocks(m, n, kernels_of(isa));
        },
        py::arg("m"), py::arg("n"), py::arg("isa") = py::none(),
        "Raises ValueError, naming the limits and the nearest blocks that can be computed, unless these can.");
    module.def("default_blocks", &default_blocks, py::arg("batch"), py::arg("heads"), py::arg("seq_q"),
               py::arg("seq_k"), py::arg("head_dim"), py::arg("dtype") = "float32", py::arg("causal") = false,
               py::arg("workers") = 1, py::arg("isa") = py::none(), "(m, n): the blocks to take when none are asked for.");

    py::class_<cpu::Attention>(module, "Attention", py::module_local(),
                               "O = softmax(Q Kᵀ / √head_dim) V, contiguous: Q and O [batch, heads, seq_q, head_dim], "
                               "K and V [batch, kv_heads, seq_k, head_dim]; causal is bottom-right aligned. Scores and "
                               "sums are fp32. Raises ValueError on bad input.")
        .def(py::init(&make_attention), py::arg("batch"), py::arg("heads"), py::arg("kv_heads"), py::arg("seq_q"),
             py::arg("seq_k"), py::arg("head_dim"), py::arg("dtype") = "float32", py::arg("causal") = false,
             py::kw_only(), py::arg("blocks"), py::arg("workers") = 1, py::arg("isa") = py::none(),
             py::arg("pin") = true)
        .def("run", &run, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("o"),
             py::call_guard<py::gil_scoped_release>(), "Overwrites O. Addresses as integers.")
        .def_property_readonly("isa", [](const cpu::Attention& attention) { return attention.kernels().name; })
        .def_property_readonly(
            "micro_tile",
            [](const cpu::Attention& attention) {
                return std::pair(attention.product().mr, attention.product().nr);
            })
        .def_property_readonly("unit", [](const cpu::Attention& attention) { return attention.product().unit; })
        .def_property_readonly("workers", &cpu::Attention::workers)
        .def_property_readonly("workspace_bytes", &cpu::Attention::workspace_bytes)
        .def_property_readonly("pinned", &cpu::Attention::pinned)
        .def_property_readonly("padded_head_dim", &cpu::Attention::padded_head_dim);
}

}  // namespace pyperf
