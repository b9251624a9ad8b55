// Comparison of mma.m16n8k16 as it is emulated with CuTe, whose numbers are the standard input: for A, B
// and C the element of each thread's registers, counted down columns. For each place 1 or 0 goes to the standard output.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "emulated_ptx_sm80.cuh"

char shared_memory[1];

namespace emulation {

Index block_index{0};
bool copies_arrive_late = false;
std::size_t shared_bytes = 0;
std::vector<Region> regions;
static Lane lanes[32];
static int current;
Index thread_index() { return {current}; }
Lane& lane_of(int, int lane) { return lanes[lane]; }
Lane& this_lane() { return lanes[current]; }
void wait_for_block() {}
// Lanes come one after the other, and what the last of them does is done for all.
void wait_for_warp(Meeting, const std::function<void(int)>& act) {
    if (current == 31) act(0);
}

}  // namespace emulation

constexpr int m = 16, n = 8, k = 16;
struct Places {
    std::int64_t a[32][8], b[32][4], c[32][4];
};
static Places theirs;

// Small whole numbers, which bf16 has: only sums of the right products are right.
static int number(int seed) { return seed * 7919 % 127 - 63; }

static unsigned bf16(int value) {
    const float single = static_cast<float>(value);
    unsigned word;
    std::memcpy(&word, &single, 4);
    return word >> 16;
}

// A·B with elements where CuTe puts them: the sums as each lane has them.
static void multiply(const int (&a)[m * k], const int (&b)[n * k], float (&sums)[32][4]) {
    std::memset(sums, 0, sizeof sums);
    for (int lane = 0; lane < 32; ++lane) {
        unsigned left[4] = {}, right[2] = {};
        for (int i = 0; i < 8; ++i) left[i / 2] |= bf16(a[theirs.a[lane][i]]) << 16 * (i % 2);
        for (int i = 0; i < 4; ++i) right[i / 2] |= bf16(b[theirs.b[lane][i]]) << 16 * (i % 2);
        emulation::current = lane;
        pyperf::ptx::mma_m16n8k16<pyperf::Element::bf16>(sums[lane], left, right[0], right[1]);
    }
}

// Value of CuTe at that place of C, computed here.
static float expected(const int (&a)[m * k], const int (&b)[n * k], int lane, int i) {
    const int row = static_cast<int>(theirs.c[lane][i]) % m, column = static_cast<int>(theirs.c[lane][i]) / m;
    int sum = 0;
    for (int depth = 0; depth < k; ++depth) sum += a[row + depth * m] * b[column + depth * n];
    return static_cast<float>(sum);
}

static bool agrees(const int (&a)[m * k], const int (&b)[n * k]) {
    float sums[32][4];
    multiply(a, b, sums);
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i)
            if (sums[lane][i] != expected(a, b, lane, i)) return false;
    return true;
}

static void put(bool agreed) {
    const std::int64_t number = agreed;
    std::fwrite(&number, sizeof number, 1, stdout);
}

int main() {
    if (std::fread(&theirs, sizeof theirs, 1, stdin) != 1) return 2;
    int a[m * k], b[n * k];
    for (int i = 0; i < m * k; ++i) a[i] = number(i + 1);
    for (int i = 0; i < n * k; ++i) b[i] = number(3 * i + 2);
    // One element of A, one of B, in turn: all others are zeros.
    for (const auto& lane : theirs.a)
        for (std::int64_t place : lane) {
            int alone[m * k] = {};
            alone[place] = 1;
            put(agrees(alone, b));
        }
    for (const auto& lane : theirs.b)
        for (std::int64_t place : lane) {
            int alone[n * k] = {};
            alone[place] = 1;
            put(agrees(a, alone));
        }
    float sums[32][4];
    multiply(a, b, sums);
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) put(sums[lane][i] == expected(a, b, lane, i));
}
