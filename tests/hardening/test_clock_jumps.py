"""The wall clock may step in mid-run: deadlines do not notice, and history keeps every record."""

from __future__ import annotations

import ast
import re
import sys
import time
from pathlib import Path

import pytest

import pyperf_suite
from pyperf_suite.regressions.stored.store import Store, find_side
from pyperf_suite.runner.workers import WorkerLost, WorkerProcess
from tests.records import PLAN, a_run

PACKAGE = Path(pyperf_suite.__file__).parent
# Who may ask for the date: names of runs, moments of records. No deadline and no duration.
OF_THE_WALL = {
    "regressions/pairs/ab.py",
    "pytest_plugin/run.py",
    *("runner/results.py", "runner/measuring.py", "runner/session.py"),
}
WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.now"}


def test_only_names_moments_and_ages_are_of_the_wall_clock():
    asking = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"time\.time|now\(", path.read_text())
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in WALL_CLOCKS
    }
    assert asking <= OF_THE_WALL


@pytest.mark.parametrize("step_s", [-1e9, 1e9])
def test_a_deadline_holds_though_the_wall_clock_steps(monkeypatch, step_s):
    sleeper = WorkerProcess(PLAN.device, (sys.executable, "-c", "import time; time.sleep(60)"))
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + step_s)
    began = time.monotonic()
    with pytest.raises(WorkerLost, match=r"did not answer within its deadline of 0\.2 s "):
        sleeper.receive(0.2)
    assert time.monotonic() - began < 30


def test_a_run_in_which_the_clock_stepped_back_keeps_every_trial(tmp_path):
    moments = ("2026-03-01T12:00:00+00:00", "2026-03-01T11:00:00+00:00", "2031-01-01T00:00:00+00:00")
    for name in ("20260301T120000Z-0001", "20310101T000000Z-0002"):
        a_run(tmp_path, name, moments)
    store = Store(tmp_path)
    assert [one.ok for one in store.measured] == [3, 3]
    (series,) = store.series()
    assert sum(point.ok for point in series.points) == 6
    assert find_side("latest", tmp_path).name.endswith("20310101T000000Z-0002")
