"""A sweep of thousands of cases holds none of their records, and reading them back holds each once."""

from __future__ import annotations

import gc
import json
import os

import psutil
import pytest

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.hardware.machine import identity
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.runner.record import Case
from pyperf_suite.runner.results import create_run
from pyperf_suite.runner.session import Session
from pyperf_suite.runner.workers import Workers
from pyperf_suite.workloads.matmul import MatmulParameters
from tests.records import a_record

pytestmark = pytest.mark.slow

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


def test_memory_stays_flat_in_the_run_and_what_is_read_again_is_held_once(tmp_path, monkeypatch):
    schedule, tile = Schedule("persistent", 1), Tile(32, 32, 32)
    cases = [Case("matmul", MatmulParameters(8 + number, 8, 8, schedule, tile), "native") for number in range(CASES)]
    plan = Plan(tuple(PlannedCase("tile_wave", case) for case in cases), QUICK, resolve("cpu"))
    monkeypatch.setattr(Session, "_measure_sentinel", lambda *_: None)
    monkeypatch.setattr(os, "fsync", lambda file: None)
    workers = Echo(a_record(cases[0], 1e-3).to_json())
    session = Session(plan, create_run(tmp_path, identity(plan.device), plan), workers=workers).open()
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    for planned in plan.cases:
        session.measure(planned)
    session.finish()
    assert process.memory_info().rss - before < CASES * MOST_BYTES_A_CASE
    again = session.folder.records()
    assert len(again) == CASES
    # What all records say of the machine is longer than all else in them.
    assert len({id(record.state) for record in again}) == len({id(record.identity) for record in again}) == 1
