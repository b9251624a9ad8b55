// Limits of the GEMM; every refusal is one sentence with the limit and what can be had instead.
#include "cpu/gemm.h"

#include "check.h"

#include <algorithm>
#include <limits>

namespace pyperf::cpu {
namespace {

constexpr std::int64_t max_dimension = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t max_tile_side = 8192;  // packed panels of a larger one would leave every cache

std::int64_t tiles_over(std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; }

void check_range(const char* name, std::int64_t value, std::int64_t most) {
    CHECK_INPUT(value >= 1 && value <= most, name, " = ", value,
                " is out of range: it must be between 1 and ", most, ".");
}

}  // namespace

void check_tile(std::int64_t m, std::int64_t n, std::int64_t k, const KernelSet& kernels, DataType type) {
    const std::int64_t nr = kernels.of(type).nr, max_tile_depth = kernels.of(type).max_depth;
    const bool fits = m >= 1 && m <= max_tile_side && n >= nr && n <= max_tile_side && n % nr == 0 && k >= 1 &&
                      k <= max_tile_depth;
    if (fits) return;
    const std::int64_t near_m = std::clamp<std::int64_t>(m, 1, max_tile_side);
    const std::int64_t bounded_n = std::clamp<std::int64_t>(n, 1, max_tile_side);
    const std::int64_t near_n = std::clamp((bounded_n + nr / 2) / nr * nr, nr, max_tile_side);
    const std::int64_t near_k = std::clamp<std::int64_t>(k, 1, max_tile_depth);
    throw InputError(text("Tile ", m, "x", n, "x", k, " cannot be computed with ", kernels.name, ": m must be 1 to ",
                          max_tile_side, ", n a multiple of ", nr, " up to ", max_tile_side, ", k 1 to ",
                          max_tile_depth, "; the nearest tile that can is ", near_m, "x", near_n, "x", near_k, "."));
}

Schedule make_schedule(std::int64_t m, std::int64_t n, std::int64_t k, const Tile& tile, ScheduleKind kind,
                       std::int64_t splits, std::int64_t workers, std::int64_t group) {
    check_range("m", m, max_dimension);
    check_range("n", n, max_dimension);
    check_range("k", k, max_dimension);
    check_range("tile m", tile.m, max_dimension);
    check_range("tile n", tile.n, max_dimension);
    check_range("tile k", tile.k, max_dimension);
    check_range("workers", workers, max_dimension);
    check_range("group", group, max_dimension);
    const std::int64_t k_tiles = tiles_over(k, tile.k);
    if (kind == ScheduleKind::split_k) {
        CHECK_INPUT(splits >= 1 && splits <= k_tiles, "splits = ", splits, " is out of range: k = ", k, " in tiles of ",
                    tile.k, " gives ", k_tiles, " k-tiles, so it must be between 1 and ", k_tiles, ".");
    } else {
        CHECK_INPUT(splits == 1, "splits = ", splits, " is for the schedule split_k alone: leave it at 1.");
    }
    const std::int64_t tiles_m = tiles_over(m, tile.m), tiles_n = tiles_over(n, tile.n);
    // Units and streamed k-tiles are counted in 64 bits.
    CHECK_INPUT(static_cast<double>(tiles_m) * static_cast<double>(tiles_n) * static_cast<double>(k_tiles) < 4e18,
                "The product ", m, "x", n, "x", k, " has too many tiles of ", tile.m, "x", tile.n, "x", tile.k,
                " to count: ask for a larger tile.");
    Schedule schedule{};
    schedule.kind = kind;
    schedule.tiles_m = static_cast<int>(tiles_m);
    schedule.tiles_n = static_cast<int>(tiles_n);
    schedule.k_tiles = static_cast<int>(k_tiles);
    schedule.splits = static_cast<int>(splits);
    schedule.workers = static_cast<int>(workers);
    schedule.group = static_cast<int>(std::min(group, tiles_m));
    schedule.complete();
    return schedule;
}

}  // namespace pyperf::cpu
