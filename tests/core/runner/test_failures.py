import sys
import textwrap

import pytest

from pyperf_suite.errors import Failed
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.record.case import Case
from pyperf_suite.runner import measuring
from pyperf_suite.runner.workers import WorkerPool
from tests.records import a_product

CPU = resolve("cpu")


def a_case(n: int, implementation: str = "native") -> Case:
    return a_product(33, n, 70, implementation, tile="32x32x32")


def failed(reason: str, witnesses: int) -> dict[str, object]:
    return {"outcome": "failed", "reason": reason, "witnesses": witnesses}


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
