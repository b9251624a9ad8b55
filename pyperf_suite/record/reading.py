"""One case over all its processes, and how much faster one is than another, taken within each process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import RUN_SPREAD, USUAL, Ratio, ratio_over_processes
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.record import Record

# Less is not worth a change of a model.
WORTH = 1.02


@dataclass(frozen=True)
class Reading:
    """One case over all its processes, in seconds a launch.

    `low` and `high` span the processes' medians; with a single process they are that process's interval of the median.
    `by_process` has the median of each process by its number. `error` is the standard error, as a share, of what
    another run would find; 0 where the record's interval does not say that. `is_noisy` says that no slice was clean.
    `within` is half the width of the interval within its processes, as a share; `slices` are the seconds of each slice
    of a single process that counts, by group and round, and `groups` name the cases that took turns. `drift` is how
    much the cores' speed changed meanwhile, which only cases of one group share.
    `clock_hz` is a GPU's clock meanwhile, 0 where it was not seen; seconds are those at the reference clock,
    `elasticity` and `log_of_doubt` as in AtOneClock.
    """

    case: Case
    seconds: float
    low: float
    high: float
    flop: int
    converged: bool
    kernel: dict[str, Any]
    by_process: dict[int, float]
    error: float = 0.0
    is_noisy: bool = False
    within: float = 0.0
    slices: Mapping[tuple[str, int], float] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    drift: float = 0.0
    clock_hz: float = 0.0
    elasticity: float | None = None
    log_of_doubt: float = 0.0

    @property
    def flop_per_s(self) -> float:
        """Useful work a second: padding of tiles is work done but does not count."""
        return self.flop / self.seconds

    @property
    def tflop_per_s(self) -> float:
        return self.flop_per_s / 1e12

    @property
    def details(self) -> Mapping[str, Any]:
        return self.kernel.get("details", {})

    @property
    def time(self) -> Quantity:
        return self._quantity(self.seconds, "ms", self.low, self.high)

    @property
    def throughput(self) -> Quantity:
        """Useful FLOP a second, between those of the slowest and of the fastest process."""
        return self.per_second(self.flop, "TFLOP/s")

    def per_second(self, amount: float, unit: str) -> Quantity:
        """Return `amount` bytes or FLOP of a launch as a rate with its bounds."""
        return self._quantity(amount / self.seconds, unit, amount / self.high, amount / self.low)

    def _quantity(self, value: float, unit: str, low: float, high: float) -> Quantity:
        known = {"noisy": self.is_noisy, "converged": self.converged}
        return Quantity(value, unit, low, high, len(self.by_process), **known)


def readings(records: Iterable[Record]) -> list[Reading]:
    """One reading for each case that was measured; failed and unsupported trials take no part."""
    by_case: dict[str, list[Record]] = {}
    for record in records:
        if record.kind == "timing" and record.outcome == "ok":
            by_case.setdefault(record.case_id, []).append(record)
    return [_reading(trials) for trials in by_case.values()]


def _reading(trials: list[Record]) -> Reading:
    import statistics

    # A resumed run may hold a second trial of the same process; the later one stands.
    latest = list({record.process: record for record in trials}.values())
    times = [record.time for record in latest]
    medians = [time.value for time in times]
    clocks = [record.metrics["sm_clock"].value for record in latest if "sm_clock" in record.metrics]
    converted = [record.at_clock for record in latest if record.at_clock is not None]
    elasticities = [at.elasticity for at in converted if at.elasticity is not None]
    alone = len(times) == 1
    groups = _groups(latest[0]) if alone else ()
    return Reading(
        case=latest[0].parsed_case(),
        seconds=statistics.median(medians),
        low=times[0].low if alone else min(medians),
        high=times[0].high if alone else max(medians),
        flop=latest[0].work["flop"],
        converged=all(record.quality["converged"] for record in latest),
        kernel=dict(latest[0].kernel),
        by_process={record.process: record.time.value for record in latest},
        error=_error_of(latest),
        within=_within(latest) if alone else (max(medians) - min(medians)) / 2 / statistics.median(medians),
        slices=_slices(latest[0]) if groups and "slices" in latest[0].sampling else {},
        groups=groups,
        drift=_drift(latest[0]) if alone else 0.0,
        clock_hz=statistics.median(clocks) if clocks else 0.0,
        elasticity=statistics.median(elasticities) if elasticities else None,
        log_of_doubt=statistics.fmean(at.log_of_doubt for at in converted) if converted else 0.0,
        # The undisturbed time is reported, and no undisturbed slice was sampled.
        is_noisy=all(
            record.sampling.get("quantile", USUAL) != USUAL
            and record.quality.get("disturbances", {}).get("clean_share", 1) == 0
            for record in latest
        ),
    )


# Half of a 90 % interval in standard deviations, and of one of 95 %.
_SIGMA_OF_90, _SIGMA_OF_95 = 1.645, 1.96


def _within(trials: list[Record]) -> float:
    time, sampling, at = trials[0].time, trials[0].sampling, trials[0].at_clock
    if at is not None:
        return at.half_width * _SIGMA_OF_95 / _SIGMA_OF_90
    if sampling.get("quantile", USUAL) == USUAL:
        return (time.high - time.low) / 2 / time.value
    return float(trials[0].quality.get("relative_half_width", 0.0)) * _SIGMA_OF_95 / _SIGMA_OF_90


def _groups(record: Record) -> tuple[str, ...]:
    """The groups of cases that took turns with this one, one a visit."""
    return tuple(map(str, record.sampling.get("groups") or filter(None, [record.sampling.get("group")])))


def _slices(record: Record) -> dict[tuple[str, int], float]:
    """The reported quantile, or mean, of the samples of each slice that was not discarded, by group and round."""
    sizes = record.sampling["slices"] if record.at_clock is None else record.at_clock.slices
    visits = record.sampling.get("visits") or [len(sizes)]
    rounds = [(group, n) for group, count in zip(_groups(record), visits, strict=True) for n in range(count)]
    parts = np.split(np.asarray(record.time.samples, dtype=np.float64), np.cumsum(sizes)[:-1])
    share = record.sampling.get("quantile", USUAL)
    left_out = set(record.sampling.get("left_out", ()))
    is_mean = bool(record.quality.get("levels", {}).get("is_figure"))
    return {
        at: float(part.mean() if is_mean else np.quantile(part, share))
        for number, (at, part) in enumerate(zip(rounds, parts, strict=True))
        if part.size and at[0] and number not in left_out
    }


def _drift(record: Record) -> float:
    return float(record.quality.get("disturbances", {}).get("drift", 0.0))


def _error_of(trials: list[Record]) -> float:
    """Relative standard error of a run's figure, of one process by its interval, else by their spread.

    The drift of the machine's speed is not in it: laws are fitted to cases that share most of it.
    """
    import statistics

    if any(record.sampling.get("quantile", USUAL) == USUAL for record in trials):
        return 0.0
    times = [record.time for record in trials]
    if len(times) == 1:
        error = (times[0].high - times[0].low) / 2 / _SIGMA_OF_90 / times[0].value
        return math.sqrt(max(0.0, error**2 - 2 * max(0.0, _drift(trials[0]) ** 2 - RUN_SPREAD**2)))
    return statistics.stdev(math.log(time.value) for time in times) / math.sqrt(len(times))


def all_observed(records: Iterable[Record]) -> dict[str, Mapping[str, float]]:
    """By case id, the median over processes of every metric but time, in the unit of its record."""
    import statistics

    values: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record.outcome == "ok":
            seen = values.setdefault(record.case_id, {})
            for name, metric in record.metrics.items():
                if name != "time":
                    seen.setdefault(name, []).append(metric.value)
    return {case_id: {name: statistics.median(each) for name, each in seen.items()} for case_id, seen in values.items()}


def wins(ratio: Ratio) -> bool:
    """True if it is faster beyond its interval, and by enough to act on."""
    return ratio.low > 1 and ratio.value >= WORTH


def is_settled(ratio: Ratio) -> bool:
    """True if the ratio is a win, or shown to be below WORTH."""
    return wins(ratio) or ratio.high < WORTH


def speedup(slow: Reading, fast: Reading) -> Ratio | None:
    """Time of `slow` over time of `fast`: above 1 where the second is faster. None where no process measured both."""
    return mean_speedup([(slow, fast)])


def mean_speedup(pairs: Sequence[tuple[Reading, Reading]]) -> Ratio | None:
    """The geometric mean over (slow, fast) pairs, each taken within a process; a process counts once, as its mean.

    None where there is no pair, or no process that measured them all.
    """
    measured = [set(reading.by_process) for pair in pairs for reading in pair]
    processes = sorted(set.intersection(*measured)) if measured else []
    if not processes:
        return None
    ratios = [
        math.exp(math.fsum(math.log(slow.by_process[p] / fast.by_process[p]) for slow, fast in pairs) / len(pairs))
        for p in processes
    ]
    # Errors of pairs are independent: they add as squares, and a mean over pairs has less of them.
    squares = math.fsum(_pair_error(slow, fast) ** 2 for slow, fast in pairs)
    ratio = ratio_over_processes(ratios, math.sqrt(squares) / len(pairs))
    # At one clock the ratio is this one if elasticities are those assumed, else off by what the two do not share.
    doubt = math.exp(math.fsum(fast.log_of_doubt - slow.log_of_doubt for slow, fast in pairs) / len(pairs))
    return replace(ratio, low=ratio.low * min(1, doubt), high=ratio.high * max(1, doubt))


# Slices of the same rounds that make pairs: with fewer, the intervals of both sides say more.
_FEWEST_PAIRS = 6


# Error of a ratio with a side that was never undisturbed: two busy processes on two cores made 1.05 into 5 or 17.
_UNKNOWN_LOG_ERROR = 100.0


def _pair_error(slow: Reading, fast: Reading) -> float:
    """Half the width of the interval of their ratio: by slices of the same rounds, or by both readings' intervals."""
    if slow.is_noisy or fast.is_noisy:
        return _UNKNOWN_LOG_ERROR
    rounds = sorted(slow.slices.keys() & fast.slices.keys())
    if len(rounds) < _FEWEST_PAIRS:
        # A case that was visited alone is of no group.
        factor = 0.0 if (set(slow.groups) & set(fast.groups)) - {""} else _SIGMA_OF_95
        return math.hypot(slow.within, fast.within, factor * slow.drift, factor * fast.drift)
    import statistics

    logs = [math.log(slow.slices[at] / fast.slices[at]) for at in rounds]
    # Times are what the better slices took: where all slices together say another ratio, neither is sure.
    disagreement = statistics.fmean(logs) - math.log(slow.seconds / fast.seconds)
    return math.hypot(disagreement, _SIGMA_OF_95 * statistics.stdev(logs) / math.sqrt(len(rounds)))
