"""An exception from outside while cases wait: the next case gets its own figures, and the worker is ended."""

from __future__ import annotations

import itertools
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from unittest.mock import Mock

import psutil
import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.hardware.machine import identity
from pyperf_suite.runner import workers
from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.runner.results import create_run
from pyperf_suite.runner.session import Session
from pyperf_suite.runner.workers import WorkerLost, WorkerPool, WorkerProcess
from tests.records import SMALL

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
                with Interrupting(place, error, workers):
                    heard = [answer["reason"] for _, answer in pool.measure_by_turns(0, CASES, None)]
            except type(error):
                heard = None
            own = {number: answer["reason"] for number, answer in pool.measure_by_turns(0, CASES[1:], None)}
            assert own == {0: "65", 1: "66"}, place
        if heard == ["64", "65", "66"]:
            break
    assert place > 100, "each line of asking and waiting was tried"
    # One whose start was interrupted may have ended and nobody has taken its exit code.
    living = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    assert not [child for child in living if DOUBLE in child.cmdline()]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_exception_while_a_record_is_kept_ends_the_worker_and_no_record_has_anothers_figures(
    double, tmp_path, monkeypatch, error
):
    monkeypatch.setattr(Session, "_measure_sentinel", lambda *_: None)
    plan = Plan(tuple(PlannedCase("tile_wave", case) for case in CASES), QUICK, CPU)
    with closing(Session(plan, create_run(tmp_path, identity(CPU), plan)).open()) as run:
        monkeypatch.setattr(run.outlook, "learn", Mock(side_effect=[error, None, None, None]))
        with pytest.raises(type(error)) as raised:
            run.measure_trial(plan.cases[0], 0)
        assert raised.value is error, "its frames, and so whoever was asking, are alive as long as this is"
        assert not run._workers._workers
        records = [run.measure_trial(planned, 0) for planned in reversed(plan.cases)]
    assert [record.reason for record in records] == ["66", "65", "64"]


def test_an_answer_to_the_request_of_another_process_is_refused(double):
    first, second = WorkerProcess(CPU, PYTHON), WorkerProcess(CPU, PYTHON)
    for worker, case in ((first, CASES[0]), (second, CASES[1])):
        worker.send({"cases": [case.to_json()]})
    first._process, second._process = second._process, first._process
    for worker in (first, second):
        with pytest.raises(WorkerLost, match="answered another request"):
            worker.receive(20)


@pytest.mark.parametrize("number", [2, -1, None, "0"])
def test_an_answer_for_a_case_that_was_not_requested_is_refused(number):
    program = f"""
        import json
        print(json.dumps({{"case": {number!r}, "outcome": "ok", "token": json.loads(input())["token"]}}), flush=True)
        input()
        """
    worker = WorkerProcess(CPU, (sys.executable, "-S", "-c", textwrap.dedent(program)))
    with pytest.raises(WorkerLost, match="no answer was due"):
        dict(worker.measure_by_turns(CASES[:2], None, 20))


def test_a_request_before_the_last_one_was_answered_ends_the_worker():
    worker = WorkerProcess(CPU, PYTHON)
    worker.send({"cases": []})
    with pytest.raises(WorkerLost, match="before it had answered"):
        worker.send({"cases": []})
