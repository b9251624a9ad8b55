// The kernels of one instruction set, written once with GCC vector extensions.
//
// Included inside the anonymous namespace of kernels_<isa>.cpp, after that file has set its target and defined
//   LANES, MR, VECTORS   lanes of a vector (4, 8, 16); rows, and vectors per row, of the micro-tile
//   Vec                  that vector
// so every function here is compiled for that instruction set alone (internal linkage: the linker cannot mix them).

constexpr int NR = LANES * VECTORS;
constexpr int A_WIDTH = (MR + LANES - 1) / LANES * LANES;
// 40 cache lines: the rows of an A panel then fall evenly on the sets of an L1 cache, whatever the depth in use.
constexpr int A_STRIDE = 640;
// Largest depth of a tile, in words of 32 bits.
constexpr int MAX_DEPTH = 512;
static_assert(A_STRIDE >= MAX_DEPTH + LANES, "a row of an A panel must hold the deepest tile and a vector more");

typedef float UnalignedVec __attribute__((vector_size(LANES * 4), aligned(1), may_alias));  // or bytes, as they lie
typedef std::uint16_t HalfVec __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef std::uint32_t BitsVec __attribute__((vector_size(LANES * 4)));
#if !defined(__clang__) && __GNUC__ < 12
typedef std::int32_t IntVec __attribute__((vector_size(LANES * 4)));
#endif

inline float widen(float value) { return value; }
inline float widen(std::uint16_t bits) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

inline Vec load(const float* source) { return *reinterpret_cast<const UnalignedVec*>(source); }
inline Vec load(const std::uint16_t* source) {
    const HalfVec half = *reinterpret_cast<const HalfVec*>(source);
    return reinterpret_cast<Vec>(__builtin_convertvector(half, BitsVec) << 16);
}
inline void store(float* into, Vec value) { *reinterpret_cast<Vec*>(into) = value; }

// Two vectors shuffled into one: lane l takes lane Index::of(l) of a and b laid end to end.
template <typename Index, int... LANE>
inline Vec shuffle(Vec a, Vec b, std::integer_sequence<int, LANE...>) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, Index::of(LANE)...);
#else
    return __builtin_shuffle(a, b, IntVec{Index::of(LANE)...});
#endif
}
template <typename Index> inline Vec shuffle(Vec a, Vec b) {
    return shuffle<Index>(a, b, std::make_integer_sequence<int, LANES>{});
}

// Inside each group of four lanes, the low or high half of a and b, interleaved by runs of SIZE lanes.
template <int SIZE, int HIGH> struct Interleave {
    static constexpr int of(int lane) {
        const int inside = lane % 4, from_b = SIZE == 1 ? inside % 2 : inside / 2;
        const int place = SIZE == 1 ? inside / 2 : inside % 2;
        return lane - inside + 2 * HIGH + place + from_b * LANES;
    }
};

// Exchanges blocks of SIZE lanes across the diagonal of the 2 × 2 blocks that two rows SIZE apart hold.
template <int SIZE, int HIGH> struct Exchange {
    static constexpr int of(int lane) {
        const bool from_b = lane & SIZE;
        return HIGH ? (from_b ? lane + LANES : lane + SIZE) : (from_b ? lane - SIZE + LANES : lane);
    }
};

template <int SIZE> inline void exchange(Vec (&rows)[LANES]) {
    if constexpr (SIZE < LANES) {
#pragma GCC unroll 16
        for (int row = 0; row < LANES; ++row) {
            if (row & SIZE) continue;
            const Vec a = rows[row], b = rows[row + SIZE];
            rows[row] = shuffle<Exchange<SIZE, 0>>(a, b);
            rows[row + SIZE] = shuffle<Exchange<SIZE, 1>>(a, b);
        }
        exchange<2 * SIZE>(rows);
    }
}

// LANES × LANES in log2(LANES) rounds of one shuffle a vector: 4 × 4 blocks first, by the interleavings that every
// x86 and Arm processor has an instruction for, then whole blocks.
inline void transpose(Vec (&rows)[LANES]) {
#pragma GCC unroll 4
    for (int row = 0; row < LANES; row += 4) {
        const Vec low_01 = shuffle<Interleave<1, 0>>(rows[row], rows[row + 1]);
        const Vec high_01 = shuffle<Interleave<1, 1>>(rows[row], rows[row + 1]);
        const Vec low_23 = shuffle<Interleave<1, 0>>(rows[row + 2], rows[row + 3]);
        const Vec high_23 = shuffle<Interleave<1, 1>>(rows[row + 2], rows[row + 3]);
        rows[row] = shuffle<Interleave<2, 0>>(low_01, low_23);
        rows[row + 1] = shuffle<Interleave<2, 1>>(low_01, low_23);
        rows[row + 2] = shuffle<Interleave<2, 0>>(high_01, high_23);
        rows[row + 3] = shuffle<Interleave<2, 1>>(high_01, high_23);
    }
    exchange<4>(rows);
}

// Row by row over all panels, not panel by panel: a row of the source is then read from end to end, which hardware
// prefetching follows (2 % of a 2048³ product). Prefetching the next row as well brought nothing.
template <typename Source, int WIDTH>
void pack_lane_contiguous(const void* data, std::int64_t ld, const Panels& panels, int first, int last,
                          std::int64_t inside, std::int64_t depth, void* panel_memory) {
    float* packed = static_cast<float*>(panel_memory);
    const Source* source = static_cast<const Source*>(data);
    int whole = first;  // panels before this one read no lane outside the matrix
    while (whole < last && panels.begin(whole) + WIDTH <= inside) ++whole;
    for (std::int64_t k = 0; k < depth; ++k, source += ld) {
        float* into = packed + k * WIDTH;
        for (int panel = first; panel < whole; ++panel, into += depth * WIDTH) {
            const int begin = panels.begin(panel);
            for (int lane = 0; lane < WIDTH; lane += LANES) store(into + lane, load(source + begin + lane));
        }
        // Packing an edge must cost no more than packing the inside, or an edge tile would cost more than a whole one.
        for (int panel = whole; panel < last; ++panel, into += depth * WIDTH) {
            const std::int64_t begin = panels.begin(panel);
            for (int lane = 0; lane < WIDTH; lane += LANES) {
                const std::int64_t there = inside - (begin + lane);
                if (there >= LANES) {
                    store(into + lane, load(source + begin + lane));
                    continue;
                }
                store(into + lane, Vec{});
                for (int valid = 0; valid < there; ++valid) into[lane + valid] = widen(source[begin + lane + valid]);
            }
        }
    }
}

// Rows that are read side by side, a line of each, are more than the hardware follows: what comes next is asked for four
// lines ahead, into L2, as rows that lie a multiple of 4 KiB apart evict each other from L1. Products of 256 rows gain 8
// to 14 % where B is stored by depth, of 1024 and 2048 rows 1 to 11 %; one line ahead, or eight, gained less.
inline void fetch_ahead(const void* at) { __builtin_prefetch(static_cast<const char*>(at) + 256, 0, 2); }

// Block by block, LANES × LANES.
template <typename Source, int WIDTH>
void pack_depth_contiguous(const void* data, std::int64_t ld, const Panels& panels, int first, int last,
                           std::int64_t inside, std::int64_t depth, void* panel_memory) {
    float* packed = static_cast<float*>(panel_memory);
    for (int panel = first; panel < last; ++panel, packed += depth * WIDTH) {
        const std::int64_t begin = panels.begin(panel), lanes = inside - begin;
        const Source* source = static_cast<const Source*>(data) + (lanes > 0 ? begin * ld : 0);
        const std::int64_t whole = depth / LANES * LANES;
        for (std::int64_t k = 0; k < whole; k += LANES)
            for (int block = 0; block < WIDTH; block += LANES) {
                Vec rows[LANES];
                if (block + LANES <= lanes) {
#pragma GCC unroll 16
                    for (int lane = 0; lane < LANES; ++lane) {
                        rows[lane] = load(source + (block + lane) * ld + k);
                        fetch_ahead(source + (block + lane) * ld + k);
                    }
                } else {
                    for (int lane = 0; lane < LANES; ++lane)
                        rows[lane] = block + lane < lanes ? load(source + (block + lane) * ld + k) : Vec{};
                }
                transpose(rows);
#pragma GCC unroll 16
                for (int step = 0; step < LANES; ++step) store(packed + (k + step) * WIDTH + block, rows[step]);
            }
        for (std::int64_t k = whole; k < depth; ++k)
            for (std::int64_t lane = 0; lane < WIDTH; ++lane)
                packed[k * WIDTH + lane] = lane < lanes ? widen(source[lane * ld + k]) : 0.0f;
    }
}

// Rows copied as they are. The micro-kernel reads single elements of A, so they need not be transposed, which would
// cost more than the copy (tried: 3 % of a 256³ product); a copy in place of A itself keeps rows that lie a multiple
// of 4 KiB apart from evicting each other.
template <typename Source>
void pack_rows(const void* data, std::int64_t ld, const Panels& panels, int first, int last, std::int64_t inside,
               std::int64_t depth, void* panel_memory) {
    float* packed = static_cast<float*>(panel_memory);
    const std::int64_t whole = depth / LANES * LANES;
    for (int panel = first; panel < last; ++panel, packed += MR * A_STRIDE) {
        float* into = packed;
        for (std::int64_t lane = panels.begin(panel); lane < panels.begin(panel + 1); ++lane, into += A_STRIDE) {
            if (lane >= inside) {
                for (std::int64_t k = 0; k < depth; k += LANES) store(into + k, Vec{});
                continue;
            }
            const Source* row = static_cast<const Source*>(data) + lane * ld;
            for (std::int64_t k = 0; k < whole; k += LANES) store(into + k, load(row + k));
            for (std::int64_t k = whole; k < depth; ++k) into[k] = widen(row[k]);
        }
    }
}

// All loads of C before all stores: rows often lie a multiple of 4 KiB apart, where a load would be taken to depend on
// the store before it.
template <int ROWS, int WIDE>
inline void finish(Vec (&sum)[ROWS][WIDE], float* c, std::int64_t ldc, bool accumulate) {
    typedef Vec Unaligned __attribute__((aligned(4), may_alias));
    const auto place = [&](int row, int vector) -> Unaligned& {
        return *reinterpret_cast<Unaligned*>(c + row * ldc + vector * LANES);
    };
    if (accumulate) {
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
            for (int vector = 0; vector < WIDE; ++vector) sum[row][vector] += place(row, vector);
    }
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (int vector = 0; vector < WIDE; ++vector) place(row, vector) = sum[row][vector];
}

template <int ROWS, int ROW_STEP, int DEPTH_STEP, int WIDE = VECTORS>
void micro(std::int64_t depth, const void* a_memory, const void* b_memory, float* c, std::int64_t ldc,
           bool accumulate) {
    constexpr int WIDTH = WIDE * LANES;
    const float *a_panel = static_cast<const float*>(a_memory), *b_panel = static_cast<const float*>(b_memory);
    Vec sum[ROWS][WIDE] = {};
    for (std::int64_t k = 0; k < depth; ++k, a_panel += DEPTH_STEP, b_panel += WIDTH) {
        // B comes from L2 and is fetched ahead of its use (5 % of a 1024³ product). Fetching C ahead brought nothing:
        // its rows are visited from end to end, which the hardware foresees.
        for (int lane = 0; lane < WIDTH; lane += 16) __builtin_prefetch(b_panel + 32 * WIDTH + lane);
        Vec b[WIDE];
#pragma GCC unroll 4
        for (int vector = 0; vector < WIDE; ++vector)
            b[vector] = *reinterpret_cast<const Vec*>(b_panel + vector * LANES);
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 4
            for (int vector = 0; vector < WIDE; ++vector) sum[row][vector] += a_panel[row * ROW_STEP] * b[vector];
        }
    }
    finish<ROWS, WIDE>(sum, c, ldc, accumulate);
}

// Nothing to the processor. The compiler takes the value for another one, and so forms no product once for all.
inline void renew(Vec& value) {
#if defined(__aarch64__)
    __asm__ volatile("" : "+w"(value));
#elif defined(__x86_64__) && !defined(PYPERF_EMULATED)
    __asm__ volatile("" : "+v"(value));
#else
    __asm__ volatile("" : "+m"(value));
#endif
}

// Sums begin with different values, or they would be found alike and formed once.
template <typename Unit> void spin_registers(std::int64_t rounds, float* values) {
    static_assert((MR * VECTORS + VECTORS + 1) * LANES <= spin_values, "raise spin_values");
    Vec* sums = reinterpret_cast<Vec*>(values);
    const Vec* operands = sums + MR * VECTORS;
    Vec a = operands[VECTORS];
    Vec b[VECTORS];
    Vec sum[MR][VECTORS];
#pragma GCC unroll 4
    for (int vector = 0; vector < VECTORS; ++vector) b[vector] = operands[vector];
#pragma GCC unroll 16
    for (int row = 0; row < MR; ++row)
#pragma GCC unroll 4
        for (int vector = 0; vector < VECTORS; ++vector) sum[row][vector] = sums[row * VECTORS + vector];
    for (std::int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 16
        for (int row = 0; row < MR; ++row) {
            renew(a);
#pragma GCC unroll 4
            for (int vector = 0; vector < VECTORS; ++vector)
                sum[row][vector] = Unit::dot(sum[row][vector], a, b[vector]);
        }
#pragma GCC unroll 16
    for (int row = 0; row < MR; ++row)
#pragma GCC unroll 4
        for (int vector = 0; vector < VECTORS; ++vector) sums[row * VECTORS + vector] = sum[row][vector];
}

struct Fma {
    static Vec dot(Vec sum, Vec a, Vec b) { return sum + a * b; }
};

void add(float* into, std::int64_t ld_into, const float* from, std::int64_t ld_from, std::int64_t rows,
         std::int64_t columns) {
    for (std::int64_t row = 0; row < rows; ++row, into += ld_into, from += ld_from)
        for (std::int64_t column = 0; column < columns; ++column) into[column] += from[column];
}

// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
void to_bfloat16(std::uint16_t* into, std::int64_t ld_into, const float* from, std::int64_t ld_from,
                 std::int64_t rows, std::int64_t columns) {
    for (std::int64_t row = 0; row < rows; ++row, into += ld_into, from += ld_from)
        for (std::int64_t column = 0; column < columns; ++column) {
            std::uint32_t bits;
            std::memcpy(&bits, from + column, sizeof bits);
            const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
            const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
            into[column] = static_cast<std::uint16_t>(is_nan ? (bits >> 16) | 0x40u : rounded);
        }
}

#include "cpu/attention_template.h"

// Products of operands that are widened to fp32 where they are packed.
template <typename Source, int... ROWS>
constexpr ProductKernels widened_products(std::integer_sequence<int, ROWS...>) {
    return {"fma",
            MR,
            NR,
            MAX_DEPTH,
            1,
            {{0, A_WIDTH * 4, 1}, {MR * A_STRIDE * 4, 0, 1}},
            {0, NR * 4, 1},
            {pack_lane_contiguous<Source, A_WIDTH>, pack_rows<Source>},
            {pack_lane_contiguous<Source, NR>, pack_depth_contiguous<Source, NR>},
            {{nullptr, micro<ROWS + 1, 1, A_WIDTH>...}, {nullptr, micro<ROWS + 1, A_STRIDE, 1>...}},
            add,
            nullptr,
            spin_registers<Fma>,
            MR * NR};
}

// constexpr, so that no code of this instruction set runs before it is known to be usable.
template <int... ROWS> constexpr KernelSet kernel_set(const char* name, std::integer_sequence<int, ROWS...> rows) {
    using Half = std::uint16_t;
    return {name,
            {widened_products<float>(rows), widened_products<Half>(rows)},
            to_bfloat16,
            {LANES,
             A_STRIDE,
             {pack_lane_contiguous<float, LANES>, pack_lane_contiguous<Half, LANES>},
             {nullptr, micro<ROWS + 1, A_STRIDE, 1, 1>...},
             weigh,
             normalise},
            nullptr};
}

static_assert(MR <= max_rows, "ProductKernels::micro has no place for so many rows: raise max_rows");
