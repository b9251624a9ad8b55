// Which part of C = A·B a worker computes, and in which order: the one scheduler object of the suite.
//
// Host C++ (the CPU GEMM), CUDA kernels compiled by NVRTC, and the tests all walk this same struct, so producer,
// consumer, fix-up and law cannot disagree. Nothing is included: NVRTC has no standard headers.
#pragma once

#if defined(__CUDACC__)
#define PYPERF_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define PYPERF_HOST_DEVICE inline
#endif

namespace pyperf {

// What counts tiles, units and k-tiles over several tiles. A GPU divides 64-bit integers by a subroutine of a hundred
// instructions, whose registers spill out of a producer's few, so kernels count in 32 bits: whoever launches one checks
// that they suffice.
#if defined(__CUDACC__)
using Count = int;
#else
using Count = long long;
#endif

enum class ScheduleKind : int {
    data_parallel = 0,  // a unit is one output tile; units are handed out in order as workers become free
    persistent = 1,     // `workers` units; unit w visits tiles w, w + workers, w + 2·workers, ...
    split_k = 2,        // a unit is one of `splits` slices of one tile's k-tiles; handed out in order
    stream_k = 3,       // `workers` units; whole waves as persistent, then an even share of the rest's k-tiles
};

// The output tile is m × n; k is the depth of one step along the inner dimension (a k-tile).
struct Tile {
    int m;
    int n;
    int k;
};

// k-tiles [k_begin, k_end) of output tile (tile_m, tile_n); `tile` is its place in the visiting order.
// Where several segments share a tile, they are summed in ascending k (a fixed order, so results are
// deterministic), and the owner is the one that comes last (k_end == k_tiles): it finishes the tile.
struct Segment {
    Count tile;
    int tile_m;
    int tile_n;
    int k_begin;
    int k_end;
    bool owner;
};

// Where a unit stands in its sequence of segments.
struct Cursor {
    Count tile;  // next tile of the strided part
    Count tile_end;
    Count stream_begin;  // the part of the streamed k-tiles not yet visited, counted over all streamed tiles
    Count stream_end;
    int k_begin;  // the k-tiles taken of each tile of the strided part
    int k_end;
};

struct Schedule {
    ScheduleKind kind;
    int tiles_m;
    int tiles_n;
    int k_tiles;
    int splits;   // slices per tile; read by split_k only
    int workers;  // units of persistent and stream_k
    int group;    // rows of tiles visited together, for reuse in L2; 1 is plain row-major order

    PYPERF_HOST_DEVICE Count tiles() const { return static_cast<Count>(tiles_m) * tiles_n; }

    // Units are handed out in order to whoever is free (CTA index, atomic counter) instead of one to a worker.
    PYPERF_HOST_DEVICE bool dynamic() const {
        return kind == ScheduleKind::data_parallel || kind == ScheduleKind::split_k;
    }

    PYPERF_HOST_DEVICE Count units() const {
        if (kind == ScheduleKind::data_parallel) return tiles();
        if (kind == ScheduleKind::split_k) return tiles() * splits;
        return workers;
    }

    // Tiles at the end of the order whose k-tiles stream_k shares out: the partial wave and the full wave before
    // it, so that every unit gets between one and two tiles' worth and few tiles need a fix-up (Osama et al. 2023,
    // "Stream-K", the two-tile hybrid). None where the waves divide evenly: there data-parallel is optimal.
    PYPERF_HOST_DEVICE Count streamed_tiles() const {
        if (kind != ScheduleKind::stream_k || tiles() % workers == 0) return 0;
        const Count whole_waves = tiles() / workers;
        return whole_waves == 0 ? tiles() : tiles() - (whole_waves - 1) * workers;
    }

    // Tiles, at the end of the order, that more than one segment may work on.
    PYPERF_HOST_DEVICE Count shared_tiles() const {
        if (kind == ScheduleKind::split_k && splits > 1) return tiles();
        return streamed_tiles();
    }

    PYPERF_HOST_DEVICE Cursor begin(Count unit) const {
        Cursor cursor{unit, unit + 1, 0, 0, 0, k_tiles};
        if (kind == ScheduleKind::split_k) {
            const Count slice = unit % splits;
            cursor.tile = unit / splits;
            cursor.tile_end = cursor.tile + 1;
            cursor.k_begin = static_cast<int>(slice * k_tiles / splits);
            cursor.k_end = static_cast<int>((slice + 1) * k_tiles / splits);
        } else if (!dynamic()) {
            const Count streamed = streamed_tiles();
            const Count steps = streamed * k_tiles;
            // The quotient and remainder apart: unit · steps may not fit 64 bits.
            const Count share = steps / workers, rest = steps % workers;
            cursor.tile_end = tiles() - streamed;
            cursor.stream_begin = unit * share + unit * rest / workers;
            cursor.stream_end = (unit + 1) * share + (unit + 1) * rest / workers;
        }
        return cursor;
    }

    // The next segment of the unit, or false when it has none left.
    PYPERF_HOST_DEVICE bool next(Cursor& cursor, Segment& segment) const {
        if (cursor.tile < cursor.tile_end) {
            place(cursor.tile, segment);
            segment.k_begin = cursor.k_begin;
            segment.k_end = cursor.k_end;
            cursor.tile += dynamic() ? 1 : workers;
        } else if (cursor.stream_begin < cursor.stream_end) {
            // From the back: the tile a unit begins for its successor comes first and the tile it must finish for
            // its predecessor comes last, so that the predecessor's part has long been written and nobody waits.
            const Count last = cursor.stream_end - 1;
            const Count streamed = last / k_tiles;
            const Count first = streamed * k_tiles;
            place(tiles() - streamed_tiles() + streamed, segment);
            segment.k_begin = cursor.stream_begin > first ? static_cast<int>(cursor.stream_begin - first) : 0;
            segment.k_end = static_cast<int>(last - first) + 1;
            cursor.stream_end = first + segment.k_begin;
        } else {
            return false;
        }
        segment.owner = segment.k_end == k_tiles;
        return true;
    }

    // Visiting order: bands of `group` rows of tiles, column by column inside a band.
    PYPERF_HOST_DEVICE void place(Count tile, Segment& segment) const {
        const Count band_tiles = static_cast<Count>(group) * tiles_n;
        const int band_row = static_cast<int>(tile / band_tiles) * group;
        const int rows = tiles_m - band_row < group ? tiles_m - band_row : group;
        const Count inside = tile % band_tiles;
        segment.tile = tile;
        segment.tile_m = band_row + static_cast<int>(inside % rows);
        segment.tile_n = static_cast<int>(inside / rows);
    }
};

}  // namespace pyperf
