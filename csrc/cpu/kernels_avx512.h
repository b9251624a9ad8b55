// What kernels of the AVX-512 family share. Included inside their anonymous namespaces, before kernels_template.h.

constexpr int LANES = 16, MR = 14, VECTORS = 2;
typedef float Vec __attribute__((vector_size(64), may_alias));

// Two products of 16 bits, summed in each lane.
inline auto products_of_shorts(Vec a, Vec b) {
    return reinterpret_cast<__v16si>(_mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
