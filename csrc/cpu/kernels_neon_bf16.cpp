// NEON with instructions for blocks: BFMMLA and SMMLA multiply two rows by two columns over 64 bits of the depth each,
// which are four elements of bfloat16 or eight of int8, and add the products to a block of 2 x 2 sums.
//
// Panels of A and B are alike: panel[group of 64 bits][lane], so that two lanes side by side are an operand.
#include "cpu/kernels_isa.h"
#include "cpu/processor.h"

// Before Clang 16, arm_neon.h has these instructions only where the whole build may use them.
#if defined(__aarch64__) && (defined(__clang__) ? __clang_major__ >= 16 : __GNUC__ >= 10)
#include <cstring>
#include <utility>

#include <arm_neon.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("bf16,i8mm"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+bf16+i8mm")
#endif

namespace pyperf::cpu {
namespace {

#include "cpu/kernels_neon.h"
#include "cpu/kernels_template.h"

typedef uint64x2_t Pair;  // a group of each of two lanes

struct Bfloat16Blocks {
    using Source = std::uint16_t;
    using Sum = Vec;
    using Element = float;
    static constexpr int GROUP = 4;

    // A quarter of a group of eight lanes, where `source` is its first element of lane 0.
    static uint16x8_t quarter(const Source* source, std::int64_t) { return vld1q_u16(source); }
    static Sum multiply(Sum sum, Pair a, Pair b) {
        return vbfmmlaq_f32(sum, vreinterpretq_bf16_u64(a), vreinterpretq_bf16_u64(b));
    }
    static Sum dot(Sum sum, Vec a, Vec b) {
        return multiply(sum, reinterpret_cast<Pair>(a), reinterpret_cast<Pair>(b));
    }
};

struct Int8Blocks {
    using Source = std::int8_t;
    using Sum = SumVec;
    using Element = std::int32_t;
    static constexpr int GROUP = 8;

    static uint16x8_t quarter(const Source* source, std::int64_t ld) {
        const int8x8x2_t neighbours = vzip_s8(vld1_s8(source), vld1_s8(source + ld));
        return vreinterpretq_u16_s8(vcombine_s8(neighbours.val[0], neighbours.val[1]));
    }
    static Sum multiply(Sum sum, Pair a, Pair b) {
        return vmmlaq_s32(sum, vreinterpretq_s8_u64(a), vreinterpretq_s8_u64(b));
    }
    static Sum dot(Sum sum, Vec a, Vec b) {
        return multiply(sum, reinterpret_cast<Pair>(a), reinterpret_cast<Pair>(b));
    }
};

template <typename Format> inline std::int64_t groups_in(std::int64_t depth) {
    return (depth + Format::GROUP - 1) / Format::GROUP;
}

// Elements of rows that exist, `width` apart, among zeros. Not inlined: where the edge is, its addresses would be
// computed beside those of every block.
template <typename Source, int SIZE>
__attribute__((noinline)) void copy_edge(const Source* source, std::int64_t ld, std::int64_t rows, std::int64_t columns,
                                         int width, Source (&edge)[SIZE]) {
    for (Source& element : edge) element = 0;
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t column = 0; column < columns && column < width; ++column)
            edge[row * width + column] = source[row * ld + column];
}

// Group by group over all panels, so that rows of the source are read from end to end. Eight lanes at a time: where
// they do not divide the panel, the last eight begin earlier, and some are packed twice.
template <typename Format, int WIDTH>
void pack_blocks_by_lanes(const void* data, std::int64_t ld, const Panels& panels, int first, int last,
                          std::int64_t inside, std::int64_t depth, void* packed) {
    constexpr int GROUP = Format::GROUP, AT_ONCE = 8;
    const auto* source = static_cast<const typename Format::Source*>(data);
    const std::int64_t groups = groups_in<Format>(depth);
    for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t k = group * GROUP, there = depth - k < GROUP ? depth - k : GROUP;
        for (int panel = first; panel < last; ++panel) {
            const int begin = panels.begin(panel), lanes = panels.begin(panel + 1) - begin;
            auto* into = static_cast<std::uint64_t*>(packed) + ((panel - first) * groups + group) * WIDTH;
            for (int block = 0; block < lanes; block += AT_ONCE) {
                const int place = block + AT_ONCE <= WIDTH ? block : WIDTH - AT_ONCE;
                const std::int64_t lane = begin + place, left = inside - lane;
                const auto* from = source + k * ld + lane;
                std::int64_t step = ld;
                typename Format::Source edge[GROUP * AT_ONCE];
                if (there < GROUP || left < AT_ONCE) {
                    copy_edge(from, ld, there, left, AT_ONCE, edge);
                    from = edge;
                    step = AT_ONCE;
                }
                uint16x8x4_t quarters;
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i) quarters.val[i] = Format::quarter(from + i * (GROUP / 4) * step, step);
                vst4q_u16(reinterpret_cast<std::uint16_t*>(into + place), quarters);
            }
        }
    }
}

// Two groups of one lane, where `source` is its element k and `there` elements exist from there on.
template <typename Source> inline Pair two_groups(const Source* source, std::int64_t there) {
    constexpr int whole = sizeof(Pair) / sizeof(Source);
    Source edge[whole];
    if (there < whole) {
        copy_edge(source, 0, 1, there, whole, edge);
        source = edge;
    }
    return vreinterpretq_u64_u8(vld1q_u8(reinterpret_cast<const std::uint8_t*>(source)));
}

template <typename Format, int WIDTH>
void pack_blocks_by_depth(const void* data, std::int64_t ld, const Panels& panels, int first, int last,
                          std::int64_t inside, std::int64_t depth, void* packed) {
    const auto* source = static_cast<const typename Format::Source*>(data);
    const std::int64_t groups = groups_in<Format>(depth);
    for (int panel = first; panel < last; ++panel) {
        const int begin = panels.begin(panel), lanes = panels.begin(panel + 1) - begin;
        for (int lane = 0; lane < lanes; lane += 2) {
            auto* into = static_cast<std::uint64_t*>(packed) + (panel - first) * groups * WIDTH + lane;
            const bool one = begin + lane < inside, other = begin + lane + 1 < inside;
            const auto* row = one ? source + (begin + lane) * ld : source;
            const auto* next = other ? row + ld : source;
            for (std::int64_t group = 0; group < groups; group += 2, into += 2 * WIDTH) {
                const std::int64_t k = group * Format::GROUP;
                const Pair left = two_groups(row + k, one ? depth - k : 0);
                const Pair right = two_groups(next + k, other ? depth - k : 0);
                vst1q_u64(into, vzip1q_u64(left, right));
                if (group + 1 < groups) vst1q_u64(into + WIDTH, vzip2q_u64(left, right));
            }
        }
    }
}

template <typename Format, int ROWS>
void micro_of_blocks(std::int64_t depth, const void* a_memory, const void* b_memory, void* c, std::int64_t ldc,
                     bool accumulate) {
    using Sum = typename Format::Sum;
    constexpr int DOWN = (ROWS + 1) / 2, ACROSS = NR / 2;
    const auto *a_panel = static_cast<const std::uint64_t*>(a_memory);
    const auto *b_panel = static_cast<const std::uint64_t*>(b_memory);
    Sum sum[DOWN][ACROSS] = {};
    for (std::int64_t k = 0; k < depth; k += Format::GROUP, a_panel += MR, b_panel += NR) {
        __builtin_prefetch(b_panel + 16 * NR);
        Pair b[ACROSS];
#pragma GCC unroll 4
        for (int column = 0; column < ACROSS; ++column) b[column] = vld1q_u64(b_panel + 2 * column);
#pragma GCC unroll 8
        for (int row = 0; row < DOWN; ++row) {
            const Pair a = vld1q_u64(a_panel + 2 * row);
#pragma GCC unroll 4
            for (int column = 0; column < ACROSS; ++column)
                sum[row][column] = Format::multiply(sum[row][column], a, b[column]);
        }
    }
    // Blocks side by side become two rows.
    Sum rows[ROWS][VECTORS];
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (int vector = 0; vector < VECTORS; ++vector) {
            const auto left = reinterpret_cast<Pair>(sum[row / 2][2 * vector]);
            const auto right = reinterpret_cast<Pair>(sum[row / 2][2 * vector + 1]);
            rows[row][vector] = reinterpret_cast<Sum>(row % 2 ? vzip2q_u64(left, right) : vzip1q_u64(left, right));
        }
    finish<ROWS, VECTORS>(rows, c, ldc, accumulate);
}

// Rows of weights as an A panel; a last row without a partner is its own.
void pack_weights(const float* scores, int rows, int columns, void* a_panel) {
    for (int row = 0; row < rows; row += 2) {
        const float *one = scores + row * A_STRIDE, *other = row + 1 < rows ? one + A_STRIDE : one;
        auto* into = static_cast<std::uint64_t*>(a_panel) + row;
        for (int column = 0; column < columns; column += Bfloat16Blocks::GROUP, into += MR) {
            const bfloat16x8_t first = vcvtq_low_bf16_f32(vld1q_f32(one + column));
            vst1q_u64(into, vreinterpretq_u64_bf16(vcvtq_high_bf16_f32(first, vld1q_f32(other + column))));
        }
    }
}

template <typename Format, int... ROWS>
constexpr ProductKernels block_products(const char* unit, double rate, std::integer_sequence<int, ROWS...>,
                                        decltype(ProductKernels::pack_scores) pack_scores = nullptr) {
    constexpr PanelBytes a_panel{0, MR * 8, Format::GROUP};
    return {unit,
            MR,
            NR,
            MAX_DEPTH * Format::GROUP / 2,
            rate,
            {a_panel, a_panel},
            {0, NR * 8, Format::GROUP},
            {pack_blocks_by_lanes<Format, MR>, pack_blocks_by_depth<Format, MR>},
            {pack_blocks_by_lanes<Format, NR>, pack_blocks_by_depth<Format, NR>},
            {{nullptr, micro_of_blocks<Format, ROWS + 1>...}, {nullptr, micro_of_blocks<Format, ROWS + 1>...}},
            add<typename Format::Element>,
            pack_scores,
            spin_registers<Format>,
            MR * NR * Format::GROUP};
}

constexpr ProductKernels bfloat16_product =
    block_products<Bfloat16Blocks>("bfmmla", 4, std::make_integer_sequence<int, MR>{}, pack_weights);
constexpr ProductKernels int8_product =
    block_products<Int8Blocks>("smmla", 8, std::make_integer_sequence<int, MR>{});

}  // namespace
}  // namespace pyperf::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace pyperf::cpu {

const KernelSet* neon_bf16_kernels() {
    static const KernelSet set = with(baseline_kernels(), "neon_bf16",
                                      {{DataType::bfloat16, &bfloat16_product}, {DataType::int8, &int8_product}});
    return processor().neon_bf16 ? &set : nullptr;
}

}  // namespace pyperf::cpu
#else
namespace pyperf::cpu {
const KernelSet* neon_bf16_kernels() { return nullptr; }
}  // namespace pyperf::cpu
#endif
