// Values of inputs by a counter-based generator, the same bit for bit here and in numpy: see workloads/operands.py.
//
// Philox4x64-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011). Each 64-bit word gives four
// indices of 16 bits into a table of values, so nothing is computed that two sides could round differently.
#pragma once

#if defined(__CUDACC__)
#define PYPERF_FILL __device__ __forceinline__
#else
#define PYPERF_FILL inline
#endif

namespace pyperf {

using u64 = unsigned long long;

constexpr int elements_per_draw = 16;

struct Draw {
    u64 words[4];
};

PYPERF_FILL u64 high_half(u64 left, u64 right) {
#if defined(__CUDACC__)
    return __umul64hi(left, right);
#else
    __extension__ using Wide = unsigned __int128;
    return static_cast<u64>((static_cast<Wide>(left) * right) >> 64);
#endif
}

// The words that belong to a counter; numpy's first draw has counter 1.
PYPERF_FILL Draw draw(u64 counter, u64 key_low, u64 key_high) {
    constexpr u64 multipliers[] = {0xD2E7470EE14C6C93ull, 0xCA5A826395121157ull};
    constexpr u64 steps[] = {0x9E3779B97F4A7C15ull, 0xBB67AE8584CAA73Bull};
    u64 a = counter, b = 0, c = 0, d = 0;
    for (int round = 0; round < 10; ++round) {
        const u64 high_a = high_half(multipliers[0], a), low_a = multipliers[0] * a;
        const u64 high_c = high_half(multipliers[1], c), low_c = multipliers[1] * c;
        a = high_c ^ b ^ key_low;
        b = low_c;
        c = high_a ^ d ^ key_high;
        d = low_a;
        key_low += steps[0];
        key_high += steps[1];
    }
    return {{a, b, c, d}};
}

// Writes elements [16·part, 16·part + 16) of `out`, as far as `count` goes. `table` has 65,536 values.
template <class Element>
PYPERF_FILL void fill_part(Element* out, const Element* table, u64 count, u64 key_low, u64 key_high, u64 part) {
    const Draw drawn = draw(part + 1, key_low, key_high);
    for (int at = 0; at < elements_per_draw; ++at) {
        const u64 element = part * elements_per_draw + at;
        if (element < count) out[element] = table[drawn.words[at / 4] >> (16 * (at % 4)) & 0xFFFF];
    }
}

}  // namespace pyperf
