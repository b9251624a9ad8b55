"""Faults of a process towards its owner: each costs the request, is named, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from pyperf_suite.process import child
from pyperf_suite.process.child import ChildProcess, ProcessLost

SERVING = """
    import atexit, os, subprocess, sys, time
    from pathlib import Path
    from pyperf_suite.process.serving import Requests
    requests = Requests()
    for request in requests:
        DOES
        requests.answer(request)
    """


HANG = "exec(compile('while True: pass', '/home/me/bench.py', 'exec'))"
CRASH = (
    "print('so far', file=sys.stderr); source = 'import ctypes\\nctypes.string_at(0)'; "
    "exec(compile(source, '/home/me/bench.py', 'exec'))"
)


@pytest.fixture
def serving():
    """Start processes that do something with each request, and answer with it."""
    started = []

    def start(does: str, **how) -> ChildProcess:
        program = textwrap.dedent(SERVING).replace("DOES", does)
        started.append(ChildProcess((sys.executable, "-c", program), **how))
        started[-1].deadline_in(20)
        return started[-1]

    yield start
    for each in started:
        each.close()


def ask(process: ChildProcess) -> dict:
    process.send({"n": 1})
    answer = process.receive()
    process.expect_silence()
    return answer


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("requests._token = 'guessed'", "answered another request than its last one"),
        ("os.write(requests._answers, b'[1]\\n')", "no JSON object"),
        ("requests.answer({'seconds': 0})", "answered another request than its last one"),
        ("requests._pid = 1", "forked, and the copy of the process went on"),
        ("os.close(requests._answers); time.sleep(60)", "died$"),
        ("print('so long'); sys.stdout.flush(); os.abort()", r"died \(signal SIGABRT\); its last words: so long$"),
        ("sys.exit(3)", r"died \(exit code 3\)$"),
        ("os.write(requests._answers, b'half a line'); os._exit(0)", r"died \(exit code 0\)$"),
        (CRASH, r"died \(signal SIGSEGV\) at /home/me/bench.py:2; its last words: so far$"),
        (HANG, "did not answer within 0.5 s and was ended at /home/me/bench.py:1$"),
        ("held = b'1' * (600 << 20); time.sleep(60)", r"took 0\.\d GB of memory, where 0.2 GB were free"),
    ],
)
def test_a_process_that_does_so_is_lost_with_the_reason(monkeypatch, serving, does, words):
    monkeypatch.setattr(child, "_ENDING_S", 0.2)
    process = serving(does, memory_bytes=2e8)
    process.deadline_in(0.5 if "within" in words else 20)
    with pytest.raises(ProcessLost) as lost:
        ask(process) and ask(process)  # what comes late is in the way of the next answer
    assert re.search(words, str(lost.value))
    assert not psutil.pid_exists(process.pid)


def test_a_request_before_the_last_one_was_answered_ends_the_process(serving):
    process = serving("time.sleep(60)")
    process.send({})
    for words in ("before it had answered", "had ended before"):
        with pytest.raises(ProcessLost, match=words):
            process.send({})


def test_each_request_has_its_own_answer_and_what_is_printed_is_none(serving):
    process = serving("print(request); sys.stdout.flush()")
    for number in range(3):
        process.send({"n": number})
        assert process.receive() == {"n": number}
    assert process._said() == ("{'n': 2}", "")


def test_a_log_does_not_grow_beyond_its_bound(serving, monkeypatch):
    monkeypatch.setattr(child, "LARGEST_LOG_BYTES", 1000)
    process = serving("os.write(2, b'x' * 5000)")
    for _ in range(3):
        ask(process)
        assert 0 < Path(f"/proc/self/fd/{process._log.fileno()}").stat().st_size <= 5000


@pytest.mark.parametrize("hangs", [False, True])
def test_what_a_process_started_ends_with_it_although_in_another_session(serving, hangs):
    starts = "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, file=sys.stderr, flush=True)"
    process = serving(f"{starts}; time.sleep({600 * hangs})", memory_bytes=1e12)
    process.send({})
    while not (pid := process._said()[0]):
        time.sleep(0.01)
    started = psutil.Process(int(pid))
    if hangs:
        process.deadline_in(0.1)
        with pytest.raises(ProcessLost, match=r"within 0\.1 s"):
            process.receive()
    process.close()
    started.wait(5)


def test_a_process_at_work_is_interrupted_so_that_it_ends_what_it_started(serving, tmp_path, monkeypatch):
    begun, tidied = tmp_path / "begun", tmp_path / "tidied"
    # On busy cores an interpreter may take longer to end than a process that hangs is given.
    monkeypatch.setattr(child.ChildProcess, "POLITE_S", 30.0)
    # A shell has what it starts in the background ignore it.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = serving(f"atexit.register(Path({str(tidied)!r}).touch); Path({str(begun)!r}).touch(); time.sleep(60)")
    signal.signal(signal.SIGINT, before)
    process.send({})
    while not begun.exists():
        assert psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE
    process.close()
    assert tidied.exists()


COPIED = """
    import os, sys
    from pyperf_suite.process.serving import GPU_FILES, Requests, serve_copies
    def work():
        requests = Requests()
        for request in requests:
            requests.answer({"told": os.environ.get("PYPERF_TOLD"), "pid": os.getpid(), "modules": list(sys.modules)})
    serve_copies(int(sys.argv[2]), sys.argv[3:], work) if sys.argv[1:] else work()
    """


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Ask a process that is to be a copy of a template with the module `imported`, which consists of a program."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(child, "_refused", set())
    child.forget_templates()
    command = (sys.executable, "-c", textwrap.dedent(COPIED))

    def start(program: str) -> dict:
        (tmp_path / "imported.py").write_text(textwrap.dedent(program))
        process = ChildProcess(command, {**os.environ, "PYPERF_TOLD": "so"}, preload=("imported",))
        try:
            process.deadline_in(20)
            return ask(process)
        finally:
            process.close()

    yield start
    child.forget_templates()


def test_a_copy_of_a_template_is_told_the_variables_of_the_suite_and_has_the_modules(copied):
    first, second = (copied("") for _ in range(2))
    assert first["told"] == "so"
    assert {"imported"} < set(first["modules"])
    assert first["pid"] != second["pid"]
    assert len(child.templates) == 1


@pytest.mark.parametrize(
    "program",
    [
        # CUDA in the state of a template would be of no use to its copies; here any file stands for the device's.
        "import pyperf_suite.process.serving as s; file = open(__file__); s.GPU_FILES = __file__",
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        # A side may have its own module of that name.
        "import besides",
        "raise ImportError",
    ],
    ids=["CUDA", "thread", "another module", "error"],
)
def test_what_would_make_a_copy_another_than_a_fresh_process_is_no_template(copied, tmp_path, program):
    (tmp_path / "besides.py").write_text("")
    assert "imported" not in copied(program)["modules"]
    assert not child.templates
    began_s = time.monotonic()
    assert "imported" not in copied("")["modules"]  # it is not tried again
    assert time.monotonic() - began_s < child.ANSWERS_WITHIN_S
    assert not child.templates
