// One tile after another: a block of queries stays packed while blocks of keys and values pass by.
#include "cpu/attention.h"

#include "check.h"
#include "cpu/pool.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace pyperf::cpu {
namespace {

constexpr std::size_t line_bytes = 64;  // scratch areas start on cache lines, so that workers share none
constexpr double log2_e = 1.4426950408889634;

std::size_t round_to_line(std::size_t bytes) { return (bytes + line_bytes - 1) / line_bytes * line_bytes; }

std::int64_t clamp(std::int64_t value, std::int64_t most) { return std::max<std::int64_t>(0, std::min(value, most)); }

std::int64_t pieces(std::int64_t size, std::int64_t piece) { return (size + piece - 1) / piece; }

}  // namespace

struct Attention::Scratch {
    char* q_block;    // panels of MR rows, as ProductKernels::pack_a leaves them
    float* scores;    // of one panel of queries and a block of keys; they become the weights, in L1 all the while
    void* weights;    // as an A panel: the scores themselves, or a place of their own
    char* k_block;
    char* v_block;
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

Attention::Attention(const AttentionOptions& options)
    : options_(options), kernels_(kernels_named(options.isa)), product_(kernels_.of(options.type)) {
    check_attention(options);
    const AttentionBlocks& blocks = options_.blocks;
    check_blocks(blocks.m, blocks.n, kernels_);
    cores_ = usable_cores();
    cores_.resize(options.workers);

    const int lanes = kernels_.attention.lanes, head_dim = static_cast<int>(options.head_dim);
    const int nr = product_.nr, narrowest = product_.pack_scores ? nr : lanes;
    q_panels_ = Panels::evenly(blocks.m, product_.mr);
    k_panels_ = Panels::evenly(blocks.n, nr);
    width_ = (head_dim + narrowest - 1) / narrowest * narrowest;
    wide_ = width_ / nr * nr;
    CHECK_INTERNAL(width_ - wide_ <= lanes, "a panel of V is two vectors wide");
    scale_ = static_cast<float>(log2_e / std::sqrt(static_cast<double>(head_dim)));
    query_blocks_ = pieces(options.seq_q, blocks.m);
    tiles_ = options.batch * options.heads * query_blocks_;

    const PanelBytes& a_panel = product_.a_panel[static_cast<int>(Contiguous::depth)];
    q_panel_bytes_ = a_panel.of(head_dim);
    k_panel_bytes_ = product_.b_panel.of(head_dim);
    v_panel_bytes_ = product_.b_panel.of(blocks.n);
    q_bytes_ = round_to_line(q_panel_bytes_ * q_panels_.count);
    scores_bytes_ = round_to_line(sizeof(float) * product_.mr * kernels_.attention.score_stride);
    weights_bytes_ = product_.pack_scores ? round_to_line(a_panel.of(blocks.n)) : 0;
    k_bytes_ = round_to_line(k_panel_bytes_ * k_panels_.count);
    v_bytes_ = round_to_line(v_panel_bytes_ * ((width_ + nr - 1) / nr));
    weighted_bytes_ = round_to_line(sizeof(float) * blocks.m * width_);
    sums_bytes_ = round_to_line(sizeof(float) * blocks.m * lanes);
    maxima_bytes_ = round_to_line(sizeof(float) * blocks.m);
    scratch_bytes_ = q_bytes_ + scores_bytes_ + weights_bytes_ + k_bytes_ + v_bytes_ + weighted_bytes_ + sums_bytes_ +
                     maxima_bytes_;
    workspace_ = std::make_unique<Workspace>(static_cast<double>(scratch_bytes_) * workers());
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
    char* free = static_cast<char*>(workspace_->data()) + scratch_bytes_ * worker;
    const auto take = [&free](std::size_t bytes) { return std::exchange(free, free + bytes); };
    Scratch scratch;
    scratch.q_block = take(q_bytes_);
    scratch.scores = reinterpret_cast<float*>(take(scores_bytes_));
    scratch.weights = product_.pack_scores ? take(weights_bytes_) : reinterpret_cast<char*>(scratch.scores);
    scratch.k_block = take(k_bytes_);
    scratch.v_block = take(v_bytes_);
    scratch.weighted = reinterpret_cast<float*>(take(weighted_bytes_));
    scratch.sums = reinterpret_cast<float*>(take(sums_bytes_));
    scratch.maxima = reinterpret_cast<float*>(take(maxima_bytes_));
    return scratch;
}

void Attention::work(int worker) {
    const Scratch scratch = scratch_of(worker);
    for (std::int64_t unit; (unit = next_tile_.fetch_add(1, std::memory_order_relaxed)) < tiles_;)
        compute(place(unit), scratch);
    if (kernels_.leave) kernels_.leave();
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
    std::memset(scratch.sums, 0, sums_bytes_);
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
        score(scratch.q_block + panel * q_panel_bytes_, rows, scratch);
        // Keys of this block that the panel's first query sees; each later one sees one more where causal.
        const std::int64_t diagonal = tile.row + row + options_.seq_k - options_.seq_q + 1;
        mask(scratch.scores, rows, (options_.causal ? diagonal : options_.seq_k) - key);
        kernels_.attention.weigh(scratch.scores, rows, options_.blocks.n, scale_, scratch.maxima + row,
                                 scratch.sums + row * lanes, weighted, width_);
        if (product_.pack_scores) product_.pack_scores(scratch.scores, rows, options_.blocks.n, scratch.weights);
        sum(rows, weighted, scratch, key > 0);
    }
}

void Attention::score(const char* q_panel, int rows, const Scratch& scratch) const {
    const Micro micro = product_.micro[static_cast<int>(Contiguous::depth)][rows];
    for (int panel = 0; panel < k_panels_.count; ++panel)
        micro(options_.head_dim, q_panel, scratch.k_block + panel * k_panel_bytes_,
              scratch.scores + panel * product_.nr, kernels_.attention.score_stride, false);
}

void Attention::mask(float* scores, int rows, std::int64_t first_visible) const {
    // Columns that hang over the end of the keys are nobody's; rows that hang over the end of the queries see what they
    // like.
    const std::int64_t n = options_.blocks.n;
    const int step = options_.causal ? 1 : 0;
    if (first_visible >= n) return;
    for (int row = 0; row < rows; ++row, scores += kernels_.attention.score_stride) {
        const std::int64_t visible = clamp(first_visible + row * step, n);
        std::fill(scores + visible, scores + n, -std::numeric_limits<float>::infinity());
    }
}

void Attention::sum(int rows, float* weighted, const Scratch& scratch, bool accumulate) const {
    const std::int64_t n = options_.blocks.n;
    const Micro micro = product_.micro[static_cast<int>(Contiguous::depth)][rows];
    const char* panel = scratch.v_block;
    for (int column = 0; column < wide_; column += product_.nr, panel += v_panel_bytes_)
        micro(n, scratch.weights, panel, weighted + column, width_, accumulate);
    if (wide_ < width_)
        kernels_.attention.micro_narrow[rows](n, scratch.weights, panel, weighted + wide_, width_, accumulate);
}

void Attention::pack_queries(const Tile& tile, const Scratch& scratch) const {
    const char* source = static_cast<const char*>(operands_.q) + tile.q_offset * bytes_of(options_.type);
    product_.pack_a[static_cast<int>(Contiguous::depth)](source, options_.head_dim, q_panels_, 0, q_panels_.count,
                                                         options_.seq_q - tile.row, options_.head_dim,
                                                         scratch.q_block);
}

void Attention::pack_keys(const Tile& tile, std::int64_t key, const Scratch& scratch) const {
    const std::int64_t offset = tile.kv_offset + key * options_.head_dim;
    product_.pack_b[static_cast<int>(Contiguous::depth)](
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
    char* panel = scratch.v_block;
    for (int column = 0; column < width_; panel += v_panel_bytes_) {
        const bool wide = column < wide_;
        const int columns = wide ? product_.nr : lanes;
        const Pack pack = wide ? product_.pack_b[static_cast<int>(Contiguous::lanes)]
                               : kernels_.attention.pack_narrow[type];
        pack(source + column * bytes_of(options_.type), d, Panels{1, columns, 0}, 0, 1, d - column, inside, panel);
        const std::int64_t filled = wide ? product_.b_panel.of(inside) : inside * columns * 4;
        const std::int64_t length = wide ? v_panel_bytes_ : n * columns * 4;
        std::memset(panel + filled, 0, length - filled);
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
