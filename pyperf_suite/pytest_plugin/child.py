"""A pytest session that measures tests for another one: it collects what that did, and runs the tests that it requests.

Started by `run.py` with the arguments of that session. Requests come on standard input and answers go to
standard output, one line of JSON each; tests and plugins see neither.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pyperf_suite.processes import end_with_parent
from pyperf_suite.pytest_plugin import Call
from pyperf_suite.pytest_plugin.fixtures import BENCHMARK, Timing
from pyperf_suite.workloads import scratch

if TYPE_CHECKING:
    from pyperf_suite.pytest_plugin.fixtures import MeasuredBenchmark
    from pyperf_suite.user_kernels.api import Launch

# What the requesting session writes, saves or opens is not to be written again; and all requested tests are run.
_OFF: dict[str, Any] = {
    **dict.fromkeys(("xmlpath", "log_file", "pastebin", "report_log", "htmlpath", "allure_report_dir"), None),
    **dict.fromkeys(
        ("json_report", "usepdb", "trace", "lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip"), False
    ),
    **dict.fromkeys(("benchmark_json", "benchmark_save", "benchmark_autosave", "benchmark_compare_fail"), None),
    **{name: [] for name in ("benchmark_compare", "benchmark_histogram", "benchmark_cprofile_dump")},
    "benchmark_cprofile": None,
    "maxfail": 0,
}


class PytestChild:
    """The plugin that makes a session such a child: options, the loop over requests, and what a test left."""

    def __init__(self) -> None:
        end_with_parent()
        self._process = os.getpid()
        # Kept from tests: standard input is empty and standard output is nobody's while they run.
        self._requests, self._answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.close(nothing)
        self._request: dict[str, Any] = {}
        self._reports: list[pytest.TestReport] = []
        self.answers: dict[str, dict[str, Any]] = {}
        # The fixture of the test that runs, where it uses pytest-benchmark's.
        self.benchmark: MeasuredBenchmark | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        for name, value in _OFF.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        if folder := scratch.folder():
            config.option.basetemp = f"{folder}/pytest"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self._answer({"ready": True})
        for line in self._requests:
            self._request = json.loads(line)
            item = items.get(self._request["node"])
            if item is None:
                self._answer({"reason": "pytest did not collect it there", "judged_time": False, "answers": {}})
            else:
                self._run(item, items.get(self._request["next"]))
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
        from pyperf_suite.pytest_plugin.launches import time_call
        from pyperf_suite.runner.timing import as_plain

        answer, result = time_call(call, *self._requested())
        self.answers[BENCHMARK] = as_plain(answer)
        return Timing(self.answers[BENCHMARK]["metrics"]["time"]["samples"], {}, result)

    def measured(self, nodeid: str, launch: Launch) -> tuple[Any, Sequence[float], Mapping[str, Any]]:
        """Measure each implementation, and end the test: what it says of the times is for all processes together."""
        from pyperf_suite.pytest_plugin.launches import answer, device_of

        case, effort = self._requested()
        for name in launch.functions:
            own = dataclasses.replace(case, implementation=name)
            self.answers[name] = answer(launch, name, own, effort, device_of(launch))
        pytest.skip("measured")

    def _requested(self) -> tuple[Any, Any]:
        from pyperf_suite.runner.profiles import Effort
        from pyperf_suite.runner.record import Case

        return Case.from_json(self._request["case"]), Effort.from_json(self._request["effort"])

    def _answer(self, answer: dict[str, Any]) -> None:
        if os.getpid() != self._process:
            os._exit(1)  # a test forked, and this is its copy of the session
        self._answers.write(json.dumps(answer, allow_nan=False) + "\n")
        self._answers.flush()


def _reason(report: pytest.TestReport) -> str:
    """Why a test failed, on one line: where and what, or the last line of what pytest says."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return f"{os.path.relpath(crash.path)}:{crash.lineno}: {crash.message.splitlines()[0][:300]}"
    lines = report.longreprtext.strip().splitlines()
    return lines[-1][:300] if lines else f"its {report.when} failed"
