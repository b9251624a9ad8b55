"""`pyperf-suite watch`: the command runs as it would alone, whatever becomes of it, and a record is kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyperf_suite.node.watch.record import read_watch
from tests.node.watch import runs

pytestmark = pytest.mark.slow

JOB = """
import os, signal, sys, time
import pyperf_suite
def end(number, frame):
    time.sleep(0.2)  # as one that saves a checkpoint
    sys.exit(40 + number)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
print("ready", flush=True)
for step in range(int(sys.argv[1])):
    time.sleep(0.1 + 0.05 * int(os.environ.get("RANK", "0")))
    pyperf_suite.watch_step(tokens=1000)
    print("step took", 100 + step, "ms", file=sys.stderr, flush=True)
sys.exit(3)
"""


def started(tmp_path: Path, *command: str, **popen) -> subprocess.Popen[str]:
    arguments = ("-m", "pyperf_suite", "watch", "--interval", "0.2", "--results", str(tmp_path), *command)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *arguments], stdout=pipe, stderr=pipe, text=True, **popen)


def record(tmp_path: Path) -> dict:
    [path] = tmp_path.glob("*/watch-*/watch.json")
    return json.loads(path.read_text())


def test_a_short_command_was_watched_for_as_long_as_it_took(tmp_path):
    begun_s = time.monotonic()
    process = started(tmp_path, "--", sys.executable, "-c", "import time; time.sleep(0.95)")
    message = process.communicate(timeout=60)[1]
    watched_s = record(tmp_path)["watched_s"] if "before the first sample" not in message else 0.0
    assert 0.95 <= watched_s <= time.monotonic() - begun_s


def test_output_and_exit_code_are_the_commands_and_steps_are_recorded(tmp_path):
    process = started(tmp_path, "--flop-per-token", "1e6", "--", sys.executable, "-c", JOB, "15")
    output, message = process.communicate(timeout=60)
    assert (output, process.returncode) == ("ready\n", 3)
    assert "step took 114 ms" in message
    found = record(tmp_path)
    assert (found["exit_code"], found["patterns"], found["steps"]["ranks"]["0"]["steps"]) == (3, [], 14)
    assert found["steps"]["flop_per_s"] == pytest.approx(1e6 * found["steps"]["tokens_per_s"])
    [folder] = tmp_path.glob("*/watch-*")
    held = read_watch(folder)
    assert held.samples[-1].ranks[0].rank == 0
    steps = held.findings().tables[-1]
    assert (steps.title, steps.rows[0][:2]) == ("Steps", (0, 14))
    assert not list(Path("/tmp").glob(f"pyperf_watch_*_{process.pid}_*"))


@pytest.mark.parametrize("options", [(), ("--step-pattern", r"took (?P<ms>\d+) ms")])
def test_the_record_alone_is_on_standard_output_on_request(tmp_path, options):
    process = started(tmp_path, "--json", *options, "--", sys.executable, "-c", JOB, "8")
    output, message = process.communicate(timeout=60)
    answer = json.loads(output)
    assert process.returncode == answer["exit_code"] == 3
    assert Path(answer.pop("folder")) == next(tmp_path.glob("*/watch-*"))
    assert answer == record(tmp_path)
    assert "ready\n" in message


def test_steps_are_found_in_what_the_command_prints(tmp_path):
    process = started(tmp_path, "--step-pattern", r"took (?P<ms>\d+) ms", "--", sys.executable, "-c", JOB, "10")
    output, message = process.communicate(timeout=60)
    assert output == "ready\n"
    assert "step took 109 ms" in message
    assert record(tmp_path)["steps"]["ranks"]["0"] == {"steps": 10, "p50_s": 0.105, "p90_s": 0.109, "p99_s": 0.109}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("before", [(), ("setsid",)], ids=["own group", "another group"])
def test_a_signal_reaches_the_command_whose_end_is_waited_for(tmp_path, number, before):
    process = started(tmp_path, "--", *before, sys.executable, "-c", JOB, "200", start_new_session=True)
    assert process.stdout.readline() == "ready\n"
    time.sleep(1.0)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 40 + number
    assert record(tmp_path)["exit_code"] == 40 + number


def test_a_running_process_is_left_running(tmp_path):
    with subprocess.Popen([sys.executable, "-c", JOB, "300"], stdout=subprocess.PIPE) as job:
        job.stdout.readline()
        process = started(tmp_path, "--pid", str(job.pid), "--for", "2")
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert job.poll() is None
        assert record(tmp_path)["watched_s"] >= 2
        job.kill()


def test_under_a_launcher_one_watcher_a_node_reports_all_ranks(tmp_path):
    launcher = (
        "import os, subprocess, sys\n"
        "ranks = [{'RANK': str(rank), 'LOCAL_RANK': str(rank)} for rank in (0, 1)]\n"
        "ranks = [subprocess.Popen(sys.argv[1:], env={**os.environ, **each}) for each in ranks]\n"
        "print([each.wait() for each in ranks])\n"
    )
    places = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    options = ("--interval", "0.2", "--results", str(tmp_path))
    watch = ("-m", "pyperf_suite", "watch", *options)
    command = (sys.executable, "-c", launcher, sys.executable, *watch, "--", sys.executable, "-c", JOB, "50")
    done = subprocess.run(command, env={**os.environ, **places}, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["ready", "ready", "[3, 3]"]
    found = record(tmp_path)
    assert found["steps"]["ranks"].keys() == {"0", "1"}
    waits = {(each["name"], each["rank"]) for each in found["patterns"]}
    assert ("straggler", 1) in waits
    assert waits <= {("straggler", 1), ("timer", 0), ("timer", 1)}  # a step of this job is a pause


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--", "true"), 0, "exit code 0"),
        (("--", "false"), 1, "exit code 1"),
        (("--", "sh", "-c", "setsid sleep 3 & exit 0"), 0, "left sleep ("),
        (("--", "sh", "-c", "kill -9 $$"), 128 + signal.SIGKILL, "exit code 137"),
    ],
)
def test_a_command_that_does_not_run_is_one_sentence_and_no_record(tmp_path, arguments, code, sentence):
    process = started(tmp_path, *arguments)
    _, message = process.communicate(timeout=60)
    assert process.returncode == code
    assert sentence in message
    assert len(message.strip().splitlines()) == 1
    assert not list(tmp_path.glob("*/*"))


def test_a_results_folder_that_goes_takes_neither_the_record_nor_the_exit_code(tmp_path):
    process = started(tmp_path, "--", sys.executable, "-c", JOB, "40")
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.6)
    [folder] = tmp_path.glob("*/watch-*")
    shutil.rmtree(folder.rename(tmp_path / "gone"))  # at once: a sample that is written meanwhile would keep it
    _, message = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in message) == (3, False)
    assert record(tmp_path)["exit_code"] == 3
    assert len(read_watch(folder).samples) >= 5


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root makes a program that runs as another user"
)
def test_a_command_that_runs_as_another_user_is_said_to_be_hard_to_read(tmp_path):
    # As nobody, but with root's way into folders, for Python may lie in one of root's.
    as_nobody = ("setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=+dac_read_search")
    program = tmp_path / "sleep"
    shutil.copy("/bin/sleep", program)
    tmp_path.chmod(0o777)
    program.chmod(0o4755)
    watch = (sys.executable, "-m", "pyperf_suite", "watch", "--interval", "0.2", "--results", str(tmp_path / "r"))
    as_nobody = (*as_nobody, "--ambient-caps=+dac_read_search")
    if subprocess.run((*as_nobody, "true"), capture_output=True).returncode:
        pytest.skip("setpriv cannot make another user here")
    command = (*as_nobody, *watch, "--", str(program), "1.5")
    done = subprocess.run(command, env={**os.environ, "HOME": "/tmp"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "another user" in done.stderr


@pytest.mark.parametrize("name", runs.CASES)
def test_each_job_is_named_for_what_it_waits_for(tmp_path, name):
    case = runs.CASES[name]
    library = runs.double(tmp_path)
    # `runs.py 20` says how often. A machine that others keep busy may leave a run too few samples to name anything: it
    # gets another one. Ranks that have no CPU there are told so, and nothing else that they wait for.
    for run in ("first", "second", "third"):
        patterns, _ = runs.named(case, tmp_path / run, library)
        if case.patterns <= patterns or "no CPU" in {kind for kind, _ in patterns}:
            return
    pytest.fail(f"{name} is not named in three runs, the last one has {patterns or 'nothing'}")
