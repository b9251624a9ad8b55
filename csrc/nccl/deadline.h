// How long something may take, and until when that is.
#pragma once

#include "check.h"

#include <chrono>

namespace pyperf::nccl {

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC

class Deadline {
  public:
    // Throws InputError unless 0 < seconds <= a day.
    explicit Deadline(double seconds) : seconds_(seconds) {
        CHECK_INPUT(seconds > 0 && seconds <= 86400, "A deadline of ", seconds,
                    " s was asked for: ask for more than 0 and at most 86400.");
        end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    }

    double seconds() const { return seconds_; }
    bool passed(Clock::time_point now) const { return now >= end_; }

  private:
    double seconds_;
    Clock::time_point end_;
};

}  // namespace pyperf::nccl
