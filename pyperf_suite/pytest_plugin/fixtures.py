"""The fixtures of a test that is measured, `suite` and pytest-benchmark's, and the child session that measures it.

What pytest-benchmark's users see and set stays theirs. What fresh processes measured is replayed into it through its
public surface alone: a timer whose pairs of calls return 0.0 and then the sample, and `pedantic`.

A child session is started by `run.py` with the arguments of the session that requests its tests. Requests come on
standard input and answers go to standard output, one line of JSON each; tests and plugins see neither.
"""

from __future__ import annotations

import atexit
import dataclasses
import gc
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pyperf_suite.process.serving import Requests
from pyperf_suite.pytest_plugin import Call
from pyperf_suite.user_kernels import api
from pyperf_suite.workloads import scratch

if TYPE_CHECKING:
    from pyperf_suite.record.interval import Ratio
    from pyperf_suite.record.reading import Reading
    from pyperf_suite.record.record import Record

# Name of calls that pytest-benchmark's fixture measures: they have none of their own.
BENCHMARK = "benchmark"


Timing = tuple[Sequence[float], Mapping[str, Any], Any]
"""Times of a call: seconds of each sample, the values kept with them, and the function's result."""


class Measurer(Protocol):
    """Measures the calls of a fixture: in fresh processes, or in this one for another."""

    def time(self, nodeid: str, call: Call) -> Timing: ...

    def measured(self, nodeid: str, launch: api.Launch) -> tuple[Result, Sequence[float], Mapping[str, Any]]: ...


class ReplayClock:
    """A timer whose pairs of calls differ by the loaded samples, one pair a sample, exactly: 0.0, then the sample."""

    __name__ = "pyperf_suite_replay"

    def __init__(self) -> None:
        self._readings: Iterator[float] = iter(())

    def load(self, samples: Sequence[float]) -> None:
        self._readings = iter([reading for sample in samples for reading in (0.0, sample)])

    def __call__(self) -> float:
        return next(self._readings, 0.0)


def extra_info(records: Sequence[Record], path: Path) -> dict[str, Any]:
    """Return values for pytest-benchmark's JSON besides the rounds; plain ones, as it stores no others."""
    seconds = sorted(record.seconds for record in records)
    work, median_s = records[0].work, seconds[len(seconds) // 2]
    # A call that computes nothing moves bytes: nccl-tests' algbw.
    rate = {"tflop_per_s": work["flop"] / median_s / 1e12} if work["flop"] else {}
    if work["bytes"] and not rate:
        rate = {"gb_per_s": work["bytes"] / median_s / 1e9}
    return {
        "case_id": records[0].case_id,
        **rate,
        "kernel": records[0].kernel["name"],
        "processes": len(records),
        "converged": all(record.quality["converged"] for record in records),
        "records": str(path),
    }


class Result:
    """Times of one implementation, over all processes. `result["name"]` is the result of another one.

    A test that asks for times where none were taken, as with --benchmark-disable, is skipped there.
    """

    def __init__(self, readings: Mapping[str, Reading], bytes_moved: int, name: str, baseline: str) -> None:
        self._readings, self._bytes, self._name, self._baseline = readings, bytes_moved, name, baseline

    def __repr__(self) -> str:
        return f"{self._name}: {self.seconds:.4g} s {self.interval}" if self._readings else f"{self._name}: not timed"

    def __getitem__(self, implementation: str) -> Result:
        """Return another implementation's result. Raises KeyError where there is none of that name."""
        if self._readings and implementation not in self._readings:
            raise KeyError(f"{implementation!r}: measured were {', '.join(self._readings)}")
        return Result(self._readings, self._bytes, implementation, self._baseline)

    @property
    def is_timed(self) -> bool:
        """True if times were taken: not with --benchmark-disable or side by side with other tests."""
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
        return len(self._reading.by_process)

    @property
    def converged(self) -> bool:
        return self._reading.converged

    @property
    def flop_per_s(self) -> float:
        """By the test's `flop`; 0 if it gave none."""
        return self._reading.flop_per_s

    @property
    def bytes_per_s(self) -> float:
        """By the test's `bytes`; 0 if it gave none."""
        return self._bytes / self.seconds

    @property
    def speedup(self) -> Ratio:
        """The baseline's time over this one's, paired within each process: `value`, `low` and `high`."""
        from pyperf_suite.record.reading import mean_speedup

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


class SuiteFixture:
    """`suite(function, *args, reference=..., bytes=..., flop=..., modifies=..., check=...)`, as `suite.launch`."""

    def __init__(self, nodeid: str, benchmark: Any, measurer: Measurer | None, clock: ReplayClock | None) -> None:
        self._nodeid, self._benchmark, self._measurer, self._clock = nodeid, benchmark, measurer, clock
        self._is_used = False
        api._outputs.clear()  # of tests before this one

    def __call__(
        self, function: Callable[..., Any] | Mapping[str, Callable[..., Any]], *args: Any, **kwargs: Any
    ) -> Result:
        """Measure the function, or several by name, and give what was measured.

        Fails the test with a sentence where a result is wrong. Raises TypeError or ValueError for what cannot be meant.
        """
        if self._is_used:
            raise TypeError(
                'suite measures once a test: pass {"name": function, ...}, or make it @pytest.mark.parametrize'
            )
        launch = api.launch(function, *args, **kwargs)
        self._is_used = True
        for name, each in launch.functions.items():
            if inspect.iscoroutinefunction(each):
                raise TypeError(f"{name} is a coroutine function: pass one that runs it, as lambda: asyncio.run(...)")
        if self._measurer is None or self._clock is None:
            return self._verified(launch)
        result, samples, extra_info = self._measurer.measured(self._nodeid, launch)
        if not samples:
            return result
        self._benchmark.extra_info.update(extra_info)
        self._clock.load(samples)
        self._benchmark.pedantic(lambda: None, rounds=len(samples), iterations=1)
        return result

    def _verified(self, launch: api.Launch) -> Result:
        """Have every implementation verified once, and nothing measured, as benchmarks are off in this session."""
        from pyperf_suite.pytest_plugin.launches import answer, device_of
        from pyperf_suite.record.case import Case

        for name in launch.functions:
            said = answer(launch, name, Case(self._nodeid, None, name), None, device_of(launch))
            if said["outcome"] != "ok":
                end_test(said["outcome"], said["reason"])
        return Result({}, launch.bytes, next(iter(launch.functions)), launch.baseline)


class MeasuredBenchmark(BenchmarkFixture):
    """A fixture that asks a source for times and replays them through its own public `pedantic`."""

    _source: Measurer
    _clock: ReplayClock
    _is_used = False
    # True if the test judges, or may judge, by the times themselves.
    looked_at_stats = False

    @classmethod
    def take_over(cls, fixture: BenchmarkFixture, source: Measurer, clock: ReplayClock) -> MeasuredBenchmark:
        """The same object, which others hold and look into, as one of this class; `clock` must be its timer."""
        fixture.__class__ = cls
        assert isinstance(fixture, cls)
        fixture._source, fixture._clock = source, clock
        return fixture

    def __call__(self, function_to_benchmark: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """As pytest-benchmark's: measure the call, and return what the function returns."""
        if self.disabled or self._is_used:  # used twice, it says so itself
            return super().__call__(function_to_benchmark, *args, **kwargs)
        return self._replayed(Call(function_to_benchmark, args, kwargs))

    def pedantic(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        teardown: Callable[..., Any] | None = None,
        rounds: int = 1,
        warmup_rounds: int = 0,
        iterations: int = 1,
    ) -> Any:
        """Measure as pytest-benchmark's pedantic: in each process `rounds` of `iterations`, and no others."""
        requested = {"rounds": rounds, "warmup_rounds": warmup_rounds, "iterations": iterations}
        whole = all(isinstance(each, int) for each in requested.values())
        can_be = whole and rounds >= 1 and warmup_rounds >= 0 and iterations >= 1 and not (iterations > 1 and setup)
        if self.disabled or self._is_used or not can_be:  # what cannot be, pytest-benchmark says itself
            return super().pedantic(target, args, kwargs, setup, teardown, **requested)
        return self._replayed(Call(target, args, kwargs or {}, setup, teardown, **requested))

    def _replayed(self, call: Call) -> Any:
        self._is_used = True
        try:
            seconds, extra_info, result = self._source.time(self.fullname, call)
        except BaseException as error:
            raised, self.has_error = error, True

            def fail() -> None:
                raise raised

            # By its own way, so that it knows that it was used.
            return super().pedantic(fail)
        self.extra_info.update(extra_info)
        self._clock.load(seconds)
        left = len(seconds)

        def replayed() -> Any:
            nonlocal left
            left -= 1
            return result if left >= 0 else call.once()  # which only a profiler asks for

        return super().pedantic(replayed, rounds=len(seconds), iterations=1)

    @property
    def stats(self) -> Any:
        """pytest-benchmark's statistics; None before something was measured."""
        self.looked_at_stats = True
        return self.__dict__["stats"]

    @stats.setter
    def stats(self, value: Any) -> None:
        self.__dict__["stats"] = value


# Options that must not take effect twice: files that the requesting session writes or opens, and selections of tests.
_OFF: dict[str, Any] = {
    **dict.fromkeys(("xmlpath", "log_file", "pastebin", "report_log", "htmlpath", "allure_report_dir"), None),
    **dict.fromkeys(
        ("json_report", "usepdb", "trace", "lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip"), False
    ),
    **dict.fromkeys(("benchmark_json", "benchmark_save", "benchmark_autosave", "benchmark_compare_fail"), None),
    **{name: [] for name in ("benchmark_compare", "benchmark_histogram", "benchmark_cprofile_dump")},
    "benchmark_cprofile": None,
    "maxfail": 0,
    "no_summary": True,
    "mtr_none": True,  # of pytest-monitor
}
# Tracers of memory take time, and a limit of time would count that of the measurement, which has its own deadline.
_PLUGINS_OFF = {"pytest_memray", "pytest_monitor", "pytest_timeout"}
# Seeds that a session draws and its tests make inputs by, as pytest-randomly does.
DRAWN = ("randomly_seed",)


class PytestChild:
    """The plugin that makes a session such a child: options, the loop over requests, and what a test left."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options` are those that the requesting session drew."""
        self._process, self._options = os.getpid(), _OFF | {**options}
        # Kept from tests: standard input is empty and standard output is nobody's while they run.
        self._requests = Requests(allow_nan=False)
        os.dup2(0, 1)
        self._request: dict[str, Any] = {}
        self._reports: list[pytest.TestReport] = []
        self.answers: dict[str, dict[str, Any]] = {}
        # The fixture of the test that runs, where it uses pytest-benchmark's.
        self.benchmark: MeasuredBenchmark | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        for name, value in self._options.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        config.add_cleanup(self._end)
        if folder := scratch.folder():
            config.option.basetemp = f"{folder}/pytest"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Take out the plugins that disturb, when the sessions that they keep are there for their fixtures."""
        manager = session.config.pluginmanager
        for name, plugin in manager.list_name_plugin():
            module = plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__
            if plugin is not None and module.partition(".")[0] in _PLUGINS_OFF:
                manager.unregister(name=name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        # Before a test can put another clock in the place of the one that is measured by.
        import pyperf_suite.pytest_plugin.launches  # noqa: F401

        items = {item.nodeid: item for item in session.items}
        self._answer({"ready": True})
        for request in self._requests:
            self._request = request
            item = items.get(self._request["node"])
            if item is None:
                self._answer({"reason": "pytest did not collect it there", "judged_time": False, "answers": {}})
            else:
                self._run(item, items.get(self._request["next"]))
        gc.freeze()  # pytest collects garbage twice before it ends
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        self._reports, self.answers, self.benchmark = [], {}, None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        failed = next((report for report in self._reports if report.failed), None)
        self._answer(
            {
                "reason": _reason(failed) if failed is not None else "",
                # A test may judge its own time, which takes all processes: what failed is then not held against it.
                "judged_time": getattr(self.benchmark, "looked_at_stats", False),
                "answers": self.answers,
            }
        )

    def time(self, nodeid: str, call: Call) -> Timing:
        from pyperf_suite.pytest_plugin.launches import reason_of, time_call
        from pyperf_suite.runner.timing import as_plain

        try:
            answer, result = time_call(call, *self._begun())
        except Exception as error:
            self.answers[BENCHMARK] = {"outcome": "failed", "reason": reason_of(error)}
            raise
        self.answers[BENCHMARK] = as_plain(answer)
        return self.answers[BENCHMARK]["metrics"]["time"]["samples"], {}, result

    def measured(self, nodeid: str, launch: api.Launch) -> tuple[Any, Sequence[float], Mapping[str, Any]]:
        """Measure each implementation, and end the test: what it says of the times is for all processes together."""
        from pyperf_suite.pytest_plugin.launches import answer, device_of

        case, effort = self._begun()
        for name in launch.functions:
            own = dataclasses.replace(case, implementation=name)
            try:
                self.answers[name] = answer(launch, name, own, effort, device_of(launch))
            except pytest.skip.Exception as skipped:  # by the function itself
                self.answers[name] = {"outcome": "unsupported", "reason": str(skipped)}
        pytest.skip("measured")

    def _begun(self) -> tuple[Any, Any]:
        """Return the case and effort to measure, once the requester is ready."""
        from pyperf_suite.record.case import Case
        from pyperf_suite.runner.profiles import Effort

        if self._request.pop("waits"):
            self._answer({"begins": True})
            if next(iter(self._requests), None) is None:
                os._exit(1)  # whoever asked is gone
        return Case.from_json(self._request["case"]), Effort.from_json(self._request["effort"])

    def _end(self) -> None:
        """End where pytest is done: taking libraries apart takes time that somebody waits for."""
        if os.getpid() == self._process:
            atexit._run_exitfuncs()
            os._exit(0)

    def _answer(self, answer: dict[str, Any]) -> None:
        if os.getpid() != self._process:
            os._exit(1)  # a test forked, and this is its copy of the session
        self._requests.answer(answer)


def _reason(report: pytest.TestReport) -> str:
    """Why a test failed, on one line: where and what, or the last line of what pytest says."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return f"{os.path.relpath(crash.path)}:{crash.lineno}: {crash.message.splitlines()[0][:300]}"
    lines = report.longreprtext.strip().splitlines()
    return lines[-1][:300] if lines else f"its {report.when} failed"
