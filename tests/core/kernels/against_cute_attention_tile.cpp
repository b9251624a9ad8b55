// Answers of attention_tile.cuh where against_cute_attention.cpp has CuTe's answers, in the same order.
#include <cstdint>
#include <cstdio>
#include <string>

#include "attention_tile.cuh"

using namespace pyperf;

static std::string what;

static void put(std::int64_t number) { std::fwrite(&number, sizeof number, 1, stdout); }

// Both kinds lie in panels of rows one swizzle span wide: of Q and K the rows are M or N, of V they are K.
template <bool is_value>
static void operand(int extent, int depth) {
    const AttentionTile tile{is_value ? depth : extent, is_value ? extent : depth, 2, 1};
    const Operand panel = tile.k();
    for (int i = 0; i < extent && what == "maps"; ++i)
        for (int k = 0; k < depth; ++k) {
            const int row = is_value ? k : i, column = is_value ? i : k;
            const int plain = row * tile.span() + column % tile.panel_columns() * 2;
            put(column / tile.panel_columns() * panel.bytes() + swizzled(plain, tile.span()));
        }
    for (int step = 0; step < depth / wgmma_k && what == "descriptors"; ++step)
        put(static_cast<std::int64_t>(is_value ? tile.v().descriptor(tile.v().offset(0, step) / 16)
                                               : panel.descriptor(tile.offset(panel, 0, step) / 16)));
}

#define OPERAND(major, extent, depth, span) operand<major>(extent, depth);
#define HEAD_MAP(...)
constexpr bool K = false, MN = true;

int main(int, char** arguments) {
    what = arguments[1];
#include "cases.h"
    // Eight sums in a row, packed in pairs, are what a thread has of the first product's operand in registers.
    for (int thread = 0; thread < warpgroup_threads && what == "weights"; ++thread)
        for (int i = 0; i < 8; ++i) {
            const int lane = thread % warp_threads;
            put(warp_row(thread / warp_threads, 0, 1) + fragment_row(lane, i) + fragment_column(lane, i) * wgmma_m);
        }
}
