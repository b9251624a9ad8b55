import gc
import json
import os
import sys
import time

import psutil
import pytest

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.hardware.machine import identity
from pyperf_suite.regressions.stored.store import Store, find_side
from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.runner.results import create_run
from pyperf_suite.runner.session import Session
from pyperf_suite.runner.workers import WorkerLost, WorkerProcess, Workers
from tests.hardening.kill_runs import kill_runs
from tests.records import a_product, a_record, a_run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pyperf_suite.errors.DamagedJournal")
@pytest.mark.parametrize("seed", range(20))
def test_killed_anywhere_a_run_keeps_its_records_resumes_and_measures_nothing_twice(tmp_path, seed):
    message = kill_runs(1, tmp_path, seed, commands=["ranks" if seed % 5 == 0 else "run"])
    assert "no record was lost or measured twice" in message


@pytest.mark.parametrize("step_s", [-1e9, 1e9])
def test_a_deadline_holds_though_the_wall_clock_steps(monkeypatch, step_s):
    sleeper = WorkerProcess((sys.executable, "-c", "import time; time.sleep(60)"))
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


CASES = 2000
# A record of forty samples takes some 6 KB as Python keeps it; its place in the journal and its trial a few hundred.
MOST_BYTES_A_CASE = 2_000


class Echo(Workers):
    """Workers that answer at once, each time with an answer of their own."""

    def __init__(self, record) -> None:
        answer = {name: record[name] for name in ("outcome", "metrics", "work", "kernel", "quality")}
        answer["metrics"]["time"]["samples"] = [1e-3 + 1e-9 * number for number in range(40)]
        self.text = json.dumps(answer)

    def measure(self, process, case, effort):
        return json.loads(self.text)

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_memory_stays_flat_in_the_run_and_what_is_read_again_is_held_once(tmp_path, monkeypatch):
    cases = [a_product(8 + number, 8, 8, schedule="persistent@1", tile="32x32x32") for number in range(CASES)]
    plan = Plan(tuple(PlannedCase("tile_wave", case) for case in cases), QUICK, resolve("cpu"))
    monkeypatch.setattr(Session, "_measure_sentinel", lambda *_: None)
    monkeypatch.setattr(os, "fsync", lambda file: None)
    workers = Echo(a_record(cases[0], 1e-3).to_json())
    session = Session(plan, create_run(tmp_path, identity(plan.device), plan), workers=[workers]).open()
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    for planned in plan.cases:
        session.measure(planned)
    session.finish()
    assert process.memory_info().rss - before < CASES * MOST_BYTES_A_CASE
    again = session.folder.records()
    assert len(again) == CASES
    # The machine's part, the same in all records, is longer than all else in them.
    assert len({id(record.state) for record in again}) == len({id(record.identity) for record in again}) == 1
