"""When to stop sampling: the median known well enough, or no samples or time left.

Every decision is a pure function of the samples so far and the time spent, so that one rank can take it for
all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pyperf_suite.measure.median import MedianInterval, median_and_quantiles, median_interval

StoppedBy = Literal["interval", "max_samples", "time_cap"]


@dataclass(frozen=True)
class StopRule:
    """What precision is asked for, and what may be spent on it.

    Sampling goes on until the interval of the median at `confidence` has `relative_half_width` or less and
    `min_samples`, `min_effective_samples` and `min_time_s` are past, or until `max_samples` or `time_cap_s`
    is reached. The time cap holds to within one block, that is one sample or `block_s`, whichever is longer;
    but `least_samples` are always taken, so that a launch longer than the cap still leaves more than a single
    figure. Set it to 1 for a cap without exception.

    The interval is looked at when the number of samples has grown by `checkpoint_growth`: looking after each
    sample would cost time, and would stop at the luckiest moment rather than at a good one. For the same
    reason convergence takes `min_effective_samples`: in a short series that wanders slowly, the interval can
    be narrow by chance. (Of AR(1) series with 0.9, the interval at the stop covers the median in 88 % with
    20, in 82 % with 6.)

    A `relative_half_width` of infinity asks nothing of the interval: see `exactly`.
    """

    relative_half_width: float = 0.01
    confidence: float = 0.95
    min_samples: int = 20
    min_effective_samples: float = 20.0
    max_samples: int = 2000
    least_samples: int = 3
    min_time_s: float = 0.02
    time_cap_s: float = 5.0
    checkpoint_growth: float = 1.5
    block_s: float = 0.02

    def __post_init__(self) -> None:
        if not self.relative_half_width > 0:
            raise ValueError(f"relative_half_width must be positive, not {self.relative_half_width}")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must lie between 0 and 1, not {self.confidence}")
        if not 1 <= self.least_samples <= self.min_samples <= self.max_samples:
            raise ValueError(
                "samples must satisfy 1 <= least <= min <= max, "
                f"not {self.least_samples}, {self.min_samples}, {self.max_samples}"
            )
        if self.min_effective_samples < 0:
            raise ValueError(f"min_effective_samples cannot be negative, not {self.min_effective_samples}")
        if self.min_time_s < 0 or self.time_cap_s < 0 or self.block_s < 0:
            raise ValueError("min_time_s, time_cap_s and block_s cannot be negative")
        if not self.checkpoint_growth > 1:
            raise ValueError(f"checkpoint_growth must exceed 1, not {self.checkpoint_growth}")

    @classmethod
    def exactly(cls, samples: int, block_s: float) -> StopRule:
        """So many samples, however they come out and however long they take, in blocks of `block_s`."""
        return cls(
            relative_half_width=math.inf,
            min_samples=samples,
            min_effective_samples=0.0,
            max_samples=samples,
            least_samples=samples,
            min_time_s=0.0,
            # What is left of the cap bounds a block, so it must outlast all of them.
            time_cap_s=1e9,
            block_s=block_s,
        )

    def next_checkpoint(self, samples: int) -> int:
        """The number of samples, more than `samples`, at which the interval is looked at next."""
        grown = max(samples + 1, int(samples * self.checkpoint_growth))
        return min(max(self.min_samples, grown), max(self.max_samples, samples + 1))

    def next_block(self, samples: int, elapsed_s: float, sample_s: float) -> int:
        """How many samples to take before looking at the clock again, each expected to last `sample_s`."""
        wanted = self.next_checkpoint(samples) - samples
        # Half of what is left: a sample slower than expected then still ends before the cap.
        affordable = min(self.block_s, (self.time_cap_s - elapsed_s) / 2) / max(sample_s, 1e-9)
        return max(1, min(wanted, int(affordable)))

    def is_precise(self, samples: Sequence[float], interval: MedianInterval) -> bool:
        """Whether `interval`, that of `samples`, is as narrow and certain as asked, from enough samples."""
        if math.isinf(self.relative_half_width):
            return len(samples) >= self.min_samples
        median, _, _ = median_and_quantiles(samples)
        return (
            len(samples) >= self.min_samples
            and interval.effective_samples >= self.min_effective_samples
            and interval.confidence >= self.confidence
            and interval.half_width <= self.relative_half_width * median
        )

    def reached_limit(self, taken: int, elapsed_s: float) -> StoppedBy | None:
        """Which limit, if any, forbids another sample after `taken` samples, discarded ones included."""
        if taken >= self.max_samples:
            return "max_samples"
        if elapsed_s >= self.time_cap_s and taken >= self.least_samples:
            return "time_cap"
        return None

    def decide(self, kept: Sequence[float], taken: int, elapsed_s: float) -> StoppedBy | None:
        """Why to stop at this checkpoint, None to go on; `kept` are the samples not discarded, in order."""
        if elapsed_s < self.min_time_s or not kept or math.isinf(self.relative_half_width):
            return self.reached_limit(taken, elapsed_s)
        precise = self.is_precise(kept, median_interval(kept, self.confidence))
        return "interval" if precise else self.reached_limit(taken, elapsed_s)
