// Compares memory with bounds that repeat: how a collective's whole output is checked where it lies.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// Element i of `data`, as its bits, must lie from low[i % period] to high[i % period]: positive floats are in the order
// of their bits, and NaN lies beyond them all. Adds how many do not to found[0], and lowers found[1] to the first.
template <typename Bits>
__device__ void find_outside(const Bits* data, u64 count, const Bits* low, const Bits* high, u32 period, u64* found) {
    const u64 threads = static_cast<u64>(gridDim.x) * blockDim.x;
    u64 outside = 0, first = ~0ull;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads) {
        const u32 at = static_cast<u32>(i % period);
        if (data[i] >= low[at] && data[i] <= high[at]) continue;
        if (outside++ == 0) first = i;
    }
    if (outside == 0) return;
    atomicAdd(&found[0], outside);
    atomicMin(&found[1], first);
}

#define PYPERF_OUTSIDE(bytes, Bits)                                                                                   \
    extern "C" __global__ void pyperf_outside_##bytes(const Bits* data, u64 count, const Bits* low, const Bits* high, \
                                                      u32 period, u64* found) {                                       \
        find_outside(data, count, low, high, period, found);                                                          \
    }
PYPERF_OUTSIDE(1, u8)
PYPERF_OUTSIDE(2, u16)
PYPERF_OUTSIDE(4, u32)
