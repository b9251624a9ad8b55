// The choice of tile in one place.
#include "cpu/default_tile.h"

#include "check.h"

#include <algorithm>

namespace pyperf::cpu {
namespace {

std::int64_t pieces(std::int64_t size, std::int64_t piece) { return (size + piece - 1) / piece; }

}  // namespace

Tile default_tile(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t workers, const KernelSet& kernels) {
    CHECK_INPUT(m >= 1 && n >= 1 && k >= 1 && workers >= 1, "A product of ", m, "x", n, "x", k, " on ", workers,
                " workers has no tile: every number must be at least 1.");
    const std::int64_t columns = std::min<std::int64_t>(1024, pieces(n, kernels.nr) * kernels.nr);
    const std::int64_t tiles_n = pieces(n, columns);
    std::int64_t tiles_m = pieces(m, 1024);
    while (tiles_m < m && tiles_m * tiles_n % workers != 0) ++tiles_m;
    const std::int64_t depth = pieces(k, pieces(k, 256));
    return {static_cast<int>(pieces(m, tiles_m)), static_cast<int>(columns), static_cast<int>(depth)};
}

}  // namespace pyperf::cpu
