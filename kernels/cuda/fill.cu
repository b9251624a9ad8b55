// Fills an operand with values of the suite's generator, on the device that computes with them.
#include "fill.cuh"

#define PYPERF_FILL_KERNEL(bits, Element)                                                                      \
    extern "C" __global__ void pyperf_fill_##bits(Element* out, const Element* table, unsigned long long count, \
                                                  unsigned long long key_low, unsigned long long key_high) {    \
        const unsigned long long parts = (count + pyperf::elements_per_draw - 1) / pyperf::elements_per_draw;    \
        const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;              \
        unsigned long long part = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;       \
        for (; part < parts; part += stride) pyperf::fill_part(out, table, count, key_low, key_high, part);     \
    }

PYPERF_FILL_KERNEL(8, unsigned char)
PYPERF_FILL_KERNEL(16, unsigned short)
PYPERF_FILL_KERNEL(32, unsigned int)
