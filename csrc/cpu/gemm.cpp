// One segment after another: pack, multiply, and where several segments share a tile, sum in ascending k.
#include "cpu/gemm.h"

#include "check.h"
#include "cpu/default_tile.h"
#include "cpu/pool.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <tuple>

namespace pyperf::cpu {
namespace {

constexpr std::size_t line_bytes = 64;  // scratch areas start on cache lines, so that workers share none
constexpr int max_micro_tile = 1024;
constexpr std::int64_t max_address = std::numeric_limits<std::int64_t>::max() / 8;

// Row panels of A are packed a block at a time, and multiplied by as many panels of B as stay in L2 beside the block. A
// single panel of A lost 2 to 8 %, since packing and multiplying then alternate in steps too short for the hardware to
// read ahead.
std::int64_t a_block_size() { return l2_bytes() / 4; }
std::int64_t b_chunk_size() { return l2_bytes() / 2; }

std::size_t round_to_line(std::size_t bytes) { return (bytes + line_bytes - 1) / line_bytes * line_bytes; }

std::int64_t clamp(std::int64_t value, std::int64_t most) { return std::max<std::int64_t>(0, std::min(value, most)); }

const void* at(const void* base, std::int64_t row, std::int64_t column, std::int64_t ld, DataType type) {
    return static_cast<const char*>(base) + (row * ld + column) * bytes_of(type);
}

}  // namespace

struct Gemm::Scratch {
    char* a_block;
    char* b_tile;
    float* sums;
};

Gemm::Gemm(const GemmOptions& options)
    : options_(options),
      kernels_(kernels_named(options.isa)),
      product_(kernels_.of(options.type)),
      schedule_(make_schedule(options.m, options.n, options.k, options.tile, options.schedule, options.splits,
                              options.workers, options.group)),
      cores_(usable_cores()) {
    const Tile& tile = options_.tile;
    check_tile(tile.m, tile.n, tile.k, kernels_, options.type);
    CHECK_INPUT(options.workers <= static_cast<std::int64_t>(cores_.size()), "workers = ", options.workers,
                " is more than the cores this process may use: ask for at most ", cores_.size(), ".");
    CHECK_INTERNAL(product_.mr * product_.nr <= max_micro_tile, "raise max_micro_tile");
    cores_.resize(schedule_.workers);

    a_panels_ = Panels::evenly(tile.m, product_.mr);
    b_panels_ = Panels::evenly(tile.n, product_.nr);
    const std::size_t panel_bytes = static_cast<std::size_t>(product_.b_panel.of(tile.k)) * product_.mr / product_.nr;
    const int fitting = std::max(1, static_cast<int>(a_block_size() / panel_bytes));
    const int blocks = (a_panels_.count + fitting - 1) / fitting;
    a_panels_in_block_ = (a_panels_.count + blocks - 1) / blocks;
    chunk_columns_ = std::max(1, static_cast<int>(b_chunk_size() / product_.b_panel.of(tile.k))) * product_.nr;
    a_block_bytes_ = round_to_line(static_cast<std::size_t>(a_panel_bytes(tile.k)) * a_panels_in_block_);
    b_tile_bytes_ = round_to_line(static_cast<std::size_t>(product_.b_panel.of(tile.k)) * b_panels_.count);
    sums_bytes_ = round_to_line(static_cast<std::size_t>(tile.m) * tile.n * sizeof(float));
    const bool in_place = options_.out_type == DataType::float32;
    const std::size_t shared = static_cast<std::size_t>(schedule_.shared_tiles());
    scratch_bytes_ = a_block_bytes_ + b_tile_bytes_ + (in_place && shared == 0 ? 0 : sums_bytes_);
    const double shared_bytes = (in_place ? 0.0 : static_cast<double>(sums_bytes_)) + sizeof(*summed_);
    workspace_ = std::make_unique<Workspace>(static_cast<double>(scratch_bytes_) * schedule_.workers +
                                             static_cast<double>(shared) * shared_bytes);
    shared_sums_ = static_cast<char*>(workspace_->data()) + scratch_bytes_ * schedule_.workers;
    summed_ = reinterpret_cast<std::atomic<int>*>(shared_sums_ + (in_place ? 0 : shared * sums_bytes_));
    std::uninitialized_value_construct_n(summed_, shared);
    pinned_ = run_on_workers(cores_, options_.pin, [](int) {});
}

void Gemm::run(const GemmOperands& operands) {
    check(operands);
    std::lock_guard<std::mutex> turn(turn_);
    operands_ = operands;
    next_unit_.store(0, std::memory_order_relaxed);
    for (long long tile = 0; tile < schedule_.shared_tiles(); ++tile) summed_[tile].store(0, std::memory_order_relaxed);
    run_on_workers(cores_, options_.pin, [this](int worker) { work(worker); });
}

void Gemm::check(const GemmOperands& operands) const {
    const auto require = [](const char* name, const void* address, const char* ld_name, std::int64_t ld,
                            std::int64_t rows, std::int64_t row_length) {
        CHECK_INPUT(address, name, " has address 0: pass the address of its first element.");
        CHECK_INPUT(ld <= max_address / rows, ld_name, " = ", ld, " is too large for ", rows,
                    " rows: a leading dimension is the number of elements from one row of ", name, " to the next.");
        CHECK_INPUT(ld >= row_length, ld_name, " = ", ld, " is less than the row length of ", name, " as stored, ",
                    row_length, ".");
    };
    const auto& [m, n, k] = std::tie(options_.m, options_.n, options_.k);
    require("A", operands.a, "lda", operands.lda, options_.a_transposed ? k : m, options_.a_transposed ? m : k);
    require("B", operands.b, "ldb", operands.ldb, options_.b_transposed ? n : k, options_.b_transposed ? k : n);
    require("C", operands.c, "ldc", operands.ldc, m, n);
}

Gemm::Scratch Gemm::scratch_of(int worker) const {
    char* base = static_cast<char*>(workspace_->data()) + scratch_bytes_ * worker;
    return {base, base + a_block_bytes_, reinterpret_cast<float*>(base + a_block_bytes_ + b_tile_bytes_)};
}

void Gemm::work(int worker) {
    const Scratch scratch = scratch_of(worker);
    const auto visit = [&](long long unit) {
        Cursor cursor = schedule_.begin(unit);
        Segment segment;
        while (schedule_.next(cursor, segment)) compute(segment, scratch);
    };
    if (!schedule_.dynamic()) {
        visit(worker);
    } else {
        const long long units = schedule_.units();
        for (long long unit; (unit = next_unit_.fetch_add(1, std::memory_order_relaxed)) < units;) visit(unit);
    }
    if (kernels_.leave) kernels_.leave();
}

void Gemm::compute(const Segment& segment, const Scratch& scratch) {
    const Tile& tile = options_.tile;
    const std::int64_t row = std::int64_t{segment.tile_m} * tile.m, column = std::int64_t{segment.tile_n} * tile.n;
    const std::int64_t rows = clamp(options_.m - row, tile.m), columns = clamp(options_.n - column, tile.n);
    const bool in_place = options_.out_type == DataType::float32;
    const std::int64_t offset = row * operands_.ldc + column;
    const bool whole = segment.k_begin == 0 && segment.owner;
    const long long slot = segment.tile - (schedule_.tiles() - schedule_.shared_tiles());

    // Memory of the tile's sum: in C itself, or, where C cannot hold it, in memory of its own.
    float* sum = scratch.sums;
    std::int64_t ld = tile.n;
    if (in_place) {
        sum = static_cast<float*>(operands_.c) + offset;
        ld = operands_.ldc;
    } else if (!whole) {
        sum = reinterpret_cast<float*>(shared_sums_ + sums_bytes_ * slot);
    }

    if (segment.k_begin == 0) {
        multiply(segment, scratch, sum, ld, rows, columns);
    } else {
        // The partial sum is always formed apart, even when its turn has come: results must not depend on timing.
        // Whoever is waited for was started earlier (schedule.cuh), so there is no deadlock.
        multiply(segment, scratch, scratch.sums, tile.n, rows, columns);
        Patience patience;
        while (summed_[slot].load(std::memory_order_acquire) != segment.k_begin) patience.wait();
        product_.add(sum, ld, scratch.sums, tile.n, rows, columns);
    }
    if (segment.owner && !in_place)
        kernels_.to_bfloat16(static_cast<std::uint16_t*>(operands_.c) + offset, operands_.ldc, sum, ld, rows, columns);
    if (!whole) summed_[slot].store(segment.k_end, std::memory_order_release);
}

void Gemm::multiply(const Segment& segment, const Scratch& scratch, float* sums, std::int64_t ld, std::int64_t rows,
                    std::int64_t columns) {
    for (int k_tile = segment.k_begin; k_tile < segment.k_end; ++k_tile) {
        const std::int64_t k = std::int64_t{k_tile} * options_.tile.k;
        const std::int64_t depth = std::min<std::int64_t>(options_.tile.k, options_.k - k);
        pack_b(segment, k, depth, scratch.b_tile);
        for (int first = 0; first < a_panels_.count; first += a_panels_in_block_) {
            const int last = std::min(first + a_panels_in_block_, a_panels_.count);
            pack_a(segment, first, last, k, depth, scratch.a_block);
            multiply_block(scratch, first, last, depth, sums, ld, rows, columns, k_tile > segment.k_begin);
        }
    }
}

Contiguous Gemm::a_contiguous() const { return options_.a_transposed ? Contiguous::lanes : Contiguous::depth; }

Contiguous Gemm::b_contiguous() const { return options_.b_transposed ? Contiguous::depth : Contiguous::lanes; }

std::int64_t Gemm::a_panel_bytes(std::int64_t depth) const {
    return product_.a_panel[static_cast<int>(a_contiguous())].of(depth);
}

void Gemm::pack_a(const Segment& segment, int first_panel, int last_panel, std::int64_t k, std::int64_t depth,
                  char* a_block) const {
    const Pack pack = product_.pack_a[static_cast<int>(a_contiguous())];
    const std::int64_t row = std::int64_t{segment.tile_m} * options_.tile.m;
    const void* source = options_.a_transposed ? at(operands_.a, k, row, operands_.lda, options_.type)
                                               : at(operands_.a, row, k, operands_.lda, options_.type);
    pack(source, operands_.lda, a_panels_, first_panel, last_panel, options_.m - row, depth, a_block);
}

void Gemm::pack_b(const Segment& segment, std::int64_t k, std::int64_t depth, char* b_tile) const {
    const Pack pack = product_.pack_b[static_cast<int>(b_contiguous())];
    const std::int64_t column = std::int64_t{segment.tile_n} * options_.tile.n;
    const void* source = options_.b_transposed ? at(operands_.b, column, k, operands_.ldb, options_.type)
                                               : at(operands_.b, k, column, operands_.ldb, options_.type);
    pack(source, operands_.ldb, b_panels_, 0, b_panels_.count, options_.n - column, depth, b_tile);
}

void Gemm::multiply_block(const Scratch& scratch, int first_panel, int last_panel, std::int64_t depth, float* sums,
                          std::int64_t ld, std::int64_t rows, std::int64_t columns, bool accumulate) {
    for (int first = 0; first < options_.tile.n; first += chunk_columns_) {
        const int last = std::min(first + chunk_columns_, options_.tile.n);
        for (int panel = first_panel; panel < last_panel; ++panel) {
            const char* a_panel = scratch.a_block + (panel - first_panel) * a_panel_bytes(depth);
            multiply_row(a_panel, panel, scratch.b_tile, first, last, depth, sums, ld, rows, columns, accumulate);
        }
    }
}

// Columns outermost, which would keep a panel of B in L1, lost 4 to 5 % on AVX2 (squares of 256 to 2048, in pairs).
void Gemm::multiply_row(const char* a_panel, int panel, const char* b_tile, int first_column, int last_column,
                        std::int64_t depth, float* sums, std::int64_t ld, std::int64_t rows, std::int64_t columns,
                        bool accumulate) const {
    alignas(64) float edge[max_micro_tile];
    const int nr = product_.nr, row = a_panels_.begin(panel), height = a_panels_.begin(panel + 1) - row;
    const std::int64_t rows_inside = clamp(rows - row, height), b_panel_length = product_.b_panel.of(depth);
    const Micro micro = product_.micro[static_cast<int>(a_contiguous())][height];
    const char* b_panel = b_tile + first_column / nr * b_panel_length;
    for (int column = first_column; column < last_column; column += nr, b_panel += b_panel_length) {
        const std::int64_t columns_inside = clamp(columns - column, nr);
        float* place = sums + row * ld + column;
        if (rows_inside == height && columns_inside == nr) {
            micro(depth, a_panel, b_panel, place, ld, accumulate);
            continue;
        }
        // A micro-tile at or over the edge costs as much as one inside; only what is inside of C is kept.
        micro(depth, a_panel, b_panel, edge, nr, false);
        if (accumulate) {
            product_.add(place, ld, edge, nr, rows_inside, columns_inside);
        } else {
            for (std::int64_t r = 0; r < rows_inside; ++r)
                std::copy_n(edge + r * nr, columns_inside, place + r * ld);
        }
    }
}

}  // namespace pyperf::cpu
