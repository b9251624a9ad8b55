"""The wall clock may step in mid-run: deadlines do not notice, and history keeps every record.

Who may ask for the date stands in pyproject.toml, where ruff's banned-api names the clocks of the wall.
"""

from __future__ import annotations

import sys
import time

import pytest

from pyperf_suite.regressions.stored.store import Store, find_side
from pyperf_suite.runner.workers import WorkerLost, WorkerProcess
from tests.records import PLAN, a_run


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
