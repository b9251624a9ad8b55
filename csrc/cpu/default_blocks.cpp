// The choice of attention's blocks in one place: those that cost least by a small model.
#include "cpu/attention.h"

#include <algorithm>

namespace pyperf::cpu {
namespace {

// Rows of queries whose two products cost as much as packing the keys and values that they read: 10 multiply-adds for
// an element of K, which is transposed, and 5 for one of V (see default_tile.cpp), against 1 each for a row.
constexpr double packing_rows = 7.5;

// Keys that cost as much as a step from one block of keys to the next: maxima, rescaling, sums kept in memory.
constexpr double stepping_keys = 8;

// Taller blocks save nothing more on packing, and fewer tiles are harder to share out when a core is disturbed. Wider
// ones save nothing more on stepping: 512 keys lost 8 % of 1024 tokens, since scores then leave L1.
constexpr std::int64_t most_queries = 256, most_keys = 256;

// Packed keys and values that a worker reads again for each panel of queries: a quarter of an L2 of 2 MiB.
constexpr std::int64_t packed_bytes = std::int64_t{512} << 10;

std::int64_t pieces(std::int64_t size, std::int64_t piece) { return (size + piece - 1) / piece; }

double cost(const AttentionOptions& options, std::int64_t m, std::int64_t n, int mr) {
    const std::int64_t tiles = options.batch * options.heads * pieces(options.seq_q, m);
    double waves = static_cast<double>(pieces(tiles, options.workers));
    double keys = static_cast<double>(pieces(options.seq_k, n) * n);
    if (options.causal) {
        // The square below the diagonal is half empty, and half a block of either kind hangs over it on average. Light
        // tiles at the end fill up a last wave.
        waves = std::max(1.0, static_cast<double>(tiles) / static_cast<double>(options.workers));
        keys = static_cast<double>(options.seq_k) - 0.5 * static_cast<double>(options.seq_q - m - n);
    }
    // A panel with fewer than mr rows takes about as long as a full one once it is short of work to overlap.
    const double rows = std::max(static_cast<double>(m), static_cast<double>(pieces(m, mr) * mr) * 0.75);
    return waves * (rows + packing_rows) * keys * (1 + stepping_keys / static_cast<double>(n));
}

}  // namespace

AttentionBlocks default_blocks(const AttentionOptions& options) {
    check_attention(options);
    const ProductKernels& product = kernels_named(options.isa).of(options.type);
    const std::int64_t nr = product.nr;
    const std::int64_t bytes_a_key = 2 * options.head_dim * static_cast<std::int64_t>(sizeof(float));
    const std::int64_t fewest = pieces(options.seq_q, most_queries);
    // Divisions worth a look: down to a quarter of the tallest block, and enough that every worker has a tile.
    const std::int64_t most = std::min(options.seq_q, 4 * fewest + 2 * std::min<std::int64_t>(options.workers, 64));
    AttentionBlocks best{};
    double best_cost = 0;
    for (std::int64_t fitting = std::min(most_keys, packed_bytes / bytes_a_key); fitting >= 64; fitting /= 2) {
        // Dealt out evenly: what hangs over the last block is computed in vain.
        const std::int64_t n = pieces(pieces(options.seq_k, pieces(options.seq_k, fitting)), nr) * nr;
        for (std::int64_t parts = fewest; parts <= most; ++parts) {
            const std::int64_t m = pieces(options.seq_q, parts);
            const double this_cost = cost(options, m, n, product.mr);
            if (best_cost == 0 || this_cost < best_cost) {
                best_cost = this_cost;
                best = {static_cast<int>(m), static_cast<int>(n)};
            }
        }
    }
    return best;
}

}  // namespace pyperf::cpu
