"""What all tests share: `pytest --benchmark-only` leaves them out, GPU tests say why they are skipped."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from pyperf_suite.hardware.devices import Unavailable, driver

if TYPE_CHECKING:
    from pyperf_suite.runner.record import Case, Record

# Tools of the repository are imported from its root, which comes last: the package is the one that is installed.
sys.path.append(str(Path(__file__).parents[1]))

# The same examples in each run: a change is judged by what it changes. HYPOTHESIS_PROFILE=default searches on.
hypothesis.settings.register_profile("same_each_time", derandomize=True, deadline=None)
# For tests/hardening, where one example is a hundred inputs: others in each run, and none may take long.
hypothesis.settings.register_profile(
    "thorough",
    max_examples=1_000,
    deadline=60_000,
    database=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),  # tracing, to explain, would take most of the time
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same_each_time"))

MEASURED_TABLES = "PYPERF_MEASURED_TABLES"


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave the tests out of `pytest --benchmark-only`, which would collect them only to skip each."""
    return True if config.getoption("benchmark_only", default=False) else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `gpu` where there is none, with the driver's reason."""
    if item.get_closest_marker("gpu") and isinstance(driver(), Unavailable):
        pytest.skip(f"needs a CUDA device, but {driver()}")


@pytest.fixture(scope="session")
def timed_record() -> Callable[..., Record]:
    """A record as a worker leaves of one trial: timed_record(case, seconds), and fields that shall be otherwise."""
    from pyperf_suite.runner.record import Metric, Record
    from pyperf_suite.workloads import find_workload

    def made(case: Case, seconds: float, **otherwise: Any) -> Record:
        work = find_workload(case.operator).work(case.parameters)
        usual = {
            "run_id": "made-up",
            "kind": "timing",
            "case": case.to_json(),
            "case_id": case.case_id,
            "process": 0,
            "position": 0,
            "started_at": "",
            "outcome": "ok",
            "metrics": {"time": Metric("s", seconds, seconds, seconds, seconds, seconds, [seconds])},
            "work": {"flop": work.flop, "bytes": work.bytes},
            "kernel": {"details": {}},
            "quality": {"converged": True},
        }
        return Record(**(usual | otherwise))

    return made


@pytest.fixture(scope="session")
def measured_tables(pytestconfig: pytest.Config) -> Path:
    """The folder of published measurements, which are not the project's to ship: a test skips where they are not."""
    folder = Path(os.environ.get(MEASURED_TABLES) or pytestconfig.rootpath.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(
            f"the published measurements are not at {folder}: set {MEASURED_TABLES} to the folder that has them"
        )
    return folder
