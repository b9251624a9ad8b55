// AMX kernels: a tile register holds 16 rows of 64 bytes; one instruction multiplies two into a third of 16 x 16 sums.
//
// Panels are those of words (words_template.h), filled up to whole tiles. Of the eight tile registers four hold the
// sums of 32 x 32 elements, two A and two B, so each tile that is loaded is multiplied twice.
#include "cpu/kernels_isa.h"
#include "cpu/processor.h"

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 11)
#include <cstring>
#include <utility>

#include <immintrin.h>

#if defined(PYPERF_EMULATED)
#elif defined(__clang__)
#pragma clang attribute push(                                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,amx-tile,amx-bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,amx-tile,amx-bf16")
#endif

namespace pyperf::cpu {
namespace {

#include "cpu/kernels_avx512.h"
#include "cpu/kernels_template.h"
#include "cpu/words_template.h"

constexpr int TILE_ROWS = 16, TILE_WORDS = 16, MOST_ROWS = 2 * TILE_ROWS;
constexpr int TILE_DEPTH = TILE_WORDS * IN_WORD;
static_assert(NR == 2 * TILE_WORDS, "two tiles of B side by side are a panel");

// Rows of A that the tile registers of this thread are set up for; 0 before the first product of a worker's turn.
thread_local int configured_rows = 0;

// 64 bytes, as LDTILECFG reads them: palette, and the rows and bytes a row of each register.
struct alignas(64) TileConfiguration {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};

// Registers 0 to 3 are the sums, 4 and 5 A, 6 and 7 B.
void configure(int rows) {
    TileConfiguration tiles;
    // A register that is not used has a row all the same.
    const int upper = rows < TILE_ROWS ? rows : TILE_ROWS, lower = rows > TILE_ROWS ? rows - TILE_ROWS : 1;
    const int rows_of[8] = {upper, upper, lower, lower, upper, lower, TILE_ROWS, TILE_ROWS};
    for (int tile = 0; tile < 8; ++tile) {
        tiles.rows[tile] = static_cast<std::uint8_t>(rows_of[tile]);
        tiles.row_bytes[tile] = TILE_WORDS * 4;
    }
    _tile_loadconfig(&tiles);
    configured_rows = rows;
}

// A product may follow another library's on this thread, so what it finds is not relied upon.
void leave() {
    if (configured_rows == 0) return;
    _tile_release();
    configured_rows = 0;
}

template <int ROWS>
void micro_of_tiles(std::int64_t depth, const void* a_panel, const void* b_panel, float* c, std::int64_t ldc,
                    bool accumulate) {
    constexpr bool two = ROWS > TILE_ROWS;
    constexpr std::int64_t a_row = A_STRIDE * 4, b_row = NR * 4;
    if (configured_rows != ROWS) configure(ROWS);
    const char *a = static_cast<const char*>(a_panel), *b = static_cast<const char*>(b_panel);
    float* c_lower = c + TILE_ROWS * ldc;
    const std::int64_t c_row = ldc * 4;
    if (accumulate) {
        _tile_loadd(0, c, c_row);
        _tile_loadd(1, c + TILE_WORDS, c_row);
        if constexpr (two) {
            _tile_loadd(2, c_lower, c_row);
            _tile_loadd(3, c_lower + TILE_WORDS, c_row);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (two) {
            _tile_zero(2);
            _tile_zero(3);
        }
    }
    for (std::int64_t k = 0; k < depth; k += TILE_DEPTH, a += 64, b += TILE_WORDS * b_row) {
        _tile_loadd(6, b, b_row);
        _tile_loadd(4, a, a_row);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 64, b_row);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (two) {
            _tile_loadd(5, a + TILE_ROWS * a_row, a_row);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, c, c_row);
    _tile_stored(1, c + TILE_WORDS, c_row);
    if constexpr (two) {
        _tile_stored(2, c_lower, c_row);
        _tile_stored(3, c_lower + TILE_WORDS, c_row);
    }
}

void spin_tiles(std::int64_t rounds, float* values) {
    static_assert(8 * TILE_ROWS * TILE_WORDS <= spin_values, "raise spin_values");
    constexpr int tile = TILE_ROWS * TILE_WORDS;
    if (configured_rows != MOST_ROWS) configure(MOST_ROWS);
    _tile_loadd(0, values, 64);
    _tile_loadd(1, values + tile, 64);
    _tile_loadd(2, values + 2 * tile, 64);
    _tile_loadd(3, values + 3 * tile, 64);
    _tile_loadd(4, values + 4 * tile, 64);
    _tile_loadd(5, values + 5 * tile, 64);
    _tile_loadd(6, values + 6 * tile, 64);
    _tile_loadd(7, values + 7 * tile, 64);
    for (std::int64_t round = 0; round < rounds; ++round) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, values, 64);
    _tile_stored(1, values + tile, 64);
    _tile_stored(2, values + 2 * tile, 64);
    _tile_stored(3, values + 3 * tile, 64);
}

template <int... ROWS> constexpr ProductKernels tile_products(std::integer_sequence<int, ROWS...>) {
    return word_products<TILE_DEPTH, MOST_ROWS>("tdpbf16ps", 16, spin_tiles, 4 * TILE_ROWS * TILE_ROWS * TILE_DEPTH,
                                                micro_of_tiles<ROWS + 1>...);
}
constexpr ProductKernels bfloat16_product = tile_products(std::make_integer_sequence<int, MOST_ROWS>{});

}  // namespace
}  // namespace pyperf::cpu

#if defined(PYPERF_EMULATED)
#elif defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace pyperf::cpu {

const KernelSet* amx_kernels() {
    static const KernelSet set = [] {
        KernelSet amx = with_bfloat16(avx512_bf16_kernels(), "amx", bfloat16_product);
        amx.leave = leave;
        return amx;
    }();
    return avx512_bf16_kernels() && processor().amx ? &set : nullptr;
}

}  // namespace pyperf::cpu
#else
namespace pyperf::cpu {
const KernelSet* amx_kernels() { return nullptr; }
}  // namespace pyperf::cpu
#endif
