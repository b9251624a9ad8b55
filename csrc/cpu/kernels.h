// Parts of an instruction set for the GEMM and for attention: packing, register micro-kernels, a tile's finish.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pyperf::cpu {

enum class DataType : int { float32 = 0, bfloat16 = 1 };
constexpr int data_types = 2;

inline int bytes_of(DataType type) { return type == DataType::bfloat16 ? 2 : 4; }

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

// Packs panels [first, last) one after another, each as long as PanelBytes says. Lanes that lie outside of the matrix,
// which has `inside` of them counted from panel 0, are zero, and so is the depth up to a whole step of the panel.
using Pack = void (*)(const void* source, std::int64_t ld, const Panels& panels, int first, int last,
                      std::int64_t inside, std::int64_t depth, void* packed);

// C[rows, nr] (+)= A-panel · B-panel; `rows` and the layout of the A panel are fixed by the place in
// ProductKernels::micro.
using Micro = void (*)(std::int64_t depth, const void* a_panel, const void* b_panel, float* c, std::int64_t ldc,
                       bool accumulate);

constexpr int max_rows = 32;
constexpr int spin_values = 2048;

// Bytes of a packed panel: the depth is filled up with zeros to whole steps.
struct PanelBytes {
    std::int64_t fixed, each;
    int step;

    std::int64_t of(std::int64_t depth) const { return fixed + (depth + step - 1) / step * each; }
};

// The products of one type of operands. Layouts of panels, by what the instruction sums into a lane of 32 bits:
//   one element: fp32, and what is widened to it
//     B, and A stored by lanes: panel[k][lane], with nr lanes, or A's rounded up to vectors
//     A stored by depth:        panel[lane][k], rows of 2,560 bytes
//   a word of neighbours in the depth, two of 16 bits
//     B: panel[word][lane]; A, however it is stored: panel[lane][word], rows of 2,560 bytes
struct ProductKernels {
    const char* unit;  // the instructions that multiply, as a record names them
    int mr;  // most rows a micro-kernel takes
    int nr;  // columns of a micro-kernel: width of a B panel
    int max_depth;     // of a tile
    double rate;       // multiply-adds a cycle over those of fp32 in this instruction set, by the instructions' width
    PanelBytes a_panel[2];  // [Contiguous, of A]
    PanelBytes b_panel;
    Pack pack_a[2];  // [Contiguous]
    Pack pack_b[2];
    Micro micro[2][max_rows + 1];  // [Contiguous, of A][rows], 1 … mr
    void (*add)(float* into, std::int64_t ld_into, const float* from, std::int64_t ld_from, std::int64_t rows,
                std::int64_t columns);
    // Rows of fp32 as an A panel; null where rows that lie `score_stride` apart are one as they are.
    void (*pack_scores)(const float* scores, int rows, int columns, void* a_panel);
    // The micro-kernel's multiplications alone, `rounds` rounds of them on registers that are filled from `values`, of
    // `spin_values` floats, and written back: what no product can exceed (peak.h).
    void (*spin)(std::int64_t rounds, float* values);
    double multiply_adds;  // of a round
};

// Parts of attention beside the products: a narrower panel of fp32, so that head_dim is padded to one vector only, and
// the softmax.
struct AttentionKernels {
    int lanes;         // of a vector
    int score_stride;  // floats from row to row of scores, as in an A panel of fp32 stored by depth
    Pack pack_narrow[2];               // [DataType]; B stored by lanes, into panels of one vector of fp32
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
    ProductKernels products[data_types];  // [DataType]
    void (*to_bfloat16)(std::uint16_t* into, std::int64_t ld_into, const float* from, std::int64_t ld_from,
                        std::int64_t rows, std::int64_t columns);
    AttentionKernels attention;
    void (*leave)();  // what a worker calls when it is done; null where it leaves nothing behind

    const ProductKernels& of(DataType type) const { return products[static_cast<int>(type)]; }
};

// The kernel sets this processor can run, best first.
const std::vector<const KernelSet*>& usable_kernels();

// By name; an empty name is the best one. Throws InputError naming what is usable here.
const KernelSet& kernels_named(const std::string& name);

}  // namespace pyperf::cpu
