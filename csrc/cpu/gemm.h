// C[M,N] = A[M,K] · B[K,N] on the CPU, with the tile and the schedule chosen by the caller.
//
// It is laid out as a GPU kernel is, so that tile and wave quantization can be measured here too: a worker stands for
// a multiprocessor, its packed panels for shared memory, and an output tile that hangs over the edge of C costs as
// much as a whole one (its panels are padded with zeros, its result is clipped). The inner dimension is not padded.
#pragma once

#include "cpu/kernels.h"
#include "cpu/workspace.h"
#include "schedule.cuh"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace pyperf::cpu {

struct GemmOptions {
    std::int64_t m = 0, n = 0, k = 0;
    DataType type = DataType::float32;      // of A and B; sums are fp32
    DataType out_type = DataType::float32;  // of C
    bool a_transposed = false;              // A is stored [K,M] instead of [M,K]
    bool b_transposed = false;              // B is stored [N,K] instead of [K,N]
    Tile tile{};
    ScheduleKind schedule = ScheduleKind::data_parallel;
    std::int64_t splits = 1;
    std::int64_t workers = 1;
    std::int64_t group = 1;
    std::string isa;  // empty: the best one here
    bool pin = true;
};

// Row-major operands; leading dimensions in elements, at least the stored row length.
struct GemmOperands {
    const void* a;
    std::int64_t lda;
    const void* b;
    std::int64_t ldb;
    void* c;
    std::int64_t ldc;
};

// Throws InputError, one sentence with the limit and the nearest tile that can be computed.
void check_tile(std::int64_t m, std::int64_t n, std::int64_t k, const KernelSet& kernels, DataType type);

// The schedule of a product. Throws InputError on values out of range.
Schedule make_schedule(std::int64_t m, std::int64_t n, std::int64_t k, const Tile& tile, ScheduleKind kind,
                       std::int64_t splits, std::int64_t workers, std::int64_t group);

class Gemm {
  public:
    // Allocates the workspace and starts the threads. Throws InputError on bad input.
    explicit Gemm(const GemmOptions& options);

    // Overwrites C and nothing outside it. Allocates nothing. Calls on the same object take turns.
    void run(const GemmOperands& operands);

    const KernelSet& kernels() const { return kernels_; }
    const ProductKernels& product() const { return product_; }
    int workers() const { return schedule_.workers; }
    bool pinned() const { return pinned_; }
    std::size_t workspace_bytes() const { return workspace_->bytes(); }

  private:
    struct Scratch;  // the packed panels and the partial tile of one worker

    void work(int worker);
    void compute(const Segment& segment, const Scratch& scratch);
    void multiply(const Segment& segment, const Scratch& scratch, float* sums, std::int64_t ld, std::int64_t rows,
                  std::int64_t columns);
    void multiply_block(const Scratch& scratch, int first_panel, int last_panel, std::int64_t depth, float* sums,
                        std::int64_t ld, std::int64_t rows, std::int64_t columns, bool accumulate);
    void multiply_row(const char* a_panel, int panel, const char* b_tile, int first_column, int last_column,
                      std::int64_t depth, float* sums, std::int64_t ld, std::int64_t rows, std::int64_t columns,
                      bool accumulate) const;
    void pack_a(const Segment& segment, int first_panel, int last_panel, std::int64_t k, std::int64_t depth,
                char* a_block) const;
    void pack_b(const Segment& segment, std::int64_t k, std::int64_t depth, char* b_tile) const;
    Contiguous a_contiguous() const;
    Contiguous b_contiguous() const;
    std::int64_t a_panel_bytes(std::int64_t depth) const;
    Scratch scratch_of(int worker) const;
    void check(const GemmOperands& operands) const;

    GemmOptions options_;
    const KernelSet& kernels_;
    const ProductKernels& product_;
    Schedule schedule_;
    std::vector<int> cores_;
    Panels a_panels_, b_panels_;  // of a tile
    int a_panels_in_block_;       // how many of A's are packed and kept in L2 at a time
    int chunk_columns_;           // of B's panels that stay in L2 beside them
    std::size_t a_block_bytes_, b_tile_bytes_, sums_bytes_, scratch_bytes_;
    std::unique_ptr<Workspace> workspace_;
    char* shared_sums_;          // of each shared tile, where C cannot hold them; in the workspace
    std::atomic<int>* summed_;   // of each shared tile: how many k-tiles are in its sum; in the workspace
    std::atomic<long long> next_unit_{0};
    std::mutex turn_;  // held by run(): the workspace serves one product at a time
    GemmOperands operands_{};
    bool pinned_ = false;
};

}  // namespace pyperf::cpu
