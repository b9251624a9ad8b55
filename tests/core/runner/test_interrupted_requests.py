"""An exception from outside while cases wait: the next case gets its own figures, and the worker is ended."""

from __future__ import annotations

import itertools
import os
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.hardware.machine import identity
from pyperf_suite.process import child
from pyperf_suite.pytest_plugin.run import Children
from pyperf_suite.record.journal import Journal
from pyperf_suite.runner import workers
from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.runner.results import create_run
from pyperf_suite.runner.session import Session
from pyperf_suite.runner.workers import WorkerPool
from pyperf_suite.workloads.collective import CollectiveParameters
from tests.records import SMALL, a_record

CPU = Device("cpu")

CASES = [replace(SMALL, parameters=replace(SMALL.parameters, n=n)) for n in (64, 65, 66)]
# Its answers say which case each is of, and come in two writes.
DOUBLE = textwrap.dedent("""
    import json, os, sys
    for line in sys.stdin:
        request = json.loads(line)
        for number, case in enumerate(request["cases"]):
            answer = {"case": number, "outcome": "unsupported", "reason": str(case["parameters"]["n"])}
            text = (json.dumps(answer | {"token": request["token"]}) + "\\n").encode()
            os.write(1, text[:9]), os.write(1, text[9:])
""")
PYTHON = (sys.executable, "-S", "-c", DOUBLE)


@pytest.fixture
def double(monkeypatch):
    monkeypatch.setattr(workers, "COMMAND", PYTHON)
    monkeypatch.setattr(workers, "sweep", lambda: None)


class Interrupting:
    """Raise the exception at line number `place` of those that a call runs in the files of the given modules."""

    def __init__(self, place, error, *modules):
        self.left, self.error, self.files = place, error, {module.__file__ for module in modules}

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace)

    def __exit__(self, *_):
        sys.settrace(self.before)

    def trace(self, frame, event, _):
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise self.error
        return self.trace


ERRORS = KeyboardInterrupt(), pytest.fail.Exception("Timeout >2.0s"), OSError("no space left"), TimeoutError()


def test_after_an_exception_at_any_line_the_next_case_has_its_own_figures(double):
    for place, error in zip(itertools.count(1), itertools.cycle(ERRORS)):
        with WorkerPool(CPU, 20) as pool:
            try:
                with Interrupting(place, error, workers, child):
                    heard = [answer["reason"] for _, answer in pool.measure_by_turns(0, CASES, None)]
            except type(error):
                heard = None
            own = {number: answer["reason"] for number, answer in pool.measure_by_turns(0, CASES[1:], None)}
            assert own == {0: "65", 1: "66"}, place
        if heard == ["64", "65", "66"]:
            break
    assert place > 100, "each line of asking and waiting was tried"
    # One whose start was interrupted may have ended and nobody has taken its exit code.
    living = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    assert not [each for each in living if DOUBLE in each.cmdline()]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_exception_while_a_record_is_kept_ends_the_worker_and_no_record_has_anothers_figures(
    double, tmp_path, monkeypatch, error
):
    monkeypatch.setattr(Session, "_measure_sentinel", lambda *_: None)
    plan = Plan(tuple(PlannedCase("tile_wave", case) for case in CASES), QUICK, CPU)
    with closing(Session(plan, create_run(tmp_path, identity(CPU), plan), [WorkerPool(CPU)]).open()) as run:
        monkeypatch.setattr(run.outlook, "learn", Mock(side_effect=[error, None, None, None]))
        with pytest.raises(type(error)) as raised:
            run.measure_trial(plan.cases[0], 0)
        assert raised.value is error, "its frames, and so whoever was asking, are alive as long as this is"
        assert not run._workers._workers
        records = [run.measure_trial(planned, 0) for planned in reversed(plan.cases)]
    assert [record.reason for record in records] == ["66", "65", "64"]


@pytest.mark.parametrize("number", [2, -1, None, "0"])
def test_an_answer_for_a_case_that_was_not_requested_is_refused(monkeypatch, number):
    program = f"""
        import json
        print(json.dumps({{"case": {number!r}, "outcome": "ok", "token": json.loads(input())["token"]}}), flush=True)
        input()
        """
    monkeypatch.setattr(workers, "COMMAND", (sys.executable, "-S", "-c", textwrap.dedent(program)))
    with WorkerPool(CPU, 20) as pool:
        assert "no answer was due" in pool.measure(0, CASES[0], None)["reason"]


def test_a_request_that_is_left_in_the_middle_leaves_no_answer_for_the_next_one(double):
    with WorkerPool(CPU, 20) as pool:
        left = pool.measure_by_turns(0, CASES, None)
        assert next(left)[1]["reason"] == "64"
        assert [answer["reason"] for _, answer in pool.measure_by_turns(0, CASES[1:], None)] == ["65", "66"]
        left.close()


def test_ranks_that_were_interrupted_get_no_further_request(monkeypatch):
    announced = []
    group = SimpleNamespace(watchdog=SimpleNamespace(announce=announced.append), close=lambda: None)
    ranked = replace(SMALL, operator="collective", parameters=CollectiveParameters("all_reduce", 1024, 2))
    monkeypatch.setattr(workers, "lead", Mock(side_effect=KeyboardInterrupt))
    measuring = workers.GroupWorkers(group, CPU, 20)
    with pytest.raises(KeyboardInterrupt):
        list(measuring.measure_by_turns(0, [ranked], None))
    assert announced == ["Rank 0 was interrupted while the ranks measured a case."]
    with pytest.raises(UserError, match="interrupted"):
        list(measuring.measure_by_turns(0, [ranked], None))
    measuring.close()


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_test_in_a_fresh_process_that_is_interrupted_ends_that_process(error):
    process = Mock(**{"receive.side_effect": error})
    children = Children.__new__(Children)
    children._process, children._expected, children._deadline_s = process, "test", 1.0
    children._effort = QUICK.effort
    with pytest.raises(type(error)):
        children.ask(SimpleNamespace(nodeid="test", planned=lambda: PlannedCase("tile_wave", SMALL)), None)
    process.close.assert_called_once_with()
    assert children._process is None


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_record_whose_writing_is_interrupted_is_taken_back(tmp_path, monkeypatch, error):
    path = tmp_path / "records.jsonl"
    with Journal(path) as journal:
        journal.append(a_record(SMALL))
        before = path.read_bytes()
        monkeypatch.setattr(os, "fsync", Mock(side_effect=error))
        with pytest.raises((type(error), UserError)):
            journal.append(a_record(SMALL, process=1))
    assert path.read_bytes() == before
