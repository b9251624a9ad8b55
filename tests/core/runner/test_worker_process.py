import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.workers import WorkerLost, WorkerPool, WorkerProcess, request_for
from tests.records import a_product

CPU = resolve("cpu")
CASE = a_product(33, 65, 70, tile="32x32x32")
EFFORT = Effort(SteadyRule(min_time_s=0.0, time_cap_s=0.01), StopRule(time_cap_s=0.02))


@pytest.fixture
def answer_of(monkeypatch):
    """The answer to a case where the workers follow the given program instead of the suite's."""

    def measured(program: str, deadline_s: float = 30) -> dict:
        command = sys.executable, "-c", textwrap.dedent(program)
        monkeypatch.setattr("pyperf_suite.runner.workers.COMMAND", command)
        with WorkerPool(CPU, deadline_s) as pool:
            return pool.measure(0, CASE, EFFORT)

    return measured


def test_a_worker_measures_a_case_and_says_how():
    with WorkerPool(CPU, 60) as pool:
        answer, verified = pool.measure(0, CASE, EFFORT), pool.measure(0, CASE, None)
    assert verified["outcome"] == "ok"
    assert "metrics" not in verified, "verifying alone takes no samples"
    assert answer["outcome"] == "ok", answer
    assert answer["verification"]["passed"]
    assert answer["kernel"]["details"]["tile"] == "32x32x32"
    assert answer["work"] == {"flop": 2 * 33 * 65 * 70, "bytes": 4 * (33 * 70 + 70 * 65 + 33 * 65)}
    time_metric = answer["metrics"]["time"]
    assert time_metric["unit"] == "s"
    assert 0 < time_metric["low"] <= time_metric["value"] <= time_metric["high"]
    assert answer["sampling"]["operand_sets"] > 1
    assert answer["sampling"]["cache"] == "cold_l2"


def test_a_worker_that_hangs_is_named_with_the_option_that_lets_it(answer_of):
    assert "did not answer within its deadline of 0.5 s (--deadline)" in answer_of("input(); input()", 0.5)["reason"]


@pytest.mark.slow
def test_the_case_after_a_crash_is_measured_by_a_fresh_worker():
    with WorkerPool(CPU, deadline_s=60) as pool:
        assert pool.measure(0, CASE, EFFORT)["outcome"] == "ok"
        (worker,) = pool._workers.values()
        os.kill(worker.pid, signal.SIGKILL)
        lost = pool.measure(0, CASE, EFFORT)
        assert lost["outcome"] == "failed"
        assert "SIGKILL" in lost["reason"]
        assert pool.measure(0, CASE, EFFORT)["outcome"] == "ok"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_worker_dies_with_its_parent():
    program = f"""
        import os, signal
        from pyperf_suite.hardware.devices import resolve
        from pyperf_suite.record.case import Case
        from pyperf_suite.runner.profiles import QUICK
        from pyperf_suite.runner.workers import WorkerPool
        pool = WorkerPool(resolve("cpu"))
        pool.measure(0, Case.from_json({CASE.to_json()!r}), QUICK.effort)
        print(*[worker.pid for worker in pool._workers.values()], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE)
    out, _ = parent.communicate(timeout=60)
    assert ends(int(out))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
@pytest.mark.parametrize("command", [["pyperf_suite.runner.worker"], ["pyperf_suite.ranks.launch", "2", "os"]])
def test_what_finds_its_parent_dead_already_ends_without_taking_a_case(command):
    # As if the parent had died before the kernel could be asked to tell: this process has another parent than named.
    request = json.dumps({"case": CASE.to_json(), "effort": None, "device": "cpu", "deadline_s": 60})
    environ = os.environ | {"PYPERF_PARENT": str(os.getppid())}
    ended = subprocess.run(
        [sys.executable, "-m", *command], input=request + "\n", env=environ, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


@pytest.mark.slow
def test_a_worker_that_hangs_in_c_ends_itself_when_its_parent_does_not():
    program = """
        import ctypes
        from pyperf_suite.runner import measuring, worker
        # Holds the interpreter's lock, so that no Python runs, as a hang in a driver does.
        def hanging(cases, effort, device, group, deadline_s, begin_turn, earlier):
            begin_turn(0)
            yield ctypes.PyDLL(None).sleep(600)
        worker.ARMED_FOR_S = 0.1
        measuring.measure_by_turns = hanging
        worker.main()
        """
    request = request_for([CASE], None, CPU, 600) | {"give_up_s": 1}
    worker = WorkerProcess((sys.executable, "-c", textwrap.dedent(program)))
    try:
        worker.send(request)
        with pytest.raises(WorkerLost, match="exit code 1"):
            worker.receive(30)
    finally:
        worker.close()


def test_a_worker_that_dies_costs_the_case_whose_turn_it_was_and_the_others_are_measured_alone(monkeypatch, tmp_path):
    program = textwrap.dedent("""
        import json, os, sys
        from pathlib import Path
        for line in sys.stdin:
            request = json.loads(line)
            cases = request["cases"]
            for number, case in enumerate(cases):
                Path(os.environ["PYPERF_SCRATCH"], "turn").write_text(f"{number} 1")
                if case["parameters"]["n"] == 65:
                    os._exit(7)
                if len(cases) == 1:
                    print(json.dumps({"case": number, "outcome": "ok", "token": request["token"]}), flush=True)
        """)
    monkeypatch.setattr("pyperf_suite.runner.workers.COMMAND", (sys.executable, "-c", program))
    cases = [dataclasses.replace(CASE, parameters=dataclasses.replace(CASE.parameters, n=n)) for n in (64, 65, 66)]
    with WorkerPool(CPU, 20) as pool:
        answers = dict(pool.measure_by_turns(0, cases, EFFORT))
    assert {number: answer["outcome"] for number, answer in answers.items()} == {0: "ok", 1: "failed", 2: "ok"}
    assert "exit code 7" in answers[1]["reason"]


def test_what_a_worker_and_a_rank_import_first_is_light():
    heavy = "numpy", "torch", "pyperf_suite.workloads", "pyperf_suite.hardware", "click"
    program = f"""
        import sys, pyperf_suite.runner.worker, pyperf_suite.__main__
        sys.exit(" ".join(name for name in {heavy!r} if name in sys.modules))
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.stderr.strip() == ""


@pytest.mark.skipif(sys.platform != "linux", reason="folders are named after what /proc says of their owner")
def test_a_pool_removes_what_a_killed_run_left(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = f"""
        import os, tempfile
        tempfile.tempdir = {str(tmp_path)!r}
        from pyperf_suite.hardware.devices import resolve
        from pyperf_suite.runner.workers import WorkerPool
        from pyperf_suite.runner.workers import WorkerProcess
        pool, worker = WorkerPool(resolve("cpu")), WorkerProcess()
        os.kill(os.getpid(), 9)
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=60, check=False)
    left = set(tmp_path.iterdir())
    assert len(left) == 2
    with WorkerPool(CPU):
        assert len(set(tmp_path.iterdir()) - left) == 1
        assert not left & set(tmp_path.iterdir())


def ends(pid: int) -> bool:
    """True if the process ends within five seconds; one that ended but nobody reaped has."""
    for _ in range(50):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


WRITER = """
    import json, os, pathlib, sys
    for line in sys.stdin:
        (pathlib.Path(os.environ["PYPERF_SCRATCH"]) / "files" ).mkdir()
        answer = {"outcome": "ok", "reason": os.environ["PYPERF_SCRATCH"], "token": json.loads(line)["token"]}
        print(json.dumps(answer), flush=True)
        os.kill(os.getpid(), 9)
    """


def test_what_a_killed_worker_wrote_is_removed(answer_of):
    assert not Path(answer_of(WRITER)["reason"]).exists()


@pytest.mark.slow
def test_processes_of_a_run_share_references_in_a_folder_that_is_gone_after_it():
    pool = WorkerPool(CPU, deadline_s=60)
    folder = Path(pool._shared.name)
    try:
        first = pool.measure(0, CASE, None)
        kept = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
        assert kept
        assert pool.measure(1, CASE, None)["verification"] == first["verification"]
        # Read and not computed: no file is new, and each was marked as read.
        assert {path: path.stat().st_mtime_ns > written for path, written in kept.items()} == dict.fromkeys(kept, True)
        assert set(folder.iterdir()) == set(kept)
        assert pool.measure(1, dataclasses.replace(CASE, seed=9), None)["outcome"] == "ok"
        assert len(list(folder.iterdir())) > len(kept)
    finally:
        pool.close()
    assert not folder.exists()
    pool.close()
