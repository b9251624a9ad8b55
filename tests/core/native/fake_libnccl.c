// A double of libnccl for a few ranks, threads or processes, that meet in POSIX shared memory named by the unique id.
//
// It takes streams of host_stream.h, computes exactly, and never blocks. FAKE_VERSION (a macro, NCCL's code of a
// version) decides which symbols there are. The environment variable FAKE_NCCL_FAULT, "kind@operation:rank", makes one
// rank fail at its n-th operation, counted from 0; the kinds are those of `enum Fault`.
#include "fake_elements.h"
#include "nccl/host_stream.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION 23203
#endif

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7,
       TIMEOUT = 8 };
enum { MOST_RANKS = 8, SLOT_BYTES = 4096, MOST_SPLITS = 16, MOST_FACTORS = 64 };
enum Fault {
    NO_FAULT,
    FAULT_INIT,        // joining fails at once
    FAULT_INIT_LATER,  // joining fails in the background
    FAULT_DIE,         // the process is killed
    FAULT_WRONG,       // one bit of what is received is wrong
    FAULT_ERROR,       // an error in the background; the operation never ends
    FAULT_TIMEOUT,     // the same, and the error is the library's own of a time that is over
    FAULT_HANG,        // the operation never ends
    FAULT_REFUSE,      // the call is refused
    FAULT_STUCK,       // the operation never ends and not even an abort ends it
};
static const char* const fault_names[] = {"", "init", "init_later", "die", "wrong", "error", "timeout", "hang",
                                          "refuse", "stuck"};

typedef struct { char internal[128]; } UniqueId;
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char* net_name;
    int split_share, traffic_class;
    const char* comm_name;
    int later[15];  // collnetEnable to nvlsHostMode
} Config;
// The bytes of it that this version has: what follows is not read.
enum { CONFIG_BYTES = FAKE_VERSION >= 23100   ? offsetof(Config, later[15])
                      : FAKE_VERSION >= 23005 ? offsetof(Config, later[10])
                      : FAKE_VERSION >= 23000 ? offsetof(Config, later[9])
                      : FAKE_VERSION >= 22900 ? offsetof(Config, later[8])
                      : FAKE_VERSION >= 22800 ? offsetof(Config, later[6])
                      : FAKE_VERSION >= 22700 ? offsetof(Config, later[4])
                      : FAKE_VERSION >= 22500 ? offsetof(Config, comm_name)
                      : FAKE_VERSION >= 21800 ? offsetof(Config, traffic_class)
                      : FAKE_VERSION >= 21700 ? offsetof(Config, split_share)
                                              : offsetof(Config, cga_cluster_size) };
typedef struct { size_t size; unsigned magic, version; float estimated_us; } SimInfo;

// What ranks share: zeros when made. A phase is a rank's own count of the barriers it has come to.
typedef struct { atomic_size_t filled; char bytes[SLOT_BYTES]; } Mailbox;
typedef struct {
    atomic_int joined[MOST_RANKS], finalized[MOST_RANKS], left[MOST_RANKS], windows[MOST_RANKS];
    size_t window_bytes[MOST_RANKS];
    atomic_ulong phase[MOST_RANKS];
    struct { atomic_int there; int color, key; } split[MOST_SPLITS][MOST_RANKS];
    char slot[MOST_RANKS][SLOT_BYTES];
    Mailbox mailbox[MOST_RANKS][MOST_RANKS];
} Shared;

enum State { JOINING, READY, SPLITTING, REGISTERING, FINALIZING, FINALIZED };
typedef struct Comm {
    int rank, ranks;
    char name[96];
    Shared* shared;
    atomic_int references, aborted, error, running;
    int state, operations, splits, factors, blocking;
    double factor[MOST_FACTORS];
    struct Comm** child;
    void** window;
} Comm;

static _Thread_local char last_error[128];
static _Thread_local int depth;

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}
static int fault(const Comm* comm, int operation) {
    const char* asked = getenv("FAKE_NCCL_FAULT");
    char kind[16];
    int at, rank;
    if (!asked || sscanf(asked, "%15[a-z_]@%d:%d", kind, &at, &rank) != 3) return NO_FAULT;
    if (rank != comm->rank || at != operation) return NO_FAULT;
    for (int each = 1; each <= FAULT_STUCK; ++each)
        if (strcmp(kind, fault_names[each]) == 0) return each;
    return NO_FAULT;
}
static int failed(int result, const char* words) {
    snprintf(last_error, sizeof last_error, "%s", words);
    return result;
}
static void drop(Comm* comm) {
    if (atomic_fetch_sub(&comm->references, 1) > 1) return;
    munmap(comm->shared, sizeof(Shared));
    free(comm);
}

// Whether a wait may go on; where it may not the operation ends as it stands.
static int patient(Comm* comm) {
    if (atomic_load(&comm->aborted)) return 0;
    sched_yield();
    return 1;
}
static int barrier(Comm* comm) {
    const unsigned long mine = atomic_fetch_add(&comm->shared->phase[comm->rank], 1) + 1;
    for (int rank = 0; rank < comm->ranks; ++rank)
        while (atomic_load(&comm->shared->phase[rank]) < mine)
            if (!patient(comm)) return 0;
    return 1;
}

// ---- Operations, queued on a stream
enum Kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, ALL_TO_ALL, GATHER, SCATTER, POINT_TO_POINT };
typedef struct { int sends, peer; char* at; size_t bytes, done; } Transfer;
typedef struct {
    Comm* comm;
    int kind, type, reduction, root, fault;
    const char* send;
    char* receive;
    size_t count;
    Transfer* transfers;
    int transfer_count;
} Work;

// Every rank shows its whole send buffer, a slot at a time; each takes what is for it.
static void exchange(Work* work) {
    Comm* comm = work->comm;
    const int ranks = comm->ranks, rank = comm->rank, kind = work->kind;
    const size_t element = type_bytes[work->type], part = work->count * element;
    const int parts = kind == REDUCE_SCATTER || kind == ALL_TO_ALL || kind == SCATTER;
    const int reduces = kind == ALL_REDUCE || kind == REDUCE_SCATTER || kind == REDUCE;
    const int from_root = kind == BROADCAST || kind == SCATTER, to_root = kind == REDUCE || kind == GATHER;
    const double factor = work->reduction >= FIRST_FACTOR ? comm->factor[work->reduction - FIRST_FACTOR] : 1;
    const size_t shown = parts ? part * (size_t)ranks : part;
    for (size_t offset = 0; offset < shown; offset += SLOT_BYTES) {
        const size_t bytes = shown - offset < SLOT_BYTES ? shown - offset : SLOT_BYTES;
        char* mine = comm->shared->slot[rank];
        if (!from_root || rank == work->root) memcpy(mine, work->send + offset, bytes);
        if (work->reduction >= FIRST_FACTOR)
            for (size_t at = 0; at < bytes; at += element)
                store(mine + at, work->type, load(mine + at, work->type) * factor);
        if (!barrier(comm)) return;
        for (size_t at = 0; at < bytes && (!to_root || rank == work->root); at += element) {
            const size_t position = offset + at;
            if (parts && position / part != (size_t)rank) continue;  // for another rank
            const size_t within = position % part;
            if (reduces) {
                double total = load(comm->shared->slot[0] + at, work->type);
                for (int each = 1; each < ranks; ++each)
                    total = reduce(total, load(comm->shared->slot[each] + at, work->type), work->reduction);
                store(work->receive + within, work->type, work->reduction == AVG ? total / ranks : total);
            } else {
                for (int each = 0; each < ranks; ++each) {
                    if (from_root && each != work->root) continue;
                    char* to = work->receive + within + (from_root ? 0 : (size_t)each * part);
                    memcpy(to, comm->shared->slot[each] + at, element);
                }
            }
        }
        if (!barrier(comm)) return;
    }
}

// All of a group at once; those with the same peer and direction in order.
static void transfer(Work* work) {
    Comm* comm = work->comm;
    for (int left = work->transfer_count, index = 0; index < left; ++index) work->transfers[index].done = 0;
    while (1) {
        int pending = 0;
        for (int index = 0; index < work->transfer_count; ++index) {
            Transfer* each = &work->transfers[index];
            if (each->done == each->bytes) continue;
            ++pending;
            int first = 1;
            for (int before = 0; before < index; ++before) {
                const Transfer* other = &work->transfers[before];
                if (other->sends == each->sends && other->peer == each->peer && other->done < other->bytes) first = 0;
            }
            if (!first) continue;
            Mailbox* box = each->sends ? &comm->shared->mailbox[comm->rank][each->peer]
                                       : &comm->shared->mailbox[each->peer][comm->rank];
            const size_t filled = atomic_load(&box->filled), left = each->bytes - each->done;
            if (each->sends ? filled != 0 : filled == 0) continue;
            const size_t bytes = each->sends ? (left < SLOT_BYTES ? left : SLOT_BYTES) : filled;
            if (each->sends) memcpy(box->bytes, each->at + each->done, bytes);
            else memcpy(each->at + each->done, box->bytes, bytes);
            atomic_store(&box->filled, each->sends ? bytes : 0);
            each->done += bytes;
        }
        if (!pending || !patient(comm)) return;
    }
}

static void run(void* argument) {
    Work* work = argument;
    Comm* comm = work->comm;
    if (atomic_load(&comm->aborted)) return;
    atomic_store(&comm->running, 1);
    if (work->fault == FAULT_DIE) kill(getpid(), SIGKILL);
    if (work->fault == FAULT_ERROR) atomic_store(&comm->error, REMOTE_ERROR);
    if (work->fault == FAULT_TIMEOUT) atomic_store(&comm->error, TIMEOUT);
    if (work->fault == FAULT_STUCK) while (1) pause();
    if (work->fault == FAULT_ERROR || work->fault == FAULT_TIMEOUT || work->fault == FAULT_HANG) while (patient(comm)) {}
    else if (work->kind == POINT_TO_POINT) transfer(work);
    else exchange(work);
    if (work->fault == FAULT_WRONG && work->receive) work->receive[0] ^= 1;
    atomic_store(&comm->running, 0);
}
static void release(void* argument) {
    Work* work = argument;
    drop(work->comm);
    free(work->transfers);
    free(work);
}

static _Thread_local Work* group;  // sends and receives of the group that is open
static _Thread_local HostStreamHead* group_stream;
static _Thread_local struct { Work work; HostStreamHead* stream; } grouped[64];  // collectives of that group
static _Thread_local int grouped_count;

static void submit(const Work* asked, HostStreamHead* stream) {
    Work* work = malloc(sizeof *work);
    *work = *asked;
    atomic_fetch_add(&asked->comm->references, 1);
    stream->enqueue(stream, run, release, work);
}
static int enqueue(Work asked, HostStreamHead* stream) {
    Comm* comm = asked.comm;
    if (comm->state != READY) return failed(INVALID_ARGUMENT, "the communicator is not ready");
    asked.fault = fault(comm, comm->operations++);
    if (asked.fault == FAULT_REFUSE) return failed(INVALID_USAGE, "told to refuse this operation");
    if (depth > 0 && asked.kind != POINT_TO_POINT) {
        if (grouped_count == 64) return failed(INVALID_USAGE, "the double has no room for so large a group");
        grouped[grouped_count].work = asked;
        grouped[grouped_count++].stream = stream;
        return SUCCESS;
    }
    submit(&asked, stream);
    return SUCCESS;
}
static int add_transfer(Comm* comm, HostStreamHead* stream, Transfer each) {
    if (comm->state != READY || each.peer < 0 || each.peer >= comm->ranks)
        return failed(INVALID_ARGUMENT, "no such peer, or the communicator is not ready");
    if (!group) { group = calloc(1, sizeof *group); group->kind = POINT_TO_POINT; }
    group->comm = comm;
    group_stream = stream;
    if (!each.sends && !group->receive) group->receive = each.at;
    group->transfers = realloc(group->transfers, (size_t)(group->transfer_count + 1) * sizeof each);
    group->transfers[group->transfer_count++] = each;
    return SUCCESS;
}
static int close_group(void) {
    for (int each = 0; each < grouped_count; ++each) submit(&grouped[each].work, grouped[each].stream);
    grouped_count = 0;
    if (!group) return SUCCESS;
    Work* work = group;
    group = NULL;
    const int result = enqueue(*work, group_stream);
    if (result) free(work->transfers);
    free(work);
    return result;
}

// ---- The API
int ncclGetVersion(int* version) { *version = FAKE_VERSION; return SUCCESS; }
const char* ncclGetErrorString(int result) {
    return result == REMOTE_ERROR ? "remote process exited or there was a network error"
           : result == TIMEOUT    ? "operation timed out"
                                  : "told to fail";
}
const char* ncclGetLastError(Comm* comm) { (void)comm; return last_error; }
int ncclGetUniqueId(UniqueId* id) {
    static atomic_uint made;
    memset(id, 0, sizeof *id);
    const unsigned number = atomic_fetch_add(&made, 1);
    snprintf(id->internal, sizeof id->internal, "/fake-nccl-%d-%u-%lld", getpid(), number, now_ns());
    return SUCCESS;
}

int ncclCommGetAsyncError(Comm* comm, int* result);
// The result of a call that began something: at once, or when it is done where the communicator blocks.
static int begun(Comm* comm) {
    int result = IN_PROGRESS;
    while (comm->blocking && result == IN_PROGRESS) {
        ncclCommGetAsyncError(comm, &result);
        usleep(100);
    }
    return result;
}

static Config last;  // the configuration that the last communicator was made with, as this version reads it
int fake_config(int at) { return ((const int*)&last.blocking)[at]; }

static int join(Comm** out, int ranks, const char* name, int rank, int blocking) {
    Comm* comm = calloc(1, sizeof *comm);
    comm->rank = rank;
    comm->ranks = ranks;
    comm->references = 1;
    comm->blocking = blocking;
    snprintf(comm->name, sizeof comm->name, "%s", name);
    const int file = shm_open(name, O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) {
        free(comm);
        return failed(SYSTEM_ERROR, "no shared memory");
    }
    comm->shared = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    atomic_store(&comm->shared->joined[rank], 1);
    if (fault(comm, 0) == FAULT_INIT_LATER) atomic_store(&comm->error, SYSTEM_ERROR);
    *out = comm;
    return begun(comm);
}
static int init(Comm** out, int ranks, const char* name, int rank, const Config* config) {
    if (config->magic != 0xcafebeef || config->size < 48 || config->version < 21400)
        return failed(INVALID_ARGUMENT, "the configuration is none");
    if (config->blocking != 0 && config->blocking != 1) return failed(INVALID_ARGUMENT, "it blocks or it does not");
    memset(&last, 0, sizeof last);
    memcpy(&last, config, CONFIG_BYTES);
    if (ranks > MOST_RANKS) return failed(INVALID_ARGUMENT, "the double has no room for so many ranks");
    const Comm self = {.rank = rank};
    if (fault(&self, 0) == FAULT_INIT) return failed(SYSTEM_ERROR, "told to fail at init");
    return join(out, ranks, name, rank, config->blocking);
}
int ncclCommInitRankConfig(Comm** out, int ranks, UniqueId id, int rank, Config* config) {
    return init(out, ranks, id.internal, rank, config);
}
#if FAKE_VERSION >= 22300
// All meet by the first id; the others are to be unlike it and each other.
int ncclCommInitRankScalable(Comm** out, int ranks, int rank, int count, UniqueId* ids, Config* config) {
    for (int each = 0; each < count; ++each)
        for (int other = 0; other < each; ++other)
            if (!strcmp(ids[each].internal, ids[other].internal)) return failed(INVALID_ARGUMENT, "an id given twice");
    return count > ranks ? failed(INVALID_ARGUMENT, "too many ids") : init(out, ranks, ids[0].internal, rank, config);
}
#endif

static int all(const atomic_int* flags, int ranks) {
    for (int rank = 0; rank < ranks; ++rank)
        if (!atomic_load(&flags[rank])) return 0;
    return 1;
}
// Ranks of a colour are ordered by key, then by their rank before. Null for a negative colour.
static void finish_split(Comm* comm) {
    const int number = comm->splits++ % MOST_SPLITS;
    const int color = comm->shared->split[number][comm->rank].color, key = comm->shared->split[number][comm->rank].key;
    int rank = 0, ranks = 0;
    for (int each = 0; each < comm->ranks; ++each) {
        if (comm->shared->split[number][each].color != color) continue;
        const int other = comm->shared->split[number][each].key;
        ++ranks;
        rank += other < key || (other == key && each < comm->rank);
    }
    char name[96];
    snprintf(name, sizeof name, "%.70s-%d-%d", comm->name, comm->splits, color);
    if (color >= 0) join(comm->child, ranks, name, rank, comm->blocking);
    comm->state = READY;
}
static atomic_int live_memory, live_registrations;
int fake_live(void) { return atomic_load(&live_memory) + atomic_load(&live_registrations); }
// As NCCL does it: all ranks are there, and each gave as many bytes; without support there is none, and no error.
static void finish_window(Comm* comm) {
    const Shared* shared = comm->shared;
    for (int rank = 0; rank < comm->ranks; ++rank) {
        if (atomic_load(&shared->windows[rank]) < atomic_load(&shared->windows[comm->rank])) return;
        if (shared->window_bytes[rank] != shared->window_bytes[comm->rank]) atomic_store(&comm->error, INVALID_USAGE);
    }
#ifdef FAKE_WITHOUT_WINDOWS
    *comm->window = NULL;
#else
    ++live_registrations;
    *comm->window = malloc(1);
#endif
    comm->state = READY;
}
int ncclCommGetAsyncError(Comm* comm, int* result) {
    Shared* shared = comm->shared;
    if (comm->state == JOINING && all(shared->joined, comm->ranks)) {
        comm->state = READY;
        shm_unlink(comm->name);
    }
    if (comm->state == SPLITTING) {
        int there = 1;
        for (int rank = 0; rank < comm->ranks; ++rank)
            there &= atomic_load(&shared->split[comm->splits % MOST_SPLITS][rank].there);
        if (there) finish_split(comm);
    }
    if (comm->state == REGISTERING) finish_window(comm);
    if (comm->state == FINALIZING && all(shared->finalized, comm->ranks)) comm->state = FINALIZED;
    const int error = atomic_load(&comm->error);
    if (error) snprintf(last_error, sizeof last_error, "told to fail in the background");
    *result = error ? error : comm->state == READY || comm->state == FINALIZED ? SUCCESS : IN_PROGRESS;
    return SUCCESS;
}
int ncclCommFinalize(Comm* comm) {
    comm->state = FINALIZING;
    atomic_store(&comm->shared->finalized[comm->rank], 1);
    return begun(comm);
}
int ncclCommDestroy(Comm* comm) {
    if (comm->state != FINALIZED) return failed(INVALID_USAGE, "destroyed before it was finalized");
    drop(comm);
    return SUCCESS;
}
int ncclCommAbort(Comm* comm) {
    atomic_store(&comm->aborted, 1);
    while (atomic_load(&comm->running)) usleep(1000);  // for ever, where that is asked for
    if (comm->state == JOINING) shm_unlink(comm->name);
    drop(comm);
    return SUCCESS;
}
int ncclCommCount(const Comm* comm, int* ranks) { *ranks = comm->ranks; return SUCCESS; }
int ncclCommUserRank(const Comm* comm, int* rank) { *rank = comm->rank; return SUCCESS; }

int ncclRedOpCreatePreMulSum(int* reduction, void* factor, int type, int residence, Comm* comm) {
    if (residence != 1 || comm->factors == MOST_FACTORS) return failed(INVALID_ARGUMENT, "no such factor");
    comm->factor[comm->factors] = load(factor, type);
    *reduction = FIRST_FACTOR + comm->factors++;
    return SUCCESS;
}
int ncclRedOpDestroy(int reduction, Comm* comm) {
    return reduction >= FIRST_FACTOR && reduction < FIRST_FACTOR + comm->factors ? SUCCESS : INVALID_ARGUMENT;
}

int ncclGroupStart(void) { ++depth; return SUCCESS; }
int ncclGroupEnd(void) {
    if (depth == 0) return failed(INVALID_USAGE, "no group is open");
    return --depth > 0 ? SUCCESS : close_group();
}
#define COLLECTIVE(...) return enqueue((Work){.comm = comm, .send = send, .receive = receive, .count = count, \
                                              .type = type, __VA_ARGS__}, stream)
#define ARGUMENTS const void *send, void *receive, size_t count, int type
#define PLACE Comm *comm, HostStreamHead *stream
int ncclAllReduce(ARGUMENTS, int reduction, PLACE) { COLLECTIVE(.kind = ALL_REDUCE, .reduction = reduction); }
int ncclAllGather(ARGUMENTS, PLACE) { COLLECTIVE(.kind = ALL_GATHER); }
int ncclReduceScatter(ARGUMENTS, int reduction, PLACE) { COLLECTIVE(.kind = REDUCE_SCATTER, .reduction = reduction); }
int ncclBroadcast(ARGUMENTS, int root, PLACE) { COLLECTIVE(.kind = BROADCAST, .root = root); }
int ncclReduce(ARGUMENTS, int reduction, int root, PLACE) {
    COLLECTIVE(.kind = REDUCE, .reduction = reduction, .root = root);
}
int ncclRecv(void* receive, size_t count, int type, int peer, PLACE) {
    const int result = add_transfer(comm, stream, (Transfer){0, peer, receive, count * type_bytes[type], 0});
    return result || depth > 0 ? result : close_group();
}
#ifndef FAKE_WITHOUT_SEND
int ncclSend(const void* send, size_t count, int type, int peer, PLACE) {
    const int result = add_transfer(comm, stream, (Transfer){1, peer, (char*)send, count * type_bytes[type], 0});
    return result || depth > 0 ? result : close_group();
}
#endif

#if FAKE_VERSION >= 21800
int ncclCommSplit(Comm* comm, int color, int key, Comm** child, Config* config) {
    if (config->blocking != comm->blocking) return failed(INVALID_ARGUMENT, "blocking is its parent's");
    const int number = comm->splits % MOST_SPLITS;
    comm->shared->split[number][comm->rank].color = color;
    comm->shared->split[number][comm->rank].key = key;
    atomic_store(&comm->shared->split[number][comm->rank].there, 1);
    comm->child = child;
    comm->state = SPLITTING;
    return begun(comm);
}
#endif
#if FAKE_VERSION >= 21900
int ncclMemAlloc(void** address, size_t bytes) { ++live_memory; *address = malloc(bytes); return SUCCESS; }
int ncclMemFree(void* address) { --live_memory; free(address); return SUCCESS; }
int ncclCommRegister(Comm* comm, void* address, size_t bytes, void** registration) {
    if (comm->state != READY || !address || !bytes) return failed(INVALID_ARGUMENT, "nothing to register");
    ++live_registrations;
    *registration = malloc(1);
    return SUCCESS;
}
int ncclCommDeregister(Comm* comm, void* registration) {
    if (comm->state != READY) return failed(INVALID_ARGUMENT, "the communicator is not ready");
    --live_registrations;
    free(registration);
    return SUCCESS;
}
#endif
#if FAKE_VERSION >= 22700
int ncclCommWindowRegister(Comm* comm, void* address, size_t bytes, void** window, int flags) {
    if (comm->state != READY || !address || !bytes || flags != 1) return failed(INVALID_ARGUMENT, "no window");
    comm->shared->window_bytes[comm->rank] = bytes;
    atomic_fetch_add(&comm->shared->windows[comm->rank], 1);
    comm->window = window;
    comm->state = REGISTERING;
    return begun(comm);
}
int ncclCommWindowDeregister(Comm* comm, void* window) {
    if (comm->state != READY) return failed(INVALID_ARGUMENT, "the communicator is not ready");
    --live_registrations;
    free(window);
    return SUCCESS;
}
#endif
#if FAKE_VERSION >= 22200
// As in NCCL 2.22 to 2.30, the group of communicators that do not block is not only predicted: it runs.
int ncclGroupSimulateEnd(SimInfo* info) {
    if (info->magic != 0x74685283 || info->size < 20) return failed(INVALID_ARGUMENT, "no place for a prediction");
    info->estimated_us = 12.5f * (float)grouped_count;
    return --depth > 0 ? SUCCESS : close_group();
}
#endif
#if FAKE_VERSION >= 22800
int ncclAlltoAll(ARGUMENTS, PLACE) { COLLECTIVE(.kind = ALL_TO_ALL); }
int ncclGather(ARGUMENTS, int root, PLACE) { COLLECTIVE(.kind = GATHER, .root = root); }
int ncclScatter(ARGUMENTS, int root, PLACE) { COLLECTIVE(.kind = SCATTER, .root = root); }
#endif
