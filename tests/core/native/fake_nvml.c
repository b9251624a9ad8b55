/* A libnvidia-ml with one GPU that children of this process compute on. FAKE_NVML is "UTILIZATION REASONS [SMS]", in
   percent, as the mask of clock event reasons, and in percent of SMs that have work; without it the GPU is busy and well,
   and without SMS it has no performance counters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef FAKE_UUID
#define FAKE_UUID "GPU-1"
#define FAKE_NAME "NVIDIA H100 80GB HBM3"
#endif

static unsigned setting(int place, unsigned otherwise) {
    unsigned found[3] = {0, 0, 0};
    const char *text = getenv("FAKE_NVML");
    return text && sscanf(text, "%u %x %u", &found[0], &found[1], &found[2]) > place ? found[place] : otherwise;
}

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &nvmlInit_v2; return index; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { *device = &nvmlInit_v2; return strcmp(uuid, FAKE_UUID) != 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { snprintf(text, size, FAKE_UUID); return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { snprintf(text, size, FAKE_NAME); return 0; }
int nvmlDeviceGetUtilizationRates(void *device, unsigned *both) { both[0] = setting(0, 97); both[1] = 40; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *held) {
    held[0] = 80ull << 30, held[1] = 40ull << 30, held[2] = 40ull << 30;
    return 0;
}
int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *mhz) { *mhz = setting(1, 0) ? 1200 : 1755; return 0; }
int nvmlDeviceGetMaxClockInfo(void *device, int clock, unsigned *mhz) { *mhz = 1980; return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { *mw = 600000; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw) { *mw = 700000; return 0; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) { *celsius = setting(1, 0) ? 88 : 61; return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *mask) { *mask = setting(1, 0); return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *found) {
    struct { unsigned pid; unsigned long long bytes; unsigned gpu, compute; } *each = found;
    char path[64];
    unsigned pid = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    FILE *file = fopen(path, "r");
    *count = file && fscanf(file, "%u", &pid) == 1;
    each[0].pid = pid, each[0].bytes = 1ull << 30;
    if (file) fclose(file);
    return 0;
}

/* Performance counters: the arrays of nvml.h, and in place of a sample its number. */
struct metrics {
    unsigned version, count;
    void *before, *after;
    struct { unsigned id; int code; double value; const char *names[3]; } each[333];
};
int nvmlGpmQueryDeviceSupport(void *device, unsigned *support) { support[1] = setting(2, 0) > 0; return support[0] != 1; }
int nvmlGpmSampleAlloc(void **sample) { *sample = calloc(1, sizeof(long)); return 0; }
int nvmlGpmSampleFree(void *sample) { free(sample); return 0; }
int nvmlGpmSampleGet(void *device, long *sample) { static long taken; *sample = ++taken; return 0; }
int nvmlGpmMetricsGet(struct metrics *asked) {
    if (asked->version != 1 || *(long *)asked->after <= *(long *)asked->before) return 2;
    for (unsigned k = 0; k < asked->count; k++) {
        asked->each[k].code = 0;
        asked->each[k].value = asked->each[k].id == 2 ? setting(2, 0) : asked->each[k].id;
    }
    return 0;
}
