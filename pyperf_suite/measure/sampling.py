"""One measurement: warm up, take samples until the stop rule is satisfied, and keep all that was seen.

The loop reads a stopwatch and asks a rule; it decides nothing itself, and what it returns says how it came
about.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from pyperf_suite.measure.median import median_and_quantiles, median_interval
from pyperf_suite.measure.steady import SteadyRule, warm_up
from pyperf_suite.measure.stop_rule import StoppedBy, StopRule
from pyperf_suite.measure.stopwatch import Launch, Stopwatch

Watch = Callable[[], str | None]
"""Asked after each block: None, or why its samples cannot stand for the machine ("thermal throttling")."""


@dataclass(frozen=True)
class Measurement:
    """The samples of one launch, how they were taken, and how well they fix the median.

    `seconds` holds every sample in the order taken, each divided by `launches_per_sample`; `discarded` names
    by index those that a watch ruled out and the reason. Samples are never discarded for their value. Where a
    watch ruled out every one, as on a GPU that throttles all the time, none is discarded: `kept_despite` has
    the reasons, and `converged` is false. All statistics are of `kept`. `interval` is (low, high, confidence
    reached); `converged` says whether it is as narrow and certain as was asked, whatever ended the sampling.
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

    @cached_property
    def kept(self) -> tuple[float, ...]:
        """The samples that count: `seconds` without those discarded."""
        out = {index for index, _ in self.discarded}
        return tuple(value for index, value in enumerate(self.seconds) if index not in out)

    @cached_property
    def _quantiles(self) -> tuple[float, float, float]:
        return median_and_quantiles(self.kept)

    @property
    def median(self) -> float:
        """Seconds a launch takes: the median over samples."""
        return self._quantiles[0]

    @property
    def q20(self) -> float:
        return self._quantiles[1]

    @property
    def q80(self) -> float:
        return self._quantiles[2]

    @property
    def relative_half_width(self) -> float:
        """Half the interval's width as a share of the median: what the stop rule compares."""
        low, high, _ = self.interval
        return (high - low) / 2 / self.median if self.median else 0.0


def measure(
    launch: Launch,
    stopwatch: Stopwatch,
    rule: StopRule | None = None,
    steady: SteadyRule | None = None,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Measurement:
    """Time `launch` by `stopwatch` until `rule` is satisfied, after an uncounted warm-up by `steady`.

    Short launches are timed several to a sample, so that the stopwatch's resolution stays below 1 % of a
    sample and `rule.max_samples` samples last at least `rule.min_time_s`. `clock` (seconds) serves the caps
    alone.

    Raises whatever `launch` raises.
    """
    rule = rule or StopRule()
    warm = warm_up(launch, stopwatch, steady or SteadyRule(), rule.min_time_s / rule.max_samples, clock)
    batch = warm.launches_per_sample
    launched = warm.launches
    sample_s = warm.launch_s * batch
    seconds: list[float] = []
    kept: list[float] = []
    discarded: list[tuple[int, str]] = []
    checkpoint = rule.next_checkpoint(0)
    begin = clock()
    stopped_by: StoppedBy | None = None
    while stopped_by is None:
        block_begin_s = clock() - begin
        count = min(rule.next_block(len(kept), block_begin_s, sample_s), rule.max_samples - len(seconds))
        block = [sample / batch for sample in stopwatch.time(launch, launched, count, batch)]
        launched += count * batch
        elapsed_s = clock() - begin
        sample_s = max(max(block) * batch, (elapsed_s - block_begin_s) / count)
        reason = watch() if watch else None
        if reason is None:
            kept.extend(block)
        else:
            discarded.extend((len(seconds) + offset, reason) for offset in range(len(block)))
        seconds.extend(block)
        if len(kept) >= checkpoint:
            stopped_by = rule.decide(kept, len(seconds), elapsed_s)
            checkpoint = rule.next_checkpoint(len(kept))
        else:
            stopped_by = rule.reached_limit(len(seconds), elapsed_s)

    kept_despite = () if kept else tuple(sorted({reason for _, reason in discarded}))
    if kept_despite:
        kept, discarded = seconds, []
    interval = median_interval(kept, rule.confidence)
    return Measurement(
        seconds=tuple(seconds),
        launches_per_sample=batch,
        warmup_launches=warm.launches,
        warmup_s=warm.seconds,
        steady=warm.steady,
        effective_samples=interval.effective_samples,
        interval=(interval.low, interval.high, interval.confidence),
        converged=not kept_despite and rule.is_precise(kept, interval),
        stopped_by=stopped_by,
        discarded=tuple(discarded),
        kept_despite=kept_despite,
    )
