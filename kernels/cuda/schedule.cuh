// Map workers to parts of C = A·B, and order them: the one scheduler object of the suite.
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

// Type that counts tiles, units and k-tiles over several tiles, and its division. A GPU divides 64-bit integers by a
// subroutine of a hundred instructions, whose registers spill out of a producer's few, so kernels count in 32 bits:
// whoever launches one checks that they suffice. It divides 32-bit integers in 30, one after the other before the first
// load, so whoever launches a kernel gives it the reciprocal of every divisor.
#if defined(__CUDACC__) || defined(PYPERF_EMULATED_GPU)
using Count = int;

// Reciprocal of d: shift = ⌈log2 d⌉ and factor = ⌈2^(31 + shift) / d⌉, which gives the quotient of all n below 2^31
// (Granlund and Montgomery 1994, "Division by Invariant Integers using Multiplication").
struct Reciprocal {
    unsigned factor;
    int shift;
};

PYPERF_HOST_DEVICE Count quotient(Count n, Count, Reciprocal by) {
    const unsigned long long product = static_cast<unsigned long long>(2u * n) * by.factor;
    return static_cast<Count>(static_cast<unsigned>(product >> 32) >> by.shift);
}
#else
using Count = long long;

struct Reciprocal {};

PYPERF_HOST_DEVICE Count quotient(Count n, Count divisor, Reciprocal) { return n / divisor; }
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

// Position of a unit in its sequence of segments.
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
    int group;    // rows of tiles visited together, for reuse in L2, at most tiles_m; 1 is plain row-major order
    // Derived from these, by `complete` or, for a GPU, by kernels/schedule.py.
    Count stride;    // from a unit's tile to its next one: workers, or all tiles where a unit has a single one
    Count streamed;  // tiles at the end of the order whose k-tiles stream_k shares out
    Count share;     // each worker's k-tiles of them,
    Count rest;      // and what remains of them, less than workers
    Reciprocal by_parts;  // of splits for split_k, else of workers
    Reciprocal by_k_tiles;
    Reciprocal by_band;  // of the tiles of `group` rows
    Reciprocal by_group;
    Reciprocal by_last_rows;  // of the rows of the last band where it has fewer

    // Streamed are the partial wave and the full wave before it, so that every unit gets between one and two tiles'
    // worth and few tiles need a fix-up (Osama et al. 2023, "Stream-K", the two-tile hybrid). None where the waves
    // divide evenly: there data-parallel is optimal.
    PYPERF_HOST_DEVICE void complete() {
        stride = dynamic() ? tiles() : workers;
        streamed = 0;
        if (kind == ScheduleKind::stream_k && tiles() % workers != 0)
            streamed = tiles() < workers ? tiles() : tiles() - (tiles() / workers - 1) * workers;
        share = streamed * k_tiles / workers;
        rest = streamed * k_tiles % workers;
    }

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

    // Tiles, at the end of the order, that more than one segment may work on.
    PYPERF_HOST_DEVICE Count shared_tiles() const {
        if (kind == ScheduleKind::split_k && splits > 1) return tiles();
        return streamed;
    }

    // Kernels that are never given a schedule with shared tiles take `begin<false>` and `next<false>`.
    template <bool shared = true>
    PYPERF_HOST_DEVICE Cursor begin(Count unit) const {
        Cursor cursor{unit, tiles() - (shared ? streamed : 0), 0, 0, 0, k_tiles};
        if (shared && kind == ScheduleKind::split_k) {
            cursor.tile = quotient(unit, splits, by_parts);
            const Count slice = unit - cursor.tile * splits;
            cursor.k_begin = static_cast<int>(quotient(slice * k_tiles, splits, by_parts));
            cursor.k_end = static_cast<int>(quotient((slice + 1) * k_tiles, splits, by_parts));
        } else if (shared && kind == ScheduleKind::stream_k) {
            // The quotient and remainder apart: unit · streamed · k_tiles may not fit 64 bits.
            cursor.stream_begin = unit * share + quotient(unit * rest, workers, by_parts);
            cursor.stream_end = (unit + 1) * share + quotient((unit + 1) * rest, workers, by_parts);
        }
        return cursor;
    }

    // The next segment of the unit, or false when it has none left.
    template <bool shared = true>
    PYPERF_HOST_DEVICE bool next(Cursor& cursor, Segment& segment) const {
        Count tile = cursor.tile;
        if (tile < cursor.tile_end) {
            segment.k_begin = shared ? cursor.k_begin : 0;
            segment.k_end = shared ? cursor.k_end : k_tiles;
            cursor.tile += stride;
        } else if (shared && cursor.stream_begin < cursor.stream_end) {
            // From the back: the tile a unit begins for its successor comes first and the tile it must finish for
            // its predecessor comes last, so that the predecessor's part has long been written and nobody waits.
            const Count last = cursor.stream_end - 1;
            const Count in_stream = quotient(last, k_tiles, by_k_tiles);
            const Count first = in_stream * k_tiles;
            tile = cursor.tile_end + in_stream;
            segment.k_begin = cursor.stream_begin > first ? static_cast<int>(cursor.stream_begin - first) : 0;
            segment.k_end = static_cast<int>(last - first) + 1;
            cursor.stream_end = first + segment.k_begin;
        } else {
            return false;
        }
        place(tile, segment);
        segment.owner = segment.k_end == k_tiles;
        return true;
    }

    // Visiting order: bands of `group` rows of tiles, column by column inside a band.
    PYPERF_HOST_DEVICE void place(Count tile, Segment& segment) const {
        const Count band_tiles = static_cast<Count>(group) * tiles_n;
        const Count band = quotient(tile, band_tiles, by_band);
        const Count inside = tile - band * band_tiles;
        const int band_row = static_cast<int>(band) * group;
        const bool whole = tiles_m - band_row >= group;
        const int rows = whole ? group : tiles_m - band_row;
        const Count column = quotient(inside, rows, whole ? by_group : by_last_rows);
        segment.tile = tile;
        segment.tile_m = band_row + static_cast<int>(inside - column * rows);
        segment.tile_n = static_cast<int>(column);
    }
};

}  // namespace pyperf
