// The host's streams as a double of libnccl sees them: a C header, the whole contract between the two.
//
// A double that is handed such a stream where libnccl takes a cudaStream_t queues its work on it. Work is done in
// order by the stream's own thread; where the stream is being captured, it is done once each time the graph is
// launched, perhaps never. `release` is called once, after the last run.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

typedef struct HostStreamHead {
    void (*enqueue)(struct HostStreamHead* stream, void (*run)(void* work), void (*release)(void* work), void* work);
} HostStreamHead;

#ifdef __cplusplus
}
#endif
