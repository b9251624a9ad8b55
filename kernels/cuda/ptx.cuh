// The PTX instructions of sm_90 that the kernels use, one wrapper each, named after its instruction. Shared memory is
// addressed by its 32-bit window address throughout. wgmma, whose operand lists need macros, is in wgmma.cuh.
#pragma once

namespace pyperf::ptx {

// Result of cuTensorMapEncodeTiled: opaque to us, passed by value as a __grid_constant__ parameter.
struct alignas(64) TensorMap {
    unsigned char opaque[128];
};

using SharedAddress = unsigned;

__device__ __forceinline__ SharedAddress shared_address(const void* pointer) {
    return static_cast<SharedAddress>(__cvta_generic_to_shared(pointer));
}

// Shared-memory barriers ------------------------------------------------------------------------------------------

__device__ __forceinline__ void mbarrier_init(SharedAddress barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the initialised barriers visible to the copy engine and to the other CTAs of the cluster.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and has the phase wait for this many more bytes written by the copy engine.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(SharedAddress barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(SharedAddress barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives on the barrier that stands at the same address in CTA `rank` of this cluster. What it releases are reads of
// shared memory that are complete, so no scope beyond the default is requested: with .cluster the compiler puts fences
// of hundreds of cycles before each arrival.
__device__ __forceinline__ void mbarrier_arrive_cluster(SharedAddress barrier, int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
        "}" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

// Returns once the phase of this parity is complete.
__device__ __forceinline__ void mbarrier_try_wait_parity(SharedAddress barrier, int parity) {
    int complete;
    do {
        asm volatile(
            "{\n"
            ".reg .pred complete;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
            "selp.b32 %0, 1, 0, complete;\n"
            "}"
            : "=r"(complete)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!complete);
}

// At one of the 16 barriers of a CTA, those who arrive go on, those who sync wait until all `threads` have come.
__device__ __forceinline__ void bar_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void bar_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Clusters ----------------------------------------------------------------------------------------------------------

__device__ __forceinline__ int cluster_ctarank() {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of all CTAs of the cluster meet: each arrives and may go on until it waits. Relaxed, the barrier orders
// nothing but what fence_mbarrier_init does; with release, which waits for the thread's writes to be visible to the
// device, whatever was done before.
__device__ __forceinline__ void barrier_cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

__device__ __forceinline__ void barrier_cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}

__device__ __forceinline__ void barrier_cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// The copy engine (TMA) -----------------------------------------------------------------------------------------------

__device__ __forceinline__ void prefetch_tensormap(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies the box at (column, row), in elements, to `destination` and reports its bytes to `barrier`; elements outside
// the matrix become zeros and count all the same.
__device__ __forceinline__ void cp_async_bulk_tensor_load(SharedAddress destination, const TensorMap& map, int column,
                                                          int row, SharedAddress barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            destination),
        "l"(&map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}

// The same from one of several matrices that lie behind each other, none of whose neighbours a box reaches into.
__device__ __forceinline__ void cp_async_bulk_tensor_load(SharedAddress destination, const TensorMap& map, int column,
                                                          int row, int matrix, SharedAddress barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
            "r"(destination),
        "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(barrier)
        : "memory");
}

// The same to each CTA of the cluster whose bit is set in `ctas`: to the same address there, reported to the barrier
// at the same address there.
__device__ __forceinline__ void cp_async_bulk_tensor_load_multicast(SharedAddress destination, const TensorMap& map,
                                                                    int column, int row, SharedAddress barrier,
                                                                    unsigned short ctas) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(destination),
        "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(ctas)
        : "memory");
}

// Copies a box from shared memory to (column, row), in elements; what falls outside the matrix is not written.
__device__ __forceinline__ void cp_async_bulk_tensor_store(const TensorMap& map, int column, int row,
                                                           SharedAddress source) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column),
                 "r"(row), "r"(source)
                 : "memory");
}

__device__ __forceinline__ void cp_async_bulk_tensor_store(const TensorMap& map, int column, int row, int matrix,
                                                           SharedAddress source) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
                 "r"(column), "r"(row), "r"(matrix), "r"(source)
                 : "memory");
}

__device__ __forceinline__ void cp_async_bulk_commit_group() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most `pending` of this thread's latest groups have yet to read their shared memory.
template <int pending>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

// Makes this thread's ordinary writes to shared memory visible to the copy engine.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers ---------------------------------------------------------------------------------------------------------

template <int registers>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

// Arithmetic --------------------------------------------------------------------------------------------------------

// 2^x, or 1/x, within two units of the last place.
__device__ __forceinline__ float ex2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

__device__ __forceinline__ float rcp(float x) {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
    return reciprocal;
}

// The larger of two, and where either is not a number neither is the result.
__device__ __forceinline__ float max_nan(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}

// Two fp32 rounded to nearest even and packed, the first in the low half.
__device__ __forceinline__ unsigned cvt_bf16x2(float low, float high) {
    unsigned packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

__device__ __forceinline__ unsigned cvt_f16x2(float low, float high) {
    unsigned packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// Writes to shared and global memory ----------------------------------------------------------------------------------

// Each lane l < 8·matrices gives the address of row l % 8 of 8×8 matrix l / 8 of 16-bit elements; in each matrix a
// lane holds elements 2·(l % 4) and the next of row l / 4.
__device__ __forceinline__ void stmatrix_x4(SharedAddress row, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

__device__ __forceinline__ void stmatrix_x2(SharedAddress row, unsigned a, unsigned b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(a), "r"(b) : "memory");
}

__device__ __forceinline__ void st_shared_v2(SharedAddress address, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}

__device__ __forceinline__ int ld_acquire(const int* address) {
    int value;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

__device__ __forceinline__ void st_release(int* address, int value) {
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

}  // namespace pyperf::ptx
