/* Output of the double of NVRTC, as the double of libcuda and the process that runs kernels read it: a shared library
   that exports a table of kernels. C and C++. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { EMULATED_PARAMETERS = 24, EMULATED_REGIONS = 4096 };

/* Memory that a kernel may read and write. */
typedef struct {
    const char* begin;
    size_t bytes;
} EmulatedRegion;

/* A launch, and what it leaves to say. */
typedef struct {
    unsigned grid[3], block[3], cluster;
    size_t shared_bytes;
    void** arguments;
    const EmulatedRegion* regions;
    size_t region_count;
    uint64_t began_ns;
    unsigned multiprocessors;
    double sm_khz;
    double lasted_ns; /* what the blocks of the busiest multiprocessor take: a model, no measurement */
    int read_clock;   /* so that the same launch does something else next time */
} EmulatedLaunch;

/* One `extern "C" __global__` function; a table ends with a name of NULL. */
typedef struct {
    const char* name;
    unsigned parameter_count;
    unsigned parameter_bytes[EMULATED_PARAMETERS];
    unsigned max_threads;
    unsigned static_shared_bytes;
    void (*run)(EmulatedLaunch*);
} EmulatedKernel;

/* A tensor map's 128 opaque bytes. */
enum { EMULATED_MAP = 0x3d9a7e51 };
typedef struct {
    char* base;
    int element_bytes;
    long long columns, rows, stride_bytes;
    int box_columns, box_rows, swizzle_bytes;
    int magic;
    long long matrices, matrix_bytes; /* of several behind each other, else 0 */
} EmulatedTensorMap;
