/* Messages of the double of libcuda to the process that runs kernels, and answers to a launch. */
#pragma once

#include "emulated_kernel.h"

#define EMULATED_ARENA 0x600000000000u /* where device memory begins, in both */

enum { RUNNER_CHANNEL = 3, RUNNER_MEMORY = 4 };
enum { MESSAGE_MAP, MESSAGE_UNMAP, MESSAGE_LAUNCH };

typedef struct {
    int kind;
    uint64_t address, bytes, mapped, mapped_bytes;
    uint64_t module; /* never the same number for two */
    char path[64], name[128];
    EmulatedLaunch launch;
    size_t payload_bytes; /* that follow: the arguments, each at a multiple of 128 */
} Message;

typedef struct {
    int result;
    int read_clock;
    double lasted_ns;
} Answer;
