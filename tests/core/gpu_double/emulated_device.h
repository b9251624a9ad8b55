/* The memory of the double of libcuda, and the process beside it that runs kernels.

   Device memory is the host's, shared with that process: each allocation ends where a page does and nothing lies behind
   it. The process has no other memory of the host's, so that an address of it fails in a kernel as it does on a device, and
   what a kernel destroys is not the program that launched it. Its end is a lost context.

   A launch that would write what is there already, because the same was launched and nothing it takes has changed since, is
   not run again: it lasts as long as it did. */
#pragma once

#define _GNU_SOURCE
#include "emulated_kernel.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "emulated_messages.h"

typedef struct {
    uint64_t address, bytes; /* as it was asked for, rounded up to 256 */
    char* mapped;
    size_t mapped_bytes;
    int host;         /* the host writes to it as it likes */
    int known;        /* whether `content` is of what is in it now */
    int has_pointers; /* something in it looks like a device address */
    uint64_t content;
} Allocation;

static struct {
    int memory, channel; /* file descriptors; 0 where there is none yet */
    uint64_t next;
    Allocation* all;
    size_t count;
} device = {0, 0, EMULATED_ARENA, NULL, 0};

extern char** environ;

static void tell(const Message* message, const void* payload) {
    if (device.channel == 0) return;
    /* A message that cannot be sent is noticed where an answer is waited for. */
    if (send(device.channel, message, sizeof *message, MSG_NOSIGNAL) < 0) return;
    for (size_t sent = 0; sent < message->payload_bytes;) {
        const ssize_t part = send(device.channel, (const char*)payload + sent, message->payload_bytes - sent, MSG_NOSIGNAL);
        if (part < 0) return;
        sent += (size_t)part;
    }
}

static int hear(Answer* answer) {
    for (size_t heard = 0; heard < sizeof *answer;) {
        const ssize_t part = recv(device.channel, (char*)answer + heard, sizeof *answer - heard, 0);
        if (part < 0 && errno == EINTR) continue;
        if (part <= 0) return 0;
        heard += (size_t)part;
    }
    return 1;
}

static void tell_of(int kind, const Allocation* one) {
    const Message message = {.kind = kind, .address = one->address, .bytes = one->bytes,
                             .mapped = (uint64_t)(uintptr_t)one->mapped, .mapped_bytes = one->mapped_bytes};
    tell(&message, NULL);
}

static Allocation* allocation_of(uint64_t address) {
    for (size_t each = 0; each < device.count; ++each)
        if (address - device.all[each].address < device.all[each].bytes) return &device.all[each];
    return NULL;
}
/* True if the bytes from the address on are device memory. */
static int is_allocated(uint64_t address, size_t bytes) {
    const Allocation* found = allocation_of(address);
    return found && bytes <= found->address + found->bytes - address;
}
static void written(uint64_t address) {
    Allocation* found = allocation_of(address);
    if (found) found->known = 0;
}

static uint64_t allocate(size_t bytes, int host) {
    const size_t page = 4096, rounded = (bytes + 255) / 256 * 256, mapped = (rounded + page - 1) / page * page;
    if (device.memory == 0) device.memory = memfd_create("memory of the double", MFD_CLOEXEC);
    const uint64_t offset = device.next - EMULATED_ARENA;
    if (ftruncate(device.memory, (off_t)(offset + mapped)) != 0) return 0;
    char* at = mmap((void*)device.next, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, device.memory,
                    (off_t)offset);
    if (at == MAP_FAILED) return 0;
    device.next += mapped + page;
    device.all = realloc(device.all, (device.count + 1) * sizeof *device.all);
    device.all[device.count] = (Allocation){.address = (uint64_t)(uintptr_t)(at + mapped - rounded), .bytes = rounded,
                                            .mapped = at, .mapped_bytes = mapped, .host = host};
    tell_of(MESSAGE_MAP, &device.all[device.count]);
    return device.all[device.count++].address;
}

static int release(uint64_t address) {
    Allocation* found = allocation_of(address);
    if (!found || found->address != address) return 0;
    tell_of(MESSAGE_UNMAP, found);
    const off_t offset = (off_t)((uint64_t)(uintptr_t)found->mapped - EMULATED_ARENA);
    fallocate(device.memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, (off_t)found->mapped_bytes);
    munmap(found->mapped, found->mapped_bytes);
    *found = device.all[--device.count];
    return 1;
}

/* Starts the process that runs kernels, which lies beside this library. */
static int start_runner(void) {
    if (device.channel) return 1;
    Dl_info here;
    int ends[2];
    char path[4096];
    if (!dladdr((void*)start_runner, &here) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return 0;
    snprintf(path, sizeof path, "%s", here.dli_fname);
    char runner[4200];
    snprintf(runner, sizeof runner, "%s/run_kernels", dirname(path));
    if (device.memory == 0) device.memory = memfd_create("memory of the double", MFD_CLOEXEC);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    /* By way of numbers that neither is at already. */
    const int channel = fcntl(ends[1], F_DUPFD, 10), memory = fcntl(device.memory, F_DUPFD, 10);
    posix_spawn_file_actions_adddup2(&actions, channel, RUNNER_CHANNEL);
    posix_spawn_file_actions_adddup2(&actions, memory, RUNNER_MEMORY);
    posix_spawn_file_actions_addclose(&actions, channel);
    posix_spawn_file_actions_addclose(&actions, memory);
    pid_t process;
    char* arguments[] = {runner, NULL};
    const int refused = posix_spawn(&process, runner, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(channel);
    close(memory);
    close(ends[1]);
    if (refused) {
        close(ends[0]);
        return 0;
    }
    device.channel = ends[0];
    for (size_t each = 0; each < device.count; ++each) tell_of(MESSAGE_MAP, &device.all[each]);
    return 1;
}

static void stop_runner(void) {
    if (device.channel) close(device.channel);
    device.channel = 0;
}

/* Modules */

typedef struct {
    const EmulatedKernel* kernels; /* NULL where the image is another's machine code */
    uint64_t number;
    char path[64];
} Module;

/* The bytes of an image that the double of NVRTC made, 0 for another: byte by byte, as it may end anywhere. */
static size_t emulated_bytes(const char* image) {
    const char expected[] = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT};
    for (size_t each = 0; each < sizeof expected; ++each)
        if (image[each] != expected[each]) return 0;
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    const Elf64_Half machine = ((const Elf64_Ehdr*)&header)->e_machine;
    if (machine != EM_X86_64 && machine != EM_AARCH64) return 0;
    return header.e_shoff + (size_t)header.e_shnum * header.e_shentsize; /* the linker puts that table last */
}

/* Opens an image, and fills in the architecture it was compiled for. Its file stays open as long as this process: the
   loader takes another of the same name for the same. */
static int load_module(Module* module, const char* image, const char** architecture) {
    const size_t bytes = emulated_bytes(image);
    *architecture = NULL;
    static uint64_t loaded;
    module->kernels = NULL;
    module->number = ++loaded;
    if (bytes == 0) return 1;
    const int image_file = memfd_create("kernels of the double", MFD_CLOEXEC);
    if (write(image_file, image, bytes) != (ssize_t)bytes) return 0;
    snprintf(module->path, sizeof module->path, "/proc/%d/fd/%d", (int)getpid(), image_file);
    void* opened = dlopen(module->path, RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
        fprintf(stderr, "fake_libcuda: %s\n", dlerror());
        return 0;
    }
    module->kernels = dlsym(opened, "emulated_kernels");
    const char* const* compiled_for = dlsym(opened, "emulated_architecture");
    *architecture = compiled_for ? *compiled_for : NULL;
    return module->kernels && start_runner();
}

/* Launches */

typedef struct {
    Module module;
    const EmulatedKernel* kernel;
    EmulatedLaunch launch;
    size_t argument_bytes;
    char arguments[]; /* each at a multiple of 128 */
} Execution;

static size_t slot_bytes(size_t bytes) { return (bytes + 127) / 128 * 128; }

static Execution* prepared(const Module* module, const EmulatedKernel* kernel, void** arguments) {
    size_t bytes = 0;
    for (unsigned each = 0; each < kernel->parameter_count; ++each) bytes += slot_bytes(kernel->parameter_bytes[each]);
    Execution* made = calloc(1, sizeof *made + bytes);
    made->module = *module;
    made->kernel = kernel;
    made->argument_bytes = bytes;
    char* slot = made->arguments;
    for (unsigned each = 0; each < kernel->parameter_count; slot += slot_bytes(kernel->parameter_bytes[each++]))
        memcpy(slot, arguments[each], kernel->parameter_bytes[each]);
    return made;
}

static uint64_t mixed(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}
static uint64_t mixed_bytes(uint64_t hash, const void* bytes, size_t count) {
    uint64_t word = 0;
    for (size_t at = 0; at < count; at += 8) {
        memcpy(&word, (const char*)bytes + at, count - at < 8 ? count - at : 8);
        hash = mixed(hash, word);
    }
    return hash;
}

static uint64_t content_of(Allocation* one) {
    if (one->known && !one->host) return one->content;
    const uint64_t* words = (const uint64_t*)one->address;
    one->content = 0;
    one->has_pointers = 0;
    for (size_t at = 0; at < one->bytes / 8; ++at) {
        one->content = mixed(one->content, words[at]);
        one->has_pointers |= words[at] - EMULATED_ARENA < device.next - EMULATED_ARENA;
    }
    one->known = 1;
    return one->content;
}

/* Hash of a launch's arguments and of all memory that they point to. */
static uint64_t state_of(const Execution* one, int* has_pointers) {
    uint64_t state = mixed((uint64_t)(uintptr_t)one->kernel, one->module.number);
    state = mixed_bytes(state, &one->launch, offsetof(EmulatedLaunch, arguments));
    state = mixed_bytes(state, one->arguments, one->argument_bytes);
    const uint64_t* words = (const uint64_t*)(const void*)one->arguments;
    for (size_t at = 0; at < one->argument_bytes / 8; ++at) {
        Allocation* found = allocation_of(words[at]);
        if (!found) continue;
        state = mixed(state, content_of(found));
        *has_pointers |= found->has_pointers;
    }
    return state;
}
static void forget_contents(const Execution* one) {
    const uint64_t* words = (const uint64_t*)(const void*)one->arguments;
    for (size_t at = 0; at < one->argument_bytes / 8; ++at) written(words[at]);
}

/* Launches that leave everything as it is, by state, and how long they last. */
enum { REMEMBERED = 1 << 16 };
static struct { uint64_t state; double lasted_ns; } remembered[REMEMBERED];

/* Runs a launch, and adds how long it lasts. A result of the driver: 700 and 719 are a lost context. */
static int execute(Execution* one, uint64_t now_ns, unsigned multiprocessors, double sm_khz, double* lasted_ns) {
    int has_pointers = 0;
    one->launch.began_ns = 0;
    one->launch.multiprocessors = multiprocessors;
    one->launch.sm_khz = sm_khz;
    const uint64_t state = state_of(one, &has_pointers);
    if (remembered[state % REMEMBERED].state == state) {
        *lasted_ns += remembered[state % REMEMBERED].lasted_ns;
        return 0;
    }
    one->launch.began_ns = now_ns;
    if (device.channel == 0) return 719;
    Message message = {.kind = MESSAGE_LAUNCH, .module = one->module.number, .launch = one->launch,
                       .payload_bytes = one->argument_bytes};
    memcpy(message.path, one->module.path, sizeof message.path);
    snprintf(message.name, sizeof message.name, "%s", one->kernel->name);
    tell(&message, one->arguments);
    Answer answer = {0};
    if (!hear(&answer)) answer.result = 719; /* it said why, where it ended */
    if (answer.result != 0) {
        stop_runner();
        return answer.result;
    }
    *lasted_ns += answer.lasted_ns;
    forget_contents(one);
    one->launch.began_ns = 0;
    if (!has_pointers && !answer.read_clock && state_of(one, &has_pointers) == state) {
        remembered[state % REMEMBERED].state = state;
        remembered[state % REMEMBERED].lasted_ns = answer.lasted_ns;
    }
    return 0;
}
