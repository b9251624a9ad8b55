// Answers of tile.cuh where against_cute.cpp has CuTe's answers, in the same order: 64-bit numbers to the standard output.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tile.cuh"

using namespace pyperf;

static std::string what;

static void put(std::int64_t number) { std::fwrite(&number, sizeof number, 1, stdout); }

// To which byte of shared memory each element comes: panel by panel as load() of gemm_sm90.cu asks for them, a box's rows
// one behind the other, and the swizzle of the copy engine over all.
static void put_map(const Operand& operand) {
    std::vector<int> places(operand.extent * operand.depth, -1);
    for (int slice = 0; slice < operand.shared_by; ++slice)
        for (int panel = 0; panel < operand.panels(); ++panel)
            for (int j = 0; j < operand.box_rows(); ++j)
                for (int i = 0; i < operand.box_columns(); ++i) {
                    const int contiguous = (operand.mn_major ? panel * operand.box_columns() : 0) + i;
                    const int row = slice * operand.box_rows() + j;
                    const int box = panel * operand.panel_bytes() + slice * operand.box_bytes();
                    const int offset = box + j * operand.span() + i * operand.element_bytes;
                    const std::size_t element = operand.mn_major ? contiguous * operand.depth + row
                                                                 : row * operand.depth + contiguous;
                    if (element < places.size()) places[element] = swizzled(offset, operand.span());
                }
    for (int place : places) put(place);
}

static void operand(int element_bytes, bool mn_major, int extent, int depth, int rows, int most_shared) {
    for (int shared = 1; shared <= most_shared && what == "maps"; ++shared)
        put_map({extent, depth, element_bytes, mn_major, shared});
    const Operand own{extent, depth, element_bytes, mn_major, 1};
    for (int row = 0; rows > 0 && row < extent && what == "descriptors"; row += rows)
        for (int step = 0; step < depth * element_bytes / wgmma_k_bytes; ++step)
            put(static_cast<std::int64_t>(own.descriptor(own.offset(row, step) / 16)));
}

static void accumulator(int n) {
    for (int thread = 0; thread < warpgroup_threads; ++thread)
        for (int i = 0; i < n / 2; ++i) {
            const int lane = thread % warp_threads;
            const int row = warp_row(thread / warp_threads, 0, 1) + fragment_row(lane, i);
            put(row + fragment_column(lane, i) * wgmma_m);
        }
}

constexpr int Bf16 = 2, Fp16 = 2, E4m3 = 1, Fp32 = 4;
constexpr bool K = false, MN = true;
#define OPERAND(element, major, extent, depth, span, rows, shared, ...) \
    operand(element, major, extent, depth, rows, shared);
#define ACCUMULATOR(n, ...) \
    if (what == "accumulators") accumulator(n);

int main(int, char** arguments) {
    what = arguments[1];
#include "cases.h"
}
