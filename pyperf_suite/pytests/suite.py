"""The `suite` fixture: a function with its reference and its work, measured from any test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pyperf_suite import api

if TYPE_CHECKING:
    from pyperf_suite.measure.ratio import Ratio
    from pyperf_suite.pytests.replay import ReplayClock
    from pyperf_suite.spec.rows import Reading


class Result:
    """What was measured of one implementation, over all processes. `result["name"]` is that of another one.

    A test that asks for times where none were taken, as with --benchmark-disable, is skipped there.
    """

    def __init__(self, readings: Mapping[str, Reading], bytes_moved: int, name: str, baseline: str) -> None:
        self._readings, self._bytes, self._name, self._baseline = readings, bytes_moved, name, baseline

    def __repr__(self) -> str:
        return f"{self._name}: {self.seconds:.4g} s {self.interval}" if self._readings else f"{self._name}: not timed"

    def __getitem__(self, implementation: str) -> Result:
        """Of another implementation. Raises KeyError where there is none of that name."""
        if self._readings and implementation not in self._readings:
            raise KeyError(f"{implementation!r}: measured were {', '.join(self._readings)}")
        return Result(self._readings, self._bytes, implementation, self._baseline)

    @property
    def is_timed(self) -> bool:
        """Whether times were taken: not with --benchmark-disable or side by side with other tests."""
        return bool(self._readings)

    @property
    def seconds(self) -> float:
        """Seconds a launch: the median over processes of their medians."""
        return self._reading.seconds

    @property
    def interval(self) -> tuple[float, float]:
        """From the least to the largest median of a process; of one alone, its median's 95 % interval."""
        return self._reading.low, self._reading.high

    @property
    def processes(self) -> int:
        """How many processes measured it."""
        return len(self._reading.by_process)

    @property
    def converged(self) -> bool:
        """Whether each process knows its median as well as the profile asks."""
        return self._reading.converged

    @property
    def flop_per_s(self) -> float:
        """By the FLOP that the test told; 0 where it told none."""
        return self._reading.flop_per_s

    @property
    def bytes_per_s(self) -> float:
        """By the bytes that the test told; 0 where it told none."""
        return self._bytes / self.seconds

    @property
    def speedup(self) -> Ratio:
        """The baseline's time over this one's, paired within each process: `value`, `low` and `high`."""
        from pyperf_suite.spec.rows import mean_speedup

        found = mean_speedup([(self._readings[self._baseline], self._reading)])
        assert found is not None, "each process measures all implementations"
        return found

    @property
    def _reading(self) -> Reading:
        if not self._readings:
            pytest.skip("nothing was timed, and the test asks for a time")
        return self._readings[self._name]


def end_test(outcome: str, reason: str) -> None:
    """Skip a test that measures what cannot be measured here, and fail one that measures something wrong."""
    if outcome == "unsupported":
        pytest.skip(f"unsupported: {reason}")
    pytest.fail(reason, pytrace=False)


class Measurer(Protocol):
    """Who measures what the fixture is given: fresh processes, this one for another, or nobody."""

    def measured(self, nodeid: str, launch: api.Launch) -> tuple[Result, Sequence[float], Mapping[str, Any]]:
        """The result, the samples to report and what is kept beside them. Raises pytest's outcomes."""
        ...


class SuiteFixture:
    """`suite(function, *args, reference=..., bytes=..., flop=..., modifies=..., check=...)`, as `suite.launch`."""

    def __init__(self, benchmark: Any, measurer: Measurer, clock: ReplayClock | None) -> None:
        self._benchmark, self._measurer, self._clock = benchmark, measurer, clock
        api._outputs.clear()  # of tests before this one

    def __call__(
        self, function: Callable[..., Any] | Mapping[str, Callable[..., Any]], *args: Any, **kwargs: Any
    ) -> Result:
        """Measure the function, or several by name, and give what was measured.

        Fails the test with a sentence where a result is wrong. Raises TypeError or ValueError for what cannot be meant.
        """
        launch = api.launch(function, *args, **kwargs)
        for name, each in launch.functions.items():
            if inspect.iscoroutinefunction(each):
                raise TypeError(f"{name} is a coroutine function: pass one that runs it, as lambda: asyncio.run(...)")
        result, samples, extra_info = self._measurer.measured(self._benchmark.fullname, launch)
        if self._clock is None or not samples:
            return result
        self._benchmark.extra_info.update(extra_info)
        self._clock.load(samples)
        self._benchmark.pedantic(lambda: None, rounds=len(samples), iterations=1)
        return result


class Verifier:
    """Measures nothing, and has every implementation verified once: for sessions in which benchmarks are off."""

    def measured(self, nodeid: str, launch: api.Launch) -> tuple[Result, Sequence[float], Mapping[str, Any]]:
        """Fails the test where a result is wrong."""
        from pyperf_suite.pytests.launches import answer, device_of
        from pyperf_suite.runner.case import Case

        for name in launch.functions:
            said = answer(launch, name, Case(nodeid, None, name), None, device_of(launch))
            if said["outcome"] != "ok":
                end_test(said["outcome"], said["reason"])
        return Result({}, launch.bytes, next(iter(launch.functions)), launch.baseline), [], {}
