"""Prepare a test's calls and launches for the measuring path.

Calls are timed in a loop of their own, as pytest-benchmark makes them. Launches of the `suite` fixture are measured as
a bench file's kernels are, but in the test's process, for a test's closures cannot be sent to another.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyperf_suite.errors import Failed, Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.sampling import SteadyRule, StopRule, to_the_end
from pyperf_suite.measure.stopwatch import CpuStopwatch, garbage_collector_at_rest
from pyperf_suite.measure.verify import Verification
from pyperf_suite.process.system import is_users
from pyperf_suite.pytest_plugin import Call
from pyperf_suite.record.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.timing import as_plain, timed
from pyperf_suite.user_kernels.api import Launch
from pyperf_suite.user_kernels.arrays import is_torch, walk
from pyperf_suite.user_kernels.here import exchanged
from pyperf_suite.user_kernels.workload import UserLaunches
from pyperf_suite.workloads.backends import leave_nothing_behind
from pyperf_suite.workloads.workload import ExecutionContext, Kernel, Prepared, Work

_BLOCK_S = 0.1
# A test may put another in its place.
_CLOCK = time.perf_counter_ns


class CallStopwatch:
    """The host's clock around calls of a function; `result` is what the last of a call's `rounds` returned."""

    name = CpuStopwatch.name

    def __init__(self, call: Call) -> None:
        self._call = call
        # A test that counts its rounds gets no warm-up that it did not ask for.
        self._leave_out = 1 if call.rounds and not call.warmup_rounds else 0
        self.resolution_s = CpuStopwatch().resolution_s
        self.result: Any = None

    def time(self, launch: Any, first: int, samples: int, launches_per_sample: int) -> list[float]:
        if self._leave_out:
            self._leave_out = 0
            return [0.0] * samples
        with exchanged(), garbage_collector_at_rest():
            if self._call.rounds:
                return [self._round() for _ in range(samples)]
            return self._samples(samples, range(launches_per_sample))

    def _samples(self, samples: int, calls: range) -> list[float]:
        clock, function, args, kwargs = _CLOCK, self._call.function, self._call.args, self._call.kwargs
        seconds = [0.0] * samples
        for sample in range(samples):
            begin = clock()
            for _ in calls:
                function(*args, **kwargs)
            seconds[sample] = (clock() - begin) * 1e-9
        return seconds

    def _round(self) -> float:
        call, clock, function = self._call, _CLOCK, self._call.function
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
    with exchanged():
        effort = profile
        if call.rounds:
            effort = Effort(SteadyRule(launches=max(1, call.warmup_rounds)), StopRule.exactly(call.rounds, _BLOCK_S))
        answer = _timed(prepared, case, effort, Device("cpu"))
    answer["verification"] = {"passed": True, "method": "test", "message": prepared.unchecked}
    if call.rounds and not call.warmup_rounds:
        answer["sampling"] |= {"warmup_launches": 0, "warmup_s": 0.0}
    if call.rounds:
        answer["sampling"]["launches_per_sample"] = call.iterations
    answer["sampling"]["cache"] = "as the last call left it"
    return answer, prepared.stopwatch.result if call.rounds and call.iterations == 1 else call.once()


class _PreparedCall(Prepared):
    unchecked = "The test's own assertions judge what the function returns."

    def __init__(self, call: Call) -> None:
        self.kernel = Kernel(name_of(call.function), "python")
        self._stopwatch = CallStopwatch(call)

    @property
    def stopwatch(self) -> CallStopwatch:
        return self._stopwatch

    def check(self) -> Verification:
        return Verification(True, "full", 0.0, 0.0, 0.0, (), self.unchecked)

    def launch(self, index: int) -> None:
        """The stopwatch calls the function itself: a call in between would be timed with it."""


def _timed(prepared: Prepared, case: Case, effort: Effort | None, device: Device) -> dict[str, Any]:
    """Measure what is ready. Raises what the function raises."""
    try:
        with untraced():
            return to_the_end(timed(prepared, Work(), case, effort, device))
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration):  # a generator makes that of it
            raise error.__cause__ from None
        raise


def name_of(function: Any) -> str:
    """Return a function's name where it was defined."""
    return str(getattr(function, "__qualname__", "") or type(function).__qualname__)


@contextmanager
def untraced() -> Iterator[None]:
    """No tracer and no profiler, as of a coverage tool, while something is timed."""
    tracer: Any = sys.gettrace()
    profiler: Any = sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.settrace(tracer)
        if hasattr(profiler, "enable"):  # of cProfile, which is no function
            profiler.enable()
        else:
            sys.setprofile(profiler)


def answer(launch: Launch, name: str, case: Case, effort: Effort | None, device: Device) -> dict[str, Any]:
    """The measured part of one implementation's record; verified alone without an effort. Every way to end is one."""
    try:
        place = ExecutionContext(device, deadline_s=math.inf, sets=1 if effort is None else None)
        with exchanged(), contextlib.closing(UserLaunches(case.operator, {}, name, place, launch)) as prepared:
            outcome = _timed(prepared, case, effort, device)
    except Unsupported as reason:
        outcome = {"outcome": "unsupported", "reason": str(reason)}
    except Failed as failed:
        outcome = {"outcome": "failed", "reason": str(failed)}
        if failed.reason:
            outcome["verification"] = {"passed": False, "reason": failed.reason, "message": str(failed)}
    finally:
        leave_nothing_behind(device)
    return as_plain(outcome)


def reason_of(error: BaseException) -> str:
    """Return the place where the user's code raised an error, its type and first line."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    where = f"{os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}: " if frames else ""
    lines = str(error).strip().splitlines()
    return f"{where}{type(error).__name__}{f': {lines[0][:300]}' if lines else ''}"


def device_of(launch: Launch) -> Device:
    """The GPU that holds an argument, else the CPU."""
    for _, leaf in walk([*launch.args, *launch.kwargs.values()]):
        if is_torch(leaf) and leaf.is_cuda:
            return Device("cuda", leaf.device.index or 0)
    return Device("cpu")
