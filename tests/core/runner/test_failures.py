import sys
import textwrap

import pytest

from pyperf_suite.errors import Failed
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.record.case import Case
from pyperf_suite.runner import measuring
from pyperf_suite.runner.spared import SparedCases
from pyperf_suite.runner.workers import WorkerPool
from tests.records import a_product

CPU = resolve("cpu")


def a_case(n: int, implementation: str = "native") -> Case:
    return a_product(33, n, 70, implementation, tile="32x32x32")


def failed(reason: str, witnesses: int) -> dict[str, object]:
    return {"outcome": "failed", "reason": reason, "witnesses": witnesses}


def test_a_crash_spares_the_others_once_another_case_has_crashed_in_the_same_way():
    cases = SparedCases()
    for n, reason in ((1, "bench.py:7: SIGSEGV"), (1, "bench.py:7: SIGSEGV"), (2, "bench.py:9: SIGSEGV")):
        cases.note(a_case(n), failed(reason, 2))
        assert cases.answer(a_case(3)) is None
    cases.note(a_case(2), failed("bench.py:7: SIGSEGV", 2))
    assert cases.answer(a_case(3)) is not None


def test_an_implementation_that_ran_in_some_case_and_an_exception_of_its_own_spare_no_case():
    cases = SparedCases()
    cases.note(a_case(0), {"outcome": "ok"})
    for n in (1, 2):
        cases.note(a_case(n), failed("SIGSEGV", 2))
    assert cases.answer(a_case(3)) is None
    cases = SparedCases()
    for n in range(9):
        cases.note(a_case(n), failed("n must be a power of two", 0))
    assert cases.answer(a_case(10)) is None


DYING = """
    import json, os, sys
    from pathlib import Path
    for line in sys.stdin:
        Path(os.environ["PYPERF_SCRATCH"], "turn").write_text("0 1")
        with open({log!r}, "a") as log:
            print(json.loads(line)["cases"][0]["parameters"]["n"], file=log)
        {dies}
    """


@pytest.mark.parametrize(
    ("dies", "tries"), [("os.kill(os.getpid(), 11)", 2), ("os.kill(os.getpid(), 9)", 4)], ids=["crash", "out of memory"]
)
def test_four_crashes_cost_the_time_of_two_but_what_was_killed_may_have_taken_too_much_memory(
    monkeypatch, tmp_path, dies, tries
):
    program = textwrap.dedent(DYING.format(log=str(tmp_path / "log"), dies=dies))
    monkeypatch.setattr("pyperf_suite.runner.workers.COMMAND", (sys.executable, "-c", program))
    with WorkerPool(CPU, 20) as pool:
        answers = dict(pool.measure_by_turns(0, [a_case(n) for n in (64, 65, 66, 67)], None))
    assert {answer["outcome"] for answer in answers.values()} == {"failed"}
    assert len((tmp_path / "log").read_text().split()) == tries
    assert sum("[not run: " in answer["reason"] for answer in answers.values()) == 4 - tries


def test_cases_that_take_turns_in_one_process_are_spared_there(monkeypatch):
    begun = []

    def prepare(case, *_):
        begun.append(case)
        raise Failed("no driver", witnesses=1)
        yield

    monkeypatch.setattr(measuring, "_measure", prepare)
    answers = dict(measuring.measure_by_turns([a_case(n) for n in range(4)], None, CPU))
    assert len(begun) == 1
    assert sorted(answers) == [0, 1, 2, 3]
    assert {answer["outcome"] for answer in answers.values()} == {"failed"}
