// One tile after another: a block of queries stays packed while blocks of keys and values pass by.
#include "cpu/attention.h"

#include "check.h"
#include "cpu/pool.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace pyperf::cpu {
namespace {

constexpr std::size_t line_floats = 16;  // scratch areas start on cache lines, so that workers share none
constexpr double log2_e = 1.4426950408889634;

std::size_t round_to_line(std::size_t floats) { return (floats + line_floats - 1) / line_floats * line_floats; }

std::int64_t clamp(std::int64_t value, std::int64_t most) { return std::max<std::int64_t>(0, std::min(value, most)); }

std::int64_t pieces(std::int64_t size, std::int64_t piece) { return (size + piece - 1) / piece; }

}  // namespace

struct Attention::Scratch {
    float* q_block;   // panels of MR rows, as KernelSet::pack_a leaves them
    float* scores;    // of one panel of queries and a block of keys; they become the weights, in L1 all the while
    float* k_block;
    float* v_block;
    float* weighted;  // [m][width]
    float* sums;      // [m][lanes]
    float* maxima;    // [m]
};

struct Attention::Tile {
    std::int64_t row;        // first query
    std::int64_t q_offset;   // in elements: that query's place in Q and O
    std::int64_t kv_offset;  // of the head's first key in K and V
    std::int64_t keys;       // the last query inside sees keys [0, keys)
};

Attention::Attention(const AttentionOptions& options) : options_(options), kernels_(kernels_named(options.isa)) {
    check_attention(options);
    const AttentionBlocks& blocks = options_.blocks;
    check_blocks(blocks.m, blocks.n, kernels_);
    cores_ = usable_cores();
    cores_.resize(options.workers);

    const int lanes = kernels_.attention.lanes, head_dim = static_cast<int>(options.head_dim);
    q_panels_ = Panels::evenly(blocks.m, kernels_.mr);
    k_panels_ = Panels::evenly(blocks.n, kernels_.nr);
    width_ = (head_dim + lanes - 1) / lanes * lanes;
    wide_ = width_ / kernels_.nr * kernels_.nr;
    CHECK_INTERNAL(width_ - wide_ <= lanes, "a panel of V is two vectors wide");
    scale_ = static_cast<float>(log2_e / std::sqrt(static_cast<double>(head_dim)));
    query_blocks_ = pieces(options.seq_q, blocks.m);
    tiles_ = options.batch * options.heads * query_blocks_;

    const std::size_t panel = static_cast<std::size_t>(kernels_.mr) * kernels_.a_stride;
    q_floats_ = round_to_line(panel * q_panels_.count);
    scores_floats_ = round_to_line(panel);
    k_floats_ = round_to_line(static_cast<std::size_t>(blocks.n) * head_dim);
    v_floats_ = round_to_line(static_cast<std::size_t>(blocks.n) * width_);
    weighted_floats_ = round_to_line(static_cast<std::size_t>(blocks.m) * width_);
    sums_floats_ = round_to_line(static_cast<std::size_t>(blocks.m) * lanes);
    maxima_floats_ = round_to_line(blocks.m);
    scratch_floats_ =
        q_floats_ + scores_floats_ + k_floats_ + v_floats_ + weighted_floats_ + sums_floats_ + maxima_floats_;
    workspace_ = std::make_unique<Workspace>(static_cast<double>(scratch_floats_) * workers() * sizeof(float));
    pinned_ = run_on_workers(cores_, options_.pin, [](int) {});
}

void Attention::run(const AttentionOperands& operands) {
    const auto require = [](const char* name, const void* address) {
        CHECK_INPUT(address, name, " has address 0: pass the address of its first element.");
    };
    require("Q", operands.q);
    require("K", operands.k);
    require("V", operands.v);
    require("O", operands.o);
    std::lock_guard<std::mutex> turn(turn_);
    operands_ = operands;
    next_tile_.store(0, std::memory_order_relaxed);
    run_on_workers(cores_, options_.pin, [this](int worker) { work(worker); });
}

Attention::Scratch Attention::scratch_of(int worker) const {
    Scratch scratch;
    scratch.q_block = reinterpret_cast<float*>(workspace_->data()) + scratch_floats_ * worker;
    scratch.scores = scratch.q_block + q_floats_;
    scratch.k_block = scratch.scores + scores_floats_;
    scratch.v_block = scratch.k_block + k_floats_;
    scratch.weighted = scratch.v_block + v_floats_;
    scratch.sums = scratch.weighted + weighted_floats_;
    scratch.maxima = scratch.sums + sums_floats_;
    return scratch;
}

void Attention::work(int worker) {
    const Scratch scratch = scratch_of(worker);
    for (std::int64_t unit; (unit = next_tile_.fetch_add(1, std::memory_order_relaxed)) < tiles_;)
        compute(place(unit), scratch);
}

// Tiles that see most keys come first, so that the last ones handed out are light; where all weigh the same, those of
// one head follow each other, whose keys are then still near.
Attention::Tile Attention::place(std::int64_t unit) const {
    const std::int64_t all_heads = options_.batch * options_.heads;
    const std::int64_t block = options_.causal ? query_blocks_ - 1 - unit / all_heads : unit % query_blocks_;
    const std::int64_t head = options_.causal ? unit % all_heads : unit / query_blocks_;  // over all batches
    const std::int64_t row = block * options_.blocks.m;
    const std::int64_t last = std::min<std::int64_t>(row + options_.blocks.m, options_.seq_q) - 1;
    // Batches follow each other in K and V as they do in Q, so the group divides heads counted over all of them too.
    const std::int64_t kv_head = head / (options_.heads / options_.kv_heads);
    return {row, (head * options_.seq_q + row) * options_.head_dim, kv_head * options_.seq_k * options_.head_dim,
            options_.causal ? last + options_.seq_k - options_.seq_q + 1 : options_.seq_k};
}

void Attention::compute(const Tile& tile, const Scratch& scratch) {
    pack_queries(tile, scratch);
    std::fill_n(scratch.maxima, options_.blocks.m, -std::numeric_limits<float>::infinity());
    std::fill_n(scratch.sums, sums_floats_, 0.0f);
    for (std::int64_t key = 0; key < tile.keys; key += options_.blocks.n) attend(tile, key, scratch);
    finish(tile, scratch);
}

// One block of keys, panel by panel of queries: a panel's scores stay in L1 from one product to the other.
void Attention::attend(const Tile& tile, std::int64_t key, const Scratch& scratch) {
    pack_keys(tile, key, scratch);
    pack_values(tile, key, scratch);
    const int lanes = kernels_.attention.lanes;
    for (int panel = 0; panel < q_panels_.count; ++panel) {
        const int row = q_panels_.begin(panel), rows = q_panels_.begin(panel + 1) - row;
        float* weighted = scratch.weighted + static_cast<std::int64_t>(row) * width_;
        score(scratch.q_block + static_cast<std::int64_t>(panel) * kernels_.mr * kernels_.a_stride, rows, scratch);
        // Keys of this block that the panel's first query sees; each later one sees one more where causal.
        const std::int64_t diagonal = tile.row + row + options_.seq_k - options_.seq_q + 1;
        mask(scratch.scores, rows, (options_.causal ? diagonal : options_.seq_k) - key);
        kernels_.attention.weigh(scratch.scores, rows, options_.blocks.n, scale_, scratch.maxima + row,
                                 scratch.sums + row * lanes, weighted, width_);
        sum(scratch.scores, rows, weighted, scratch, key > 0);
    }
}

void Attention::score(const float* q_panel, int rows, const Scratch& scratch) const {
    const Micro micro = kernels_.micro[static_cast<int>(Contiguous::depth)][rows];
    for (int column = 0; column < options_.blocks.n; column += kernels_.nr)
        micro(options_.head_dim, q_panel, scratch.k_block + column * options_.head_dim, scratch.scores + column,
              kernels_.a_stride, false);
}

void Attention::mask(float* scores, int rows, std::int64_t first_visible) const {
    // What hangs over the end of the keys is nobody's; rows that hang over the end of the queries see what they like.
    const std::int64_t n = options_.blocks.n;
    const int step = options_.causal ? 1 : 0;
    if (first_visible >= n) return;
    for (int row = 0; row < rows; ++row, scores += kernels_.a_stride) {
        const std::int64_t visible = clamp(first_visible + row * step, n);
        std::fill(scores + visible, scores + n, -std::numeric_limits<float>::infinity());
    }
}

void Attention::sum(const float* weights, int rows, float* weighted, const Scratch& scratch, bool accumulate) const {
    const std::int64_t n = options_.blocks.n;
    const Micro micro = kernels_.micro[static_cast<int>(Contiguous::depth)][rows];
    for (int column = 0; column < wide_; column += kernels_.nr)
        micro(n, weights, scratch.v_block + column * n, weighted + column, width_, accumulate);
    if (wide_ < width_)
        kernels_.attention.micro_narrow[rows](n, weights, scratch.v_block + wide_ * n, weighted + wide_, width_,
                                              accumulate);
}

void Attention::pack_queries(const Tile& tile, const Scratch& scratch) const {
    const int type = static_cast<int>(options_.type);
    const char* source = static_cast<const char*>(operands_.q) + tile.q_offset * bytes_of(options_.type);
    kernels_.pack_a[type][static_cast<int>(Contiguous::depth)](source, options_.head_dim, q_panels_, 0,
                                                               q_panels_.count, options_.seq_q - tile.row,
                                                               options_.head_dim, scratch.q_block);
}

void Attention::pack_keys(const Tile& tile, std::int64_t key, const Scratch& scratch) const {
    const int type = static_cast<int>(options_.type);
    const std::int64_t offset = tile.kv_offset + key * options_.head_dim;
    kernels_.pack_b[type][static_cast<int>(Contiguous::depth)](
        static_cast<const char*>(operands_.k) + offset * bytes_of(options_.type), options_.head_dim, k_panels_, 0,
        k_panels_.count, options_.seq_k - key, options_.head_dim, scratch.k_block);
}

// Keys are the depth of this product. Where they end inside the block, zeros make it whole: the weights there are 0,
// and 0 times an infinite value that an earlier block left would be a NaN.
void Attention::pack_values(const Tile& tile, std::int64_t key, const Scratch& scratch) const {
    const int type = static_cast<int>(options_.type), lanes = kernels_.attention.lanes;
    const std::int64_t n = options_.blocks.n, inside = std::min(options_.seq_k - key, n), d = options_.head_dim;
    const std::int64_t offset = tile.kv_offset + key * d;
    const char* source = static_cast<const char*>(operands_.v) + offset * bytes_of(options_.type);
    for (int column = 0; column < width_;) {
        const bool wide = column < wide_;
        const int columns = wide ? kernels_.nr : lanes;
        const Pack pack = wide ? kernels_.pack_b[type][static_cast<int>(Contiguous::lanes)]
                               : kernels_.attention.pack_narrow[type];
        float* panel = scratch.v_block + column * n;
        pack(source + column * bytes_of(options_.type), d, Panels{1, columns, 0}, 0, 1, d - column, inside, panel);
        std::fill(panel + inside * columns, panel + n * columns, 0.0f);
        column += columns;
    }
}

void Attention::finish(const Tile& tile, const Scratch& scratch) const {
    const std::int64_t rows = std::min<std::int64_t>(options_.seq_q - tile.row, options_.blocks.m);
    const std::int64_t d = options_.head_dim;
    kernels_.attention.normalise(scratch.weighted, options_.blocks.m, width_, scratch.sums);
    if (options_.type == DataType::bfloat16) {
        kernels_.to_bfloat16(static_cast<std::uint16_t*>(operands_.o) + tile.q_offset, d, scratch.weighted, width_,
                             rows, d);
        return;
    }
    float* into = static_cast<float*>(operands_.o) + tile.q_offset;
    for (std::int64_t row = 0; row < rows; ++row)
        std::memcpy(into + row * d, scratch.weighted + row * width_, d * sizeof(float));
}

}  // namespace pyperf::cpu
