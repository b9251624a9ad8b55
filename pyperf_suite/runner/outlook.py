"""How long a run will take: an estimate from what each case computes, corrected by what its visits really take.

The constants were read off `visit_s` of records of every probe on two-core machines.
"""

from __future__ import annotations

import bisect
import functools
import math
import time
from collections.abc import Callable

import numpy as np

from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.workloads import find_workload

Visit = tuple[PlannedCase, int]
"""A case and the number of the process that measures it."""

Progress = Callable[[int, int, str, Callable[[], float]], None]
"""Called with the visits done, all visits, what the last one gave, and what estimates the seconds still to go."""

# How often a run without a terminal says how far it is.
LINE_EVERY_S = 10.0

# A worker imports torch; a group of ranks is started by torchrun and finds itself.
START_S = 2.0
START_OF_A_GROUP_S = 4.0
# Ranks that are started for one case build its engine, and compare what it computes with a single process.
START_OF_FRESH_RANKS_S = 6.5

# Inputs, operand sets and telemetry of one visit, whatever its size.
AROUND_A_CASE_S = 0.06
AROUND_WHAT_IS_READ_S = 0.12

# The share of their caps that warm-up and sampling take: fewer cases converge earlier where more is asked.
SHARE_OF_CAPS = 0.8
SHARE_WHERE_LITTLE_IS_ASKED = 0.5
LITTLE = 0.02

# A workload's own check, and the model that it makes, however small.
AROUND_A_WORKLOAD_S = 0.4

# Launches of a visit that is longer than its caps: one verified, one or two to warm up, the least samples, one checked.
LAUNCHES_AT_LEAST = 6

# Passes of a workload's own check, in float64, relative to one step: forward and backward, before timing and after.
PASSES_OF_A_CHECK = 2.0


class Outlook:
    """Expected seconds of each visit of a plan; `learn` tells it what one really took."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._taken_s: dict[tuple[str, str], float] = {}
        # Measured over estimated, by operator, in order: their median corrects the cases not yet visited.
        self._corrections: dict[str, list[float]] = {}

    @property
    def line(self) -> str:
        """One line on what is ahead, as in `120 cases x 3 processes on cpu, profile standard, about 4 min`."""
        plan = self._plan
        return (
            f"{len(plan.cases)} case{'s' if len(plan.cases) > 1 else ''} x "
            f"{plan.processes} process{'es' if plan.processes > 1 else ''} on {plan.device}, "
            f"profile {plan.profile.name}, about {in_words(self.run_s())}"
        )

    def visit_s(self, planned: PlannedCase, process: int) -> float:
        """The seconds that a visit is expected to take."""
        if planned.key in self._taken_s:
            return self._taken_s[planned.key]
        corrections = self._corrections.get(planned.case.operator)
        correction = corrections[len(corrections) // 2] if corrections else 1.0
        return self._estimated_s(planned, process) * correction

    def learn(self, planned: PlannedCase, process: int, seconds: float) -> None:
        """Take note of what a visit took."""
        self._taken_s[planned.key] = seconds
        estimated_s = self._estimated_s(planned, process)
        if estimated_s > 0:
            bisect.insort(self._corrections.setdefault(planned.case.operator, []), seconds / estimated_s)

    def run_s(self) -> float:
        """The seconds that the whole plan is expected to take, workers' starts included."""
        plan = self._plan
        visits = sum(
            self.visit_s(planned, process)
            for planned in plan.cases
            for process in range(1 if planned.is_exact else plan.processes)
        )
        groups = {ranks_of(planned) for planned in plan.cases} - {0}
        # At the end the sentinel has a process of its own.
        starts = plan.processes + (not all(planned.is_exact for planned in plan.cases))
        return visits + starts * START_S + len(groups) * plan.processes * START_OF_A_GROUP_S

    def _estimated_s(self, planned: PlannedCase, process: int) -> float:
        case = planned.case
        workload = find_workload(case.operator)
        if workload.is_exact:
            return AROUND_WHAT_IS_READ_S
        effort = self._plan.profile.effort
        effort = effort.sustained() if case.mode == "sustained" else effort
        seconds = AROUND_A_CASE_S
        float64_s = workload.work(case.parameters).flop / host_flop_per_s()
        launch_s = float64_s / 2 if self._plan.device.kind == "cpu" else 0.0  # float32 has twice the lanes
        # The other processes of a run share what the first computed.
        if process == 0 and workload.own_check and not workload.ranks(case.parameters):
            seconds += AROUND_A_WORKLOAD_S + PASSES_OF_A_CHECK * float64_s
        if workload.fresh_ranks:
            seconds += START_OF_FRESH_RANKS_S
        if math.isinf(effort.stop.relative_half_width):  # so many launches, however long they take
            return seconds + (effort.warm_up.launches + effort.stop.max_samples) * launch_s
        caps_s = min(effort.seconds_at_most, 60.0)
        share = SHARE_WHERE_LITTLE_IS_ASKED if effort.stop.relative_half_width > LITTLE else SHARE_OF_CAPS
        return seconds + max(share * caps_s, LAUNCHES_AT_LEAST * launch_s)


def ranks_of(planned: PlannedCase) -> int:
    """How many ranks a case takes that outlive it; 0 for a case of one process, or of ranks that end with it."""
    workload = find_workload(planned.case.operator)
    return 0 if workload.fresh_ranks else workload.ranks(planned.case.parameters)


def in_words(seconds: float) -> str:
    """A duration as it is said: `48 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


class ProgressLines:
    """Says through `write` how far a run is, at most every LINE_EVERY_S seconds."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._began_s = self._said_s = clock()

    def __call__(self, done: int, total: int, last: str, left_s: Callable[[], float]) -> None:
        now_s = self._clock()
        if now_s - self._said_s < LINE_EVERY_S:
            return
        self._said_s = now_s
        left = f"about {in_words(left_s())} left" if done < total else "the last one"
        self._write(f"{done} of {total} visits in {in_words(now_s - self._began_s)}, {left}: {last}")


@functools.cache
def host_flop_per_s() -> float:
    """What this machine's cores multiply in float64 through numpy: the best of a few products, some milliseconds."""
    size = 384
    a = np.ones((size, size))
    best_s = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        a @ a
        best_s = min(best_s, time.perf_counter() - began)
    return float(2 * size**3 / best_s)
