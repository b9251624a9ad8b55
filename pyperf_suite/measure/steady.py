"""Launching until the times no longer change, and finding on the way how many launches make one sample.

The first launches are slower (page faults, caches, clocks that rise) or faster (a cool chip), and belong to
no result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pyperf_suite.measure.median import median_interval
from pyperf_suite.measure.stopwatch import Launch, Stopwatch

RESOLUTION_SHARE = 0.01
"""A sample is long enough when the stopwatch's resolution is at most this share of it."""

_BATCH_GROWTH = 10
_LONGEST_BATCH = 100_000
_LONGEST_HISTORY = 100_000


@dataclass(frozen=True)
class SteadyRule:
    """Warm-up lasts `min_time_s` at least and `time_cap_s` at most, but for the launch under way at the cap.

    `tolerance` is the relative change between two stretches of launches that still counts as steady. With `launches`
    above 0 warm-up is exactly so many, one at a time, whatever their times.
    """

    tolerance: float = 0.02
    min_time_s: float = 0.05
    time_cap_s: float = 1.0
    launches: int = 0

    def __post_init__(self) -> None:
        if self.launches < 0:
            raise ValueError(f"launches cannot be negative, not {self.launches}")
        if not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive, not {self.tolerance}")
        if not 0 <= self.min_time_s <= self.time_cap_s:
            raise ValueError(f"times must satisfy 0 <= min <= cap, not {self.min_time_s}, {self.time_cap_s}")


@dataclass(frozen=True)
class WarmUp:
    """What warming up took, whether it ended steady, what a launch took then, and how many make a sample."""

    launches: int
    seconds: float
    steady: bool
    launch_s: float
    launches_per_sample: int


def is_steady(samples: Sequence[float], tolerance: float) -> bool:
    """Whether the later half of `samples` shows no change from its first part to its last.

    The earlier half is left aside, so that a slow start is forgotten in time. Within the later half, the
    medians of the two quarters must agree within `tolerance`, or their 95 % intervals, taken as of
    independent samples, must overlap: what noise hides is not a change that a longer warm-up could end. Fewer
    than four samples are never steady.
    """
    if len(samples) < 4:
        return False
    recent = np.asarray(samples[len(samples) // 2 :], dtype=np.float64)
    early, late = recent[: recent.size // 2], recent[recent.size // 2 :]
    was, now = float(np.median(early)), float(np.median(late))
    if abs(now - was) <= tolerance * now:
        return True
    if early.size < 6:  # fewer have no 95 % interval
        return False
    before = median_interval(early, 0.95, effective=early.size)
    after = median_interval(late, 0.95, effective=late.size)
    return before.low <= after.high and after.low <= before.high


def warm_up(
    launch: Launch,
    stopwatch: Stopwatch,
    rule: SteadyRule,
    shortest_sample_s: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> WarmUp:
    """Launch from index 0 on until steady or out of time.

    A sample is given as many launches as it takes to last `shortest_sample_s` and a hundred times the
    stopwatch's resolution. One launch is always made, and nothing is launched once the cap is past.
    """
    if rule.launches:
        return _counted(launch, stopwatch, rule, clock)
    shortest_s = max(shortest_sample_s, stopwatch.resolution_s / RESOLUTION_SHARE)
    begin = clock()
    launches, batch, count = 0, 1, 1
    elapsed_s = 0.0
    history: list[float] = []
    while True:
        block = stopwatch.time(launch, launches, count, batch)
        launches += count * batch
        launch_s = float(np.median(block)) / batch
        # What a sample costs may exceed what the stopwatch says of it: a device is set up, a block queued.
        cost_s = max(launch_s * batch, (clock() - begin - elapsed_s) / count)
        elapsed_s = clock() - begin
        longer = min(_BATCH_GROWTH * batch, _LONGEST_BATCH, math.ceil(shortest_s / max(launch_s, 1e-12)))
        if longer > batch:
            # Shorter batches hold more of the stopwatch's own cost for each launch: compare afresh.
            history.clear()
            cost_s *= longer / batch
            batch = longer
        else:
            history.extend(block)
            steady = elapsed_s >= rule.min_time_s and is_steady(history, rule.tolerance)
            if steady or len(history) >= _LONGEST_HISTORY:
                return WarmUp(launches, elapsed_s, steady, launch_s, batch)
        if elapsed_s >= rule.time_cap_s:
            return WarmUp(launches, elapsed_s, False, launch_s, batch)
        # A block lasts an eighth of the time spent, so that steadiness is looked at often, but not too often.
        affordable = min(max(rule.min_time_s, elapsed_s) / 8, (rule.time_cap_s - elapsed_s) / 2)
        count = max(1, min(_LONGEST_HISTORY, int(affordable / max(cost_s, 1e-9))))


def _counted(launch: Launch, stopwatch: Stopwatch, rule: SteadyRule, clock: Callable[[], float]) -> WarmUp:
    """As many launches as the rule names, each of them a sample."""
    begin = clock()
    history = [stopwatch.time(launch, index, 1, 1)[0] for index in range(rule.launches)]
    return WarmUp(rule.launches, clock() - begin, is_steady(history, rule.tolerance), float(np.median(history)), 1)
