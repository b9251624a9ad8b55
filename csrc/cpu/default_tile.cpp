// The choice of tile in one place: the division of C among the workers that costs least by a small model.
#include "cpu/default_tile.h"

#include "check.h"

#include <algorithm>

#include <unistd.h>

namespace pyperf::cpu {
namespace {

// Cost of packing an element, in multiply-adds that a core could have done meanwhile: rows of A are copied, B is
// read against its grain or transposed. Measured in cache on AVX-512 and AVX2: 4 to 6 and 8 to 12. From memory they
// come nearer to each other: of 2048 x 1024 x 4096, two workers compute tiles of 1024² 2 % faster than 2048 x 512.
constexpr double pack_a_cost = 6, pack_b_cost = 8;

// Taller tiles save nothing more on packing, and fewer tiles are harder to share out when a core is disturbed.
constexpr std::int64_t most_rows = 2048;

std::int64_t pieces(std::int64_t size, std::int64_t piece) { return (size + piece - 1) / piece; }

// Bytes of a packed tile of B, which lies in L3 and is read from there once for each block of A. With half an L2, A is
// packed again for every few columns (5 to 11 % of squares of 1024 to 4096 on AVX2); 4 and 8 MiB lost 3 and 8 %.
constexpr std::int64_t b_tile_bytes = std::int64_t{2} << 20;

std::int64_t elements_in_a_word(const ProductKernels& product) {
    return product.nr * 4 * product.b_panel.step / product.b_panel.each;
}

// As deep as kernels go, so that C is visited seldom and A's rows are read in long runs: 512 is 1 to 3 % faster than
// 256 on AVX2, 2 % on AVX-512. A tile of B that outgrows its place in L3 loses more: at its widest it has 256.
int depth_of(std::int64_t k, std::int64_t columns, const ProductKernels& product) {
    const std::int64_t packed = elements_in_a_word(product);  // panels have as many bytes whatever the type is
    const std::int64_t fitting = packed * b_tile_bytes / (columns * static_cast<std::int64_t>(sizeof(float)));
    const std::int64_t deepest = std::min<std::int64_t>(fitting, product.max_depth);
    return static_cast<int>(pieces(k, pieces(k, deepest)));
}

}  // namespace

std::int64_t l2_bytes() {
    long reported = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    reported = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return std::clamp<std::int64_t>(reported, 512 << 10, 2 << 20);
}

Tile default_tile(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t workers, const ProductKernels& product) {
    CHECK_INPUT(m >= 1 && n >= 1 && k >= 1 && workers >= 1, "A product of ", m, "x", n, "x", k, " on ", workers,
                " workers has no tile: every number must be at least 1.");
    const std::int64_t nr = product.nr;
    const double packing = product.rate / static_cast<double>(elements_in_a_word(product));
    const std::int64_t most_columns = b_tile_bytes / (256 * static_cast<std::int64_t>(sizeof(float)));
    const std::int64_t least_m = pieces(m, most_rows), least_n = pieces(n, most_columns);
    const std::int64_t more = 2 * std::min<std::int64_t>(workers, 64);  // divisions worth a look beyond the fewest
    Tile best{};
    double best_cost = 0;
    for (std::int64_t parts_m = least_m; parts_m <= std::min(m, least_m + more); ++parts_m) {
        for (std::int64_t parts_n = least_n; parts_n <= std::min(pieces(n, nr), least_n + more); ++parts_n) {
            const std::int64_t rows = pieces(m, parts_m), columns = pieces(pieces(n, parts_n), nr) * nr;
            const std::int64_t waves = pieces(pieces(m, rows) * pieces(n, columns), workers);
            // A panel with fewer than mr rows takes about as long as a full one once it is short of work to overlap.
            const double full_rows = std::max<double>(rows, pieces(rows, product.mr) * product.mr * 0.75);
            const double packed = packing * (pack_a_cost * rows + pack_b_cost * columns);
            const double cost = waves * (full_rows * columns + packed);
            if (best_cost == 0 || cost < best_cost) {
                best_cost = cost;
                best = {static_cast<int>(rows), static_cast<int>(columns), depth_of(k, columns, product)};
            }
        }
    }
    return best;
}

}  // namespace pyperf::cpu
