// What kernels of the NEON family share. Included inside their anonymous namespaces, before kernels_template.h.

// GCC's scheduler before register allocation would read all of A ahead of its use, and then has no registers left for
// five of the 24 sums.
#if !defined(__clang__)
#pragma GCC optimize("no-schedule-insns")
#endif

constexpr int LANES = 4, MR = 12, VECTORS = 2;
typedef float Vec __attribute__((vector_size(16), may_alias));

// Two products of 16 bits, summed in each lane.
inline auto products_of_shorts(Vec a, Vec b) {
    typedef std::int32_t Sums __attribute__((vector_size(16)));
    const int16x8_t left = reinterpret_cast<int16x8_t>(a), right = reinterpret_cast<int16x8_t>(b);
    return reinterpret_cast<Sums>(vpaddq_s32(vmull_s16(vget_low_s16(left), vget_low_s16(right)),
                                             vmull_high_s16(left, right)));
}
