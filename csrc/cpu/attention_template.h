// The softmax of one instruction set: vectorised powers of two and the online step between attention's two products.
//
// Included by kernels_template.h, whose vectors, shuffles and constants it uses.

typedef std::int32_t LanesOfInt __attribute__((vector_size(LANES * 4)));

inline Vec broadcast(float value) { return Vec{} + value; }

// The second operand is taken where one is a NaN, so that a NaN among the scores comes out of exp2 as a NaN.
inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

// 2^x for x ≤ 0, exactly 0 below −126.5: no weight is ever subnormal. 2^x = 2^whole · 2^rest, |rest| ≤ ½, the latter by
// a polynomial of least relative error (2e-7 evaluated in fp32) that is exactly 1 at 0: where the maximum stays as it
// was, nothing is rescaled.
inline Vec exp2(Vec x) {
    constexpr float to_integer = 12582912.0f;  // 1.5 · 2²³: adding it leaves the nearest integer in the low bits
    x = larger(broadcast(-127.0f), x);
    const Vec shifted = x + to_integer;
    const Vec rest = x - (shifted - to_integer);
    const LanesOfInt whole = reinterpret_cast<LanesOfInt>(shifted) - 0x4b400000;  // the bits of to_integer
    Vec power = rest * 1.3264727e-3f + 9.671513e-3f;
    power = power * rest + 5.5507336e-2f;
    power = power * rest + 2.4022242e-1f;
    power = power * rest + 6.93147e-1f;
    power = power * rest + 1.0f;
    return power * reinterpret_cast<Vec>((whole + 127) << 23);
}

// Lane l takes what lane l ^ SIZE has.
template <int SIZE> struct Opposite {
    static constexpr int of(int lane) { return lane ^ SIZE; }
};

// The largest lane, in every lane.
template <int SIZE = 1> inline Vec largest_lane(Vec value) {
    if constexpr (SIZE == LANES) {
        return value;
    } else {
        return largest_lane<2 * SIZE>(larger(value, shuffle<Opposite<SIZE>>(value, value)));
    }
}

template <int SIZE = 1> inline Vec sum_of_lanes(Vec value) {
    if constexpr (SIZE == LANES) {
        return value;
    } else {
        return sum_of_lanes<2 * SIZE>(value + shuffle<Opposite<SIZE>>(value, value));
    }
}

inline void weigh(float* scores, int rows, int columns, float scale, float* maxima, float* sums, float* weighted,
           int width) {
    // All maxima before all powers: the shuffles of one row's maximum then wait while the next row is read.
    Vec highest[max_rows];
    for (int row = 0; row < rows; ++row) {
        const float* score = scores + row * A_STRIDE;
        Vec even = load(score), odd = load(score + LANES);
        for (int column = NR; column < columns; column += NR) {
            even = larger(even, load(score + column));
            odd = larger(odd, load(score + column + LANES));
        }
        highest[row] = largest_lane(larger(even, odd)) * scale;
    }
    for (int row = 0; row < rows; ++row, scores += A_STRIDE, sums += LANES, weighted += width) {
        const Vec before = broadcast(maxima[row]), maximum = larger(before, highest[row]);
        const Vec kept = exp2(before - maximum);
        maxima[row] = maximum[0];
        Vec even = load(sums) * kept, odd{};
        for (int column = 0; column < columns; column += NR) {
            const Vec first = exp2(load(scores + column) * scale - maximum);
            const Vec second = exp2(load(scores + column + LANES) * scale - maximum);
            store(scores + column, first);
            store(scores + column + LANES, second);
            even += first;
            odd += second;
        }
        store(sums, even + odd);
        for (int column = 0; column < width; column += LANES) store(weighted + column, load(weighted + column) * kept);
    }
}

inline void normalise(float* weighted, int rows, int width, const float* sums) {
    for (int row = 0; row < rows; ++row, sums += LANES, weighted += width) {
        const Vec share = broadcast(1.0f) / sum_of_lanes(load(sums));
        for (int column = 0; column < width; column += LANES)
            store(weighted + column, load(weighted + column) * share);
    }
}
