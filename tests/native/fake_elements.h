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

static double from_half(uint16_t bits) {
    const int exponent = bits >> 10 & 31;
    const double units = exponent ? 1024 + (bits & 1023) : bits & 1023;
    return (bits & 0x8000 ? -1 : 1) * ldexp(units, (exponent ? exponent : 1) - 25);
}
static uint16_t to_half(double value) {  // of numbers in its range
    int exponent = value == 0 ? -14 : ilogb(value);
    if (exponent < -14) exponent = -14;
    const uint16_t units = (uint16_t)nearbyint(ldexp(fabs(value), 10 - exponent));
    return (uint16_t)((value < 0 ? 0x8000 : 0) + ((exponent + 14) << 10) + units);
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
        case HALF: return from_half(v.u16);
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
        case HALF: v.u16 = to_half(value); break;
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
