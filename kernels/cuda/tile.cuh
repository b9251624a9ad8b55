// Everything about a tile of gemm_sm90.cu that is arithmetic: where operands, results and barriers lie in shared
// memory, in which boxes the copy engine moves them, what wgmma's descriptors say, which thread holds which element.
//
// Plain constexpr, for both NVRTC and g++: the tests emulate the data movement on the host with these very functions.
// Layouts and descriptors: PTX ISA, "Asynchronous warpgroup-level matrix shared memory layout" and "Tensor swizzling".
#pragma once

#include "schedule.cuh"

namespace pyperf {

enum class Type : int { bf16, fp16, e4m3, fp32 };

PYPERF_HOST_DEVICE constexpr int bytes_of(Type type) {
    return type == Type::e4m3 ? 1 : type == Type::fp32 ? 4 : 2;
}

constexpr int warp_threads = 32;
constexpr int warpgroup_warps = 4;
constexpr int warpgroup_threads = warpgroup_warps * warp_threads;
constexpr int wgmma_m = 64;            // rows of one wgmma: 16 to each warp of the warpgroup
constexpr int warp_m = 16;
constexpr int wgmma_k_bytes = 32;      // the K of one wgmma
constexpr int multiprocessor_registers = 65536;
constexpr int most_shared_bytes = 227 * 1024;
// The bits of a shared address that a wgmma descriptor takes (PTX ISA, "Matrix descriptor format"). In a cluster the
// CTA's rank stands above them, and unmasked it would change the leading byte offset.
constexpr unsigned descriptor_window = 0x3ffff;

// The copy engine and wgmma swizzle in the same way: in rows of `span` bytes (16, 32, 64 or 128), address bits 4.. are xored with
// bits 7.., so that 8 rows of one 16-byte column fall into different banks. Offsets count from a boundary of 8 spans.
PYPERF_HOST_DEVICE constexpr int swizzled(int offset, int span) {
    return offset ^ ((offset >> 7 & (span / 16 - 1)) << 4);
}

// The widest swizzle span that rows of `bytes` bytes divide into.
PYPERF_HOST_DEVICE constexpr int widest_span(int bytes) {
    return bytes % 128 == 0 ? 128 : bytes % 64 == 0 ? 64 : bytes % 32 == 0 ? 32 : 16;
}

// Element that lane `lane` of a warp holds in register i of a block: row of the warp's 16, column of the tile.
PYPERF_HOST_DEVICE constexpr int fragment_row(int lane, int i) { return lane / 4 + i / 2 % 2 * 8; }
PYPERF_HOST_DEVICE constexpr int fragment_column(int lane, int i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; }

// First row of M within the CTA's tile that consumer warp `warp` holds of a block.
PYPERF_HOST_DEVICE constexpr int warp_row(int warp, int block, int blocks) {
    return (warp / warpgroup_warps * blocks + block) * wgmma_m + warp % warpgroup_warps * warp_m;
}

// A place in a ring of stages. The parity of a barrier's phase changes each time round, and the place is carried over
// from tile to tile, so barriers are never initialised again.
template <int stages>
struct RingPlace {
    int stage = 0;
    int parity = 0;

    PYPERF_HOST_DEVICE void advance() {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// One operand's part of a stage: `extent` rows of M or columns of N, `depth` elements of K.
//   K-major (K contiguous in memory): one panel of `extent` rows, each `depth` elements long, which is the span.
//   MN-major (M or N contiguous): panels side by side, each `depth` rows long and one span of M or N wide.
// CTAs of a cluster that share the operand load every panel together, each an equal slice of its rows.
struct Operand {
    int extent;
    int depth;
    int element_bytes;
    bool mn_major;
    int shared_by;

    PYPERF_HOST_DEVICE constexpr int span() const {
        return mn_major ? widest_span(extent * element_bytes) : depth * element_bytes;
    }
    PYPERF_HOST_DEVICE constexpr int panels() const { return mn_major ? extent * element_bytes / span() : 1; }
    PYPERF_HOST_DEVICE constexpr int panel_rows() const { return mn_major ? depth : extent; }
    PYPERF_HOST_DEVICE constexpr int panel_bytes() const { return panel_rows() * span(); }
    PYPERF_HOST_DEVICE constexpr int bytes() const { return panels() * panel_bytes(); }
    PYPERF_HOST_DEVICE constexpr int box_columns() const { return span() / element_bytes; }
    PYPERF_HOST_DEVICE constexpr int box_rows() const { return panel_rows() / shared_by; }
    PYPERF_HOST_DEVICE constexpr int box_bytes() const { return box_rows() * span(); }

    // The descriptor of what starts at `address` of the window, in units of 16 bytes: leading and stride byte offset
    // (bits 16 and 32) in the same units, the swizzle (bit 62). Panels start at a boundary of 8 spans, so the base offset
    // is 0. Made of two halves, so that only 32-bit arithmetic is left at run time.
    //   K-major: the stride goes from 8 rows to the next 8, the leading offset is not used.
    //   MN-major: one offset goes from panel to panel, the other from 8 rows of K to the next 8: leading and stride,
    //   except without swizzle, where they change places.
    PYPERF_HOST_DEVICE constexpr unsigned long long descriptor(unsigned address) const {
        const unsigned swizzle = span() == 128 ? 1 : span() == 64 ? 2 : span() == 32 ? 3 : 0;
        const unsigned eight_rows = 8 * span() / 16, panel = panel_bytes() / 16;
        const bool plain = swizzle == 0;
        const unsigned leading = !mn_major ? 1 : plain ? eight_rows : panel;
        const unsigned stride = mn_major && plain ? panel : eight_rows;
        const unsigned low = address + (leading << 16), high = stride | swizzle << 30;
        return static_cast<unsigned long long>(high) << 32 | low;
    }

    // From the operand's first byte to what the wgmma that starts at this row of M and this `step` along K reads.
    PYPERF_HOST_DEVICE constexpr int offset(int row, int step) const {
        const int k_rows = wgmma_k_bytes / element_bytes;
        return mn_major ? row * element_bytes / span() * panel_bytes() + step * k_rows * span()
                        : row * span() + step * wgmma_k_bytes;
    }
};

// One specialisation of the kernel: what the -D options say, and what follows from it.
struct Specialisation {
    Tile tile;        // of one CTA, in elements
    int stages;       // of operands in flight
    int cluster_m;    // CTAs of a cluster along M (they share B) ...
    int cluster_n;    // ... and along N (they share A)
    int consumers;    // warpgroups that multiply; each has tile.m / consumers rows
    int store_buffers;  // per warp, of results on their way out
    Type in;
    Type out;
    bool a_transposed;  // A is stored [K, M]
    bool b_transposed;  // B is stored [N, K]

    PYPERF_HOST_DEVICE constexpr int cluster() const { return cluster_m * cluster_n; }
    PYPERF_HOST_DEVICE constexpr Operand a() const {
        return {tile.m, tile.k, bytes_of(in), a_transposed, cluster_n};
    }
    PYPERF_HOST_DEVICE constexpr Operand b() const {
        return {tile.n, tile.k, bytes_of(in), !b_transposed, cluster_m};
    }
    PYPERF_HOST_DEVICE constexpr int stage_bytes() const { return a().bytes() + b().bytes(); }
    PYPERF_HOST_DEVICE constexpr int steps() const { return tile.k * bytes_of(in) / wgmma_k_bytes; }

    // 64-row blocks of a consumer, and the fp32 each of its threads holds of one block.
    PYPERF_HOST_DEVICE constexpr int blocks() const { return tile.m / wgmma_m / consumers; }
    PYPERF_HOST_DEVICE constexpr int block_registers() const { return tile.n / 2; }

    PYPERF_HOST_DEVICE constexpr int consumer_warps() const { return consumers * warpgroup_warps; }
    PYPERF_HOST_DEVICE constexpr int threads() const { return (consumers + 1) * warpgroup_threads; }

    // Results leave in boxes of warp_m rows, one swizzle span wide.
    PYPERF_HOST_DEVICE constexpr int store_span() const { return widest_span(tile.n * bytes_of(out)); }
    PYPERF_HOST_DEVICE constexpr int store_columns() const { return store_span() / bytes_of(out); }
    PYPERF_HOST_DEVICE constexpr int store_bytes() const { return warp_m * store_span(); }

    // Offset in a store buffer at which a lane begins to write. fp32: at the first elements it holds. 16 bits: stmatrix
    // takes the address of row l % 16 from lane l, of 8 columns from lanes 0-15 and of the next 8, if any, from lanes
    // 16-31.
    PYPERF_HOST_DEVICE constexpr int store_lane_offset(int lane) const {
        const int span = store_span();
        if (out == Type::fp32) return swizzled(fragment_row(lane, 0) * span + fragment_column(lane, 0) * 4, span);
        return swizzled(lane % 16 * span + (span == 16 ? 0 : lane / 16 * 16), span);
    }

    // Shared memory: all stages of A, all stages of B, each rounded up to where a swizzle pattern may start; the store
    // buffers of each warp; the barriers "full" and "empty" of each stage.
    PYPERF_HOST_DEVICE static constexpr int aligned(int bytes) { return (bytes + 1023) / 1024 * 1024; }
    PYPERF_HOST_DEVICE constexpr int a_offset(int stage) const { return stage * aligned(a().bytes()); }
    PYPERF_HOST_DEVICE constexpr int b_offset(int stage) const {
        return a_offset(stages) + stage * aligned(b().bytes());
    }
    PYPERF_HOST_DEVICE constexpr int store_offset(int warp) const {
        return b_offset(stages) + warp * store_buffers * store_bytes();
    }
    PYPERF_HOST_DEVICE constexpr int full_offset(int stage) const { return store_offset(consumer_warps()) + stage * 8; }
    PYPERF_HOST_DEVICE constexpr int empty_offset(int stage) const { return full_offset(stages) + stage * 8; }
    PYPERF_HOST_DEVICE constexpr int shared_bytes() const { return empty_offset(stages); }

    // Registers a thread: what the launch gives all, and what setmaxnreg makes of it. With one consumer the launch
    // already gives what a thread can address, so nothing is moved.
    PYPERF_HOST_DEVICE constexpr int launch_registers() const {
        return consumers == 1 ? 255 : multiprocessor_registers / threads() / 8 * 8;
    }
    PYPERF_HOST_DEVICE constexpr int producer_registers() const { return consumers == 2 ? 40 : 32; }
    PYPERF_HOST_DEVICE constexpr int consumer_registers() const {
        return consumers == 1 ? 255
                              : (launch_registers() * (consumers + 1) - producer_registers()) / consumers / 8 * 8;
    }

    // The workspace of one tile of a cluster. Each lane keeps register i of a block at partial_offset of its own (the
    // first) plus partial_step (the second): 4 registers at a time, the lanes of a warp side by side.
    PYPERF_HOST_DEVICE constexpr long long partial_floats() const {
        return static_cast<long long>(cluster()) * tile.m * tile.n;
    }
    PYPERF_HOST_DEVICE constexpr int partial_offset(int rank, int warp, int lane) const {
        return (rank * consumer_warps() + warp) * blocks() * block_registers() * warp_threads + lane * 4;
    }
    PYPERF_HOST_DEVICE constexpr int partial_step(int block, int i) const {
        return (block * block_registers() + i) * warp_threads;
    }
};

}  // namespace pyperf
