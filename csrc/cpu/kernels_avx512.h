// Common parts of kernels of the AVX-512 family. Included inside their anonymous namespaces, before kernels_template.h.

constexpr int LANES = 16, MR = 14, VECTORS = 2;
typedef float Vec __attribute__((vector_size(64), may_alias));
