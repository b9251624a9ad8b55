"""Ranks that die or are stopped before the group has formed are named by all others.

`PYPERF_DRILLS=100 pytest tests/core/ranks/test_starting.py` repeats it, at other moments and with other ranks to die;
`python tests/core/ranks/drills.py 360` has the command line's ranks at every quarter of a second of its first 15 s.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.record.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.workloads.collective import CollectiveParameters
from tests.core.ranks import drills
from tests.core.ranks.processes import wait_for_ranks

pytestmark = pytest.mark.slow

DRILLS = int(os.environ.get("PYPERF_DRILLS", "1"))
COMMAND_LINE = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
COMMAND_LINE += ["-m", "pyperf_suite", "collectives", "-a", "op=all_reduce", "-a", "size=8", "--results"]

# Deadline and effort of a case that takes longer than any drill.
DEADLINE_S = 6.0
CASE = Case("collective", CollectiveParameters("all_reduce", 1024, 3), "gloo")
EFFORT = Effort(SteadyRule(min_time_s=60, time_cap_s=60), StopRule(time_cap_s=60))
REQUEST = json.dumps(
    {"cases": [CASE.to_json()], "effort": EFFORT.to_json(), "device": "cpu", "deadline_s": DEADLINE_S, "give_up_s": 120}
)
# Its imports on a busy machine, the deadline, and for a rank 0 that is stopped the silence that the others wait for.
IN_TIME_S = 60.0

Launch = Callable[[list[str]], subprocess.Popen[str]]


def workers(count: int) -> list[str]:
    return [sys.executable, "-m", "pyperf_suite.ranks.launch", str(count), "pyperf_suite.runner.worker"]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """`launch(command)` starts ranks with an open standard input, and what both streams say in one."""
    pytest.importorskip("torch.distributed")
    started: list[subprocess.Popen[str]] = []

    def start(command: list[str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        started.append(
            subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environ)
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            end_all(process.pid)
        process.communicate()


def end_all(launcher: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in [*psutil.Process(launcher).children(recursive=True), psutil.Process(launcher)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


def wait_until_all_stand_by(ranks: list[psutil.Process]) -> None:
    """Until every rank has taken SIGTERM over, as the system shows."""
    for rank in ranks:
        while not int(_status(rank.pid, "SigCgt"), 16) >> (signal.SIGTERM - 1) & 1:
            time.sleep(0.002)


def _status(pid: int, name: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{name}:"))


def who_named(output: str, victim: int) -> list[int]:
    lines = output.replace("Error: ", "").splitlines()
    return [rank for rank in range(3) if any(line.startswith(f"rank {rank}: Rank {victim} ") for line in lines)]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize("drill", range(DRILLS))
@pytest.mark.parametrize("deed", ["kill", "suspend"])
def test_a_rank_killed_or_stopped_at_any_moment_is_named_by_all_others(deed, drill, launch):
    chance = random.Random(drill)
    launcher = launch(workers(3))
    assert launcher.stdin is not None
    launcher.stdin.write(REQUEST + "\n")
    launcher.stdin.flush()
    ranks, victim = wait_for_ranks(launcher.pid, 3), chance.randrange(3)
    # The very first moments, when no Python has begun, are the hardest.
    moment_s = chance.choice([0.0, chance.uniform(0, 0.1), chance.uniform(0, 2), chance.uniform(0, 6)])
    time.sleep(moment_s)
    getattr(ranks[victim], deed)()
    began, output = time.monotonic(), ""
    # Ends what is read below.
    late = threading.Timer(IN_TIME_S, end_all, [launcher.pid])
    late.start()
    others = [rank for rank in range(3) if rank != victim]
    while who_named(output, victim) != others:
        assert launcher.stdout is not None
        line = launcher.stdout.readline()
        assert line, f"rank {victim}, {deed} after {moment_s:.2f} s:\n{output}"
        output += line
    late.cancel()
    print(f"drill {drill}: {deed} of rank {victim} after {moment_s:.2f} s, named in {time.monotonic() - began:.1f} s")


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_rank_of_the_command_line_that_dies_while_torch_is_imported_is_named(launch, tmp_path):
    launcher = launch([*COMMAND_LINE, str(tmp_path)])
    ranks = wait_for_ranks(launcher.pid, 2)
    wait_until_all_stand_by(ranks)
    ranks[1].kill()
    output, _ = launcher.communicate(timeout=60)
    assert who_named(output, 1) == [0], output
    assert "Aborted!" not in output


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_rank_stopped_while_it_starts_is_named_after_the_deadline(launch, tmp_path):
    launcher = launch([*COMMAND_LINE, str(tmp_path), "--deadline", "4"])
    ranks = wait_for_ranks(launcher.pid, 2)
    wait_until_all_stand_by(ranks)
    ranks[1].suspend()
    late = threading.Timer(30, end_all, [launcher.pid])  # ends what is read below
    late.start()
    output = ""
    # Rank 0 keeps the sentence as what became of its case, and reports it, in lines as wide as a terminal.
    while ": Rank 1 " not in output or "1 of 1 cases failed" not in output:
        assert launcher.stdout is not None
        line = launcher.stdout.readline()
        assert line, output
        output = " ".join(f"{output} {line}".split()) + " "
    late.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_sigterm_from_outside_while_ranks_start_is_not_taken_for_a_death(launch):
    launcher = launch(workers(2))
    ranks = wait_for_ranks(launcher.pid, 2)
    wait_until_all_stand_by(ranks)
    for rank in ranks:
        rank.terminate()
    output, _ = launcher.communicate(timeout=60)
    assert output.count("ended by SIGTERM") == 2, output
    assert "died" not in output.split("Traceback")[0]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_rank_of_the_command_line_is_named_whenever_it_ends(tmp_path):
    # Four at a time, for torchrun waits 30 s before it ends a rank that stands still.
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda drill: drills.trouble(drill, tmp_path / str(drill)), drills.drills(12))
    assert "".join(found) == ""


def test_what_ranks_say_at_the_same_time_stays_in_lines():
    program = "from pyperf_suite.ranks.watchdog import say\nfor _ in range(300): say(1, 'x' * 99)"
    end, shared = os.pipe()
    speakers = [subprocess.Popen([sys.executable, "-c", program], stderr=shared) for _ in range(3)]
    os.close(shared)
    with os.fdopen(end) as heard:
        assert heard.read().splitlines() == ["rank 1: " + "x" * 99] * 900
    assert [speaker.wait() for speaker in speakers] == [0, 0, 0]
