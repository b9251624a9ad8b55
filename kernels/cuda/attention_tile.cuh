// Everything about a tile of attention_sm90.cu that is arithmetic, as tile.cuh has it of a product: plain constexpr, for
// NVRTC and g++. Q, K and V lie in panels side by side, each as wide as a swizzle span: K-major panels of Q and K for the
// first product, and the same bytes of V as one MN-major operand of the second.
#pragma once

#include "tile.cuh"

namespace pyperf {

constexpr int wgmma_k = 16;  // of 16-bit elements

struct AttentionTile {
    int keys;       // of one step
    int head_dim;   // that the products compute with; what a head lacks are zeros
    int stages;     // of K, and as many of V
    int consumers;  // warpgroups, of wgmma_m queries each

    PYPERF_HOST_DEVICE constexpr int queries() const { return consumers * wgmma_m; }
    PYPERF_HOST_DEVICE constexpr int consumer_warps() const { return consumers * warpgroup_warps; }
    PYPERF_HOST_DEVICE constexpr int threads() const { return (consumers + 1) * warpgroup_threads; }
    PYPERF_HOST_DEVICE constexpr int cluster() const { return 1; }

    PYPERF_HOST_DEVICE constexpr int span() const { return widest_span(head_dim * 2); }
    PYPERF_HOST_DEVICE constexpr int panels() const { return head_dim * 2 / span(); }
    PYPERF_HOST_DEVICE constexpr int panel_columns() const { return span() / 2; }
    PYPERF_HOST_DEVICE constexpr Operand q() const { return {queries(), panel_columns(), 2, false, 1}; }
    PYPERF_HOST_DEVICE constexpr Operand k() const { return {keys, panel_columns(), 2, false, 1}; }
    PYPERF_HOST_DEVICE constexpr Operand v() const { return {head_dim, keys, 2, true, 1}; }

    // From the first byte of Q or K to what the wgmma that starts at this row and this step along head_dim reads.
    PYPERF_HOST_DEVICE constexpr int offset(const Operand& panel, int row, int step) const {
        const int steps = span() / wgmma_k_bytes;
        return step / steps * panel.bytes() + panel.offset(row, step % steps);
    }

    // Shared memory: Q, which results take the place of; all stages of K, all of V; their barriers and those of Q.
    PYPERF_HOST_DEVICE constexpr int q_bytes() const { return panels() * q().bytes(); }
    PYPERF_HOST_DEVICE constexpr int stage_bytes() const { return v().bytes(); }
    PYPERF_HOST_DEVICE constexpr int k_offset(int stage) const { return q_bytes() + stage * stage_bytes(); }
    PYPERF_HOST_DEVICE constexpr int v_offset(int stage) const { return k_offset(stages + stage); }
    PYPERF_HOST_DEVICE constexpr int k_barrier(int stage) const { return v_offset(stages) + stage * 16; }
    PYPERF_HOST_DEVICE constexpr int v_barrier(int stage) const { return k_barrier(stages + stage); }
    PYPERF_HOST_DEVICE constexpr int q_barrier() const { return v_barrier(stages); }
    PYPERF_HOST_DEVICE constexpr int shared_bytes() const { return q_barrier() + 16; }

    // Offset in Q at which a lane begins to write its warp's results of a panel: stmatrix takes the address of row l %
    // 16 from lane l, of 8 columns from lanes 0-15 and of the next 8 from lanes 16-31.
    PYPERF_HOST_DEVICE constexpr int store_offset(int warp, int lane) const {
        return swizzled((warp * warp_m + lane % 16) * span() + lane / 16 * 16, span());
    }

    // Registers a thread: what the launch gives all, and what setmaxnreg makes of it.
    PYPERF_HOST_DEVICE constexpr int launch_registers() const {
        return consumers == 1 ? 255 : multiprocessor_registers / threads() / 8 * 8;
    }
    PYPERF_HOST_DEVICE constexpr int producer_registers() const { return consumers == 2 ? 24 : 32; }
    PYPERF_HOST_DEVICE constexpr int consumer_registers() const {
        return consumers == 1 ? 255
                              : (launch_registers() * (consumers + 1) - producer_registers()) / consumers / 8 * 8;
    }
};

}  // namespace pyperf
