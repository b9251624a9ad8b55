// The instructions of AVX-512 and AMX that the CPU kernels name, in plain C++: what they compute, not how fast.
//
// Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (VDPBF16PS, LDTILECFG,
// TILELOADD, TDPBF16PS).
#pragma once

#include <immintrin.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace emulated {

typedef std::int32_t Words __attribute__((vector_size(64), may_alias));
typedef float Floats __attribute__((vector_size(64), may_alias));

inline float from_bfloat16(std::uint32_t bits) {
    bits <<= 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// The odd element first, as the manual has it.
inline float bfloat16_pair(float sum, std::int32_t a, std::int32_t b) {
    const auto left = static_cast<std::uint32_t>(a), right = static_cast<std::uint32_t>(b);
    sum += from_bfloat16(left >> 16) * from_bfloat16(right >> 16);
    return sum + from_bfloat16(left) * from_bfloat16(right);
}

inline __m512 dpbf16(__m512 sum, __m512i a, __m512i b) {
    Floats sums = reinterpret_cast<Floats>(sum);
    const Words left = reinterpret_cast<Words>(a), right = reinterpret_cast<Words>(b);
    for (int lane = 0; lane < 16; ++lane) sums[lane] = bfloat16_pair(sums[lane], left[lane], right[lane]);
    return reinterpret_cast<__m512>(sums);
}

// The tile registers of a thread. What real ones would fault at ends the program.
struct Tiles {
    std::array<std::uint8_t, 64> configuration{};
    std::array<std::array<std::array<std::int32_t, 16>, 16>, 8> data{};

    int rows(int tile) const { return configuration[48 + tile]; }
    void require(bool right) const {
        if (!right || configuration[0] != 1) std::abort();
    }
};
inline thread_local Tiles tiles;

inline void load_configuration(const void* from) {
    std::memcpy(tiles.configuration.data(), from, 64);
    for (int tile = 0; tile < 8; ++tile) {
        std::uint16_t bytes;
        std::memcpy(&bytes, tiles.configuration.data() + 16 + 2 * tile, 2);
        tiles.require(tiles.rows(tile) >= 1 && tiles.rows(tile) <= 16 && bytes == 64);
        for (auto& row : tiles.data[tile]) row.fill(0x7fc07fc0);  // what nobody loaded must not be used
    }
}
inline void release() { tiles = Tiles{}; }
inline void zero(int tile) {
    tiles.require(true);
    for (auto& row : tiles.data[tile]) row.fill(0);
}
inline void load(int tile, const void* from, std::int64_t stride) {
    tiles.require(true);
    for (int row = 0; row < tiles.rows(tile); ++row)
        std::memcpy(tiles.data[tile][row].data(), static_cast<const char*>(from) + row * stride, 64);
}
inline void store(int tile, void* into, std::int64_t stride) {
    tiles.require(true);
    for (int row = 0; row < tiles.rows(tile); ++row)
        std::memcpy(static_cast<char*>(into) + row * stride, tiles.data[tile][row].data(), 64);
}
inline void multiply(int sum, int a, int b) {
    tiles.require(tiles.rows(sum) == tiles.rows(a) && tiles.rows(b) == 16);
    for (int row = 0; row < tiles.rows(sum); ++row)
        for (int word = 0; word < 16; ++word)
            for (int column = 0; column < 16; ++column) {
                float value;
                std::memcpy(&value, &tiles.data[sum][row][column], 4);
                value = bfloat16_pair(value, tiles.data[a][row][word], tiles.data[b][word][column]);
                std::memcpy(&tiles.data[sum][row][column], &value, 4);
            }
}

}  // namespace emulated

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _mm512_dpbf16_ps(sum, a, b) \
    emulated::dpbf16(sum, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b))
#define _tile_loadconfig emulated::load_configuration
#define _tile_release emulated::release
#define _tile_zero emulated::zero
#define _tile_loadd emulated::load
#define _tile_stored emulated::store
#define _tile_dpbf16ps emulated::multiply
