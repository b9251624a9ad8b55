// The choice of attention's blocks in one place: the division of the queries that costs least by a small model.
#include "cpu/attention.h"

#include <algorithm>

namespace pyperf::cpu {
namespace {

// Rows of queries whose two products cost as much as packing the keys and values that they read: 10 multiply-adds for
// an element of K, which is transposed, and 5 for one of V (see default_tile.cpp), against 1 each for a row.
constexpr double packing_rows = 7.5;

// Taller blocks save nothing more on packing, and fewer tiles are harder to share out when a core is disturbed.
constexpr std::int64_t most_queries = 256;

// Packed keys and values that a worker reads again for each panel of queries: a quarter of an L2 of 2 MiB.
constexpr std::int64_t packed_bytes = std::int64_t{512} << 10;

constexpr std::int64_t most_keys = 256;

std::int64_t pieces(std::int64_t size, std::int64_t piece) { return (size + piece - 1) / piece; }

// As many keys as fit, dealt out evenly: what hangs over the last block is computed in vain.
std::int64_t keys_of(const AttentionOptions& options, std::int64_t nr) {
    const std::int64_t bytes_a_key = 2 * options.head_dim * static_cast<std::int64_t>(sizeof(float));
    const std::int64_t fitting = std::min(most_keys, packed_bytes / bytes_a_key);
    return pieces(pieces(options.seq_k, pieces(options.seq_k, fitting)), nr) * nr;
}

}  // namespace

AttentionBlocks default_blocks(const AttentionOptions& options) {
    check_attention(options);
    const KernelSet& kernels = kernels_named(options.isa);
    const std::int64_t n = keys_of(options, kernels.nr), least = pieces(options.seq_q, most_queries);
    const std::int64_t more = 2 * std::min<std::int64_t>(options.workers, 64);  // divisions worth a look
    std::int64_t best_m = 0;
    double best_cost = 0;
    for (std::int64_t parts = least; parts <= std::min(options.seq_q, least + more); ++parts) {
        const std::int64_t m = pieces(options.seq_q, parts);
        const double tiles = static_cast<double>(options.batch * options.heads * pieces(options.seq_q, m));
        // A panel with fewer than mr rows takes about as long as a full one once it is short of work to overlap.
        const double rows = std::max<double>(m, pieces(m, kernels.mr) * kernels.mr * 0.75);
        double waves = static_cast<double>(pieces(options.batch * options.heads * pieces(options.seq_q, m),
                                                  options.workers));
        double keys = static_cast<double>(pieces(options.seq_k, n) * n);
        if (options.causal) {
            // Half of the square below the diagonal, and half a block of either kind on it; light tiles fill waves up.
            waves = std::max(1.0, tiles / static_cast<double>(options.workers));
            keys = options.seq_k - 0.5 * options.seq_q + 0.5 * (m + n);
        }
        const double cost = waves * (rows + packing_rows) * keys;
        if (best_m == 0 || cost < best_cost) {
            best_cost = cost;
            best_m = m;
        }
    }
    return {static_cast<int>(best_m), static_cast<int>(n)};
}

}  // namespace pyperf::cpu
