"""One pair: two processes that are alive together and take turns in short slices, ABBA with a random start.

What the machine does for longer than a round of turns it does to both; so the median log-ratio of the rounds is one
independent sample of the comparison.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import secrets
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.telemetry import Around
from pyperf_suite.record.clock_model import at_one_clock
from pyperf_suite.regressions.pairs.arms import Arm, PairedCase
from pyperf_suite.runner.workers import WorkerLost, WorkerProcess
from pyperf_suite.user_kernels.audit.processes import PYTHON_VARIABLE
from pyperf_suite.workloads.backends import workers_of

# A sample is long enough when the clock's resolution is at most this share of it.
RESOLUTION_SHARE = 0.01
SIDES = ("old", "new")
# A kernel runs on one core where less than this share of its CPU time is that of other threads than the main one.
OTHER_THREADS = 0.1


class ArmFailed(Exception):
    """An arm cannot measure the case; `reasons` names which, `unsupported` says that there is nothing to compare."""

    def __init__(self, reasons: dict[str, str], unsupported: bool) -> None:
        super().__init__("; ".join(f"{side}: {reason}" for side, reason in reasons.items()))
        self.reasons = reasons
        self.unsupported = unsupported


@dataclass(frozen=True)
class Pace:
    """How long a slice lasts, and all slices of a trial together, both sides counted."""

    slice_s: float
    total_s: float


# The faster turns change, the more of what the machine does hits both sides. A GPU has to change contexts between two
# processes, and a user's kernel is in a process of its own, so that turns of theirs are longer.
SHORT_TURNS, LONG_TURNS = Pace(0.001, 0.2), Pace(0.005, 0.15)
# A pair is measured for half as long as it took to start, by MOST_TRIALS trials at most: users' kernels on other inputs
# in each. The trials of a pair share its processes, so that together they are one sample.
MOST_TRIALS = 2


@dataclass(frozen=True)
class Pair:
    """Times of a pair: for each side the median of each of its slices and of all its samples, in seconds a launch.

    Slices of a GPU whose clock is known are those at the median clock of both sides; `old_s` and `new_s` are as taken.

    `order` has a letter a slice, o for the old side and n for the new one; `seconds` is what the pair cost,
    start-up included; `machine` has clocks, load and stolen time during it.
    """

    old_s: float
    new_s: float
    old_slices: tuple[float, ...]
    new_slices: tuple[float, ...]
    order: str
    seconds: float
    startup_s: float
    launches_per_slice: int
    machine: dict[str, Any] = field(default_factory=dict)
    static: tuple[dict[str, Any], dict[str, Any]] | None = None
    kernels: tuple[dict[str, Any], dict[str, Any]] = field(default_factory=lambda: ({}, {}))

    @property
    def log_ratio(self) -> float:
        """log(new / old) time, 0.05 is 5 % slower: the median of rounds of four slices, two of each side."""
        slices = {"o": iter(self.old_slices), "n": iter(self.new_slices)}
        logs = [math.log(next(slices[letter])) * (1 if letter == "n" else -1) for letter in self.order]
        return statistics.median(sum(logs[at : at + 4]) / 2 for at in range(0, len(logs), 4)) if logs else 0.0


def measure_pair(
    old: Arm,
    new: Arm,
    case: PairedCase,
    device: Device,
    seed: int,
    *,
    verify: bool = False,
    spin_share: float = 0.0,
    pace: Pace | None = None,
    deadline_s: float = 120.0,
    judges: dict[str, WorkerProcess] | None = None,
) -> Pair:
    """Start both arms, let them take turns, end them. `spin_share` slows each launch of the new arm down.

    A user's kernel runs in a process of its own, which is another in each pair. `judges` are then the processes that
    judge it: used again where they are there, else started, and left for the next pair; the caller closes them.

    Raises ArmFailed where an arm cannot prepare the case, its result is wrong (checked with `verify`), or it dies.
    """
    begin = time.monotonic()
    chance = random.Random(seed)
    arms = {"old": old, "new": new}
    cores = _cores(case, device, chance)
    common: dict[str, Any] = {"device": str(device), "verify": verify, "cores": cores}
    if judges is not None:
        # A kernel's time may depend on its inputs; the measured code cannot foresee these.
        common["inputs"] = secrets.randbits(63)
        common["anew"] = old.environment.get(PYTHON_VARIABLE) != new.environment.get(PYTHON_VARIABLE)
    requests = {side: common | {"case": getattr(case, side).to_json()} for side in SIDES}
    for side, arm in arms.items():
        requests[side] |= {"path": [str(arm.build)] if arm.build else [], "environment": dict(arm.environment)}
    requests["new"]["spin_share"] = spin_share
    with Around() as telemetry, ExitStack() as resources:
        # The side that starts first gets other memory: let chance decide.
        order = chance.sample(SIDES, 2)
        workers = {side: _worker(arms, side, judges) for side in order}
        if judges is None:
            for worker in workers.values():
                resources.callback(worker.close)
        answers = _prepared(workers, arms, requests, deadline_s)
        if new.command == old.command:
            imported = set.intersection(*(set(each.get("libraries", ())) for each in answers.values()))
            if imported and imported != set(_libraries.get(old.python, ())):
                _libraries[old.python] = [name for name in answers["old"]["libraries"] if name in imported]
        turns = _Turns(workers, deadline_s)
        threads = max(each.get("other_threads", 1.0) for each in answers.values())
        if cores is None and device.kind == "cpu" and threads < OTHER_THREADS:
            cores = [chance.choice(sorted(os.sched_getaffinity(0)))]
            turns.ask_both("pin", cores=cores)
        is_exact = "static" in answers["old"]
        startup_s = time.monotonic() - begin
        if not is_exact:
            resolution_s = max(float(answer["resolution_s"]) for answer in answers.values())
            pace = pace or (SHORT_TURNS if device.kind == "cpu" and judges is None else LONG_TURNS)
            trials = max(1, min(MOST_TRIALS, round(startup_s / pace.total_s / 2)))
            turns.take_all(chance, resolution_s, pace, trials, is_reseeded=judges is not None)
            turns.ask_both("finish")
    report = telemetry.report
    machine: dict[str, Any] = {name: report[name] for name in ("steal_share", "cpu_busy_s") if name in report}
    machine |= {"cpu_mhz": report["after"].get("cpu_mhz"), "clock_hz": turns.clocks(), "cores": cores}
    return Pair(
        old_s=turns.median("old"),
        new_s=turns.median("new"),
        old_slices=tuple(turns.slices_at_one_clock("old")),
        new_slices=tuple(turns.slices_at_one_clock("new")),
        order=turns.order,
        seconds=time.monotonic() - begin,
        startup_s=startup_s,
        launches_per_slice=turns.launches_per_slice,
        machine={name: value for name, value in machine.items() if value},
        static=(answers["old"]["static"], answers["new"]["static"]) if is_exact else None,
        kernels=(answers["old"]["kernel"], answers["new"]["kernel"]),
    )


def _cores(case: PairedCase, device: Device, chance: random.Random) -> list[int] | None:
    """One core for both sides, where both use no more than one; chance takes another in every pair.

    Measured on two busy virtual cores, where the scheduler moved processes that it had to wake: the log-ratio of
    identical code had a MAD-sd of 0.9 % pinned and of 2.1 to 2.9 % not, and an sd of 1.4 % instead of 11 to 17 %.
    """
    if device.kind != "cpu" or not hasattr(os, "sched_getaffinity"):
        return None
    if any(workers_of(each.parameters) != 1 for each in (case.old, case.new)):
        return None
    return [chance.choice(sorted(os.sched_getaffinity(0)))]


# By interpreter, the modules that both sides of its last pair had imported from its own path: a template imports them.
_libraries: dict[Path, list[str]] = {}


def _worker(arms: Mapping[str, Arm], side: str, judges: dict[str, WorkerProcess] | None) -> WorkerProcess:
    """Whoever measures a side: a fresh process, or the judge of users' kernels under that interpreter.

    Where both sides run by one interpreter, all processes of a comparison are copies of one template. So both find its
    libraries at the same places, and the same seed of hashes; a template a side would be a difference in every pair.
    """
    arm = arms[side]
    if judges is None:
        is_shared = arms["old"].command == arms["new"].command and not any(each.variables for each in arms.values())
        preload = _libraries.get(arm.python, ()) if is_shared else ()
        return WorkerProcess(arm.command, arm.variables, preload=preload)
    key = arm.environment.get(PYTHON_VARIABLE, "")
    if key not in judges:
        judges[key] = WorkerProcess(arm.command, arm.variables)
    return judges[key]


def end_judges(judges: dict[str, WorkerProcess]) -> None:
    """End all judges; the next pair starts others."""
    while judges:
        judges.popitem()[1].close()


def _prepared(
    workers: dict[str, WorkerProcess],
    arms: Mapping[str, Arm],
    requests: Mapping[str, dict[str, Any]],
    deadline_s: float,
) -> dict[str, dict[str, Any]]:
    """Both arms' answers to their requests, worked on side by side. Raises ArmFailed."""
    answers: dict[str, dict[str, Any]] = {}
    # One judge is asked for one side after the other, two processes for both at once.
    turns = [[side] for side in workers] if workers["old"] is workers["new"] else [list(workers)]
    for sides in turns:
        for what in ("send", "receive"):
            for side in sides:
                try:
                    if what == "send":
                        workers[side].send({"side": side, "prepare": requests[side]})
                    elif side not in answers:
                        answers[side] = workers[side].receive(deadline_s)
                except WorkerLost as lost:
                    answers[side] = {"outcome": "failed", "reason": str(lost)}
    for side, answer in answers.items():
        build = arms[side].build
        if answer["outcome"] == "ok" and build and Path(answer["package"]).resolve().parent != build.resolve():
            answers[side] = {"outcome": "failed", "reason": f"It ran the code in {answer['package']}, not its own."}
    bad = {side: answer["reason"] for side, answer in answers.items() if answer["outcome"] != "ok"}
    if bad:
        # A case that the old arm never ran cannot be broken by the new one.
        unsupported = answers["old"]["outcome"] == "unsupported"
        raise ArmFailed(bad, unsupported)
    return answers


class _Turns:
    """Slices taken one at a time, while the other side waits for its next line of input."""

    def __init__(self, workers: dict[str, WorkerProcess], deadline_s: float) -> None:
        self._workers = workers
        self._deadline_s = deadline_s
        self._samples: dict[str, list[float]] = {side: [] for side in SIDES}
        self._clocks: dict[str, list[float]] = {side: [] for side in SIDES}
        self.slices: dict[str, list[float]] = {side: [] for side in SIDES}
        self.order = ""
        self.launches_per_slice = 0

    def take_all(self, chance: random.Random, resolution_s: float, pace: Pace, trials: int, is_reseeded: bool) -> None:
        """One uncounted slice each, then ABBA until the trial's time is used, at least once; so in each trial."""
        first, second = chance.sample(SIDES, 2)
        shortest_s = resolution_s / RESOLUTION_SHARE
        launch_s = max(self._warm(side, shortest_s, pace.slice_s) for side in (first, second))
        batch = max(1, math.ceil(shortest_s / launch_s))
        samples = max(1, round(pace.slice_s / (batch * launch_s)))
        self.launches_per_slice = batch * samples
        rounds = max(1, round(pace.total_s / (4 * samples * batch * launch_s)))
        for trial in range(trials):
            if trial and is_reseeded:
                self.ask_both("reseed", inputs=secrets.randbits(63))
            for side in (first, second, second, first) * rounds:
                self._take(side, samples, batch)
            first, second = chance.sample(SIDES, 2)

    def _warm(self, side: str, shortest_s: float, slice_s: float) -> float:
        """Seconds of a launch once warm, the least of a few, for others were interrupted, that count no further."""
        batch, spent_s = 1, 0.0
        while True:
            begin = time.monotonic()
            launch_s = min(self._ask(side, 3, batch))
            spent_s += time.monotonic() - begin
            wanted = math.ceil(shortest_s / max(launch_s, 1e-9))
            if batch >= wanted and spent_s >= slice_s:
                return launch_s
            batch = max(batch, min(wanted, 10 * batch))

    def _take(self, side: str, samples: int, batch: int) -> None:
        seconds = self._ask(side, samples, batch)
        self._samples[side].extend(seconds)
        self.slices[side].append(statistics.median(seconds))
        self.order += side[0]

    def ask_both(self, request: str, **arguments: Any) -> None:
        for side in SIDES:
            self._answer(side, {request: arguments})

    def _ask(self, side: str, samples: int, batch: int) -> list[float]:
        answer = self._answer(side, {"slice": {"samples": samples, "launches_per_sample": batch}})
        if answer.get("clock_hz"):
            self._clocks[side].append(answer["clock_hz"])
        return answer["seconds"]

    def _answer(self, side: str, request: dict[str, Any]) -> dict[str, Any]:
        worker = self._workers[side]
        try:
            worker.send({"side": side, **request})
            answer = worker.receive(self._deadline_s)
        except WorkerLost as lost:
            raise ArmFailed({side: str(lost)}, unsupported=False) from None
        if answer["outcome"] != "ok":
            raise ArmFailed({side: answer["reason"]}, unsupported=False)
        return answer

    def slices_at_one_clock(self, side: str) -> list[float]:
        """Seconds of the side's slices, at the median clock of both sides if the device reports its clock."""
        # Slices to warm up have clocks too, and come first.
        clocks = {each: self._clocks[each][-len(slices) :] for each, slices in self.slices.items() if slices}
        if not clocks or any(len(clocks[each]) < len(self.slices[each]) for each in clocks):
            return self.slices[side]
        reference_hz = statistics.median(hz for side_hz in clocks.values() for hz in side_hz)
        slices, launches = self.slices[side], self.launches_per_slice
        own = [1] * len(slices)
        return at_one_clock(slices, clocks[side], own, reference_hz, launches_per_sample=launches).samples

    def median(self, side: str) -> float:
        """Seconds of a launch over all samples of the side; 1 where nothing is timed, so that the ratio is 1."""
        return statistics.median(self._samples[side]) if self._samples[side] else 1.0

    def clocks(self) -> dict[str, float]:
        """The median clock in Hz of each side's slices, where the device tells."""
        with contextlib.suppress(statistics.StatisticsError):
            return {side: statistics.median(self._clocks[side]) for side in SIDES}
        return {}
