// A device's own clock around launches: events recorded between them, gaps hidden by holding the stream until all is
// queued or by replaying a graph, and the multiprocessors' cycle counters read beside.
#pragma once

#include "cuda/launch.h"
#include "cuda/memory.h"

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace pyperf::cuda {

enum class Queueing {
    held,   // a kernel holds the stream until the block is queued: the device never waits for the host
    graph,  // the block is captured and replayed as one graph: likewise, for launches that can be captured
    open,   // neither: gaps count, as they must around collectives, which wait for other ranks
};

struct StopwatchOptions {
    Queueing queueing = Queueing::held;
    bool clocks = true;           // read cycle counters between samples, outside what is timed
    double hold_limit_s = 2.0;    // after this the device lets the stream go by itself
    std::int64_t queue_limit = 512;  // operations queued at once; the driver's queue blocks the host at about 1024
};

struct Sample {
    double seconds;
    double sm_clock_hz;  // cycles over seconds of the multiprocessors; NaN where it was not read
};

class Stopwatch {
  public:
    // `cubin` is kernels/cuda/stopwatch.cu compiled for the device.
    Stopwatch(std::shared_ptr<const Context> context, const std::string& cubin, const StopwatchOptions& options);
    ~Stopwatch();
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

    // The stream that launches must go to; other streams need not wait for it nor it for them.
    std::uintptr_t stream() const { return reinterpret_cast<std::uintptr_t>(stream_); }

    const StopwatchOptions& options() const { return options_; }

    // Calls launch(first), launch(first + 1), … and times `samples` runs of `launches_per_sample` each. A launch is
    // that many operations (kernels, copies) on the stream; a sample too long for the queue is timed in parts, which
    // are summed, each less `empty_s`, which an interval without a launch takes. Each block begins with up to
    // `wake_launches` of the launches before its first, uncounted and in at most a quarter of the queue: while it was
    // queued the device had nothing to do. Throws QueueTimedOut where a launch waited for a held stream, what `launch`
    // throws, and LaunchFailed where a kernel failed; the stream is let go in any case.
    std::vector<Sample> time(const std::function<void(std::int64_t)>& launch, std::int64_t first, std::int64_t samples,
                             std::int64_t launches_per_sample, Queueing queueing, std::int64_t operations_per_launch,
                             std::int64_t wake_launches = 0, double empty_s = 0.0);

    // How many operations a launch puts on the stream, by capturing it without running it; nothing where it cannot be
    // captured. What `launch` throws while it is captured is dropped with the capture.
    std::optional<std::int64_t> operations_of(const std::function<void(std::int64_t)>& launch, std::int64_t index);

    // How many launches the queue took behind the last held stream before one of them waited for the device.
    std::int64_t launches_queued() const { return launches_queued_; }

    void synchronize() const;

  private:
    // Launches between two events: a sample or a part of one.
    struct Interval {
        std::int64_t sample;
        std::int64_t first;
        std::int64_t count;
    };
    // One reading of a multiprocessor by read_clocks; zero where none was taken.
    struct ClockPair {
        std::uint64_t cycles;
        std::uint64_t nanoseconds;
    };
    struct Sum {
        double seconds = 0;
        double cycles = 0;
        double clock_seconds = 0;
    };

    // One that is queued at once, behind launches that wake the device.
    struct Block {
        std::int64_t wake = 0;
        std::vector<Interval> intervals;
    };

    std::vector<Interval> intervals(std::int64_t first, std::int64_t samples, std::int64_t launches_per_sample,
                                    std::int64_t operations_per_launch, std::int64_t room) const;
    void time_block(const std::function<void(std::int64_t)>& launch, const Block& block, Queueing queueing,
                    double empty_s, std::vector<Sum>& sums);
    void queue(const std::function<void(std::int64_t)>& launch, const Block& block, Queueing queueing);
    void queue_held(const std::function<void(std::int64_t)>& launch, const Block& block);
    void replay(const std::function<void(std::int64_t)>& launch, const Block& block);
    void record(CUevent event, Queueing queueing);
    [[noreturn]] void fail_queueing() const;
    bool timed_out() const;
    void read_block(const std::vector<Interval>& block, double empty_s, std::vector<Sum>& sums);
    double clock_hz(const ClockPair* before, const ClockPair* after) const;
    std::size_t intervals_per_block() const;
    void load_kernels();
    void release_handles();

    std::shared_ptr<const Context> context_;
    StopwatchOptions options_;
    std::int64_t multiprocessors_;
    MappedMemory gate_;
    DeviceMemory clocks_;
    std::shared_ptr<Kernel> hold_stream_;
    std::shared_ptr<Kernel> read_clocks_;
    std::int64_t launches_queued_ = 0;
    CUstream stream_ = nullptr;
    std::vector<CUevent> events_;  // begin and end of each interval of a block
    std::unique_ptr<Launch> hold_;
    std::vector<std::unique_ptr<Launch>> clock_launches_;  // before the first interval and after each
};

}  // namespace pyperf::cuda
