// A double of libcuda: one H200-like device whose memory is the host's and whose time is a counter.
//
// Work on streams is queued and done when something waits for it, as on a device. Tests set its figures and make
// calls fail through the fake_* functions at the end, and read what was queued from fake_log. FAKE_LIBCUDA sets figures
// for a process: "multiprocessors=4 l2_bytes=65536".
//
// What the double of NVRTC compiled is executed (../gpu_double/emulated_device.h); of other machine code launches are only
// recorded.
#include "../gpu_double/emulated_device.h"
#include "nccl/host_stream.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
       INVALID_CONTEXT = 201, NO_BINARY_FOR_GPU = 209, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_OUT_OF_RESOURCES = 701,
       LAUNCH_FAILED = 719, CAPTURE_UNSUPPORTED = 900,
       CAPTURE_INVALIDATED = 901 };

typedef struct {
    char name[64];
    long long max_dynamic_bytes, non_portable_cluster;
    const Module* module;
    const EmulatedKernel* kernel;  // NULL where launches are only recorded
} Function;
typedef struct { double ns; } Event;
typedef struct { void (*run)(void* work); void (*release)(void* work); void* work; } HostWork;  // NCCL's double's
typedef struct {
    Function* function;
    Event* event;
    uint64_t first, second;
    Execution* execution;
    HostWork host;
} Operation;
typedef struct { Operation* operations; size_t count; } Graph;
typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    void* stream;
    int* attributes;
    unsigned attribute_count;
} Config;

// The figures a test may set, with those of an H200.
typedef struct { const char* name; long long value, initial; } Figure;
static Figure figures[] = {
    {"devices", 0, 1},           {"version", 0, 13000},      {"major", 0, 9},         {"minor", 0, 0},
    {"multiprocessors", 0, 132}, {"clusters", 0, 1},         {"tensor_maps", 0, 1},   {"free_bytes", 0, 1000000000},
    {"kernel_ns", 0, 5000},      {"event_ns", 0, 500},       {"sm_khz", 0, 1980000},  {"parameter_info", 0, 1},
    {"visited", 0, 1000},        {"context_depth", 0, 0},    {"live", 0, 0},          {"timed_out", 0, 0},
    {"busy", 0, 0},              {"queue_depth", 0, 1024}, {"l2_bytes", 0, 62914560},
    {"ramp_ns", 0, 0},  // so long the clock is 4 % lower once the stream was held
    {NULL, 0, 0},
};
static struct { char function[64]; int result, skip; } failure;
static int sticky, capturing;
static double now_ns, ramp_left_ns, slow_ns;
static Graph queue, captured;
static char* log_text;
static size_t log_bytes;

static long long* figure(const char* name) {
    for (Figure* each = figures; each->name; ++each)
        if (strcmp(each->name, name) == 0) return &each->value;
    fprintf(stderr, "fake_libcuda: there is no figure %s\n", name);
    abort();
}

static void note(const char* format, ...) {
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    log_text = realloc(log_text, log_bytes + (size_t)length + 2);
    memcpy(log_text + log_bytes, line, (size_t)length);
    log_bytes += (size_t)length;
    log_text[log_bytes++] = '\n';
    log_text[log_bytes] = 0;
}

static uint64_t bits_at(const void* memory, uint64_t index, int bytes) {
    uint64_t bits = 0;
    memcpy(&bits, (const char*)memory + index * (uint64_t)bytes, (size_t)bytes);
    return bits;
}
// pyperf_outside_<bytes> of kernels/cuda/periodic.cu.
static void find_outside(int bytes, void** arguments) {
    const void *data = *(void**)arguments[0], *low = *(void**)arguments[2], *high = *(void**)arguments[3];
    const uint64_t count = *(uint64_t*)arguments[1], period = *(uint32_t*)arguments[4];
    uint64_t* found = *(uint64_t**)arguments[5];
    for (uint64_t index = 0; index < count; ++index) {
        const uint64_t bits = bits_at(data, index, bytes);
        if (bits >= bits_at(low, index % period, bytes) && bits <= bits_at(high, index % period, bytes)) continue;
        ++found[0];
        if (index < found[1]) found[1] = index;
    }
}

// What a call has to answer: the failure a test has planned, or what a crashed kernel left behind.
static int planned(const char* function) {
    if (strcmp(failure.function, function) == 0 && failure.skip-- <= 0) {
        failure.function[0] = 0;
        return failure.result;
    }
    return SUCCESS;
}
static int in_context(const char* function) {
    if (sticky) return sticky;
    const int result = planned(function);
    return result ? result : *figure("context_depth") > 0 ? SUCCESS : INVALID_CONTEXT;
}
#define PLANNED() do { const int result = planned(__func__); if (result) return result; } while (0)
#define IN_CONTEXT() do { const int result = in_context(__func__); if (result) return result; } while (0)

static void* counted(void* object) { ++*figure("live"); return object; }
static int discarded(void* object) { --*figure("live"); free(object); return SUCCESS; }

static void append(Graph* graph, Operation operation) {
    graph->operations = realloc(graph->operations, (graph->count + 1) * sizeof operation);
    graph->operations[graph->count++] = operation;
}
static void clear(Graph* graph) { free(graph->operations); *graph = (Graph){0}; }

static void run_kernel(const Operation* operation) {
    if (operation->execution) {
        double lasted_ns = (double)*figure("kernel_ns");
        sticky = execute(operation->execution, (uint64_t)now_ns, (unsigned)*figure("multiprocessors"),
                         (double)*figure("sm_khz"), &lasted_ns);
        now_ns += lasted_ns;
        return;
    }
    const char* name = operation->function->name;
    if (strcmp(name, "pyperf_hold_stream") == 0) {
        uint32_t* gate = (uint32_t*)operation->first;
        ramp_left_ns = (double)*figure("ramp_ns");
        if (gate[0] != 0) return;
        gate[1] = 1;
        now_ns += (double)operation->second;
        ++*figure("timed_out");
    } else if (strcmp(name, "pyperf_read_clocks") == 0) {
        uint64_t* pairs = (uint64_t*)operation->first;
        for (uint64_t slot = 0; slot < operation->second && (long long)slot < *figure("visited"); ++slot) {
            // each counter began at another time
            pairs[2 * slot] = (uint64_t)((now_ns - 0.04 * slow_ns) * (double)*figure("sm_khz") / 1e6) + 1000003 * slot;
            pairs[2 * slot + 1] = (uint64_t)now_ns + 1;
        }
    } else if (strcmp(name, "crashes") == 0) {
        sticky = LAUNCH_FAILED;
    } else {
        const double lasted_ns = (double)*figure("kernel_ns");
        const double slowed_ns = lasted_ns < ramp_left_ns ? lasted_ns : ramp_left_ns;
        now_ns += lasted_ns;
        slow_ns += slowed_ns;
        ramp_left_ns -= slowed_ns;
    }
}

// What a graph has may run again: it is not given back.
static void run_host_work(const Operation* operation) {
    const HostWork* host = &operation->host;
    host->run(host->work);
    if (host->release) host->release(host->work);
    now_ns += (double)*figure("kernel_ns");
}

static int drain(void) {
    if (capturing) { capturing = -1; return CAPTURE_UNSUPPORTED; }
    for (size_t index = 0; index < queue.count && !sticky; ++index) {
        const Operation* operation = &queue.operations[index];
        if (operation->event) { now_ns += (double)*figure("event_ns"); operation->event->ns = now_ns; }
        else if (operation->host.run) run_host_work(operation);
        else run_kernel(operation);
    }
    clear(&queue);
    return sticky;
}

int cuInit(unsigned flags) { (void)flags; PLANNED(); return SUCCESS; }
int cuDriverGetVersion(int* version) { *version = (int)*figure("version"); return SUCCESS; }
int cuGetErrorName(int result, const char** name) {
    *name = result == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : result == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
          : result == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : result == NO_BINARY_FOR_GPU ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : result == 100 ? "CUDA_ERROR_NO_DEVICE" : result == INVALID_IMAGE ? "CUDA_ERROR_INVALID_IMAGE"
          : result == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : NULL;
    return *name ? SUCCESS : INVALID_VALUE;
}
int cuGetErrorString(int result, const char** words) {
    *words = result == OUT_OF_MEMORY ? "out of memory" : NULL;
    return *words ? SUCCESS : INVALID_VALUE;
}
int cuDeviceGetCount(int* count) { PLANNED(); *count = (int)*figure("devices"); return SUCCESS; }
int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal < *figure("devices") ? 0 : INVALID_DEVICE;
}
int cuDeviceGetName(char* name, int length, int device) {
    (void)device;
    snprintf(name, (size_t)length, "Fake H200");
    return 0;
}
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    for (int byte = 0; byte < 16; ++byte) uuid[byte] = (unsigned char)(byte + device);
    return SUCCESS;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { (void)device; *bytes = 150110011392u; return SUCCESS; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    (void)device;
    switch (attribute) {
        case 1: *value = 1024; break;
        case 16: *value = (int)*figure("multiprocessors"); break;
        case 33: *value = 0x1b; break;
        case 34: case 50: *value = 0; break;
        case 38: *value = (int)*figure("l2_bytes"); break;
        case 39: *value = 2048; break;
        case 75: *value = (int)*figure("major"); break;
        case 76: *value = (int)*figure("minor"); break;
        case 81: *value = 233472; break;
        case 82: *value = 65536; break;
        case 97: *value = 232448; break;
        case 106: *value = 32; break;
        case 111: *value = 1024; break;
        case 120: *value = (int)*figure("clusters"); break;
        case 127: *value = (int)*figure("tensor_maps"); break;
        default: return INVALID_VALUE;
    }
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
    (void)device;
    PLANNED();
    *context = counted(&sticky);
    return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; --*figure("live"); return SUCCESS; }
int cuCtxPushCurrent_v2(void* context) {
    if (!context) return INVALID_CONTEXT;
    ++*figure("context_depth");
    return SUCCESS;
}
int cuCtxPopCurrent_v2(void** context) { *context = &sticky; --*figure("context_depth"); return SUCCESS; }
int cuCtxSynchronize(void) { IN_CONTEXT(); return drain(); }

int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    IN_CONTEXT();
    *free_bytes = (size_t)*figure("free_bytes");
    *total = 150110011392u;
    return SUCCESS;
}
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    IN_CONTEXT();
    if ((long long)bytes > *figure("free_bytes")) return OUT_OF_MEMORY;
    *address = allocate(bytes, 0);
    if (*address == 0) return OUT_OF_MEMORY;
    counted(NULL);
    return SUCCESS;
}
// Waits for the device, as nothing may still use what is freed.
static int freed(uint64_t address) {
    if (!capturing && !sticky) drain();
    if (!release(address)) return INVALID_VALUE;
    --*figure("live");
    return SUCCESS;
}
int cuMemFree_v2(uint64_t address) { return freed(address); }
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
    IN_CONTEXT();
    if (!is_allocated(to, bytes)) return INVALID_VALUE;
    memcpy((void*)to, from, bytes);
    written(to);
    return SUCCESS;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
    IN_CONTEXT();
    if (!is_allocated(from, bytes)) return INVALID_VALUE;
    memcpy(to, (void*)from, bytes);
    return SUCCESS;
}
int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes) {
    IN_CONTEXT();
    if (!is_allocated(to, bytes) || !is_allocated(from, bytes)) return INVALID_VALUE;
    memcpy((void*)to, (void*)from, bytes);
    written(to);
    return SUCCESS;
}
int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t bytes) {
    IN_CONTEXT();
    if (!is_allocated(address, bytes)) return INVALID_VALUE;
    memset((void*)address, value, bytes);
    written(address);
    return SUCCESS;
}
int cuMemHostAlloc(void** host, size_t bytes, unsigned flags) {
    IN_CONTEXT();
    *host = (void*)allocate(bytes, 1);
    if (!*host) return OUT_OF_MEMORY;
    counted(NULL);
    return flags == 2 ? SUCCESS : INVALID_VALUE;
}
int cuMemHostGetDevicePointer_v2(uint64_t* device, void* host, unsigned flags) {
    (void)flags;
    IN_CONTEXT();
    *device = (uint64_t)host;
    return SUCCESS;
}
int cuMemFreeHost(void* host) { return freed((uint64_t)host); }

// Machine code runs on devices of its major number from its minor on; with an `a` on that one alone.
static int runs_here(const char* architecture) {
    const int number = atoi(architecture + 3), major = number / 10, minor = number % 10;
    const int exact = architecture[strlen(architecture) - 1] == 'a';
    return major == *figure("major") && (exact ? minor == *figure("minor") : minor <= *figure("minor"));
}
int cuModuleLoadData(Module** module, const void* image) {
    IN_CONTEXT();
    if (strncmp(image, "\x7f" "ELF", 4) != 0) return INVALID_IMAGE;
    const char* architecture;
    Module* loaded = calloc(1, sizeof(Module));
    const int opened = load_module(loaded, image, &architecture);
    if (!opened || (architecture && !runs_here(architecture))) {
        free(loaded);
        return opened ? NO_BINARY_FOR_GPU : INVALID_IMAGE;
    }
    *module = counted(loaded);
    return SUCCESS;
}
int cuModuleUnload(Module* module) { return discarded(module); }
int cuModuleGetFunction(Function** function, const Module* module, const char* name) {
    IN_CONTEXT();
    const EmulatedKernel* kernel = module->kernels;
    while (kernel && kernel->name && strcmp(kernel->name, name) != 0) ++kernel;
    if (kernel && !kernel->name) return NOT_FOUND;
    *function = calloc(1, sizeof(Function));  // functions live as long as the process, which is a test's
    snprintf((*function)->name, sizeof (*function)->name, "%s", name);
    (*function)->module = module;
    (*function)->kernel = kernel;
    return SUCCESS;
}
int cuFuncGetAttribute(int* value, int attribute, Function* function) {
    IN_CONTEXT();
    const EmulatedKernel* kernel = function->kernel;
    *value = attribute == 0 ? (kernel ? (int)kernel->max_threads : 384)
           : attribute == 1 ? (kernel ? (int)kernel->static_shared_bytes : 64)
           : attribute == 4 ? 168 : 0;
    return SUCCESS;
}
int cuFuncSetAttribute(Function* function, int attribute, int value) {
    IN_CONTEXT();
    note("set %s %d %d", function->name, attribute, value);
    if (attribute == 8) function->max_dynamic_bytes = value;
    if (attribute == 14) function->non_portable_cluster = value;
    return SUCCESS;
}
int cuFuncGetParamInfo(Function* function, size_t index, size_t* offset, size_t* bytes) {
    static const struct { const char* name; size_t count, bytes[4]; } known[] = {
        {"add", 4, {8, 8, 8, 4}},
        {"pyperf_hold_stream", 2, {8, 8}},
        {"pyperf_read_clocks", 2, {8, 4}},
        {"takes_map", 2, {128, 4}},
    };
    IN_CONTEXT();
    *offset = 0;
    if (function->kernel) {
        if (index >= function->kernel->parameter_count) return INVALID_VALUE;
        *bytes = function->kernel->parameter_bytes[index];
        return SUCCESS;
    }
    for (size_t each = 0; each < sizeof known / sizeof *known && *figure("parameter_info"); ++each)
        if (strcmp(known[each].name, function->name) == 0 && index < known[each].count) {
            *bytes = known[each].bytes[index];
            return SUCCESS;
        }
    return INVALID_VALUE;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function* function, int threads, size_t dynamic_bytes) {
    IN_CONTEXT();
    const int by_threads = 2048 / threads, by_memory = (int)(233472 / (dynamic_bytes + 1024));
    if (dynamic_bytes > 49152 && dynamic_bytes > (size_t)function->max_dynamic_bytes) return INVALID_VALUE;
    *blocks = by_threads < by_memory ? by_threads : by_memory;
    if (*blocks > 32) *blocks = 32;
    return SUCCESS;
}
int cuOccupancyMaxActiveClusters(int* clusters, Function* function, const Config* config) {
    (void)function;
    IN_CONTEXT();
    if (config->attribute_count != 1 || config->attributes[0] != 4) return INVALID_VALUE;
    *clusters = (int)*figure("multiprocessors") / config->attributes[2];
    return SUCCESS;
}

// As a driver's queue, it takes so many operations: a further call waits for the device, which may be held.
static Graph* destination(void) {
    if (capturing) return &captured;
    if ((long long)queue.count >= *figure("queue_depth")) drain();
    return &queue;
}

static int cluster_of(const Config* config) {
    return config->attribute_count ? config->attributes[2] * config->attributes[3] * config->attributes[4] : 1;
}
static int cannot_launch(const Config* config, const Function* function) {
    const unsigned threads = config->block[0] * config->block[1] * config->block[2];
    const unsigned blocks = config->grid[0] * config->grid[1] * config->grid[2];
    if (threads == 0 || blocks == 0 || threads > function->kernel->max_threads) return INVALID_VALUE;
    if (config->attribute_count > 1 || (config->attribute_count && config->attributes[0] != 4)) return INVALID_VALUE;
    // Clusters of the double lie along x.
    if (config->attribute_count && (config->attributes[3] != 1 || config->attributes[4] != 1)) return INVALID_VALUE;
    const int cluster = cluster_of(config);
    if (cluster < 1 || config->grid[0] % (unsigned)cluster != 0) return INVALID_VALUE;
    if (cluster > (function->non_portable_cluster ? 16 : 8)) return INVALID_VALUE;
    if (config->shared_bytes + function->kernel->static_shared_bytes > 232448) return INVALID_VALUE;
    return SUCCESS;
}

int cuLaunchKernelEx(const Config* config, Function* function, void** arguments, void** extra) {
    (void)extra;
    IN_CONTEXT();
    if (config->shared_bytes > 49152 && config->shared_bytes > function->max_dynamic_bytes) return INVALID_VALUE;
    if (function->kernel) {
        const int refused = cannot_launch(config, function);
        if (refused) return refused;
    }
    note("launch %s grid %ux%ux%u block %ux%ux%u cluster %d shared %u stream %s", function->name, config->grid[0],
         config->grid[1], config->grid[2], config->block[0], config->block[1], config->block[2],
         config->attribute_count ? config->attributes[2] * config->attributes[3] * config->attributes[4] : 1,
         config->shared_bytes, config->stream ? "own" : "default");
    Operation operation = {.function = function};
    if (function->kernel) {
        Execution* made = prepared(function->module, function->kernel, arguments);  // lives as long as the process
        memcpy(made->launch.grid, config->grid, sizeof config->grid);
        memcpy(made->launch.block, config->block, sizeof config->block);
        made->launch.cluster = (unsigned)cluster_of(config);
        made->launch.shared_bytes = config->shared_bytes;
        operation.execution = made;
    } else if (strcmp(function->name, "pyperf_hold_stream") == 0) {
        operation.first = *(uint64_t*)arguments[0];
        operation.second = *(uint64_t*)arguments[1];
    } else if (strcmp(function->name, "pyperf_read_clocks") == 0) {
        operation.first = *(uint64_t*)arguments[0];
        operation.second = *(uint32_t*)arguments[1];
    } else if (strncmp(function->name, "pyperf_outside_", 15) == 0) {
        find_outside(atoi(function->name + 15), arguments);
    } else if (strcmp(function->name, "takes_map") == 0) {
        const char* lies = (uintptr_t)arguments[0] % 64 == 0 ? "aligned" : "misaligned";
        note("map %s before %u", lies, *(uint32_t*)arguments[1]);
    }
    append(destination(), operation);
    return SUCCESS;
}
int cuTensorMapEncodeTiled(void* map, int type, uint32_t rank, void* address, const uint64_t* shape,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,
                           int interleave, int swizzle, int promotion, int fill) {
    PLANNED();
    static const int element_bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    if (type < 0 || type > 9 || (rank != 2 && rank != 3) || interleave != 0 || swizzle < 0 || swizzle > 3) return INVALID_VALUE;
    EmulatedTensorMap* encoded = memset(map, 0, 128);
    *encoded = (EmulatedTensorMap){.base = address, .element_bytes = element_bytes[type],
                                   .columns = (long long)shape[0], .rows = (long long)shape[1],
                                   .stride_bytes = (long long)strides[0], .box_columns = (int)box[0],
                                   .box_rows = (int)box[1], .swizzle_bytes = swizzle ? 16 << swizzle : 0,
                                   .magic = EMULATED_MAP, .matrices = rank == 3 ? (long long)shape[2] : 0,
                                   .matrix_bytes = rank == 3 ? (long long)strides[1] : 0};
    if (swizzle && encoded->box_columns * encoded->element_bytes > encoded->swizzle_bytes) return INVALID_VALUE;
    note("map type %d rank %u address %llu shape %llux%llu stride %llu box %ux%u step %ux%u", type, rank,
         (unsigned long long)(uintptr_t)address, (unsigned long long)shape[0], (unsigned long long)shape[1],
         (unsigned long long)strides[0], box[0], box[1], element_strides[0], element_strides[1]);
    if (rank == 3)
        note("map matrices %llu apart %llu box %u step %u", (unsigned long long)shape[2],
             (unsigned long long)strides[1], box[2], element_strides[2]);
    note("map interleave %d swizzle %d promotion %d fill %d", interleave, swizzle, promotion, fill);
    return (uintptr_t)map % 64 == 0 ? SUCCESS : INVALID_VALUE;
}

static void enqueue_host_work(HostStreamHead* stream, void (*run)(void*), void (*release)(void*), void* work) {
    (void)stream;
    append(destination(), (Operation){.host = {run, capturing ? NULL : release, work}});
}
int cuStreamCreate(HostStreamHead** stream, unsigned flags) {
    IN_CONTEXT();
    *stream = counted(malloc(sizeof **stream));
    **stream = (HostStreamHead){enqueue_host_work};
    return flags == 1 ? SUCCESS : INVALID_VALUE;
}
int cuStreamDestroy_v2(void* stream) { return discarded(stream); }
int cuStreamSynchronize(void* stream) { (void)stream; IN_CONTEXT(); return drain(); }
int cuStreamQuery(void* stream) {
    (void)stream;
    IN_CONTEXT();
    return *figure("busy") ? NOT_READY : drain();
}
int cuEventCreate(Event** event, unsigned flags) {
    (void)flags;
    IN_CONTEXT();
    *event = counted(calloc(1, sizeof(Event)));
    return SUCCESS;
}
int cuEventDestroy_v2(Event* event) { return discarded(event); }
int cuEventQuery(Event* event) { (void)event; IN_CONTEXT(); return drain(); }
int cuEventRecordWithFlags(Event* event, void* stream, unsigned flags) {
    (void)stream;
    IN_CONTEXT();
    if (flags != (capturing ? 1u : 0u)) return INVALID_VALUE;  // external in a capture, plain outside
    note("event");
    append(destination(), (Operation){.event = event});
    return SUCCESS;
}
int cuEventElapsedTime(float* milliseconds, Event* begin, Event* end) {
    IN_CONTEXT();
    *milliseconds = (float)((end->ns - begin->ns) / 1e6);
    return SUCCESS;
}

int cuStreamBeginCapture_v2(void* stream, int mode) {
    (void)stream;
    (void)mode;
    IN_CONTEXT();
    capturing = 1;
    note("capture");
    return SUCCESS;
}
int cuStreamEndCapture(void* stream, Graph** graph) {
    (void)stream;
    const int broken = capturing < 0;
    capturing = 0;
    *graph = NULL;
    if (broken) { clear(&captured); return CAPTURE_INVALIDATED; }
    *graph = counted(malloc(sizeof(Graph)));
    **graph = captured;
    captured = (Graph){0};
    return SUCCESS;
}
int cuGraphGetNodes(Graph* graph, void* nodes, size_t* count) {
    if (nodes) return INVALID_VALUE;
    *count = graph->count;
    return SUCCESS;
}
int cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long flags) {
    (void)flags;
    IN_CONTEXT();
    *executable = counted(calloc(1, sizeof(Graph)));  // a copy: the graph may go before it
    for (size_t index = 0; index < graph->count; ++index) append(*executable, graph->operations[index]);
    return SUCCESS;
}
int cuGraphUpload(void* executable, void* stream) { (void)executable; (void)stream; IN_CONTEXT(); return SUCCESS; }
int cuGraphLaunch(Graph* executable, void* stream) {
    (void)stream;
    IN_CONTEXT();
    note("graph");
    for (size_t index = 0; index < executable->count; ++index) append(&queue, executable->operations[index]);
    return SUCCESS;
}
int cuGraphExecDestroy(Graph* executable) { clear(executable); return discarded(executable); }
int cuGraphDestroy(Graph* graph) { clear(graph); return discarded(graph); }

void fake_reset(void) {
    for (Figure* each = figures; each->name; ++each) each->value = each->initial;
    stop_runner();
    failure.function[0] = 0;
    sticky = capturing = 0;
    clear(&queue);
    clear(&captured);
    log_bytes = 0;
    note("%s", "");
    log_bytes = 0;
    log_text[0] = 0;
}
void fake_set(const char* name, long long value) { *figure(name) = value; }
long long fake_get(const char* name) { return *figure(name); }
const char* fake_log(void) { return log_text; }
void fake_forget_log(void) { log_bytes = 0; log_text[0] = 0; }
// After `skip` more calls of that function, it answers `result` once.
void fake_fail(const char* function, int result, int skip) {
    snprintf(failure.function, sizeof failure.function, "%s", function);
    failure.result = result;
    failure.skip = skip;
}

__attribute__((constructor)) static void begin(void) {
    fake_reset();
    const char* text = getenv("FAKE_LIBCUDA");
    char name[64];
    long long value;
    for (int read; text && sscanf(text, " %63[a-z0-9_]=%lld%n", name, &value, &read) == 2; text += read) fake_set(name, value);
}
