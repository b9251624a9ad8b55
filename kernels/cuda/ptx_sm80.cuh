// The instructions of compute capability 8.0 that C++ has no word for, each wrapper named after its instruction.
//
// All of them run on every later architecture too. Nothing is included: NVRTC has no standard headers.
// An address in shared memory is the 32-bit offset that these instructions take.
#pragma once

#define PYPERF_DEVICE __device__ __forceinline__

namespace pyperf {

enum class Element : int { bf16 = 0, fp16 = 1, fp32 = 2 };

namespace ptx {

PYPERF_DEVICE unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The thread's number in its block, read again at each call. Values derived from threadIdx.x before a long loop and
// after it the compiler computes once and keeps in registers that the loop may not have.
PYPERF_DEVICE int mov_tid_x() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// Copies `bytes` from global to shared memory behind the thread's back: the first `valid_bytes` of them from the
// source, zeros for the rest. With valid_bytes = 0 the source is not read.
template <int bytes>
PYPERF_DEVICE void cp_async(unsigned destination, const void* source, int valid_bytes) {
    static_assert(bytes == 16 || bytes == 8 || bytes == 4, "cp.async copies 16, 8 or 4 bytes");
    if constexpr (bytes == 16) {
        // Past L1 (.cg exists for 16 bytes alone): a tile is read once per CTA, and reuse among CTAs is in L2.
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
                     "r"(valid_bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(destination), "l"(source), "n"(bytes),
                     "r"(valid_bytes)
                     : "memory");
    }
}

// Closes the group of the copies issued since the last call; an empty group counts as well.
PYPERF_DEVICE void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `pending` of this thread's latest groups are still under way.
template <int pending>
PYPERF_DEVICE void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Four 8×8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8. Of each matrix, lane l
// receives the elements (l / 4, 2·(l % 4)) and the one after it along the row; transposed, (2·(l % 4), l / 4) and the
// one below it.
template <bool transposed>
PYPERF_DEVICE void ldmatrix_x4(unsigned (&matrices)[4], unsigned row_address) {
    if constexpr (transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                     : "r"(row_address)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                     : "r"(row_address)
                     : "memory");
    }
}

// sums[16×8] += A[16×16] · B[16×8]. Of A, a[0] and a[1] hold rows 0-7 and 8-15 at k 0-7, a[2] and a[3] at k 8-15; of B,
// b_0 holds k 0-7 and b_1 k 8-15. Lane l holds the elements (l / 4, 2·(l % 4)) and the next of each 8×8 of A, where
// columns count k; of B likewise, where rows count n. Its sums are those of row l / 4, then of row l / 4 + 8.
template <Element type>
PYPERF_DEVICE void mma_m16n8k16(float (&sums)[4], const unsigned (&a)[4], unsigned b_0, unsigned b_1) {
    static_assert(type == Element::bf16 || type == Element::fp16, "operands are bf16 or fp16");
    if constexpr (type == Element::bf16) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_0), "r"(b_1));
    } else {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_0), "r"(b_1));
    }
}

// Two numbers rounded to the nearest of a 16-bit type; `low` takes the lower half of the word.
template <Element type>
PYPERF_DEVICE unsigned cvt_rn_x2(float low, float high) {
    static_assert(type == Element::bf16 || type == Element::fp16, "two numbers in a word are bf16 or fp16");
    unsigned word;
    if constexpr (type == Element::bf16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

PYPERF_DEVICE unsigned ld_global_nc_u16(const void* source) {
    unsigned short element;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(element) : "l"(source));
    return element;
}

PYPERF_DEVICE void st_shared_v4(unsigned destination, const unsigned (&words)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(destination), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
}

// Through L2 alone (.cg): another CTA's partial sums must not be read from a stale line of this multiprocessor's L1.
PYPERF_DEVICE void ld_global_cg_v4(float (&values)[4], const float* source) {
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
                 : "l"(source)
                 : "memory");
}

PYPERF_DEVICE void st_global_cg_v4(float* destination, const float (&values)[4]) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(destination), "f"(values[0]), "f"(values[1]),
                 "f"(values[2]), "f"(values[3])
                 : "memory");
}

PYPERF_DEVICE int ld_acquire_gpu(const int* flag) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

PYPERF_DEVICE void st_release_gpu(int* flag, int value) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

}  // namespace ptx
}  // namespace pyperf
