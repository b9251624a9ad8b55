// Elements of buffers for a double of libnccl, by NCCL's numbers of types and reductions.
//
// Each is a double in between: exact for numbers that tests use, and what is too large for 8 to 32 bits wraps.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT16, FP8_E4M3, FP8_E5M2 };
enum { SUM, PROD, MAX, MIN, AVG, FIRST_FACTOR };
static const size_t type_bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

typedef union {
    int8_t i8;
    uint8_t u8;
    uint16_t u16;
    int32_t i32;
    uint32_t u32;
    int64_t i64;
    uint64_t u64;
    float f;
    double d;
} Element;

// Numbers of 8 and 16 bits by how many of them are exponent and fraction; of numbers in their range.
typedef struct { int exponent, fraction; } Bits;
static const Bits half_bits = {5, 10}, e4m3_bits = {4, 3}, e5m2_bits = {5, 2};

static double from_bits(unsigned bits, Bits of) {
    const unsigned one = 1u << of.fraction;
    const int bias = (1 << (of.exponent - 1)) - 1, exponent = (int)(bits >> of.fraction & ((1u << of.exponent) - 1));
    const double units = exponent ? one + (bits & (one - 1)) : bits & (one - 1);
    return (bits >> (of.exponent + of.fraction) & 1 ? -1 : 1) * ldexp(units, (exponent ? exponent : 1) - bias - of.fraction);
}
static unsigned to_bits(double value, Bits of) {
    const int bias = (1 << (of.exponent - 1)) - 1;
    int exponent = value == 0 ? 1 - bias : ilogb(value);
    if (exponent < 1 - bias) exponent = 1 - bias;
    const unsigned units = (unsigned)nearbyint(ldexp(fabs(value), of.fraction - exponent));
    return ((value < 0 ? 1u : 0u) << (of.exponent + of.fraction)) + ((unsigned)(exponent + bias - 1) << of.fraction) + units;
}
static double load(const void* at, int type) {
    Element v;
    memcpy(&v, at, type_bytes[type]);
    switch (type) {
        case INT8: return v.i8;
        case UINT8: return v.u8;
        case INT32: return v.i32;
        case UINT32: return v.u32;
        case INT64: return (double)v.i64;
        case UINT64: return (double)v.u64;
        case HALF: return from_bits(v.u16, half_bits);
        case FP8_E4M3: return from_bits(v.u8, e4m3_bits);
        case FP8_E5M2: return from_bits(v.u8, e5m2_bits);
        case FLOAT: return v.f;
        case DOUBLE: return v.d;
        default: v.u32 = (uint32_t)v.u16 << 16; return v.f;
    }
}
static void store(void* at, int type, double value) {
    Element v;
    switch (type) {
        case INT8: case UINT8: case INT32: case UINT32: case INT64: v.i64 = (int64_t)value; break;
        case UINT64: v.u64 = (uint64_t)value; break;
        case HALF: v.u16 = (uint16_t)to_bits(value, half_bits); break;
        case FP8_E4M3: v.u8 = (uint8_t)to_bits(value, e4m3_bits); break;
        case FP8_E5M2: v.u8 = (uint8_t)to_bits(value, e5m2_bits); break;
        case FLOAT: v.f = (float)value; break;
        case DOUBLE: v.d = value; break;
        default: v.f = (float)value; v.u16 = (uint16_t)((v.u32 + 0x7fff + (v.u32 >> 16 & 1)) >> 16);
    }
    memcpy(at, &v, type_bytes[type]);
}
static double reduce(double a, double b, int reduction) {
    switch (reduction) {
        case PROD: return a * b;
        case MAX: return a > b ? a : b;
        case MIN: return a < b ? a : b;
        default: return a + b;
    }
}
