"""One measurement: warm up until times no longer change, and sample until the median is known well enough.

The loop reads a stopwatch and asks two rules. Their decisions are pure functions of the samples so far and the time
spent, so that one rank can take them for all. The result says how it came about.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np

from pyperf_suite.measure.power import GpuSlices
from pyperf_suite.measure.stopwatch import Launch, Stopwatch, wake
from pyperf_suite.measure.telemetry import SLOW_BY, Disturbances, are_slow
from pyperf_suite.record.clock_model import interval_at_one_clock
from pyperf_suite.record.interval import (
    USUAL,
    MedianInterval,
    median_and_quantiles,
    median_interval,
    undisturbed_interval,
)

StoppedBy = Literal["interval", "max_samples", "time_cap"]


@dataclass(frozen=True)
class StopRule:
    """The precision wanted, and what may be spent on it.

    Sampling ends when the interval of the median at `confidence` has `relative_half_width` (infinity asks nothing, see
    `exactly`) and `min_samples`, `min_effective_samples` and `min_time_s` are past, or at `max_samples` or
    `time_cap_s`, which holds to within one block; `least_samples` are always taken. The interval is looked at when
    samples have grown by `checkpoint_growth`, for each look may stop at a lucky moment; so may a short series that
    wanders slowly, hence `min_effective_samples` (of AR(1) series with 0.9 the interval at the stop covers the median
    in 88 % with 20, in 82 % with 6). `quantile` is what is reported: 0.5 for what a launch usually takes, less for its
    undisturbed time, where slices take the place of effective samples.
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
    block_s: float = 0.015
    quantile: float = USUAL

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
        """Return a rule that takes `samples` samples in blocks of `block_s`, whatever their values and time."""
        return cls(
            relative_half_width=math.inf,
            min_samples=samples,
            min_effective_samples=0.0,
            max_samples=samples,
            least_samples=samples,
            min_time_s=0.0,
            # The rest of the cap bounds a block, so it must outlast all of them.
            time_cap_s=1e9,
            block_s=block_s,
        )

    @property
    def shortest_sample_s(self) -> float:
        """The shortest sample, in seconds, with which the time budget does not make more samples than are kept."""
        return (self.min_time_s if self.quantile == USUAL else self.time_cap_s) / self.max_samples

    def next_checkpoint(self, samples: int) -> int:
        """The number of samples, more than `samples`, at which the interval is looked at next."""
        grown = max(samples + 1, int(samples * self.checkpoint_growth))
        return min(max(self.min_samples, grown), max(self.max_samples, samples + 1))

    def next_block(self, samples: int, elapsed_s: float, sample_s: float) -> int:
        """How many samples to take before looking at the clock again, each expected to last `sample_s`."""
        if self.quantile != USUAL:  # slices are the unit of the interval, so all are of one length
            return max(1, int(self.block_s / max(sample_s, 1e-9)))
        # Half of what is left: a sample slower than expected then still ends before the cap.
        affordable = int(min(self.block_s, (self.time_cap_s - elapsed_s) / 2) / max(sample_s, 1e-9))
        return max(1, min(self.next_checkpoint(samples) - samples, affordable))

    def is_precise(self, samples: Sequence[float], interval: MedianInterval) -> bool:
        """True if `interval`, of `samples`, is as narrow and certain as requested, from enough samples."""
        if math.isinf(self.relative_half_width):
            return len(samples) >= self.min_samples
        value = float(np.quantile(samples, self.quantile))
        return (
            len(samples) >= self.min_samples
            and interval.effective_samples >= self.min_effective_samples
            and interval.confidence >= self.confidence
            and interval.half_width <= self.relative_half_width * value
        )

    def interval(self, samples: Sequence[float], slices: Sequence[int]) -> MedianInterval:
        """Return the interval of the quantile; `slices` holds the number of samples of each slice."""
        if self.quantile == USUAL:
            return median_interval(samples, self.confidence)
        return undisturbed_interval(samples, slices, self.confidence, self.quantile)

    def reached_limit(self, samples: int, elapsed_s: float) -> StoppedBy | None:
        """Return the limit, if any, that forbids another sample after `samples` samples, discarded ones included."""
        if samples >= self.max_samples:
            return "max_samples"
        if elapsed_s >= self.time_cap_s and samples >= self.least_samples:
            return "time_cap"
        return None

    def judge(
        self, kept: Sequence[float], slices: Sequence[int], clocks_hz: Sequence[float] = (), launches: int = 1
    ) -> tuple[MedianInterval, bool]:
        """Return the interval of the quantile, and whether it is precise enough.

        With the clock of each sample, of `launches` launches, slices at one clock are the unit: the clock's own moves
        do not count.
        """
        if not clocks_hz or math.isinf(self.relative_half_width):
            interval = self.interval(kept, slices)
            return interval, self.is_precise(kept, interval)
        interval = interval_at_one_clock(kept, clocks_hz, slices, self.confidence, launches)
        enough = len(kept) >= self.min_samples and len(slices) >= MIN_SLICES_AT_ONE_CLOCK
        return interval, enough and interval.half_width <= self.relative_half_width * float(np.median(kept))

    def decide(
        self,
        kept: Sequence[float],
        samples: int,
        elapsed_s: float,
        slices: Sequence[int] = (),
        clocks_hz: Sequence[float] = (),
        launches: int = 1,
    ) -> StoppedBy | None:
        """Why to stop at this checkpoint, None to go on; `kept` are the samples not discarded, in order."""
        too_few = self.quantile != USUAL and len(slices) < self.min_effective_samples
        if elapsed_s < self.min_time_s or not kept or too_few or math.isinf(self.relative_half_width):
            return self.reached_limit(samples, elapsed_s)
        _, precise = self.judge(kept, slices, clocks_hz, launches)
        return "interval" if precise else self.reached_limit(samples, elapsed_s)


MIN_SLICES_AT_ONE_CLOCK = 3

MIN_SLICES_AT_BEST = 4  # from this number on, slices of slow cores are left out of the figure

RESOLUTION_SHARE = 0.01  # a sample is long enough when the stopwatch's resolution is at most this share of it
_BATCH_GROWTH = 10
_LONGEST_BATCH = 100_000
_LONGEST_HISTORY = 100_000


@dataclass(frozen=True)
class SteadyRule:
    """Warm-up lasts `min_time_s` at least and `time_cap_s` at most, but for the launch under way at the cap.

    `tolerance` is the relative change between two stretches of launches that still counts as steady. With `launches`
    above 0 warm-up is exactly that number, one at a time, whatever their times.
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
    """Launches and seconds of the warm-up, its end, the time of a launch then, and the launches of a sample."""

    launches: int
    seconds: float
    steady: bool
    launch_s: float
    launches_per_sample: int


def is_steady(samples: Sequence[float], tolerance: float) -> bool:
    """True if the later half of `samples`, four or more, shows no change: a slow start is forgotten in time.

    The medians of its two quarters agree within `tolerance`, or their 95 % intervals, taken as of independent samples,
    overlap: a longer warm-up could not end a change that noise hides.
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
    """Launch from index 0 on, once at least, until steady or out of time.

    A sample has as many launches as last `shortest_sample_s` and a hundred times the stopwatch's resolution.
    """
    begin = clock()
    if rule.launches:
        counted = [stopwatch.time(launch, index, 1, 1)[0] for index in range(rule.launches)]
        is_same = is_steady(counted, rule.tolerance)
        return WarmUp(rule.launches, clock() - begin, is_same, float(np.median(counted)), 1)
    shortest_s = max(shortest_sample_s, stopwatch.resolution_s / RESOLUTION_SHARE)
    launches, batch, count = 0, 1, 1
    elapsed_s = 0.0
    history: list[float] = []
    while True:
        block = stopwatch.time(launch, launches, count, batch)
        launches += count * batch
        launch_s = float(np.median(block)) / batch
        # A sample may cost more than its measured time: a device is set up, a block queued.
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


Watch = Callable[[], str | None]
"""Called after each block: None, or why its samples cannot stand for the machine ("thermal throttling")."""


@dataclass(frozen=True)
class Measurement:
    """The samples of one launch, how they were taken, and how well they fix the median.

    `seconds` holds every sample in the order taken, each divided by `launches_per_sample`; `discarded` names
    by index those that a watch ruled out and the reason. Samples are never discarded for their value. Where a
    watch ruled out every one, as on a GPU that throttles all the time, none is discarded: `kept_despite` has
    the reasons, and `converged` is false. All statistics are of `kept`. `slices` says how many samples each turn
    took. `left_out` are the numbers of slices whose cores were slow, if there were enough others; if there were not,
    `slow_by` is by which factor the cores were slower than at their best. `interval` is (low, high, confidence
    reached); `converged` says whether it is as narrow and certain as requested, whatever ended the sampling. `levels`
    are those of launches that no single figure stands for (measure/levels.py).
    """

    seconds: tuple[float, ...]
    launches_per_sample: int
    warmup_launches: int
    warmup_s: float
    steady: bool
    effective_samples: float
    interval: tuple[float, float, float]
    converged: bool
    stopped_by: StoppedBy
    discarded: tuple[tuple[int, str], ...] = ()
    kept_despite: tuple[str, ...] = ()
    slices: tuple[int, ...] = ()
    quantile: float = USUAL
    left_out: tuple[int, ...] = ()
    slow_by: float = 1.0
    levels: Mapping[str, Any] | None = None

    @cached_property
    def kept(self) -> tuple[float, ...]:
        """The samples that count: `seconds` without those discarded and those of slices that are left out."""
        out = {index for index, _ in self.discarded}
        if self.left_out:
            ends = np.cumsum(self.slices)
            out.update(index for each in self.left_out for index in range(ends[each] - self.slices[each], ends[each]))
        return tuple(value for index, value in enumerate(self.seconds) if index not in out)

    @cached_property
    def _quantiles(self) -> tuple[float, float, float]:
        return median_and_quantiles(self.kept)

    @cached_property
    def value(self) -> float:
        """Seconds a launch takes: the requested quantile of samples, or where these have levels, their mean."""
        if self.levels and self.levels["is_figure"]:
            return float(self.levels["mean_s"])
        return float(np.quantile(self.kept, self.quantile))

    @property
    def q20(self) -> float:
        return self._quantiles[1]

    @property
    def q80(self) -> float:
        return self._quantiles[2]

    @property
    def relative_half_width(self) -> float:
        """Half the interval's width as a share of the value: what the stop rule compares."""
        low, high, _ = self.interval
        return (high - low) / 2 / self.value if self.value else 0.0


def slow_slices(loops_s: Sequence[float], best_s: float) -> tuple[int, ...]:
    """Numbers of the slices to leave out for slow cores; empty if too few would be left."""
    slow = tuple(index for index, is_slow in enumerate(are_slow(loops_s, best_s)) if is_slow)
    return slow if len(loops_s) - len(slow) >= MIN_SLICES_AT_BEST else ()


Answer = TypeVar("Answer")
Turns = Generator[None, bool | None, Answer]
"""Work that stops where others may have a turn; it is sent whether others had one."""


def to_the_end(turns: Turns[Answer]) -> Answer:
    """Run turns to their end without others between them, and return their answer."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            answer: Answer = end.value
            return answer


class OwnTime:
    """A clock that runs only while `with clock:` lasts: the seconds of one case among others that take turns."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._since_s: float | None = None

    def __call__(self) -> float:
        return self._spent_s + (0.0 if self._since_s is None else time.monotonic() - self._since_s)

    def __enter__(self) -> OwnTime:
        self._since_s = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._spent_s, self._since_s = self(), None


REPEATED_SHARE = 0.5  # time for repeated slices in the place of disturbed ones, as a share of the case's time cap
WAKE_S = 2e-3  # after others had a turn, launches go uncounted for so long: threads wake, code and clocks come back


def sampling(
    launch: Launch,
    stopwatch: Stopwatch,
    rule: StopRule | None = None,
    steady: SteadyRule | None = None,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.monotonic,
    disturbances: Disturbances | GpuSlices | None = None,
    clocks_hz: Callable[[int], Sequence[float]] | None = None,
    settle: Callable[[WarmUp], int] | None = None,
) -> Turns[Measurement]:
    """Time `launch` by `stopwatch` until `rule` is satisfied, after an uncounted warm-up by `steady`, in turns.

    A turn is a slice of about `rule.block_s`. Raises whatever `launch` raises.

    `clocks_hz(n)` is the device's clock in each of the last n samples; where it can be read, the interval is of times
    at one clock.

    With `disturbances`, whose last reason is "" after an undisturbed slice, disturbed ones are kept and measured again:
    up to a share of `rule.time_cap_s` they do not count as time spent.
    `settle` goes on with uncounted launches after the warm-up, and returns how many.

    Short launches are timed several to a sample, so that the stopwatch's resolution stays below 1 % of a
    sample and `rule.max_samples` samples last at least `rule.min_time_s`. `clock` (seconds) serves the caps
    alone.
    """
    rule = rule or StopRule()
    warm = warm_up(launch, stopwatch, steady or SteadyRule(), rule.shortest_sample_s, clock)
    batch = warm.launches_per_sample
    launched = warm.launches + (settle(warm) if settle else 0)
    sample_s = warm.launch_s * batch
    seconds: list[float] = []
    kept: list[float] = []
    discarded: list[tuple[int, str]] = []
    slices: list[int] = []
    kept_slices: list[int] = []
    kept_clocks: list[float] = []
    checkpoint = rule.next_checkpoint(0)
    begin = clock()
    disturbed_s = 0.0
    stopped_by: StoppedBy | None = None
    while stopped_by is None:
        others_ran = yield
        spent_s = clock() - begin - min(disturbed_s, REPEATED_SHARE * rule.time_cap_s)
        count = min(rule.next_block(len(kept), spent_s, sample_s), rule.max_samples - len(seconds))
        with disturbances or nullcontext():
            if others_ran and warm.launch_s < WAKE_S:
                woken = min(_LONGEST_BATCH, math.ceil(WAKE_S / max(warm.launch_s, 1e-9)))
                launched += wake(stopwatch, launch, launched, woken)
            block_begin_s = clock() - begin
            block = [sample / batch for sample in stopwatch.time(launch, launched, count, batch)]
        launched += count * batch
        elapsed_s = clock() - begin
        sample_s = max(max(block) * batch, (elapsed_s - block_begin_s) / count)
        reason = watch() if watch else None
        read_hz = list(clocks_hz(count)) if clocks_hz else []
        if clocks_hz and not (len(read_hz) == count and all(math.isfinite(hz) and hz > 0 for hz in read_hz)):
            clocks_hz, kept_clocks = None, []
        if reason is None:
            kept_clocks.extend(read_hz if clocks_hz else ())
            kept.extend(block)
            kept_slices.append(len(block))
        else:
            discarded.extend((len(seconds) + offset, reason) for offset in range(len(block)))
        seconds.extend(block)
        slices.append(len(block))
        if disturbances and disturbances.reasons[-1]:
            disturbed_s += elapsed_s - block_begin_s
        elapsed_s -= min(disturbed_s, REPEATED_SHARE * rule.time_cap_s)
        if len(kept) >= checkpoint or rule.quantile != USUAL or kept_clocks:
            counted, sizes = kept, kept_slices
            if out := slow_slices(*_loops_of(disturbances)):
                parts = np.split(np.asarray(kept), np.cumsum(kept_slices)[:-1])
                parts = [part for number, part in enumerate(parts) if number not in out]
                counted, sizes = np.concatenate(parts).tolist(), [part.size for part in parts]
            stopped_by = rule.decide(counted, len(seconds), elapsed_s, sizes, kept_clocks, batch)
            checkpoint = rule.next_checkpoint(len(kept))
        else:
            stopped_by = rule.reached_limit(len(seconds), elapsed_s)

    return concluded(rule, warm, seconds, slices, stopped_by, discarded, kept_clocks, *_loops_of(disturbances))


def _loops_of(disturbances: Disturbances | GpuSlices | None) -> tuple[Sequence[float], float]:
    """The seconds of the loops around the slices, and those at their best; nothing on a GPU."""
    if isinstance(disturbances, Disturbances):
        return disturbances.loops_s, disturbances.best_s
    return (), math.inf


def concluded(
    rule: StopRule,
    warm: WarmUp,
    seconds: Sequence[float],
    slices: Sequence[int],
    stopped_by: StoppedBy,
    discarded: Sequence[tuple[int, str]] = (),
    clocks_hz: Sequence[float] = (),
    loops_s: Sequence[float] = (),
    best_loop_s: float = math.inf,
) -> Measurement:
    """Conclude from all samples: how many count, their interval, and whether it is narrow enough.

    `slices` holds the number of samples of each slice, `clocks_hz` are of the samples not discarded, `loops_s` of each
    slice and `best_loop_s` those of `Disturbances`.
    """
    dropped = {index for index, _ in discarded}
    owner = [number for number, size in enumerate(slices) for _ in range(size)]
    kept_despite: tuple[str, ...] = ()
    if len(dropped) == len(seconds):
        kept_despite, dropped, discarded, clocks_hz = tuple(sorted({each for _, each in discarded})), set(), (), ()
    out, slow_by = slow_slices(loops_s, best_loop_s), 1.0
    if not out and any(are_slow(loops_s, best_loop_s)):
        medians_s = [float(np.median(part)) for part in np.split(np.asarray(seconds), np.cumsum(slices)[:-1])]
        # Seconds of the loop over its best in the fastest quarter of slices, which the reported quantile is of.
        fastest = np.argsort(medians_s)[: max(1, len(medians_s) // 4)]
        slow_by = float(np.median(np.asarray(loops_s)[fastest])) / best_loop_s
        slow_by = slow_by if slow_by > SLOW_BY else 1.0
    counted = [index for index, number in enumerate(owner) if index not in dropped and number not in out]
    sizes = list(Counter(owner[index] for index in counted).values())
    interval, precise = rule.judge([seconds[index] for index in counted], sizes, clocks_hz, warm.launches_per_sample)
    return Measurement(
        seconds=tuple(seconds),
        launches_per_sample=warm.launches_per_sample,
        warmup_launches=warm.launches,
        warmup_s=warm.seconds,
        steady=warm.steady,
        effective_samples=interval.effective_samples,
        interval=(interval.low, interval.high, interval.confidence),
        converged=not kept_despite and slow_by == 1 and precise,
        stopped_by=stopped_by,
        discarded=tuple(discarded),
        kept_despite=kept_despite,
        slices=tuple(slices),
        quantile=rule.quantile,
        left_out=out,
        slow_by=slow_by,
    )
