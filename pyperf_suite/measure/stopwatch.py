"""The one interface through which every clock is read, and the stopwatches of the host and of a CUDA device."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, Protocol

Launch = Callable[[int], object]
"""`launch(index)` starts the work once; `index` counts all launches, so that operands can rotate with it."""


class Stopwatch(Protocol):
    """Times blocks of samples; `resolution_s` is the shortest time, its own cost included, that it can resolve.

    A clock on a device queues a block and reads all of it afterwards; it may cut the block into several. For
    collectives, rank 0's stopwatch publishes the integers of the call before timing with the other ranks.
    """

    name: str
    resolution_s: float

    def time(self, launch: Launch, first: int, samples: int, launches_per_sample: int) -> Sequence[float]:
        """Launch `first`, `first` + 1, …; return the seconds of `samples` runs of `launches_per_sample` each.

        What a sample launched is finished when the sample ends, or is counted in the sample that waits for
        it.
        """
        ...


def wake(stopwatch: Stopwatch, launch: Launch, first: int, launches: int) -> int:
    """Launch so often, uncounted; return how many it took, none where blocks begin with uncounted launches."""
    uncounted = getattr(stopwatch, "wake", None)
    if uncounted is not None:
        return int(uncounted(launch, first, launches))
    stopwatch.time(launch, first, 1, launches)
    return launches


class CpuStopwatch:
    """Reads `time.perf_counter_ns` around each sample, for launches that return when their work is done."""

    name = "perf_counter_ns"

    def __init__(self) -> None:
        # The median time of a sample that launches nothing, or one tick of the clock if that is coarser.
        empty = sorted(_time_samples(int, 0, 101, 0))
        self.resolution_s = max(empty[len(empty) // 2], time.get_clock_info("perf_counter").resolution)

    def time(self, launch: Launch, first: int, samples: int, launches_per_sample: int) -> list[float]:
        with garbage_collector_at_rest():
            return _time_samples(launch, first, samples, launches_per_sample)


@contextmanager
def garbage_collector_at_rest() -> Iterator[None]:
    """It would charge one sample for the garbage of many."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
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


# Names in records of the ways in which gaps between launches were hidden.
NAMES = {"held": "cuda events behind a held stream", "graph": "cuda events in a replayed graph", "open": "cuda events"}


# While a block is queued the GPU is idle, and then needs up to 0.2 ms for its clock (the first sample of a slice had
# 1604 MHz where the others had 1665): launches at the head of a block go uncounted for so long, but for long ones, of
# which that is no share.
HEAD_S, LONG_S = 1e-3, 2e-3

QUEUED_IN_S = 50e-6  # longer than a host takes to queue a kernel
EMPTY_SAMPLES = 101


class CudaStopwatch:
    """Times launches that go to its `stream`: elsewhere they would neither be held back nor waited for.

    `device` is a `_native.cuda.Stopwatch`: a sample is (seconds, clock of the multiprocessors in Hz or NaN).

    The time of a pair of events without a launch, `resolution_s`, is taken off each sample; `sampling` has it for a
    record, with the 20 and 80 % quantiles. Where `wakes` is true, blocks begin with launches that do not count, again
    those before the first; an open queue has none, for other ranks may take part.

    For torch that is `torch.cuda.stream(torch.cuda.ExternalStream(stopwatch.stream))` around each launch. `sets` is how
    many operand sets the launches rotate through. `timed_out` is what `device` raises where launches do not fit behind
    a held stream: fewer are then queued at once, and none is held back where a single one does not fit.
    """

    def __init__(self, device: Any, queueing: str = "held", timed_out: type[Exception] | tuple[()] = ()) -> None:
        self._device, self._queueing, self._timed_out = device, queueing, timed_out
        self._ready: Launch | None = None
        self._operations = 1
        self._clocks_hz: list[float] = []
        self._launch_s = self._empty_s = 0.0
        self.sets, self.wakes, self._follows = 1, True, False
        self.name = NAMES[queueing]
        self.stream: int = device.stream
        empty = sorted(seconds for seconds, _ in self._timed(lambda _: None, 0, EMPTY_SAMPLES, 0))
        self.resolution_s = self._empty_s = median(empty)
        self.sampling = {"empty_s": [self._empty_s, empty[EMPTY_SAMPLES // 5], empty[4 * EMPTY_SAMPLES // 5]]}

    def time(self, launch: Launch, first: int, samples: int, launches_per_sample: int) -> list[float]:
        """Seconds of each sample on the device's clock; a launch not timed before is first launched on every set."""
        if launch != self._ready:
            # Behind a held stream the device would have to be waited for to load kernels or to allocate memory.
            self._launch_s = 0.0
            launch(first)
            self._device.synchronize()
            if self._queueing == "held":
                # Counted before the sets are launched, as what is captured does not run.
                self._take_operations(self._device.operations_of(launch, first) or 1)
            for index in range(first, first + self.sets):
                launch(index)
            self._device.synchronize()
            self._ready = launch
        timed = self._timed(launch, first, samples, launches_per_sample, self._head)
        self._clocks_hz.extend(hz for _, hz in timed)
        if timed and launches_per_sample:
            self._launch_s = median(seconds for seconds, _ in timed) / launches_per_sample
        return [seconds for seconds, _ in timed]

    @property
    def _head(self) -> int:
        """Launches that go uncounted before those of a block; none before the time of a launch is known."""
        if self._follows:
            return 1  # for which the GPU waits at the begin of a block
        is_short = self.wakes and self._queueing != "open" and 0 < self._launch_s < LONG_S
        return math.ceil(HEAD_S / self._launch_s) if is_short else 0

    def follow_on(self) -> None:
        """Let launches begin as they are queued: the GPU has no pause, if each takes it longer than the host."""
        if self._queueing == "held" and self._launch_s >= QUEUED_IN_S * self._operations:
            self._queueing, self._follows = "open", True
            self.name = NAMES[self._queueing]

    def wake(self, launch: Launch, first: int, launches: int) -> int:
        """Launch so often without keeping the clock, and return that number; not if blocks begin so themselves."""
        if self._head:
            return 0
        self._timed(launch, first, 1, launches)
        return launches

    def clocks_hz(self, samples: int) -> list[float]:
        """The multiprocessors' clock during each of the last `samples` samples; NaN where it could not be read."""
        return self._clocks_hz[len(self._clocks_hz) - samples :]

    def _timed(
        self, launch: Launch, first: int, samples: int, launches_per_sample: int, head: int = 0
    ) -> Sequence[tuple[float, float]]:
        """The device's samples, with half as many launches in the queue each time they do not fit."""
        while True:
            try:
                timed: Sequence[tuple[float, float]] = self._device.time(
                    launch,
                    first,
                    samples,
                    launches_per_sample,
                    queueing=self._queueing,
                    operations_per_launch=self._operations,
                    wake_launches=head,
                    empty_s=self._empty_s,
                )
                return timed
            except self._timed_out:
                half, limit = self._device.launches_queued // 2, self._device.queue_limit
                self._take_operations(max(2 * self._operations, -(-limit // half)) if half else limit + 1)

    def _take_operations(self, operations: int) -> None:
        """Set the operations that a launch counts as; one that exceeds the queue by itself is not held back."""
        self._operations = operations
        if operations > self._device.queue_limit:
            self._queueing, self._operations = "open", 1
            self.name = NAMES[self._queueing]
