// O = softmax(Q · Kᵀ / √head_dim) · V on the CPU, block by block as FlashAttention does it (Dao 2023), with the blocks
// chosen by the caller.
//
// It is laid out as a GPU kernel is, so that its quantization can be measured here too: a tile is one block of queries
// of one head, a worker stands for a multiprocessor, and a block of queries or keys that hangs over an edge, or over
// the diagonal of a causal mask, costs as much as a whole one. Blocks of keys that a tile cannot see are skipped.
// head_dim is padded to the vector width, and only where it counts columns: in the product with V. Where the product is
// one of words (kernels.h), to the width of a panel, and weights are rounded to bfloat16 for it.
#pragma once

#include "cpu/kernels.h"
#include "cpu/workspace.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace pyperf::cpu {

// Blocks that a worker holds at a time: m queries, and n keys per step of its loop.
struct AttentionBlocks {
    int m;
    int n;
};

struct AttentionOptions {
    std::int64_t batch = 0, heads = 0, kv_heads = 0, seq_q = 0, seq_k = 0, head_dim = 0;
    DataType type = DataType::float32;  // of all four operands; scores and sums are fp32
    bool causal = false;                // bottom-right aligned: query i sees keys j ≤ i + seq_k − seq_q
    AttentionBlocks blocks{};
    std::int64_t workers = 1;
    std::string isa;  // empty: the best one here
    bool pin = true;
};

// Contiguous: Q and O [batch, heads, seq_q, head_dim], K and V [batch, kv_heads, seq_k, head_dim]; query head h reads
// key head h / (heads / kv_heads).
struct AttentionOperands {
    const void* q;
    const void* k;
    const void* v;
    void* o;
};

// Throws InputError, one sentence with the limits and the nearest blocks that can be computed.
void check_blocks(std::int64_t m, std::int64_t n, const KernelSet& kernels);

// The blocks to take when none are asked for. Throws InputError on sizes or workers out of range.
AttentionBlocks default_blocks(const AttentionOptions& options);

// Throws InputError on sizes, heads or workers that cannot be; says nothing of the blocks.
void check_attention(const AttentionOptions& options);

class Attention {
  public:
    // Allocates the workspace and starts the threads. Throws InputError on bad input.
    explicit Attention(const AttentionOptions& options);

    // Overwrites O and nothing outside it. Allocates nothing. Calls on the same object take turns.
    void run(const AttentionOperands& operands);

    const KernelSet& kernels() const { return kernels_; }
    const ProductKernels& product() const { return product_; }
    int workers() const { return static_cast<int>(cores_.size()); }
    bool pinned() const { return pinned_; }
    std::size_t workspace_bytes() const { return workspace_->bytes(); }
    int padded_head_dim() const { return width_; }

  private:
    struct Scratch;  // what one worker packs and sums
    struct Tile;     // one block of queries of one head

    void work(int worker);
    Tile place(std::int64_t unit) const;
    void compute(const Tile& tile, const Scratch& scratch);
    void attend(const Tile& tile, std::int64_t key, const Scratch& scratch);
    void score(const char* q_panel, int rows, const Scratch& scratch) const;
    void mask(float* scores, int rows, std::int64_t first_visible) const;
    void sum(int rows, float* weighted, const Scratch& scratch, bool accumulate) const;
    void pack_queries(const Tile& tile, const Scratch& scratch) const;
    void pack_keys(const Tile& tile, std::int64_t key, const Scratch& scratch) const;
    void pack_values(const Tile& tile, std::int64_t key, const Scratch& scratch) const;
    void finish(const Tile& tile, const Scratch& scratch) const;
    Scratch scratch_of(int worker) const;

    AttentionOptions options_;
    const KernelSet& kernels_;
    const ProductKernels& product_;
    std::vector<int> cores_;
    Panels q_panels_, k_panels_;  // of a block of queries, and of keys
    int width_;                   // head_dim padded to the vector, or to the panel where no narrower one is there
    int wide_;                    // of which are taken by whole panels of V; the rest is one narrow panel
    float scale_;                 // of scores, whose softmax is taken in powers of two
    std::int64_t query_blocks_, tiles_;
    std::int64_t q_panel_bytes_, k_panel_bytes_, v_panel_bytes_;
    std::size_t q_bytes_, scores_bytes_, weights_bytes_, k_bytes_, v_bytes_, weighted_bytes_, sums_bytes_, maxima_bytes_;
    std::size_t scratch_bytes_;
    std::unique_ptr<Workspace> workspace_;
    std::atomic<std::int64_t> next_tile_{0};
    std::mutex turn_;  // held by run(): the workspace serves one call at a time
    AttentionOperands operands_{};
    bool pinned_ = false;
};

}  // namespace pyperf::cpu
