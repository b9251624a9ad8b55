#include "nccl/host_device.h"

#include "check.h"
#include "nccl/errors.h"
#include "nccl/host_stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace pyperf::nccl {
namespace {

using Clock = std::chrono::steady_clock;

// Work of a double; given back when the last queue or graph that holds it lets go of it.
class Work {
  public:
    Work(void (*run)(void*), void (*release)(void*), void* argument)
        : run_(run), release_(release), argument_(argument) {}
    ~Work() { release_(argument_); }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

    void run() const { run_(argument_); }

  private:
    void (*run_)(void*);
    void (*release_)(void*);
    void* argument_;
};

struct HostEvent {
    std::atomic<bool> reached{false};
    Clock::time_point at;
};

// Either work or an event.
struct Step {
    std::shared_ptr<Work> work;
    HostEvent* event = nullptr;

    void run() const {
        if (work) return work->run();
        event->at = Clock::now();
        event->reached.store(true, std::memory_order_release);
    }
};

using HostGraph = std::vector<Step>;

// The head comes first: a double is handed a pointer to the whole.
class HostStream : public HostStreamHead {
  public:
    HostStream() : HostStreamHead{&HostStream::enqueue_work}, thread_([this] { work(); }) {}

    ~HostStream() {
        {
            const std::lock_guard<std::mutex> locked(mutex_);
            stopped_ = true;
            queue_.clear();
        }
        wake_.notify_one();
        thread_.join();
    }

    void append(Step step) {
        {
            const std::lock_guard<std::mutex> locked(mutex_);
            if (captured_) return captured_->push_back(std::move(step));
            queue_.push_back(std::move(step));
        }
        wake_.notify_one();
    }

    bool idle() {
        const std::lock_guard<std::mutex> locked(mutex_);
        return queue_.empty() && !busy_;
    }

    void begin_capture() {
        const std::lock_guard<std::mutex> locked(mutex_);
        captured_ = std::make_unique<HostGraph>();
    }

    std::unique_ptr<HostGraph> end_capture() {
        const std::lock_guard<std::mutex> locked(mutex_);
        return std::move(captured_);
    }

  private:
    static void enqueue_work(HostStreamHead* head, void (*run)(void*), void (*release)(void*), void* argument) {
        static_cast<HostStream*>(head)->append({std::make_shared<Work>(run, release, argument)});
    }

    void work() {
        std::unique_lock<std::mutex> locked(mutex_);
        while (true) {
            wake_.wait(locked, [this] { return stopped_ || !queue_.empty(); });
            if (stopped_) return;
            Step step = std::move(queue_.front());
            queue_.pop_front();
            busy_ = true;
            locked.unlock();
            step.run();
            step = {};
            locked.lock();
            busy_ = false;
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Step> queue_;
    std::unique_ptr<HostGraph> captured_;
    bool busy_ = false;
    bool stopped_ = false;
    std::thread thread_;  // last: it uses all of the above
};

HostStream* stream_of(Stream stream) { return static_cast<HostStream*>(static_cast<HostStreamHead*>(stream)); }
HostEvent* event_of(Event event) { return static_cast<HostEvent*>(event); }
void* pointer(Address address) { return reinterpret_cast<void*>(address); }

}  // namespace

Address HostDevice::allocate(std::int64_t bytes) {
    void* memory = std::malloc(static_cast<std::size_t>(bytes));
    if (!memory)
        throw NcclError(text(bytes / 1e9, " GB of memory were asked for and the system refused: ask for less."));
    return reinterpret_cast<Address>(memory);
}

void HostDevice::free(Address address) noexcept { std::free(pointer(address)); }

void HostDevice::write(Address to, const void* host, std::int64_t bytes) {
    std::memcpy(pointer(to), host, static_cast<std::size_t>(bytes));
}

void HostDevice::read(void* host, Address from, std::int64_t bytes) {
    std::memcpy(host, pointer(from), static_cast<std::size_t>(bytes));
}

void HostDevice::fill(Address address, unsigned char value, std::int64_t bytes) {
    std::memset(pointer(address), value, static_cast<std::size_t>(bytes));
}

void HostDevice::copy(Address to, Address from, std::int64_t bytes) {
    std::memcpy(pointer(to), pointer(from), static_cast<std::size_t>(bytes));
}

template <typename Bits> static Outside outside_of(const Bits* data, std::int64_t count, const Bounds& bounds) {
    const auto* low = static_cast<const Bits*>(bounds.low);
    const auto* high = static_cast<const Bits*>(bounds.high);
    Outside found{0, -1};
    for (std::int64_t begin = 0; begin < count; begin += bounds.period) {
        const std::int64_t length = std::min(bounds.period, count - begin);
        const Bits* here = data + begin;
        std::int64_t outside = 0;
        for (std::int64_t at = 0; at < length; ++at) outside += (here[at] < low[at]) | (here[at] > high[at]);
        for (std::int64_t at = 0; outside && found.first < 0 && at < length; ++at)
            if (here[at] < low[at] || here[at] > high[at]) found.first = begin + at;
        found.count += outside;
    }
    return found;
}

Outside HostDevice::outside(Address data, std::int64_t count, const Bounds& bounds) {
    switch (bounds.element_bytes) {
        case 1: return outside_of(static_cast<const std::uint8_t*>(pointer(data)), count, bounds);
        case 2: return outside_of(static_cast<const std::uint16_t*>(pointer(data)), count, bounds);
        default: return outside_of(static_cast<const std::uint32_t*>(pointer(data)), count, bounds);
    }
}

Stream HostDevice::create_stream() { return static_cast<HostStreamHead*>(new HostStream); }

void HostDevice::destroy_stream(Stream stream) noexcept { delete stream_of(stream); }

bool HostDevice::idle(Stream stream) { return stream_of(stream)->idle(); }

Event HostDevice::create_event() { return new HostEvent; }

void HostDevice::destroy_event(Event event) noexcept { delete event_of(event); }

void HostDevice::record(Event event, Stream stream) {
    event_of(event)->reached.store(false, std::memory_order_relaxed);
    stream_of(stream)->append({nullptr, event_of(event)});
}

bool HostDevice::reached(Event event) { return event_of(event)->reached.load(std::memory_order_acquire); }

double HostDevice::seconds_between(Event begin, Event end) {
    return std::chrono::duration<double>(event_of(end)->at - event_of(begin)->at).count();
}

void HostDevice::begin_capture(Stream stream) { stream_of(stream)->begin_capture(); }

Graph HostDevice::end_capture(Stream stream) { return stream_of(stream)->end_capture().release(); }

void HostDevice::abandon_capture(Stream stream) noexcept { stream_of(stream)->end_capture(); }

void HostDevice::launch(Graph graph, Stream stream) {
    for (const Step& step : *static_cast<HostGraph*>(graph)) stream_of(stream)->append(step);
}

void HostDevice::destroy_graph(Graph graph) noexcept { delete static_cast<HostGraph*>(graph); }

}  // namespace pyperf::nccl
