// What an instruction set contributes to the GEMM and to attention: packing, register micro-kernels, a tile's finish.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pyperf::cpu {

enum class DataType : int { float32 = 0, bfloat16 = 1 };

inline int bytes_of(DataType type) { return type == DataType::float32 ? 4 : 2; }

// Lanes (rows of A, columns of B) dealt out to panels as evenly as can be: the first `longer` get one more.
struct Panels {
    int count;
    int lanes;
    int longer;

    static Panels evenly(int lanes, int most) {
        const int count = (lanes + most - 1) / most;
        return {count, lanes / count, lanes % count};
    }
    int begin(int panel) const { return panel * lanes + (panel < longer ? panel : longer); }
};

// How a matrix is stored along the lanes and the inner dimension (the depth):
//   lanes: element (lane, k) at lane + k · ld      A stored [K,M], B stored [K,N]
//   depth: element (lane, k) at lane · ld + k      A stored [M,K], B stored [N,K]
enum class Contiguous : int { lanes = 0, depth = 1 };

// Packs panels [first, last) one after another, as fp32. Lanes that lie outside of the matrix, which has `inside` of
// them counted from panel 0, are zero. The layout of a panel:
//   B, and A stored by lanes: panel[k][lane], with nr or a_width lanes
//   A stored by depth:        panel[lane][k], with a_stride places for k
using Pack = void (*)(const void* source, std::int64_t ld, const Panels& panels, int first, int last,
                      std::int64_t inside, std::int64_t depth, float* packed);

// C[rows, nr] (+)= A-panel · B-panel; `rows` and the layout of the A panel are fixed by the place in KernelSet::micro.
using Micro = void (*)(std::int64_t depth, const float* a_panel, const float* b_panel, float* c, std::int64_t ldc,
                       bool accumulate);

constexpr int max_rows = 14;
constexpr int max_tile_depth = 512;

// What attention needs beside the products: a narrower panel, so that head_dim is padded to one vector only, and the
// softmax. Rows of scores lie a_stride apart, as the A panel stored by depth that the product with V then reads.
struct AttentionKernels {
    int lanes;             // of a vector
    Pack pack_narrow[2];   // [DataType]; B stored by lanes, into panels of one vector
    Micro micro_narrow[max_rows + 1];  // [rows]; an A panel stored by depth with a B panel of one vector
    // One step of the online softmax over `rows` rows of `columns` scores, a multiple of nr: scores become weights
    // 2^(scale · score − maximum), and what was summed under a smaller maximum is scaled down to the new one.
    //   maxima[rows]           the largest scale · score so far; −∞ before the first step
    //   sums[rows][lanes]      the sum of the weights so far, a part in each lane; 0 before the first step
    //   weighted[rows][width]  the weighted sum of V so far; width is a multiple of lanes
    void (*weigh)(float* scores, int rows, int columns, float scale, float* maxima, float* sums, float* weighted,
                  int width);
    // weighted[row] /= the sum of sums[row].
    void (*normalise)(float* weighted, int rows, int width, const float* sums);
};

struct KernelSet {
    const char* name;
    int mr;  // most rows a micro-kernel takes
    int nr;  // columns of a micro-kernel: width of a B panel
    int a_width;   // lanes of an A panel stored by lanes; at least mr
    int a_stride;  // floats from row to row of an A panel stored by depth; more than max_tile_depth
    Pack pack_a[2][2];  // [DataType][Contiguous]
    Pack pack_b[2][2];
    Micro micro[2][max_rows + 1];  // [Contiguous, of A][rows], 1 … mr
    void (*add)(float* into, std::int64_t ld_into, const float* from, std::int64_t ld_from, std::int64_t rows,
                std::int64_t columns);
    void (*to_bfloat16)(std::uint16_t* into, std::int64_t ld_into, const float* from, std::int64_t ld_from,
                        std::int64_t rows, std::int64_t columns);
    AttentionKernels attention;
};

// The kernel sets this processor can run, best first.
const std::vector<const KernelSet*>& usable_kernels();

// By name; an empty name is the best one. Throws InputError naming what is usable here.
const KernelSet& kernels_named(const std::string& name);

}  // namespace pyperf::cpu
