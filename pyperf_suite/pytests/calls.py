"""Calls of a Python function, timed in a loop of their own, as pytest-benchmark makes them."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.spot_checks import Verdict
from pyperf_suite.measure.steady import SteadyRule
from pyperf_suite.measure.stop_rule import StopRule
from pyperf_suite.measure.stopwatch import CpuStopwatch, Launch, Stopwatch
from pyperf_suite.pytests.replay import Call
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.timing import timed
from pyperf_suite.workloads.workload import Kernel, Prepared, Work

# Rounds that a test asked for are taken in blocks of so many seconds.
_BLOCK_S = 0.1


def effort_of(call: Call, profile: Effort) -> Effort:
    """The profile's, or as many rounds as the test asked for."""
    if not call.rounds:
        return profile
    return Effort(SteadyRule(launches=max(1, call.warmup_rounds)), StopRule.exactly(call.rounds, _BLOCK_S))


class CallStopwatch:
    """The host's clock around calls of a function; a launch is one call, whatever the index.

    `result` is what the last round of a call with `rounds` returned.
    """

    name = CpuStopwatch.name

    def __init__(self, call: Call) -> None:
        self._call = call
        # A test that counts its rounds gets no warm-up that it did not ask for.
        self._leave_out = 1 if call.rounds and not call.warmup_rounds else 0
        self.resolution_s = CpuStopwatch().resolution_s
        self.result: Any = None

    def time(self, launch: Launch, first: int, samples: int, launches_per_sample: int) -> list[float]:
        """Seconds of each sample; the garbage collector rests, as it would charge one sample for many."""
        if self._leave_out:
            self._leave_out = 0
            return [0.0] * samples
        collecting = gc.isenabled()
        gc.disable()
        try:
            if self._call.rounds:
                return [self._round() for _ in range(samples)]
            return self._samples(samples, range(launches_per_sample))
        finally:
            if collecting:
                gc.enable()

    def _samples(self, samples: int, calls: range) -> list[float]:
        clock, function, args, kwargs = time.perf_counter_ns, self._call.function, self._call.args, self._call.kwargs
        seconds = [0.0] * samples
        for sample in range(samples):
            begin = clock()
            for _ in calls:
                function(*args, **kwargs)
            seconds[sample] = (clock() - begin) * 1e-9
        return seconds

    def _round(self) -> float:
        call, clock, function = self._call, time.perf_counter_ns, self._call.function
        args, kwargs = call.arguments()
        if call.iterations == 1:
            begin = clock()
            self.result = function(*args, **kwargs)
            end = clock()
        else:
            calls = range(call.iterations)
            begin = clock()
            for _ in calls:
                function(*args, **kwargs)
            end = clock()
        if call.teardown is not None:
            call.teardown(*args, **kwargs)
        return (end - begin) * 1e-9 / call.iterations


def time_call(call: Call, case: Case, profile: Effort) -> tuple[dict[str, Any], Any]:
    """The measured part of a record of a call, and what the function returned. Raises what the function raises."""
    prepared = _PreparedCall(call)
    with untraced():
        answer = timed(prepared, Work(), case, effort_of(call, profile), Device("cpu"), _ByTheTest())
    answer["verification"] = _ByTheTest.VERDICT.to_json()
    if call.rounds and not call.warmup_rounds:
        answer["sampling"] |= {"warmup_launches": 0, "warmup_s": 0.0}
    if call.rounds:
        answer["sampling"]["launches_per_sample"] = call.iterations
    answer["sampling"]["cache"] = "as the last call left it"
    return answer, prepared.stopwatch.result if call.rounds and call.iterations == 1 else call.once()


class _PreparedCall(Prepared):
    """A call as the one measuring path takes it."""

    unchecked = "The test's own assertions judge what the function returns."

    def __init__(self, call: Call) -> None:
        self.kernel = Kernel(name_of(call.function), "python")
        self._stopwatch = CallStopwatch(call)

    @property
    def stopwatch(self) -> CallStopwatch:
        return self._stopwatch

    def launch(self, index: int) -> None:
        """The stopwatch calls the function itself: a call in between would be timed with it."""


@dataclass(frozen=True)
class _Trusted:
    """The verdict where nobody but the test looks at results."""

    passed: bool = True
    message: str = _PreparedCall.unchecked

    def to_json(self) -> dict[str, Any]:
        return {"passed": True, "method": "test", "message": self.message}


class _ByTheTest:
    """Checks that are left to the test."""

    VERDICT = _Trusted()

    def before_timing(self) -> Verdict:
        return self.VERDICT

    def checking(self, stopwatch: Stopwatch, can_stop: bool) -> Stopwatch:
        return stopwatch

    def after_block(self) -> None:
        return

    def after_timing(self) -> None:
        return

    def report(self) -> dict[str, Any]:
        return {}


def name_of(function: Any) -> str:
    """What a function is called where it was defined."""
    return str(getattr(function, "__qualname__", "") or type(function).__qualname__)


@contextmanager
def untraced() -> Iterator[None]:
    """No tracer and no profiler, as of a coverage tool, while something is timed."""
    tracer, profiler = sys.gettrace(), sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.settrace(tracer)
        sys.setprofile(profiler)
