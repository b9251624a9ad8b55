"""The one interface through which every clock is read, and the stopwatch of the host CPU.

A stopwatch times whole blocks of samples, so that a clock on a device can queue a block and read all of it
afterwards.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Protocol

Launch = Callable[[int], object]
"""`launch(index)` starts the work once; `index` counts all launches, so that operands can rotate with it."""


class Stopwatch(Protocol):
    """Times blocks of samples; `resolution_s` is the shortest time, its own cost included, that it can tell.

    One call to `time` is all that a clock needs to know beforehand, which is what lets the same loop drive
    them all:

    * the host clock reads itself before and after each sample;
    * CUDA events are recorded between samples behind a blocking kernel, or in a captured graph, and read at
      the end; a limit on launches in flight is the stopwatch's own affair: it may cut the block into several;
    * for collectives, rank 0 runs the loop, and its stopwatch publishes the three integers of the call before
      timing with the other ranks, which keep their own samples; only rank 0 decides what comes next.
    """

    name: str
    resolution_s: float

    def time(self, launch: Launch, first: int, samples: int, launches_per_sample: int) -> Sequence[float]:
        """Launch `first`, `first` + 1, …; return the seconds of `samples` runs of `launches_per_sample` each.

        What a sample launched is finished when the sample ends, or is counted in the sample that waits for
        it.
        """
        ...


class CpuStopwatch:
    """Reads `time.perf_counter_ns` around each sample, for launches that return when their work is done."""

    name = "perf_counter_ns"

    def __init__(self) -> None:
        self.resolution_s = _resolution_of_perf_counter_s()

    def time(self, launch: Launch, first: int, samples: int, launches_per_sample: int) -> list[float]:
        """Seconds of each sample; the garbage collector rests, as it would charge one sample for many."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            return _time_samples(launch, first, samples, launches_per_sample)
        finally:
            if collecting:
                gc.enable()


def _time_samples(launch: Launch, first: int, samples: int, launches_per_sample: int) -> list[float]:
    clock = time.perf_counter_ns
    seconds = [0.0] * samples
    for sample in range(samples):
        indices = range(first, first + launches_per_sample)
        begin = clock()
        for index in indices:
            launch(index)
        end = clock()
        seconds[sample] = (end - begin) * 1e-9
        first += launches_per_sample
    return seconds


def _resolution_of_perf_counter_s() -> float:
    """The median time of a sample that launches nothing, or one tick of the clock where that is coarser."""
    empty = sorted(_time_samples(int, 0, 101, 0))
    tick = time.get_clock_info("perf_counter").resolution
    return max(empty[len(empty) // 2], tick)
