// wgmma: D[64, TILE_N] (+)= A[64, K]·B[K, TILE_N] by one warpgroup, A and B from shared memory, D in registers; K is 32
// bytes. The instruction names its TILE_N / 2 registers one by one: the macros below write that list for any TILE_N.
#pragma once

#define PYPERF_TEXT_OF(token) #token
#define PYPERF_TEXT(macro) PYPERF_TEXT_OF(macro)
#define PYPERF_PASTE_OF(a, b) a##b
#define PYPERF_PASTE(a, b) PYPERF_PASTE_OF(a, b)

// f(4) f(5) ... f(TILE_N / 2 + 2). Twenty registers a line of PYPERF_FROM_x, of which the last line has the first
// 4, 8, 12, 16 or 20; t, u, v are the tens of the operand numbers. The options give both: PYPERF_FROM_1(f, PYPERF_8) is
// f(4) ... f(30), with f(3) before it 28 registers, TILE_N = 56.
#define PYPERF_4(f, t, u, v) f(t##4) f(t##5) f(t##6)
#define PYPERF_8(f, t, u, v) PYPERF_4(f, t, u, v) f(t##7) f(t##8) f(t##9) f(u##0)
#define PYPERF_12(f, t, u, v) PYPERF_8(f, t, u, v) f(u##1) f(u##2) f(u##3) f(u##4)
#define PYPERF_16(f, t, u, v) PYPERF_12(f, t, u, v) f(u##5) f(u##6) f(u##7) f(u##8)
#define PYPERF_20(f, t, u, v) PYPERF_16(f, t, u, v) f(u##9) f(v##0) f(v##1) f(v##2)
#define PYPERF_FROM_0(f, rest) rest(f, , 1, 2)
#define PYPERF_FROM_1(f, rest) PYPERF_FROM_0(f, PYPERF_20) f(23) rest(f, 2, 3, 4)
#define PYPERF_FROM_2(f, rest) PYPERF_FROM_1(f, PYPERF_20) f(43) rest(f, 4, 5, 6)
#define PYPERF_FROM_3(f, rest) PYPERF_FROM_2(f, PYPERF_20) f(63) rest(f, 6, 7, 8)
#define PYPERF_FROM_4(f, rest) PYPERF_FROM_3(f, PYPERF_20) f(83) rest(f, 8, 9, 10)
#define PYPERF_FROM_5(f, rest) PYPERF_FROM_4(f, PYPERF_20) f(103) rest(f, 10, 11, 12)
#define PYPERF_FROM_6(f, rest) PYPERF_FROM_5(f, PYPERF_20) f(123) rest(f, 12, 13, 14)

#define PYPERF_OPERAND(i) ", %" #i
#define PYPERF_REGISTER(i) , "+f"(d[i - 3])
#define PYPERF_EACH_OF(f, twenties, rest) PYPERF_PASTE(PYPERF_FROM_, twenties)(f, PYPERF_PASTE(PYPERF_, rest))
#define PYPERF_EACH(f) PYPERF_EACH_OF(f, REGISTER_TWENTIES, REGISTER_REST)

// The type's name in PTX, the K of one instruction, and the operands that say which of A and B are stored MN-major
// (M or N contiguous): only the 16-bit types have those.
#define PYPERF_TYPE_bf16 "bf16"
#define PYPERF_TYPE_fp16 "f16"
#define PYPERF_TYPE_e4m3 "e4m3"
#define PYPERF_DEPTH_bf16 "k16"
#define PYPERF_DEPTH_fp16 "k16"
#define PYPERF_DEPTH_e4m3 "k32"
#define PYPERF_B_MAJOR_0 "1"
#define PYPERF_B_MAJOR_1 "0"
#define PYPERF_B_MAJOR_OF(transposed) PYPERF_B_MAJOR_##transposed
#define PYPERF_B_MAJOR(transposed) PYPERF_B_MAJOR_OF(transposed)
#define PYPERF_MAJOR_bf16 ", " PYPERF_TEXT(LAYOUT_A_TRANSPOSED) ", " PYPERF_B_MAJOR(LAYOUT_B_TRANSPOSED)
#define PYPERF_MAJOR_fp16 PYPERF_MAJOR_bf16
#define PYPERF_MAJOR_e4m3 ""

namespace pyperf::ptx {

static_assert(20 * REGISTER_TWENTIES + REGISTER_REST == TILE_N / 2, "the options list another number of registers");

// d is what thread t of the warpgroup holds: d[4·j + 2·h + e] is row 16·(t / 32) + t % 32 / 4 + 8·h and column
// 8·j + 2·(t % 4) + e. With accumulate == 0 the previous d is ignored. The operands that are only read are declared
// read-write so that they come first and the number of the registers' operands does not depend on TILE_N; the compiler
// sees through the copies.
// fp8 products are summed in the tensor core with about 14 bits of mantissa, not fp32's 24 (DeepSeek-V3 report, 3.3.2).
__device__ __forceinline__ void wgmma_mma_async(float (&d)[TILE_N / 2], unsigned long long descriptor_a,
                                                unsigned long long descriptor_b, int accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred accumulate;\n"
        "setp.ne.b32 accumulate, %2, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n" PYPERF_TEXT(TILE_N) PYPERF_PASTE(PYPERF_DEPTH_, IN_TYPE) ".f32."
        PYPERF_PASTE(PYPERF_TYPE_, IN_TYPE) "." PYPERF_PASTE(PYPERF_TYPE_, IN_TYPE)
        " {%3" PYPERF_EACH(PYPERF_OPERAND) "}, %0, %1, accumulate, 1, 1" PYPERF_PASTE(PYPERF_MAJOR_, IN_TYPE) ";\n"
        "}"
        : "+l"(descriptor_a), "+l"(descriptor_b), "+r"(accumulate), "+f"(d[0]) PYPERF_EACH(PYPERF_REGISTER));
}

#ifdef HEAD_DIM
// D[64, HEAD_DIM] += A[64, 16]·B[16, HEAD_DIM] with A from registers and B stored MN-major: a[2·i + h] holds, of row
// t % 32 / 4 + 8·h of the warp's 16, columns 8·i + 2·(t % 4) and the next, which is how sums of D lie when packed in pairs.
static_assert(20 * DIM_TWENTIES + DIM_REST == HEAD_DIM / 2, "the options list another number of registers");
__device__ __forceinline__ void wgmma_mma_async(float (&d)[HEAD_DIM / 2], const unsigned* a,
                                                unsigned long long descriptor_b) {
    unsigned a0 = a[0], a1 = a[1];
    asm volatile(
        "{\n"
        ".reg .pred accumulate;\n"
        "setp.eq.b32 accumulate, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n" PYPERF_TEXT(HEAD_DIM) "k16.f32."
        PYPERF_PASTE(PYPERF_TYPE_, IN_TYPE) "." PYPERF_PASTE(PYPERF_TYPE_, IN_TYPE)
        " {%3" PYPERF_EACH_OF(PYPERF_OPERAND, DIM_TWENTIES, DIM_REST) "}, "
        "{%0, %1, %" PYPERF_TEXT(DIM_NEXT) ", %" PYPERF_TEXT(DIM_LAST) "}, %2, accumulate, 1, 1, 1;\n"
        "}"
        : "+r"(a0), "+r"(a1), "+l"(descriptor_b), "+f"(d[0]) PYPERF_EACH_OF(PYPERF_REGISTER, DIM_TWENTIES, DIM_REST)
        : "r"(a[2]), "r"(a[3]));
}
#endif

// Before the first wgmma, and wherever registers of d were touched by other instructions since the last one.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `pending` of the latest groups are unfinished.
template <int pending>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// After the wait, which names no registers: whatever reads d stays behind it. It makes no instruction.
template <int count>
__device__ __forceinline__ void wgmma_hold(float (&d)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

}  // namespace pyperf::ptx
