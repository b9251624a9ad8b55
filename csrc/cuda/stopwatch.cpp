// Each block of samples is queued as
//     hold · wake-up launches · clocks · [event · launches · event · clocks] · [event · launches · event · clocks] · …
// so that what is timed holds nothing of ours but one event. Samples follow each other in the queue without the host.
#include "cuda/stopwatch.h"

#include "check.h"
#include "cuda/errors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace pyperf::cuda {
namespace {

constexpr std::int64_t operations_beside_launches = 3;  // of an interval: two events and a reading of the clocks
constexpr std::int64_t operations_of_a_block = 2;       // the kernel that holds the stream and the first reading
constexpr std::int64_t most_to_wake = 4;                // of the queue: this part of it at most wakes the device
constexpr double least_seconds = 1e-9;                  // of an interval, however short its launches

// Laid out as in kernels/cuda/stopwatch.cu. The device writes to it, hence volatile.
struct Gate {
    volatile std::uint32_t open;
    volatile std::uint32_t timed_out;
};

template <typename Value> std::string bytes_of(const Value& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

StopwatchOptions checked(const StopwatchOptions& options) {
    CHECK_INPUT(options.hold_limit_s > 0 && options.hold_limit_s <= 60, "A stream was asked to be held for ",
                options.hold_limit_s, " s at most: ask for more than 0 and up to 60.");
    CHECK_INPUT(options.queue_limit >= 8 && options.queue_limit <= 1000, "A queue of ", options.queue_limit,
                " operations was asked for: it can have 8 to 1000.");
    return options;
}

}  // namespace

std::size_t Stopwatch::intervals_per_block() const {
    return static_cast<std::size_t>((options_.queue_limit - operations_of_a_block) / operations_beside_launches);
}

Stopwatch::Stopwatch(std::shared_ptr<const Context> context, const std::string& cubin, const StopwatchOptions& options)
    : context_(std::move(context)),
      options_(checked(options)),
      multiprocessors_(context_->properties().multiprocessors),
      gate_(context_, sizeof(Gate)),
      clocks_(context_, static_cast<std::int64_t>(intervals_per_block() + 1) * multiprocessors_ *
                            static_cast<std::int64_t>(sizeof(ClockPair))) {
    const auto module = std::make_shared<Module>(context_, cubin);
    hold_stream_ = std::make_shared<Kernel>(module, "pyperf_hold_stream");
    read_clocks_ = std::make_shared<Kernel>(module, "pyperf_read_clocks");
    const LaunchShape one_thread{{1, 1, 1}, {1, 1, 1}};
    const auto limit_ns = static_cast<std::uint64_t>(options_.hold_limit_s * 1e9);
    hold_ = std::make_unique<Launch>(hold_stream_, one_thread,
                                     std::vector{bytes_of(gate_.device()), bytes_of(limit_ns)});
    const LaunchShape one_thread_each{{multiprocessors_, 1, 1}, {1, 1, 1}};
    const auto slots = static_cast<std::uint32_t>(multiprocessors_);
    for (std::size_t reading = 0; reading <= intervals_per_block(); ++reading) {
        const CUdeviceptr pairs = clocks_.address() + reading * slots * sizeof(ClockPair);
        clock_launches_.push_back(
            std::make_unique<Launch>(read_clocks_, one_thread_each, std::vector{bytes_of(pairs), bytes_of(slots)}));
    }
    const CurrentContext current(*context_);
    try {
        PYPERF_CALL(context_->driver(), cuStreamCreate, &stream_, stream_non_blocking);
        for (std::size_t event = 0; event < 2 * intervals_per_block(); ++event) {
            events_.push_back(nullptr);
            PYPERF_CALL(context_->driver(), cuEventCreate, &events_.back(), 0);
        }
        load_kernels();
    } catch (...) {
        release_handles();
        throw;
    }
}

Stopwatch::~Stopwatch() {
    try {
        const CurrentContext current(*context_);
        release_handles();
    } catch (const std::runtime_error&) {  // the context is lost, and its streams and events with it
    }
}

// The driver may put off loading a kernel until its first launch, and would then wait for a held stream.
void Stopwatch::load_kernels() {
    static_cast<Gate*>(gate_.host())->open = 1;
    hold_->run(stream());
    clock_launches_.front()->run(stream());
    synchronize();
}

void Stopwatch::release_handles() {
    for (CUevent event : events_)
        if (event) context_->driver()->api().cuEventDestroy_v2(event);
    if (stream_) context_->driver()->api().cuStreamDestroy_v2(stream_);
}

void Stopwatch::synchronize() const {
    const CurrentContext current(*context_);
    PYPERF_CALL(context_->driver(), cuStreamSynchronize, stream_);
}

std::vector<Stopwatch::Interval> Stopwatch::intervals(std::int64_t first, std::int64_t samples,
                                                      std::int64_t launches_per_sample,
                                                      std::int64_t operations_per_launch, std::int64_t room) const {
    const std::int64_t most = std::max<std::int64_t>(1, (room - operations_beside_launches) / operations_per_launch);
    std::vector<Interval> out;
    for (std::int64_t sample = 0; sample < samples; ++sample) {
        std::int64_t left = launches_per_sample;
        do {
            const std::int64_t count = std::min(left, most);
            out.push_back({sample, first, count});
            first += count;
            left -= count;
        } while (left > 0);
    }
    return out;
}

std::vector<Sample> Stopwatch::time(const std::function<void(std::int64_t)>& launch, std::int64_t first,
                                    std::int64_t samples, std::int64_t launches_per_sample, Queueing queueing,
                                    std::int64_t operations_per_launch, std::int64_t wake_launches, double empty_s) {
    CHECK_INPUT(samples >= 0 && launches_per_sample >= 0, samples, " samples of ", launches_per_sample,
                " launches were asked for: neither can be negative.");
    CHECK_INPUT(operations_per_launch >= 1, operations_per_launch,
                " operations a launch were given: a launch counts as at least 1.");
    context_->synchronize();  // what other streams still do would run beside the first sample
    std::vector<Sum> sums(static_cast<std::size_t>(samples));
    Block block;
    block.wake = std::min({wake_launches, first, options_.queue_limit / most_to_wake / operations_per_launch});
    const std::int64_t room = options_.queue_limit - operations_of_a_block - block.wake * operations_per_launch;
    std::int64_t queued = 0;
    for (const Interval& interval : intervals(first, samples, launches_per_sample, operations_per_launch, room)) {
        const std::int64_t operations = interval.count * operations_per_launch + operations_beside_launches;
        if (!block.intervals.empty() && queued + operations > room) {
            time_block(launch, block, queueing, empty_s, sums);
            block.intervals.clear();
            queued = 0;
        }
        block.intervals.push_back(interval);
        queued += operations;
    }
    if (!block.intervals.empty()) time_block(launch, block, queueing, empty_s, sums);

    std::vector<Sample> out;
    for (const Sum& sum : sums)
        out.push_back({sum.seconds, sum.clock_seconds > 0 ? sum.cycles / sum.clock_seconds
                                                          : std::numeric_limits<double>::quiet_NaN()});
    return out;
}

void Stopwatch::time_block(const std::function<void(std::int64_t)>& launch, const Block& block, Queueing queueing,
                           double empty_s, std::vector<Sum>& sums) {
    if (options_.clocks) clocks_.fill(0);
    switch (queueing) {
        case Queueing::held: queue_held(launch, block); break;
        case Queueing::graph: replay(launch, block); break;
        case Queueing::open: queue(launch, block, queueing); break;
    }
    synchronize();
    if (queueing == Queueing::held && timed_out()) fail_queueing();
    read_block(block.intervals, empty_s, sums);
}

bool Stopwatch::timed_out() const { return static_cast<const Gate*>(gate_.host())->timed_out != 0; }

void Stopwatch::fail_queueing() const {
    throw QueueTimedOut(text("The launches could not be queued within ", options_.hold_limit_s,
                             " s while the stream was held; ", launches_queued_,
                             " could: a launch waits for the device (it synchronises, allocates or loads a kernel), or "
                             "is more operations than the driver queues, so time it with a graph or an open queue."));
}

std::optional<std::int64_t> Stopwatch::operations_of(const std::function<void(std::int64_t)>& launch,
                                                     std::int64_t index) {
    const DriverApi& api = context_->driver()->api();
    const CurrentContext current(*context_);
    PYPERF_CALL(context_->driver(), cuStreamBeginCapture_v2, stream_, capture_relaxed);
    bool whole = true;
    try {
        launch(index);
    } catch (...) {  // it may do what cannot be captured; run, it does not fail
        whole = false;
    }
    CUgraph graph = nullptr;
    whole = api.cuStreamEndCapture(stream_, &graph) == 0 && whole;
    std::size_t nodes = 0;
    whole = whole && graph && api.cuGraphGetNodes(graph, nullptr, &nodes) == 0;
    if (graph) api.cuGraphDestroy(graph);
    if (!whole) return std::nullopt;
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(nodes));
}

void Stopwatch::queue(const std::function<void(std::int64_t)>& launch, const Block& block, Queueing queueing) {
    launches_queued_ = 0;
    const auto run = [&](std::int64_t index) {
        launch(index);
        // A launch that finds the queue full returns only once the device has let the stream go by itself.
        if (queueing == Queueing::held && timed_out()) fail_queueing();
        ++launches_queued_;
    };
    const std::vector<Interval>& intervals = block.intervals;
    for (std::int64_t before = block.wake; before > 0; --before) run(intervals.front().first - before);
    if (options_.clocks) clock_launches_[0]->run(stream());
    for (std::size_t index = 0; index < intervals.size(); ++index) {
        record(events_[2 * index], queueing);
        for (std::int64_t offset = 0; offset < intervals[index].count; ++offset) run(intervals[index].first + offset);
        record(events_[2 * index + 1], queueing);
        if (options_.clocks) clock_launches_[index + 1]->run(stream());
    }
}

void Stopwatch::queue_held(const std::function<void(std::int64_t)>& launch, const Block& block) {
    auto* gate = static_cast<Gate*>(gate_.host());
    gate->open = 0;
    gate->timed_out = 0;
    hold_->run(stream());
    try {
        queue(launch, block, Queueing::held);
    } catch (...) {
        gate->open = 1;
        try {
            synchronize();
        } catch (const std::runtime_error&) {  // what went wrong first says more
        }
        throw;
    }
    gate->open = 1;
}

void Stopwatch::replay(const std::function<void(std::int64_t)>& launch, const Block& block) {
    const Driver* driver = context_->driver();
    const CurrentContext current(*context_);
    struct Captured {
        const DriverApi& api;
        CUgraph graph = nullptr;
        CUgraphExec executable = nullptr;
        ~Captured() {
            if (executable) api.cuGraphExecDestroy(executable);
            if (graph) api.cuGraphDestroy(graph);
        }
    } captured{driver->api()};
    PYPERF_CALL(driver, cuStreamBeginCapture_v2, stream_, capture_thread_local);
    try {
        queue(launch, block, Queueing::graph);
    } catch (...) {
        driver->api().cuStreamEndCapture(stream_, &captured.graph);
        throw;
    }
    PYPERF_CALL(driver, cuStreamEndCapture, stream_, &captured.graph);
    PYPERF_CALL(driver, cuGraphInstantiateWithFlags, &captured.executable, captured.graph, 0);
    PYPERF_CALL(driver, cuGraphUpload, captured.executable, stream_);
    PYPERF_CALL(driver, cuGraphLaunch, captured.executable, stream_);
    synchronize();  // before the graph goes
}

void Stopwatch::record(CUevent event, Queueing queueing) {
    const CurrentContext current(*context_);
    const unsigned int flags = queueing == Queueing::graph ? event_record_external : 0;
    PYPERF_CALL(context_->driver(), cuEventRecordWithFlags, event, stream_, flags);
}

void Stopwatch::read_block(const std::vector<Interval>& block, double empty_s, std::vector<Sum>& sums) {
    const auto slots = static_cast<std::size_t>(multiprocessors_);
    std::vector<ClockPair> pairs;
    if (options_.clocks) {
        pairs.resize((block.size() + 1) * slots);
        clocks_.read(pairs.data(), static_cast<std::int64_t>(pairs.size() * sizeof(ClockPair)));
    }
    const CurrentContext current(*context_);
    for (std::size_t index = 0; index < block.size(); ++index) {
        float milliseconds = 0;
        PYPERF_CALL(context_->driver(), cuEventElapsedTime, &milliseconds, events_[2 * index], events_[2 * index + 1]);
        const double seconds = std::max(static_cast<double>(milliseconds) * 1e-3 - empty_s, least_seconds);
        Sum& sum = sums[static_cast<std::size_t>(block[index].sample)];
        sum.seconds += seconds;
        if (!options_.clocks) continue;
        const double hz = clock_hz(&pairs[index * slots], &pairs[(index + 1) * slots]);
        if (!std::isfinite(hz)) continue;
        sum.cycles += hz * seconds;
        sum.clock_seconds += seconds;
    }
}

// The median over multiprocessors: each has a counter of its own, so only readings of the same one are compared.
double Stopwatch::clock_hz(const ClockPair* before, const ClockPair* after) const {
    std::vector<double> hz;
    for (std::int64_t index = 0; index < multiprocessors_; ++index)
        if (before[index].nanoseconds != 0 && after[index].nanoseconds > before[index].nanoseconds)
            hz.push_back(static_cast<double>(after[index].cycles - before[index].cycles) * 1e9 /
                         static_cast<double>(after[index].nanoseconds - before[index].nanoseconds));
    if (hz.empty()) return std::numeric_limits<double>::quiet_NaN();
    const auto middle = hz.begin() + static_cast<std::ptrdiff_t>(hz.size() / 2);
    std::nth_element(hz.begin(), middle, hz.end());
    return *middle;
}

}  // namespace pyperf::cuda
