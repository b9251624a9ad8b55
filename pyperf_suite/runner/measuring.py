"""Measure cases in a worker: prepare, verify and warm up each, sample them by turns, verify again, report.

Runs inside the worker process, which owns the device; returns plain JSON, so that the parent never touches a tensor.
A turn is a slice of some milliseconds, so a disturbance of half a second costs each case a slice and none its result.
Ranks of a group do every step together, and rank 0 decides each. A failure on any rank is agreed on before the next
collective, so no rank is ever left in one; a rank that does not answer ends the group by name (ranks/watchdog.py).
"""

from __future__ import annotations

import dataclasses
import datetime
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import OUT_OF_MEMORY, Failed, Unsupported, UserError, broken_package, out_of_memory
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.checks import CheckedStopwatch, Checks, CheckVerdict, WrongLaunch, require_right
from pyperf_suite.measure.sampling import Measurement, OwnTime, Turns, to_the_end
from pyperf_suite.measure.stopwatch import CpuStopwatch, Launch, Stopwatch
from pyperf_suite.measure.telemetry import Around, around_gpu
from pyperf_suite.ranks.group import Clock, Group, RanksMissing, align, machine_id
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import median_and_quantiles, median_interval
from pyperf_suite.record.record import STOOD_STILL, Metric
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.spared import SparedCases
from pyperf_suite.runner.timing import as_plain, timed
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.backends import TorchSettings, context_is_lost, leave_nothing_behind
from pyperf_suite.workloads.on_ranks import do_together
from pyperf_suite.workloads.workload import (
    Checked,
    ExecutionContext,
    Kernel,
    Prepared,
    RankTimes,
    Transfers,
    Workload,
    together,
)

END_OF_TURN = "end of turn"  # in the place of a block's iterations: the case is left until its next turn
RANKS_KEPT_WHOLE = 16  # samples of up to this number of ranks are kept one by one; of more, each rank's quantiles

Answer = TypeVar("Answer")


def measure_case(
    case: Case, effort: Effort | None, device: Device, group: Group | None = None, deadline_s: float = 120.0
) -> dict[str, Any]:
    """Measure one case alone and return the measured part of its record; with `effort` None only verify it."""
    return to_the_end(measuring(case, effort, device, group, deadline_s))


def measure_by_turns(
    cases: Sequence[Case],
    effort: Effort | None,
    device: Device,
    group: Group | None = None,
    deadline_s: float = 120.0,
    begin_turn: Callable[[int], None] = lambda _: None,
    earlier: Sequence[Mapping[str, Any]] = (),
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number and the answer of each case when it is done: all are made ready, then have turns in random order.

    `begin_turn` is given the number of each case that has its turn; `earlier` is what other processes found of each.
    Where a case is fatal, the others stay unanswered. Of a group, rank 0 draws the order; the answers of other ranks
    have no meaning.
    """
    clocks = [OwnTime() for _ in cases]
    turns = [
        measuring(case, effort, device, group, deadline_s, clock, found)
        for case, clock, found in zip(cases, clocks, earlier or [{}] * len(cases), strict=True)
    ]
    settings: dict[int, TorchSettings] = {}
    group_name = secrets.token_hex(4)
    waiting, begun, spared = set(range(len(cases))), set[int](), SparedCases()
    try:
        while waiting:
            others_ran = len(waiting) > 1
            drawn = secrets.SystemRandom().sample(sorted(waiting), len(waiting))
            for number in drawn if group is None else list(group.from_first("next round", drawn, None)):
                # Ranks of a group do the same steps, whatever one of them finds.
                if number not in begun and group is None and (answer := spared.answer(cases[number])) is not None:
                    waiting.discard(number)
                    yield number, answer
                    continue
                begin_turn(number)
                settings.setdefault(number, TorchSettings(device)).give()
                answer = None
                with clocks[number]:
                    try:
                        turns[number].send(others_ran if number in begun else None)
                    except StopIteration as end:
                        answer = end.value
                settings[number].take()
                begun.add(number)
                if answer is not None:
                    waiting.discard(number)
                    if group is None:
                        spared.note(cases[number], answer)
                    if "sampling" in answer and len(cases) > 1:
                        # The slices of cases with one name are of the same rounds, from the first on.
                        answer["sampling"] = {**answer["sampling"], "group": group_name}
                    yield number, answer | {"trial_s": clocks[number]()}
                    if answer.get("fatal"):
                        return
    finally:
        for each in turns:
            each.close()


def measuring(
    case: Case,
    effort: Effort | None,
    device: Device,
    group: Group | None = None,
    deadline_s: float = 120.0,
    clock: Callable[[], float] = time.monotonic,
    earlier: Mapping[str, Any] | None = None,
) -> Turns[dict[str, Any]]:
    """Measure one case by turns, and return the measured part of its record; with `effort` None only verify it.

    `group` is where this process is a rank of one; all its ranks call this together, and each step of theirs must be
    over within `deadline_s`. Every way a case can end is an outcome, never an exception: `unsupported` and `failed`
    carry their reason, `fatal` says that this process is of no further use: its CUDA context is lost, or the group out
    of step. But RanksMissing, after which the group is of no use, is raised. A GPU is left as it was found.
    """
    started_at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    together = group is not None
    try:
        processes = effort.processes if effort else 1
        place = ExecutionContext(device, case.seed, group, deadline_s, processes=processes, earlier=earlier or {})
        result = yield from _measure(case, effort, place, clock)
    except RanksMissing:
        raise
    except (Unsupported, UserError) as reason:
        result, together = {"outcome": "unsupported", "reason": str(reason)}, False
        result["witnesses"] = getattr(reason, "witnesses", 0)
    except Failed as failed:
        result = {"outcome": "failed", "reason": str(failed), "witnesses": failed.witnesses}
        if failed.reason:
            result["verification"] = {"passed": False, "reason": failed.reason, "message": str(failed)}
    except MemoryError:
        result = {"outcome": "failed", "reason": "Out of memory while the case was prepared or verified."}
        together = False
    except Exception as error:  # a case that breaks costs that case, not the run
        words = broken_package(error)
        result = {"outcome": "failed", "reason": words or f"{type(error).__name__}: {error}", "witnesses": bool(words)}
        # A rank that fails by itself has left the others in a step it never came to.
        result |= {"fatal": True} if group is not None else {}
        together = False
    lost = context_is_lost(device)
    if not lost:
        leave_nothing_behind(device)
    if together and group is not None and device.kind == "cuda":
        lost = any(group.gather("look after the GPUs", lost, deadline_s))
    result |= {"fatal": True} if lost else {}
    plain: dict[str, Any] = as_plain({"started_at": started_at} | result)
    return plain


def _measure(
    case: Case, effort: Effort | None, place: ExecutionContext, clock: Callable[[], float]
) -> Turns[dict[str, Any]]:
    workload = find_workload(case.operator)
    workload.validate(case.parameters)
    if workload.ranks(case.parameters):
        if place.group is None:
            raise Unsupported("This case takes a group of processes: start it with torchrun or pyperf-suite run.")
        return (yield from measure_ranked(workload, case, effort, place, clock))
    with closing(workload.prepare(case.parameters, case.implementation, place)) as prepared:
        return (yield from timed(prepared, workload.work(case.parameters), case, effort, place.device, clock=clock))


def measure_ranked(
    workload: Workload[Any],
    case: Case,
    effort: Effort | None,
    place: ExecutionContext,
    clock: Callable[[], float] = time.monotonic,
) -> Turns[dict[str, Any]]:
    """This rank's part of one case; on rank 0 the measured part of its record, elsewhere of no meaning.

    Raises RanksMissing, after which the group is of no use, where a rank does not answer within the deadline of a step.
    """
    group = place.ranks
    transfers, trouble = _prepare(workload, case, place)
    try:
        outcome = _agreed_trouble(group.gather(f"prepare {case.label}", trouble, place.deadline_s))
        if outcome is not None or transfers is None:
            return outcome or {}
        rank = _Rank(transfers, case, place, clock)
        if group.rank != 0:
            yield from rank.follow(is_timed=effort is not None)
            return {}
        lead = _Lead(rank)
        steps = timed(lead, workload.work(case.parameters), case, effort, place.device, lead, lead.finish, clock)
        try:
            others_ran: bool | None = None
            while True:
                try:
                    steps.send(others_ran)
                except StopIteration as end:
                    answer: dict[str, Any] = end.value
                    return answer
                lead.end_turn()
                others_ran = yield
        except RanksMissing:
            raise
        except Exception as error:
            raise group.broken("measure", error) from error
    finally:
        if transfers is not None:
            transfers.close()


def _prepare(
    workload: Workload[Any], case: Case, place: ExecutionContext
) -> tuple[Transfers | None, tuple[str, str] | None]:
    """The case made ready on this rank, or (outcome, reason)."""
    requested, there = workload.ranks(case.parameters), place.ranks.count
    if requested != there:
        return None, ("unsupported", f"{requested} ranks were requested, but this group has {there}.")
    try:
        prepared = workload.prepare(case.parameters, case.implementation, place)
        assert isinstance(prepared, Transfers)
        return prepared, None
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
    # The words by which readers recognise an outcome come first.
    if everyone or reason.startswith(OUT_OF_MEMORY):
        return {"outcome": outcome, "reason": reason if everyone else f"{reason} on rank {rank}"}
    return {"outcome": outcome, "reason": f"Rank {rank}: {reason}"}


class _Rank:
    """This rank's part of the steps of one prepared case that all ranks are in."""

    def __init__(self, transfers: Transfers, case: Case, place: ExecutionContext, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.transfers, self.place, self.group, self.deadline_s = transfers, place, place.ranks, place.deadline_s
        transfers.deadline_s = place.deadline_s
        self._label = case.label
        self._offset = Clock(0, 0)
        self.iterations = 0  # of those that are timed, warm-up included
        self.checking_s = 0.0  # what went to fresh inputs and looking at outputs since timing began

    def follow(self, is_timed: bool) -> Turns[None]:
        """Other ranks: check, run the blocks that rank 0 publishes until there are no more, and check again."""
        if not self.checked().passed or not is_timed:
            return
        self.align()
        telemetry = Around()
        with around_gpu(self.place.device) as gpu:
            while (block := self.group.from_first("next block", None, self.deadline_s)) is not None:
                if block == END_OF_TURN:
                    yield
                    continue
                with telemetry:
                    self.group.to_first("collect times", self.time(*block), self.deadline_s)
        self.compare(telemetry.report, gpu.report if gpu else None)
        if self.group.from_first("last check", None, self.deadline_s):
            self.checked()

    def align(self) -> None:
        self._offset = self._doing("align clocks", lambda: align(self.group, self.deadline_s))

    def compare(self, report: Mapping[str, Any], gpu: Mapping[str, Any] | None) -> list[Any]:
        """How far off its clock may be, machine, CPU time, GPU and longest standstill of every rank."""
        still_s = self.group.watchdog.stood_still_s()
        seen = [self._offset.uncertainty_ns, machine_id(self.group), report["process_cpu_s"], gpu, still_s]
        return list(self.group.gather("compare telemetry", seen, self.deadline_s))

    def time(self, iterations: int, is_checked: bool) -> tuple[list[list[float]], dict[str, Any] | None]:
        """One block on this rank as JSON: seconds, arrivals and departures by rank 0's clock; what its output is."""
        begin_s = self.clock()
        if is_checked:
            self._doing(f"fill {self._label}", self.transfers.poison)
        filled_s = self.clock()
        times = self._doing(self._label, lambda: self.transfers.time(iterations, self.deadline_s))
        self.iterations += iterations * self.transfers.calls
        offset_ns = 0 if self.group.rank == 0 else self._offset.offset_ns
        columns = [times.seconds, times.arrived_ns + offset_ns, times.done_ns + offset_ns]
        timed_s = self.clock()
        found = self._doing(f"check {self._label}", self.transfers.verify_last) if is_checked else None
        self.checking_s += filled_s - begin_s + self.clock() - timed_s
        return [column.tolist() for column in columns], None if found is None else dataclasses.asdict(found)

    def checked(self) -> Checked:
        """Run once on fresh inputs and compare on every rank: the same configuration as is timed."""

        def once() -> Checked:
            self.transfers.poison()
            self.transfers.launch(0)
            return self.transfers.verify_last()

        found = dataclasses.asdict(self._doing(f"check {self._label}", once))
        return _everywhere(self.group.gather("compare outputs", found, self.deadline_s))

    def _doing(self, doing: str, action: Callable[[], Answer]) -> Answer:
        return do_together(self.group, doing, action, self.deadline_s)


def _everywhere(answers: Sequence[Mapping[str, Any]]) -> Checked:
    checks = [Checked(**each) for each in answers]
    return together(
        [
            replace(each, first=f"rank {rank} has {each.wrong} of {each.compared} elements wrong: {each.first}")
            for rank, each in enumerate(checks)
        ]
    )


class _Lead(Prepared, Checks):
    """The case as rank 0 measures it: its stopwatch lets all ranks run each part of a block, and look at some."""

    def __init__(self, rank: _Rank) -> None:
        super().__init__()
        self._rank, self._group, self._deadline_s = rank, rank.group, rank.deadline_s
        self.clock = rank.clock
        self.unchecked = rank.transfers.unchecked
        self._blocks: list[list[RankTimes]] = []  # of each part, each rank's times
        self._is_armed = False
        self._wrong: Checked | None = None  # the first that was found while timing

    @property
    def kernel(self) -> Kernel:  # type: ignore[override]
        """As this rank's transfers report it: only what has run knows all about its kernel."""
        return self._rank.transfers.kernel

    def launch(self, index: int) -> None:
        return

    def before_timing(self) -> CheckVerdict:
        return require_right(self._rank.checked())

    def checking(self, stopwatch: Stopwatch, can_stop: bool) -> Stopwatch:
        self._rank.align()
        self.begin()
        return CheckedStopwatch(RankedStopwatch(self.run), self)

    @property
    def may_look(self) -> bool:
        return not self.unchecked and self._rank.checking_s <= self._allowed_s

    def arm(self, last: int, launches: int) -> None:
        self._is_armed = True

    def look(self, last: int, launches: int) -> None:
        """All ranks have looked, in the same step as they timed the part: it is told when all are out of the blocks."""
        self._is_armed, self.checked = False, self.checked + 1

    def end_turn(self) -> None:
        """Let the other ranks leave this case until its next turn."""
        self._group.from_first("next block", END_OF_TURN, self._deadline_s)

    def finish(self, measurement: Measurement, result: dict[str, Any]) -> None:
        """Let the others leave the blocks, and add what all of them saw."""
        self._group.from_first("next block", None, self._deadline_s)
        times = _last(self._blocks, len(measurement.seconds) * measurement.launches_per_sample)
        arrived = np.array([each.arrived_ns for each in _busy(times)])
        done = np.array([each.done_ns for each in _busy(times)])
        # By one clock, transfer after the last arrived and the skew of arrivals.
        waits = {"transfer": done.max(axis=0) - arrived.max(axis=0), "skew": arrived.max(axis=0) - arrived.min(axis=0)}
        result["metrics"] |= {name: dataclasses.asdict(_metric(each * 1e-9)) for name, each in waits.items()}
        seen = self._rank.compare(result["quality"], result["quality"].get("gpu"))
        uncertain_ns, machines, cpu_s, gpus, still_s = zip(*seen, strict=True)
        result["sampling"] |= _seen_by(times) | {
            "nodes": self._group.environment.nodes,
            "clock_uncertainty_s": max(uncertain_ns) * 1e-9,
            # Sums over the ranks whose GPU counters were read.
            "iterations": self._rank.iterations,
        }
        # In rank 0's telemetry the other ranks of its machine are not other processes.
        here = [seconds for machine, seconds in zip(machines, cpu_s, strict=True) if machine == machines[0]]
        of_ranks = {"rank_gpus": list(gpus), STOOD_STILL: list(still_s)}
        result["quality"] |= {name: each for name, each in of_ranks.items() if any(each)}
        result["quality"]["process_cpu_s"] = sum(here)

    def after_timing(self) -> None:
        self._group.from_first("last check", self._wrong is None, self._deadline_s)
        if self._wrong is not None:
            raise WrongLaunch(self._wrong)
        self.before_timing()

    def report(self) -> dict[str, Any]:
        """How many iterations were looked at while they were timed, or why none could be."""
        return super().report() if self.checked else {"unchecked": self.unchecked} if self.unchecked else {}

    def run(self, iterations: int, is_counted: bool = True) -> NDArray[np.float64]:
        """Publish iterations, run them with the others, and return the seconds of each over ranks."""
        self._group.from_first("next block", [iterations, self._is_armed], self._deadline_s)
        mine = self._rank.time(iterations, self._is_armed)
        answers = self._group.to_first("collect times", mine, self._deadline_s)
        block = [RankTimes(*(np.array(column) for column in columns)) for columns, _ in answers]
        if is_counted:
            self._blocks.append(block)
        if self._is_armed:
            verdict = _everywhere([found for _, found in answers])
            self._wrong = self._wrong or (None if verdict.passed else verdict)
        seconds: NDArray[np.float64] = np.mean([times.seconds for times in _busy(block)], axis=0)
        return seconds


class RankedStopwatch:
    """Rank 0's stopwatch: a sample is what the ranks saw of an iteration, averaged over ranks as nccl-tests does."""

    name = "ranks"

    def __init__(self, run: Callable[..., NDArray[np.float64]]) -> None:
        self._run = run
        self.resolution_s = CpuStopwatch().resolution_s

    def time(self, launch: Launch, first: int, samples: int, launches_per_sample: int) -> list[float]:
        """Seconds of each sample; `launch` is not called, the ranks know what they run."""
        iterations = self._run(samples * launches_per_sample)
        summed: list[float] = iterations.reshape(samples, launches_per_sample).sum(axis=1).tolist()
        return summed

    def wake(self, launch: Launch, first: int, launches: int) -> int:
        self._run(launches, is_counted=False)
        return launches


def _last(blocks: Sequence[Sequence[RankTimes]], iterations: int) -> list[RankTimes]:
    """Each rank's times of the last iterations, which are those that were sampled and not warm-up."""

    def joined(times: Sequence[RankTimes]) -> RankTimes:
        columns = ([getattr(each, name) for each in times] for name in ("seconds", "arrived_ns", "done_ns"))
        return RankTimes(*(np.concatenate(column)[-iterations:] for column in columns))

    return [joined(of_rank) for of_rank in zip(*blocks, strict=True)]


def _busy(times: Sequence[RankTimes]) -> list[RankTimes]:
    return [each for each in times if each.seconds.size]


def _metric(seconds: NDArray[np.float64]) -> Metric:
    median, q20, q80 = median_and_quantiles(seconds)
    interval = median_interval(seconds, 0.95)
    return Metric("s", median, interval.low, interval.high, q20, q80, [float(f"{value:.4g}") for value in seconds])


def _seen_by(times: Sequence[RankTimes]) -> dict[str, Any]:
    """Return each rank's own times; null for a rank that took no part."""
    first_ns = np.min([each.arrived_ns for each in _busy(times)], axis=0)

    def quantiles(share: float) -> list[float | None]:
        return [float(np.quantile(each.seconds, share)) if each.seconds.size else None for each in times]

    report: dict[str, Any] = {
        "ranks": len(times),
        "rank_median_s": quantiles(0.5),
        "rank_q20_s": quantiles(0.2),
        "rank_q80_s": quantiles(0.8),
        "rank_lag_s": [
            float(np.median((each.arrived_ns - first_ns) * 1e-9)) if each.seconds.size else None for each in times
        ],
    }
    if len(times) <= RANKS_KEPT_WHOLE:
        report["rank_samples_s"] = [[float(f"{value:.4g}") for value in each.seconds] for each in times]
    return report
