"""What the ranks of a group do with one case: all prepare, check, time and check again, and rank 0 decides each step.

A failure on any rank is agreed on before the next collective, so no rank is ever left in one; a rank that does not
answer ends the group by name (see ranks/watchdog.py).
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import OUT_OF_MEMORY, Unsupported, UserError, out_of_memory
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.gpu_telemetry import around_gpu
from pyperf_suite.measure.median import median_and_quantiles, median_interval
from pyperf_suite.measure.sampling import Measurement, measure
from pyperf_suite.measure.spot_checks import CONFIDENCE, excluded_rate
from pyperf_suite.measure.stopwatch import CpuStopwatch, Launch
from pyperf_suite.measure.telemetry import Around
from pyperf_suite.ranks.clocks import Clock, align, machine_id
from pyperf_suite.ranks.group import Group, RanksMissing
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.record import Metric
from pyperf_suite.workloads.ranked import Ranked, RankTimes, Transfers

# At most this share of the time goes to looking at outputs of iterations that were timed.
CHECKING_SHARE = 0.05

# Samples of so many ranks are kept one by one; of more, each rank's quantiles.
RANKS_KEPT_WHOLE = 16

Answer = TypeVar("Answer")


def measure_ranked(
    operator: Ranked[Any], case: Case, effort: Effort | None, device: Device, group: Group, deadline_s: float
) -> dict[str, Any]:
    """This rank's part of one case; on rank 0 the measured part of its record, elsewhere of no meaning.

    Raises RanksMissing, after which the group is of no use, where a rank does not answer within the deadline of a step.
    """
    doing = f"prepare {case.label}"
    transfers, trouble = _prepare(operator, case, device, group, deadline_s)
    try:
        outcome = _agreed_trouble(group.gather(doing, trouble, deadline_s))
        if outcome is not None or transfers is None:
            return outcome or {}
        moved = operator.bytes_moved(case.parameters)
        return _Measuring(transfers, case, effort, device, group, deadline_s, moved).run()
    finally:
        if transfers is not None:
            transfers.close()


def _prepare(
    operator: Ranked[Any], case: Case, device: Device, group: Group, deadline_s: float
) -> tuple[Transfers | None, tuple[str, str] | None]:
    """The case made ready on this rank, or (outcome, reason)."""
    if operator.ranks(case.parameters) != group.count:
        asked = operator.ranks(case.parameters)
        return None, ("unsupported", f"{asked} ranks were asked for, but this group has {group.count}.")
    try:
        implementation = operator.implementation(case.implementation)
        return implementation.prepare(case.parameters, group, device, deadline_s), None
    except (Unsupported, UserError) as reason:
        return None, ("unsupported", str(reason))
    except RanksMissing:
        raise
    except Exception as error:
        return None, ("failed", out_of_memory(error) or f"{type(error).__name__}: {error}")


def _agreed_trouble(troubles: Sequence[Sequence[str] | None]) -> dict[str, Any] | None:
    """One outcome for all ranks where any has trouble; a reason that is not everyone's names its rank."""
    found = [(rank, str(trouble[0]), str(trouble[1])) for rank, trouble in enumerate(troubles) if trouble is not None]
    if not found:
        return None
    rank, outcome, reason = next((each for each in found if each[1] == "failed"), found[0])
    everyone = len(found) == len(troubles) and len({each[2] for each in found}) == 1
    # What is for outcomes to be told by stands first.
    if everyone or reason.startswith(OUT_OF_MEMORY):
        return {"outcome": outcome, "reason": reason if everyone else f"{reason} on rank {rank}"}
    return {"outcome": outcome, "reason": f"Rank {rank}: {reason}"}


@dataclass
class _Measuring:
    """The steps of one prepared case, the same on every rank."""

    transfers: Transfers
    case: Case
    effort: Effort | None
    device: Device
    group: Group
    deadline_s: float
    bytes_moved: int
    iterations: int = 0  # of those that are timed, warm-up included
    checking_s: float = 0.0  # what went to fresh inputs and looking at outputs since timing began
    launches_checked: int = 0  # of those that were timed
    wrong: dict[str, Any] | None = None  # what the first of them said that was wrong
    began_s: float = 0.0
    blocks: list[list[RankTimes]] = field(default_factory=list)  # on rank 0: of each block, each rank's times

    def run(self) -> dict[str, Any]:
        # Checked first: only what has run knows all about its kernel.
        result: dict[str, Any] = {
            "verification": self._checked(),
            "kernel": dataclasses.asdict(self.transfers.kernel),
            "work": {"flop": 0, "bytes": self.bytes_moved},
        }
        if not result["verification"]["passed"]:
            return result | _wrong(result["verification"], "before timing")
        if self.effort is None:
            return result | {"outcome": "ok"}
        self.began_s = time.monotonic()
        clock = self._together("align clocks", lambda: align(self.group, self.deadline_s))
        with Around() as telemetry, around_gpu(self.device) as gpu:
            if self.group.rank == 0:
                result |= self._lead(self.effort)
            else:
                self._follow(clock)
        result["sampling"] = result.get("sampling", {}) | {
            "clock_uncertainty_s": self._uncertainty_s(clock),
            # What the GPUs' counters saw is of all of these.
            "iterations": self.iterations,
        }
        seen = [machine_id(self.group), telemetry.report["process_cpu_s"], gpu.report if gpu else None]
        everyone = self.group.gather("compare telemetry", seen, self.deadline_s)
        result["quality"] = result.get("quality", {}) | _seen_together(telemetry.report, everyone)
        if self.wrong is not None:
            return result | {"verification": self.wrong} | _wrong(self.wrong, "while timed")
        if self.launches_checked:
            result["verification"] |= {
                "launches_checked": self.launches_checked,
                "excludes_errors_in_one_of": math.floor(1 / excluded_rate(self.launches_checked)),
                "confidence": CONFIDENCE,
            }
        elif not self.transfers.repeatable:
            result["verification"] |= {"unchecked": "Each iteration starts from what the last one left."}
        again = self._checked()
        if not again["passed"]:
            return result | _wrong(again, "after timing")
        return result | {"outcome": "ok"}

    def _lead(self, effort: Effort) -> dict[str, Any]:
        """Rank 0: the usual measuring loop, whose stopwatch lets all ranks run each block."""
        stopwatch = RankedStopwatch(self._block)
        measurement = self._told(lambda: measure(_nothing, stopwatch, effort.stop, effort.warm_up))
        self.group.from_first("next block", None, self.deadline_s)
        batch = measurement.launches_per_sample
        times = _last(self.blocks, len(measurement.seconds) * batch)
        return {
            "metrics": {name: dataclasses.asdict(metric) for name, metric in _metrics(measurement, times).items()},
            "sampling": _how_sampled(measurement, stopwatch, times) | {"nodes": self.group.environment.nodes},
            "quality": {
                "converged": measurement.converged,
                "relative_half_width": measurement.relative_half_width,
                "discarded": measurement.discarded,
            },
        }

    def _block(self, iterations: int) -> NDArray[np.float64]:
        """Rank 0: the seconds of each iteration over ranks; now and then one drawn at random is the last of its part.

        Only what ran last can be looked at, and nothing that runs can know when that will be.
        """
        affordable_s = CHECKING_SHARE * (time.monotonic() - self.began_s)
        if not self.transfers.repeatable or self.checking_s > affordable_s:
            return self._part(iterations, checked=False)
        drawn = 1 + secrets.randbelow(iterations)
        parts = [self._part(drawn, checked=True)]
        parts += [self._part(iterations - drawn, checked=False)] if drawn < iterations else []
        return np.concatenate(parts)

    def _part(self, iterations: int, checked: bool) -> NDArray[np.float64]:
        """Rank 0: publish iterations, run them with the others, and return the seconds of each over ranks."""
        self.group.from_first("next block", [iterations, checked], self.deadline_s)
        mine = self._time(iterations, checked, Clock(0, 0))
        told = self.group.to_first("collect times", mine, self.deadline_s)
        block = [RankTimes(*(np.array(column) for column in columns)) for columns, _ in told]
        self.blocks.append(block)
        if checked:
            verdict = self._verdict([verdict for _, verdict in told])
            self.launches_checked += 1
            self.wrong = self.wrong or (None if verdict["passed"] else verdict)
        seconds: NDArray[np.float64] = np.mean([times.seconds for times in _busy(block)], axis=0)
        return seconds

    def _follow(self, clock: Clock) -> None:
        """Other ranks: run the blocks that rank 0 publishes until there are no more."""
        while (block := self.group.from_first("next block", None, self.deadline_s)) is not None:
            iterations, checked = block
            self.group.to_first("collect times", self._time(iterations, checked, clock), self.deadline_s)

    def _time(self, iterations: int, checked: bool, clock: Clock) -> tuple[list[list[float]], dict[str, Any] | None]:
        """One block on this rank as JSON: seconds, arrivals and departures by rank 0's clock; what its output is."""
        begin_s = time.monotonic()
        if checked:
            self._together(f"fill {self.case.label}", self.transfers.fill)
        filled_s = time.monotonic()
        times = self._together(self.case.label, lambda: self.transfers.time(iterations, self.deadline_s))
        self.iterations += iterations * self.transfers.calls
        arrived, done = times.arrived_ns + clock.offset_ns, times.done_ns + clock.offset_ns
        timed_s = time.monotonic()
        found = self._together(f"check {self.case.label}", self.transfers.check) if checked else None
        self.checking_s += filled_s - begin_s + time.monotonic() - timed_s
        columns = [times.seconds.tolist(), arrived.tolist(), done.tolist()]
        return columns, None if found is None else dataclasses.asdict(found)

    def _checked(self) -> dict[str, Any]:
        """Run once on fresh inputs and compare on every rank: the same configuration as is timed."""

        def run_once() -> Any:
            self.transfers.fill()
            self.transfers.time(1, self.deadline_s)
            return self.transfers.check()

        checked = dataclasses.asdict(self._together(f"check {self.case.label}", run_once))
        return self._verdict(self.group.gather("compare outputs", checked, self.deadline_s))

    def _verdict(self, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What all ranks' outputs together say."""
        wrong = [(rank, each) for rank, each in enumerate(found) if each["wrong"]]
        compared = sum(each["compared"] for each in found)
        message = f"correct: {compared} elements on {self.group.count} ranks, each exact"
        if wrong:
            rank, each = wrong[0]
            message = f"rank {rank} has {each['wrong']} of {each['compared']} elements wrong: {each['first']}"
        total = sum(each["wrong"] for each in found)
        return {"passed": not wrong, "method": "full", "wrong": total, "compared": compared, "message": message}

    def _uncertainty_s(self, clock: Clock) -> float:
        return float(max(self.group.gather("compare clocks", clock.uncertainty_ns, self.deadline_s))) * 1e-9

    def _together(self, doing: str, action: Callable[[], Answer]) -> Answer:
        """Something all ranks are in: an error on one leaves the others waiting, so it ends the group by name."""
        with self.group.within(doing, self.deadline_s):
            return self._told(action, doing)

    def _told(self, action: Callable[[], Answer], doing: str = "measure") -> Answer:
        try:
            return action()
        except RanksMissing:
            raise
        except Exception as error:
            raise self.group.broken(doing, error) from error


class RankedStopwatch:
    """Rank 0's stopwatch: a sample is what the ranks saw of an iteration, averaged over ranks as nccl-tests does."""

    name = "ranks"

    def __init__(self, block: Callable[[int], NDArray[np.float64]]) -> None:
        self._block = block
        self.resolution_s = CpuStopwatch().resolution_s

    def time(self, launch: Launch, first: int, samples: int, launches_per_sample: int) -> list[float]:
        """Seconds of each sample; `launch` is not called, the ranks know what they run."""
        iterations = self._block(samples * launches_per_sample)
        summed: list[float] = iterations.reshape(samples, launches_per_sample).sum(axis=1).tolist()
        return summed


def _nothing(index: int) -> None:
    """What the measuring loop launches: nothing on this side of the stopwatch."""


def _last(blocks: Sequence[Sequence[RankTimes]], iterations: int) -> list[RankTimes]:
    """Each rank's times of the last iterations, which are those that were sampled and not warm-up."""
    ranks = range(len(blocks[0]))
    return [
        RankTimes(
            *(
                np.concatenate([getattr(block[rank], name) for block in blocks])[-iterations:]
                for name in ("seconds", "arrived_ns", "done_ns")
            )
        )
        for rank in ranks
    ]


def _is_busy(times: RankTimes) -> bool:
    return bool(times.seconds.size)


def _busy(times: Sequence[RankTimes]) -> list[RankTimes]:
    """Of the ranks that took part."""
    return [each for each in times if _is_busy(each)]


def _quantile(seconds: NDArray[np.float64], share: float) -> float | None:
    return float(np.quantile(seconds, share)) if seconds.size else None


def _metrics(measurement: Measurement, times: Sequence[RankTimes]) -> dict[str, Metric]:
    """Time as the ranks saw it, and, by one clock, transfer after the last arrived and the skew of arrivals."""
    arrived = np.array([each.arrived_ns for each in _busy(times)])
    done = np.array([each.done_ns for each in _busy(times)])
    low, high, _ = measurement.interval
    samples = [float(f"{sample:.6g}") for sample in measurement.seconds]
    time = Metric("s", measurement.median, low, high, measurement.q20, measurement.q80, samples)
    return {
        "time": time,
        "transfer": _metric((done.max(axis=0) - arrived.max(axis=0)) * 1e-9),
        "skew": _metric((arrived.max(axis=0) - arrived.min(axis=0)) * 1e-9),
    }


def _seen_together(report: dict[str, Any], everyone: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Rank 0's telemetry, in which the other ranks of its machine are not other processes, and each rank's GPU's."""
    machine = everyone[0][0]
    own_s = sum(process_cpu_s for there, process_cpu_s, _ in everyone if there == machine)
    gpus = [gpu for _, _, gpu in everyone]
    return report | {"process_cpu_s": own_s} | ({"rank_gpus": gpus} if any(gpus) else {})


def _metric(seconds: NDArray[np.float64]) -> Metric:
    median, q20, q80 = median_and_quantiles(seconds)
    interval = median_interval(seconds, 0.95)
    return Metric("s", median, interval.low, interval.high, q20, q80, [float(f"{value:.4g}") for value in seconds])


def _how_sampled(measurement: Measurement, stopwatch: RankedStopwatch, times: Sequence[RankTimes]) -> dict[str, Any]:
    """How the samples came about, and what each rank saw; null for one that took no part."""
    first_ns = np.min([each.arrived_ns for each in _busy(times)], axis=0)
    told: dict[str, Any] = {
        "stopwatch": stopwatch.name,
        "resolution_s": stopwatch.resolution_s,
        "launches_per_sample": measurement.launches_per_sample,
        "warmup_launches": measurement.warmup_launches,
        "warmup_s": measurement.warmup_s,
        "steady": measurement.steady,
        "stopped_by": measurement.stopped_by,
        "effective_samples": measurement.effective_samples,
        "confidence": measurement.interval[2],
        "ranks": len(times),
        "rank_median_s": [_quantile(each.seconds, 0.5) for each in times],
        "rank_q20_s": [_quantile(each.seconds, 0.2) for each in times],
        "rank_q80_s": [_quantile(each.seconds, 0.8) for each in times],
        "rank_lag_s": [
            _quantile((each.arrived_ns - first_ns) * 1e-9, 0.5) if _is_busy(each) else None for each in times
        ],
    }
    if len(times) <= RANKS_KEPT_WHOLE:
        told["rank_samples_s"] = [[float(f"{value:.4g}") for value in each.seconds] for each in times]
    return told


def _wrong(verification: dict[str, Any], when: str) -> dict[str, Any]:
    return {"outcome": "failed", "reason": f"Wrong result {when}: {verification['message']}"}
