// Waiting is a short spin, then sleep: a wake-up costs tens of microseconds, which a 256³ product would feel, while an
// idle process must not burn a core.
#include "cpu/pool.h"

#include "check.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <csignal>
#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif
#include <unistd.h>

namespace pyperf::cpu {
namespace {

constexpr std::chrono::microseconds spin_time{200};

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A counter that one thread advances and another waits for.
class Gate {
  public:
    void advance() {
        count_.fetch_add(1);  // sequentially consistent, as is asleep_: one of the two sides sees the other
        if (asleep_.load()) {
            { std::lock_guard<std::mutex> lock(mutex_); }
            woken_.notify_one();
        }
    }

    void wait_for(std::uint64_t count) {
        const auto begin = std::chrono::steady_clock::now();
        while (count_.load(std::memory_order_acquire) < count) {
            for (int turn = 0; turn < 32 && count_.load(std::memory_order_acquire) < count; ++turn) pause_briefly();
            if (std::chrono::steady_clock::now() - begin < spin_time) continue;
            std::unique_lock<std::mutex> lock(mutex_);
            asleep_.store(true);
            woken_.wait(lock, [&] { return count_.load() >= count; });
            asleep_.store(false);
        }
    }

  private:
    std::atomic<std::uint64_t> count_{0};
    std::atomic<bool> asleep_{false};
    std::mutex mutex_;
    std::condition_variable woken_;
};

bool pin_this_thread(int core) {
#if defined(__linux__)
    if (core < 0 || core >= CPU_SETSIZE) return false;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
#else
    (void)core;
    return false;
#endif
}

// Pins the calling thread for a scope, and gives it back the affinity it had.
class PinnedScope {
  public:
    PinnedScope(bool pin, int core) {
#if defined(__linux__)
        if (!pin || pthread_getaffinity_np(pthread_self(), sizeof before_, &before_) != 0) return;
        pinned_ = pin_this_thread(core);
        restore_ = pinned_ && CPU_COUNT(&before_) > 1;
#else
        (void)pin, (void)core;
#endif
    }
    ~PinnedScope() {
#if defined(__linux__)
        if (restore_) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
#endif
    }
    PinnedScope(const PinnedScope&) = delete;
    PinnedScope& operator=(const PinnedScope&) = delete;
    bool pinned() const { return pinned_; }

  private:
    bool pinned_ = false;
#if defined(__linux__)
    bool restore_ = false;
    cpu_set_t before_;
#endif
};

struct Job {
    const std::function<void(int)>* work;
    const std::vector<int>* cores;
    bool pin;
};

class Pool {
  public:
    Pool() : process_(getpid()) {}

    bool run(const Job& job) {
        std::lock_guard<std::mutex> turn(mutex_);
        const int helpers = static_cast<int>(job.cores->size()) - 1;
        while (static_cast<int>(helpers_.size()) < helpers) {
            const int worker = static_cast<int>(helpers_.size()) + 1;
            auto helper = std::make_unique<Helper>();
            try {
                std::thread([this, self = helper.get(), worker] { serve(*self, worker); }).detach();
            } catch (const std::system_error& error) {
                throw InputError(text("The system refused to start worker ", worker + 1, " of ", helpers + 1, " (",
                                      error.what(), "): ask for fewer workers or raise its limit on threads."));
            }
            helpers_.push_back(std::move(helper));
        }
        job_ = job;
        all_pinned_.store(job.pin, std::memory_order_relaxed);
        unfinished_.store(helpers, std::memory_order_relaxed);
        for (int helper = 0; helper < helpers; ++helper) helpers_[helper]->start.advance();
        {
            const PinnedScope scope(job.pin, job.cores->front());
            if (!scope.pinned()) all_pinned_.store(false, std::memory_order_relaxed);
            (*job.work)(0);
        }
        if (helpers > 0) finished_.wait_for(++rounds_);
        return all_pinned_.load(std::memory_order_relaxed);
    }

    pid_t process() const { return process_; }

  private:
    struct Helper {
        Gate start;
    };

    void serve(Helper& self, int worker) {
        block_signals();
        const std::vector<int> home = usable_cores();
        int core = -1;  // where this thread is pinned; -1: nowhere
        for (std::uint64_t round = 1;; ++round) {
            self.start.wait_for(round);
            const int wanted = job_.pin ? (*job_.cores)[worker] : -1;
            if (wanted != core) core = move(wanted, home) ? wanted : -1;
            if (core < 0) all_pinned_.store(false, std::memory_order_relaxed);
            (*job_.work)(worker);
            if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) finished_.advance();
        }
    }

    // Signals are the interpreter's: one that landed here would not wake its main thread.
    static void block_signals() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, nullptr);
    }

    static bool move(int core, const std::vector<int>& home) {
        if (core >= 0) return pin_this_thread(core);
#if defined(__linux__)
        cpu_set_t set;
        CPU_ZERO(&set);
        for (int usable : home)
            if (usable >= 0) CPU_SET(usable, &set);
        pthread_setaffinity_np(pthread_self(), sizeof set, &set);
#else
        (void)home;
#endif
        return false;
    }

    const pid_t process_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Helper>> helpers_;
    Job job_{};
    std::atomic<bool> all_pinned_{false};
    std::atomic<int> unfinished_{0};
    Gate finished_;
    std::uint64_t rounds_ = 0;
};

// Never destroyed: its threads sleep until the process ends, whatever order the interpreter takes its modules down
// in. A forked child has none of the threads, so it gets a pool of its own.
Pool& process_pool() {
    static std::mutex mutex;
    static Pool* pool = nullptr;
    std::lock_guard<std::mutex> lock(mutex);
    if (!pool || pool->process() != getpid()) pool = new Pool;
    return *pool;
}

}  // namespace

std::vector<int> usable_cores() {
    std::vector<int> cores;
#if defined(__linux__)
    cpu_set_t set;
    if (pthread_getaffinity_np(pthread_self(), sizeof set, &set) == 0)
        for (int core = 0; core < CPU_SETSIZE; ++core)
            if (CPU_ISSET(core, &set)) cores.push_back(core);
#endif
    if (cores.empty()) cores.assign(std::max(1u, std::thread::hardware_concurrency()), -1);
    return cores;
}

bool run_on_workers(const std::vector<int>& cores, bool pin, const std::function<void(int)>& work) {
    return process_pool().run({&work, &cores, pin});
}

void Patience::wait() {
    if (++turns_ < 1000)
        pause_briefly();
    else
        std::this_thread::yield();
}

}  // namespace pyperf::cpu
