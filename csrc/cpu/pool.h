// The worker threads of the process: created once, kept asleep between calls, pinned to cores when asked.
#pragma once

#include <functional>
#include <vector>

namespace pyperf::cpu {

// The cores the calling thread may run on, ascending; where the system has no affinity, one entry of -1 per core.
std::vector<int> usable_cores();

// Runs work(worker) for worker = 0 … cores.size() − 1 and returns when all are done. The calling thread is worker 0;
// calls from several threads take turns. `work` must not throw. With `pin`, worker w runs on cores[w] only; the
// caller's own affinity is restored. Returns whether every worker was pinned.
bool run_on_workers(const std::vector<int>& cores, bool pin, const std::function<void(int)>& work);

// One turn of waiting for another worker: cheap at first, then leaves the core to whoever needs it.
class Patience {
  public:
    void wait();

  private:
    int turns_ = 0;
};

}  // namespace pyperf::cpu
