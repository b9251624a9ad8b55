"""How many times faster one thing is than another, with an interval over the processes that measured both.

Times of one process resemble each other, so the process is the unit: each gives one ratio, taken within it, and the
interval is Student's t on their logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """A ratio of times or rates, and where it lies with a confidence of 95 %.

    `processes` is over how many the interval was taken; 0 where the ratio is counted and not timed. One process knows
    nothing of what differs between processes, so its interval is too narrow to judge by.
    """

    value: float
    low: float
    high: float
    processes: int = 0

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def __mul__(self, factor: float) -> Ratio:
        """The ratio in another unit: both ends of the interval move along."""
        return Ratio(self.value * factor, self.low * factor, self.high * factor, self.processes)

    @property
    def inverse(self) -> Ratio:
        """The other one beside the first."""
        return Ratio(1 / self.value, 1 / self.high, 1 / self.low, self.processes)


def exactly(value: float) -> Ratio:
    """A ratio of what is counted, as bytes are: it has no spread."""
    return Ratio(value, value, value)


def ratio_over_processes(ratios: Sequence[float], within: float = 0.0) -> Ratio:
    """The geometric mean of one ratio a process, with its interval.

    A single process has no spread to tell of; then the interval is its value times and over 1 + `within`, the relative
    half-width that its own samples give. Raises ValueError for no ratios.
    """
    from scipy import special

    count = len(ratios)
    if count == 0:
        raise ValueError("a ratio needs at least one process that measured both sides")
    logs = [math.log(ratio) for ratio in ratios]
    mean = math.fsum(logs) / count
    if count == 1:
        half_width = math.log1p(within)
    else:
        variance = math.fsum((log - mean) ** 2 for log in logs) / (count - 1)
        student = float(special.stdtrit(count - 1, (1 + CONFIDENCE) / 2))
        half_width = student * math.sqrt(variance / count)
    return Ratio(math.exp(mean), math.exp(mean - half_width), math.exp(mean + half_width), count)
