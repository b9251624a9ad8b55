"""Workers that answer at once, for tests of front ends: who measures, and how long that takes, is not their matter."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.record.case import Case
from pyperf_suite.runner import session
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.workers import Answers, WorkerPool
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.matmul import MatmulParameters

Answer = Callable[[Case], dict[str, Any]]


SENTINEL = Case("matmul", MatmulParameters(8, 8, 8, Schedule("data_parallel", 1)), "native")


@pytest.fixture(scope="module", autouse=True)
def quick_sentinel() -> Iterator[None]:
    """A sentinel so small that it takes no torch: how the machine drifts meanwhile is not what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(session.SENTINELS, "cpu", SENTINEL)
        yield


def timed_at_once(case: Case) -> dict[str, Any]:
    """A worker's answer to a case that took a microsecond."""
    work = find_workload(case.operator).work(case.parameters)
    return {
        "outcome": "ok",
        "metrics": {
            "time": dict.fromkeys(("value", "low", "high", "q20", "q80"), 1e-6) | {"unit": "s", "samples": [1e-6]}
        },
        "work": {"flop": work.flop, "bytes": work.bytes},
        "kernel": {"name": "instant", "details": {}},
        "quality": {"converged": True},
        "verification": {"passed": True},
    }


class InstantWorkers:
    """Workers that note requests, process by process; `answer` may be another."""

    def __init__(self) -> None:
        self.requested: list[tuple[int, Case, Effort | None]] = []
        self.answer: Answer = timed_at_once


@pytest.fixture
def instant_workers(monkeypatch: pytest.MonkeyPatch) -> InstantWorkers:
    """No process measures, and no picture is drawn of what none measured."""
    workers = InstantWorkers()

    def measure(pool: WorkerPool, process: int, cases: Sequence[Case], effort: Effort | None) -> Answers:
        for number, case in enumerate(cases):
            workers.requested.append((process, case, effort))
            yield number, workers.answer(case)

    monkeypatch.setattr(WorkerPool, "measure_by_turns", measure)
    monkeypatch.setattr(WorkerPool, "start", lambda *_: None)
    monkeypatch.setattr("pyperf_suite.render.run_report.report_run", lambda *_, **__: None)
    return workers
