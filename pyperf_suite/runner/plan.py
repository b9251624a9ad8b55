"""Plan a run and estimate its time: cases of probes in a seeded random order, in several processes.

The time is an estimate from what each case computes, corrected by what its trials really take. Its constants were read
off `trial_s` of records of every probe on two-core machines.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import math
import os
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import memory
from pyperf_suite.hardware.catalogue import architecture
from pyperf_suite.hardware.devices import Device, gpus
from pyperf_suite.record.case import Case
from pyperf_suite.runner.profiles import Profile
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.workload import Workload


@dataclass(frozen=True)
class PlannedCase:
    """One case and the probe that requested it."""

    probe: str
    case: Case

    @property
    def is_exact(self) -> bool:
        """True if figures are read and not timed: they are the same in every process, so one suffices."""
        return find_workload(self.case.operator).is_exact

    @property
    def key(self) -> tuple[str, str]:
        return self.probe, self.case.case_id


@dataclass(frozen=True)
class Plan:
    """Everything that decides what a run measures; the same plan resumes the same run.

    `requested` is what led to the cases besides probe, profile, device and seed, as it was written: axes that replace a
    sweep's, or a study's arguments. It is kept for whoever wants to measure the same again, and decides nothing.
    """

    cases: tuple[PlannedCase, ...]
    profile: Profile
    device: Device
    seed: int = 0
    requested: tuple[str, ...] = ()

    @property
    def plan_id(self) -> str:
        """16 hexadecimal digits that are equal for plans that measure the same cases in the same way."""
        parts = sorted(f"{planned.probe}:{planned.case.case_id}" for planned in self.cases)
        text = "\n".join([self.profile.name, str(self.device), str(self.seed), *parts])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def processes(self) -> int:
        """How many processes measure each case; one alone where nothing is timed."""
        return 1 if all(planned.is_exact for planned in self.cases) else self.profile.processes

    @functools.cached_property
    def has_two_visits(self) -> bool:
        """True if some of a CPU's cases are visited twice in one process; several processes are visits of their own."""
        if self.profile.processes > 1 or self.device.kind != "cpu":
            return False
        return any(is_ready_fast(find_workload(planned.case.operator)) for planned in self.cases)

    @property
    def probes(self) -> tuple[str, ...]:
        return tuple(sorted({planned.probe for planned in self.cases}))

    def validate(self, refused: Container[str] = ()) -> None:
        """Raise UserError for a case, unless `refused` by id, that can never be measured, or not in this memory."""
        on_gpu = self.device.kind == "cuda"
        available = gpus()[self.device.index].memory_bytes if on_gpu else memory.available_bytes()
        for case in (planned.case for planned in self.cases if planned.case.case_id not in refused):
            case.validate()
            implementation = find_workload(case.operator).implementation(case.implementation)
            if implementation.device_kind not in ("any", self.device.kind):
                raise UserError(
                    f"{case.label} runs on {implementation.device_kind}, but the requested device is {self.device}: "
                    f"ask for {implementation.device_kind}."
                )
            needed = find_workload(case.operator).footprint_bytes(case.parameters)
            if needed > available:
                raise UserError(
                    f"{case.label} needs {needed / 1e9:.1f} GB for its operands, but "
                    f"{f'{self.device} has' if on_gpu else 'this machine has'} {available / 1e9:.1f} GB of memory "
                    f"{'in all' if on_gpu else 'free'}: ask for smaller dimensions."
                )


def in_random_order(cases: Sequence[PlannedCase], seed: int) -> tuple[PlannedCase, ...]:
    """Shuffle the cases by the seed, against drift along a sweep; those of several ranks come last."""
    shuffled = list(cases)
    random.Random(seed).shuffle(shuffled)
    return tuple(sorted(shuffled, key=lambda planned: ranks_of(planned) > 0))


# Sizes this close are compared with each other, as the last of one wave and the first of the next are.
NEIGHBOURS = 0.02


def most_informative_first(cases: Sequence[PlannedCase], seed: int) -> tuple[PlannedCase, ...]:
    """The cases in an order that may be cut anywhere: for a run with a budget.

    Cases that are compared stay together: all implementations and schedules of one problem, and problems whose sizes
    differ by at most 2 %. Of such bundles each dtype, layout or other kind of problem comes in turn, and within a kind
    its sizes from coarse to fine: the middle, the quarters, the eighths. Ties are drawn by the seed.
    """
    drawn = in_random_order(cases, seed)
    problems: dict[tuple[object, ...], dict[tuple[float, ...], list[PlannedCase]]] = {}
    for planned in drawn:
        values = vars(planned.case.parameters)
        # Tiles, schedules and implementations are ways to solve a problem.
        words = ((name, value) for name, value in values.items() if isinstance(value, str | bool))
        kind = (planned.probe, planned.case.operator, planned.case.mode, *words)
        numbers = (value for value in values.values() if isinstance(value, int) and not isinstance(value, bool))
        problems.setdefault(kind, {}).setdefault(tuple(map(float, numbers)), []).append(planned)
    queues = [_coarse_to_fine(_bundles(by_size)) for by_size in problems.values()]
    in_turn = (bundle for bundles in itertools.zip_longest(*queues, fillvalue=()) for bundle in bundles)
    return tuple(planned for bundle in in_turn for planned in bundle)


def _bundles(by_size: Mapping[tuple[float, ...], list[PlannedCase]]) -> list[list[PlannedCase]]:
    """The problems of one kind by size, neighbours in one bundle."""
    bundles: list[list[PlannedCase]] = []
    last: tuple[float, ...] | None = None
    for sizes in sorted(by_size):
        near = last is not None and all(abs(a - b) <= NEIGHBOURS * max(a, b) for a, b in zip(last, sizes, strict=True))
        if near:
            bundles[-1].extend(by_size[sizes])
        else:
            bundles.append(list(by_size[sizes]))
        last = sizes
    return bundles


def _coarse_to_fine(bundles: list[list[PlannedCase]]) -> list[list[PlannedCase]]:
    """Halving the gaps: the middle first, then the middles of both halves, and so on."""
    ordered = []
    gaps = deque([(0, len(bundles))])
    while gaps:
        begin, end = gaps.popleft()
        if begin < end:
            middle = (begin + end) // 2
            ordered.append(bundles[middle])
            gaps.extend([(begin, middle), (middle + 1, end)])
    return ordered


Trial = tuple[PlannedCase, int]  # a case and the number of the process that measures it
Progress = Callable[[int, int, str, Callable[[], float]], None]
"""Called with the trials done, all trials, what the last one gave, and what estimates the seconds still to go."""

LINE_EVERY_S = 10.0  # how often a run without a terminal says how far it is

# A worker imports torch where a case needs it, on an H200 with CUDA in 7 to 8 s; torchrun starts a group of ranks, and
# they find each other.
START_S = {"cpu": 0.7, "cuda": 7.0}
IMPORT_OF_TORCH_S = 2.0
START_OF_A_GROUP_S = 4.0
END_S = 1.2  # time after the last trial: the sentinel, in a process that is there, then pictures and files
# Ranks that are started for one case build its engine, and compare what it computes with a single process.
START_OF_FRESH_RANKS_S = 6.5

# Inputs, operand sets and telemetry of one trial, whatever its size.
AROUND_A_CASE_S = 0.06
AROUND_WHAT_IS_READ_S = 0.12

# Importing a user's file, by what its arrays are of; then preparing each case, and checks that processes share.
START_OF_A_FILE_S = {"": 0.0, "numpy": 0.3, "torch": 2.0}
AROUND_A_USERS_CASE_S = {"": AROUND_A_CASE_S, "numpy": 0.03, "torch": 0.05}
CHECKS_OF_A_USERS_CASE_S = {"": 0.0, "numpy": 0.1, "torch": 0.25}

# The share of their caps that warm-up and sampling take, slices included that are measured again; of a user's kernels,
# which converge sooner.
SHARE_OF_CAPS, USERS_SHARE_OF_CAPS = 0.9, 0.6
# Slowdown of a busy machine, against an idle one, from which on every slice is disturbed, and measured again within
# half of the time.
BUSY_SLOWDOWN, SHARE_OF_CAPS_WHERE_BUSY = 1.5, 1.5

AROUND_A_WORKLOAD_S = 0.4  # a workload's own check, and the model that it makes, however small

# Seconds of computing that show how busy the cores are, and how often.
LOOKED_FOR_S, LOOKS = 0.01, 5

# Launches of a trial that is longer than its caps: one verified, one or two to warm up, the least samples, one checked.
LAUNCHES_AT_LEAST = 6

# Passes of a workload's own check, in float64, relative to one step: forward and backward, before timing and after.
PASSES_OF_A_CHECK = 2.0


class Outlook:
    """Expected seconds of each trial of a plan; `learn` is given what one really took."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._taken_s: dict[tuple[str, str], float] = {}
        # Measured over estimated, by operator, in order: their median corrects the cases not yet measured.
        self._corrections: dict[str, list[float]] = {}

    @property
    def line(self) -> str:
        """One line on what is ahead, as in `120 cases x 3 processes on cpu, profile standard, about 4 min`."""
        return f"{self.size}, about {in_words(self.run_s())}"

    @property
    def size(self) -> str:
        """How much is ahead, but for the time."""
        plan = self._plan
        return (
            f"{len(plan.cases)} case{'s' if len(plan.cases) > 1 else ''} x "
            f"{plan.processes} process{'es' if plan.processes > 1 else ''} on {plan.device}, "
            f"profile {plan.profile.name}"
        )

    def trial_s(self, planned: PlannedCase, process: int) -> float:
        if planned.key in self._taken_s:
            return self._taken_s[planned.key]
        corrections = self._corrections.get(planned.case.operator)
        correction = corrections[len(corrections) // 2] if corrections else 1.0
        return self._estimated_s(planned, process) * correction

    def learn(self, planned: PlannedCase, process: int, seconds: float) -> None:
        self._taken_s[planned.key] = seconds
        estimated_s = self._estimated_s(planned, process)
        if estimated_s > 0:
            bisect.insort(self._corrections.setdefault(planned.case.operator, []), seconds / estimated_s)

    def run_s(self) -> float:
        """The seconds that the whole plan is expected to take, workers' starts included."""
        plan = self._plan
        trials_s = sum(
            self.trial_s(planned, process)
            for planned in plan.cases
            for process in range(1 if planned.is_exact else plan.processes)
        )
        groups = {ranks_of(planned) for planned in plan.cases} - {0}
        # Kernels of one file share their processes.
        operators = {planned.case.operator for planned in plan.cases}
        files = {operator.partition(":")[0]: find_workload(operator).library for operator in operators}
        start_s = START_S[plan.device.kind] + len(groups) * START_OF_A_GROUP_S
        if plan.device.kind != "cuda" and find_spec("torch"):
            cases = (planned.case for planned in plan.cases)
            ways = (find_workload(case.operator).implementation(case.implementation) for case in cases)
            start_s += IMPORT_OF_TORCH_S * any(each.needs_torch for each in ways)
        start_s += sum(START_OF_A_FILE_S[each] for each in files.values())
        return trials_s + plan.processes * start_s * slowed() + self.closing_s

    @property
    def closing_s(self) -> float:
        return END_S * slowed()

    def _estimated_s(self, planned: PlannedCase, process: int) -> float:
        case = planned.case
        workload = find_workload(case.operator)
        if workload.is_exact:
            return AROUND_WHAT_IS_READ_S * slowed()
        effort, on_gpu = self._plan.profile.effort, self._plan.device.kind == "cuda"
        effort = effort.sustained(settles=on_gpu) if case.mode == "sustained" else effort
        is_counted = math.isinf(effort.stop.relative_half_width)  # a number of launches, however long they take
        visits = 2 if self._plan.has_two_visits and is_ready_fast(workload) and not is_counted else 1
        seconds = visits * AROUND_A_USERS_CASE_S[workload.library]
        seconds += CHECKS_OF_A_USERS_CASE_S[workload.library] / effort.processes
        rate = gpu_float64_flop_per_s(self._plan.device) if on_gpu else host_flop_per_s()
        float64_s = workload.work(case.parameters).flop / rate
        launch_s = 0.0 if on_gpu else float64_s / 2  # float32 has twice the lanes
        # The other processes of a run share what the first computed, on the device whose cases they are.
        is_checked = process == 0 and workload.own_check and not workload.ranks(case.parameters)
        check_s = PASSES_OF_A_CHECK * float64_s if is_checked else 0.0
        seconds += is_checked * AROUND_A_WORKLOAD_S + workload.fresh_ranks * START_OF_FRESH_RANKS_S
        seconds = seconds * slowed() + check_s * (1.0 if on_gpu else slowed())
        if is_counted:
            return seconds + (effort.warm_up.launches + effort.stop.max_samples) * launch_s
        caps_s = min(effort.seconds_at_most, 60.0)
        share = USERS_SHARE_OF_CAPS if workload.library else SHARE_OF_CAPS
        share = SHARE_OF_CAPS_WHERE_BUSY if slowed() > BUSY_SLOWDOWN else share
        seconds += on_gpu * effort.beside_s(case.mode)
        return seconds + max(share * caps_s, LAUNCHES_AT_LEAST * launch_s)


def is_ready_fast(workload: Workload[Any]) -> bool:
    """True if cases can be made ready twice: not training steps with a check of their own, nor a user's functions."""
    return not workload.own_check and not workload.library


def ranks_of(planned: PlannedCase) -> int:
    """How many ranks a case takes that outlive it; 0 for a case of one process, or of ranks that end with it."""
    workload = find_workload(planned.case.operator)
    return 0 if workload.fresh_ranks else workload.ranks(planned.case.parameters)


def in_words(seconds: float) -> str:
    """A duration in words: `48 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


class ProgressLines:
    """Print through `write` how far a run is, at most once in `every_s` seconds."""

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic, every_s: float = LINE_EVERY_S
    ) -> None:
        self._write, self._clock, self._every_s = write, clock, every_s
        self._began_s = self._said_s = clock()

    def __call__(self, done: int, total: int, last: str, left_s: Callable[[], float]) -> None:
        now_s = self._clock()
        if now_s - self._said_s < self._every_s:
            return
        self._said_s = now_s
        left = f"about {in_words(left_s())} left" if done < total else "the last one"
        self._write(f"{done} of {total} trials in {in_words(now_s - self._began_s)}, {left}: {last}")


@functools.cache
def slowed() -> float:
    """How long a thread takes to compute for a second, 1 or more where others have the cores meanwhile.

    The geometric mean of what a moment shows, and of how many have wanted each core in the last minute.
    """

    def look() -> float:
        began_s, computed_s = time.perf_counter(), time.thread_time()
        while time.thread_time() - computed_s < LOOKED_FOR_S:
            pass
        return (time.perf_counter() - began_s) / (time.thread_time() - computed_s)

    now, queue = statistics.median(look() for _ in range(LOOKS)), (os.getloadavg()[0] + 1) / (os.cpu_count() or 1)
    return max(1.0, math.sqrt(now * queue) if queue > 1 else now)


# Share of its units' peak at FLOAT64_HZ, a clock that all GPUs exceed, that torch's products in float64 reach.
FLOAT64_SHARE, FLOAT64_HZ = 0.5, 1.4e9


def gpu_float64_flop_per_s(device: Device) -> float:
    """FLOP/s in float64 of a GPU, where references of its cases are computed."""
    gpu = gpus()[device.index]
    lanes = architecture(gpu.compute_capability).float64_lanes
    return 2 * FLOAT64_SHARE * FLOAT64_HZ * lanes * gpu.multiprocessors


@functools.cache
def host_flop_per_s() -> float:
    """Return this machine's float64 FLOP/s through numpy: the best of a few products, some milliseconds."""
    size = 384
    a = np.ones((size, size))
    best_s = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        a @ a
        best_s = min(best_s, time.perf_counter() - began)
    return float(2 * size**3 / best_s)
