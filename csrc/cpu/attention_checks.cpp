// Limits of attention; every refusal is one sentence with the limit and what can be had instead.
#include "check.h"
#include "cpu/attention.h"
#include "cpu/pool.h"

#include <algorithm>
#include <limits>

namespace pyperf::cpu {
namespace {

constexpr std::int64_t max_dimension = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t max_queries = 8192;         // a larger block would leave every cache
constexpr std::int64_t max_keys = 512;             // the depth of the product with V, and of a row of scores
constexpr std::int64_t max_head_dim = 512;         // the depth of the product with K

void check_range(const char* name, std::int64_t value, std::int64_t most) {
    CHECK_INPUT(value >= 1 && value <= most, name, " = ", value,
                " is out of range: it must be between 1 and ", most, ".");
}

}  // namespace

void check_blocks(std::int64_t m, std::int64_t n, const KernelSet& kernels) {
    const std::int64_t nr = kernels.of(DataType::float32).nr;  // that of every type
    if (m >= 1 && m <= max_queries && n >= nr && n <= max_keys && n % nr == 0) return;
    const std::int64_t near_m = std::clamp<std::int64_t>(m, 1, max_queries);
    const std::int64_t bounded_n = std::clamp<std::int64_t>(n, 1, max_keys);
    const std::int64_t near_n = std::clamp((bounded_n + nr / 2) / nr * nr, nr, max_keys / nr * nr);
    throw InputError(text("Blocks ", m, "x", n, " cannot be computed with ", kernels.name, ": m must be 1 to ",
                          max_queries, ", n a multiple of ", nr, " up to ", max_keys,
                          "; the nearest blocks that can are ", near_m, "x", near_n, "."));
}

void check_attention(const AttentionOptions& options) {
    check_range("batch", options.batch, max_dimension);
    check_range("heads", options.heads, max_dimension);
    check_range("kv_heads", options.kv_heads, max_dimension);
    check_range("seq_q", options.seq_q, max_dimension);
    check_range("seq_k", options.seq_k, max_dimension);
    check_range("head_dim", options.head_dim, max_head_dim);
    check_range("workers", options.workers, max_dimension);
    CHECK_INPUT(options.heads % options.kv_heads == 0, "kv_heads = ", options.kv_heads, " does not divide heads = ",
                options.heads, ": each key head serves the same number of query heads.");
    CHECK_INPUT(!options.causal || options.seq_q <= options.seq_k, "Causal attention of ", options.seq_q,
                " queries over ", options.seq_k, " keys leaves queries that see no key: seq_q must be at most seq_k.");
    const double rows = static_cast<double>(options.batch) * static_cast<double>(options.heads) *
                        static_cast<double>(std::max(options.seq_q, options.seq_k));
    CHECK_INPUT(rows * static_cast<double>(options.head_dim) < 1e18, "An attention of batch ", options.batch, ", ",
                options.heads, " heads and ", std::max(options.seq_q, options.seq_k),
                " tokens has too many elements to count: ask for a smaller one.");
    const std::int64_t cores = static_cast<std::int64_t>(usable_cores().size());
    CHECK_INPUT(options.workers <= cores, "workers = ", options.workers,
                " is more than the cores this process may use: ask for at most ", cores, ".");
}

}  // namespace pyperf::cpu
