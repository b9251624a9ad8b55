// One operand's tile on its way to the tensor cores: global memory → swizzled shared memory → fragments.
//
// A and B are the same here. Each has `lanes` (M of A, N of B) and a depth (K), and is stored with one of the two
// contiguous; the tile lies in shared memory as it lies in global memory, and ldmatrix transposes where it must.
#pragma once

#include "ptx_sm80.cuh"
#include "schedule.cuh"

namespace pyperf {

constexpr int element_bytes = 2;  // of both operands: bf16 or fp16
constexpr int chunk_bytes = 16;   // what ldmatrix reads of one row, and the widest copy
constexpr int chunk_elements = chunk_bytes / element_bytes;
constexpr int fragment_extent = 16;  // a fragment is 16 lanes × 16 of depth: four 8×8 matrices
constexpr int bank_line_bytes = 128;

struct OperandTile {
    int lanes;
    int depth;
    bool depth_contiguous;
    int access_bytes;  // of one read of global memory: 16, 8 or 4 (cp.async), 2 (single elements)
    int threads;       // that copy it

    PYPERF_HOST_DEVICE constexpr int rows() const { return depth_contiguous ? lanes : depth; }
    PYPERF_HOST_DEVICE constexpr int row_bytes() const { return (depth_contiguous ? depth : lanes) * element_bytes; }
    PYPERF_HOST_DEVICE constexpr int bytes() const { return rows() * row_bytes(); }

    // Chunks of a row that trade places: the largest power of two that divides a row, at most a line of the banks.
    PYPERF_HOST_DEVICE constexpr int swizzled_chunks() const {
        int group = bank_line_bytes / chunk_bytes;
        while (row_bytes() / chunk_bytes % group != 0) group /= 2;
        return group;
    }

    // Offset of a chunk in the tile, in bytes. The eight rows that ldmatrix reads at the same chunk fall into eight
    // different sixteenths of the banks: rows that share a line have a place each, the others are separated by the
    // exclusive or. It repeats every eight rows.
    PYPERF_HOST_DEVICE constexpr int offset(int row, int chunk) const {
        const int group = swizzled_chunks();
        const int rows_sharing = bank_line_bytes / chunk_bytes / group;
        return row * row_bytes() + (chunk ^ row / rows_sharing % group) * chunk_bytes;
    }
};

// Copies one k-tile after another into shared memory; what lies beyond the matrix becomes zeros.
// From NVRTC 13.2 on, members of a template argument of class type are loaded at run time, those of a copy folded
// (findings/class_template_arguments_are_loaded.sh).
template <OperandTile argument>
class TileCopy {
    static constexpr OperandTile tile = argument;
    static constexpr bool by_element = tile.access_bytes == element_bytes;
    // Bytes that one thread fills at a time. Single elements are gathered into a chunk, for one store instead of eight.
    static constexpr int piece_bytes = by_element ? chunk_bytes : tile.access_bytes;
    static constexpr int piece_elements = piece_bytes / element_bytes;
    static constexpr int pieces_per_row = tile.row_bytes() / piece_bytes;
    static_assert(pieces_per_row <= tile.threads, "a row is copied in one pass: it needs more warps or a wider access");

    // A thread keeps its place along the row and goes down `rows_per_pass` at a time; where rows do not divide the
    // threads, the threads left over have nothing to copy.
    static constexpr int rows_per_pass = tile.threads / pieces_per_row;
    static constexpr int passes = (tile.rows() + rows_per_pass - 1) / rows_per_pass;
    // Unrolled, passes overlap; but each takes registers for its addresses, and the gathering ones for what they read.
    static constexpr int unrolled = by_element ? 2 : 8;
    static constexpr bool some_idle = tile.threads % pieces_per_row != 0;
    static constexpr bool last_pass_partial = tile.rows() % rows_per_pass != 0;

    const char* source_;  // of the thread's first piece
    long long row_bytes_;
    int lanes_left_;
    int thread_;

    PYPERF_DEVICE int first_row() const { return thread_ / pieces_per_row; }

    PYPERF_DEVICE int piece() const { return thread_ % pieces_per_row; }

public:
    // Copies the tile of a matrix with `lanes` lanes that begins at (lane, k); ld counts elements.
    PYPERF_DEVICE TileCopy(const void* matrix, long long ld, int lanes, int lane, int k, int thread)
        : row_bytes_(ld * element_bytes), lanes_left_(lanes - lane), thread_(thread) {
        const int row = (tile.depth_contiguous ? lane : k) + first_row();
        const int column = tile.depth_contiguous ? k : lane;
        source_ = static_cast<const char*>(matrix) + row * row_bytes_ + static_cast<long long>(column) * element_bytes +
                  piece() * piece_bytes;
    }

    // Copies the tile, of whose depth `depth_left` lie inside the matrix, and goes on to the next k-tile.
    PYPERF_DEVICE void copy_to(unsigned destination, int depth_left) {
        copy_rows(destination, depth_left);
        source_ += tile.depth_contiguous ? tile.depth * element_bytes : tile.depth * row_bytes_;
    }

private:
    PYPERF_DEVICE void copy_rows(unsigned destination, int depth_left) const {
        if (some_idle && first_row() >= rows_per_pass) return;
        const int rows_left = tile.depth_contiguous ? lanes_left_ : depth_left;
        const int columns_left = (tile.depth_contiguous ? depth_left : lanes_left_) - piece() * piece_elements;
        const int elements_left = columns_left < 0 ? 0 : columns_left < piece_elements ? columns_left : piece_elements;
        const int within = piece() * piece_bytes;
        const char* from = source_;
#pragma unroll unrolled
        for (int pass = 0; pass < passes; ++pass) {
            const int row = first_row() + pass * rows_per_pass;
            if (last_pass_partial && row >= tile.rows()) break;
            const int elements = row < rows_left ? elements_left : 0;
            const unsigned to = destination + tile.offset(row, within / chunk_bytes) + within % chunk_bytes;
            if constexpr (by_element)
                gather(to, from, elements);
            else
                ptx::cp_async<piece_bytes>(to, from, elements * element_bytes);
            from += rows_per_pass * row_bytes_;
        }
    }

    PYPERF_DEVICE static void gather(unsigned to, const char* from, int elements_left) {
        unsigned elements[chunk_elements];
#pragma unroll
        for (int i = 0; i < chunk_elements; ++i)
            elements[i] = i < elements_left ? ptx::ld_global_nc_u16(from + i * element_bytes) : 0u;
        const unsigned words[4] = {elements[0] | elements[1] << 16, elements[2] | elements[3] << 16,
                                   elements[4] | elements[5] << 16, elements[6] | elements[7] << 16};
        ptx::st_shared_v4(to, words);
    }
};

// In which order a fragment's four matrices come, so that mma finds its registers as they are loaded. A second matrix
// that were the other one would cost a move per register.
enum class Order : int {
    lanes_first,  // (lane half, depth half) = (0, 0), (1, 0), (0, 1), (1, 1): the four registers of A
    depth_first,  // (0, 0), (0, 1), (1, 0), (1, 1): the two registers of B, for two blocks of eight lanes
};

// Reads a warp's share of the tile, `warp_lanes` × depth, as fragments for mma.
template <OperandTile argument, int warp_lanes, Order order>
class FragmentReader {
    static constexpr OperandTile tile = argument;

public:
    static constexpr int count = warp_lanes / fragment_extent;

private:
    // The swizzle depends on the position along a row, so that one is looked up; steps across rows are constant.
    static constexpr int positions = tile.depth_contiguous ? tile.depth / fragment_extent : count;
    static constexpr int step_bytes = fragment_extent * tile.row_bytes();
    int offsets_[positions];

public:
    PYPERF_DEVICE FragmentReader(int first_lane, int thread) {
        const int matrix = thread % 32 / 8;
        const int lane_half = order == Order::lanes_first ? matrix % 2 : matrix / 2;
        const int depth_half = order == Order::lanes_first ? matrix / 2 : matrix % 2;
        const int row = thread % 8 + (tile.depth_contiguous ? first_lane + lane_half * 8 : depth_half * 8);
        const int chunk = tile.depth_contiguous ? depth_half : first_lane / chunk_elements + lane_half;
#pragma unroll
        for (int i = 0; i < positions; ++i)
            offsets_[i] = tile.offset(row, chunk + i * (fragment_extent / chunk_elements));
    }

    PYPERF_DEVICE void load(unsigned (&fragments)[count][4], unsigned tile_address, int k_step) const {
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const int offset = tile.depth_contiguous ? offsets_[k_step] + i * step_bytes
                                                     : offsets_[i] + k_step * step_bytes;
            ptx::ldmatrix_x4<!tile.depth_contiguous>(fragments[i], tile_address + offset);
        }
    }
};

}  // namespace pyperf
