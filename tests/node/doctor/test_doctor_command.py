"""`pyperf-suite doctor` as a whole: what it prints, how it ends, and that it changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyperf_suite.node.check import Check
from pyperf_suite.node.commands import doctor
from pyperf_suite.node.doctor import children
from pyperf_suite.node.doctor.children import COMMAND, ExaminedProcess, nccl_version
from tests.commands import invoke

# Stands in for every way a Python program writes, removes or starts something; written to standard error at the end.
WATCHED = """
import json, os, sys
done = []
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGING = ("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink",
            "os.truncate", "os.utime", "os.setxattr", "os.kill", "shutil.", "tempfile.")
def hook(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        is_file = path != os.devnull and not isinstance(path, int)
        if is_file and (set(mode or "") & set("wax+") or (flags or 0) & WRITING):
            done.append(["open", str(path)])
    elif event.startswith(CHANGING):
        done.append([event, str(arguments[0])])
    elif event == "subprocess.Popen":
        done.append([event, [os.fspath(each) for each in arguments[1]]])
    elif event in ("os.system", "os.exec", "os.posix_spawn", "os.fork", "pty.spawn"):
        done.append([event, str(arguments)])
sys.addaudithook(hook)
from pyperf_suite.cli.main import main
try:
    main(["doctor", "--json"])
except SystemExit:
    pass
sys.stderr.write("did " + json.dumps(done))
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, list, Path]:
    """The doctor's JSON, what it did to files and processes, and the empty folder that it ran in."""
    folder = tmp_path_factory.mktemp("empty")
    done = subprocess.run(
        [sys.executable, "-B", "-c", WATCHED],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYPERF_CACHE_DIR": str(folder / "cache")},
    )
    assert "did " in done.stderr, done.stderr
    return json.loads(done.stdout), json.loads(done.stderr.rpartition("did ")[2]), folder


@pytest.mark.slow
def test_it_opens_nothing_for_writing_and_leaves_nothing_behind(watched):
    _, message, folder = watched
    assert [each for each in message if each[0] != "subprocess.Popen"] == []
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_it_starts_only_programs_that_read_and_none_through_a_shell(watched):
    _, message, _ = watched
    started = [each[1] for each in message if each[0] == "subprocess.Popen"]
    assert started
    for command in started:
        own = command[:4] == [sys.executable, "-B", "-m", "pyperf_suite.node.doctor.children"]
        assert own or command[1:] == ["--version"], command


@pytest.mark.slow
def test_its_json_names_every_check_with_a_verdict_and_advice_where_there_is_something_to_do(watched):
    message, _, _ = watched
    assert message["schema"] == 2
    assert {check["part"] for check in message["checks"]} == {"CPU", "Load", "Memory", "GPU", "Software", "Disk"}
    for check in message["checks"]:
        assert check["found"] or check["why"]
        assert bool(check["advice"]) == (check["verdict"] in ("caution", "failed")), check
    verdicts = {check["verdict"] for check in message["checks"]}
    assert message["verdict"] == next(each for each in ("failed", "caution", "ok") if each in verdicts)


@pytest.mark.parametrize(
    ("verdicts", "code", "words"),
    [
        (("ok", "unknown"), 0, "Nothing stands in the way"),
        (("ok", "caution"), 0, "0 failed, 1 caution, 1 ok"),
        (("caution", "failed"), 1, "1 failed, 1 caution, 0 ok"),
    ],
)
def test_only_a_failed_check_makes_the_exit_code_other_than_0(monkeypatch, verdicts, code, words):
    checks = [Check("CPU", f"check {n}", f"found {n}", verdict=verdict) for n, verdict in enumerate(verdicts)]
    monkeypatch.setattr(doctor, "examine", lambda results, **_: checks)
    result = invoke("doctor")
    assert result.exit_code == code
    assert words in result.output
    assert ("found 1" in result.output) == ("unknown" not in verdicts)


def test_a_summary_is_appended_as_markdown_with_every_check_and_the_commands(monkeypatch, tmp_path):
    bad = Check("Load", "other processes", "90% busy", verdict="failed", command="nice make")
    monkeypatch.setattr(doctor, "examine", lambda results, **_: [bad, Check("CPU", "cores", "2")])
    summary = tmp_path / "summary.md"
    for _ in range(2):
        assert invoke("doctor", "--json", "--markdown", summary).exit_code == 1
    text = summary.read_text()
    assert text.count("## Doctor") == 2
    assert "| ok | CPU | cores | 2 |" in text
    assert "    nice make" in text
    assert "failed: Load, other processes: 90% busy" in text


def test_hostile_names_are_shown_and_not_obeyed(monkeypatch):
    check = Check("Load", "[b]x", "90% busy: [red]x[/red] \x1b[2J", verdict="caution", command="[i]kill[/i] \x1b[2J")
    monkeypatch.setattr(doctor, "examine", lambda results, **_: [check])
    output = invoke("doctor").output
    assert "[red]x[/red]" in output
    assert "[i]kill[/i]" in output
    assert "\x1b" not in output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), "died (signal SIGKILL)"),
        ((sys.executable, "-c", "import absent_package"), "died (exit code 1); its last words: ModuleNotFoundError"),
        ((sys.executable, "-c", "print('something else')"), "no JSON object (b'something else')"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "did not answer within 0.5 s"),
        (("/nowhere/python",), "nowhere"),
        (COMMAND, "OSError: "),  # this file is no library
    ],
)
def test_a_child_that_crashes_babbles_hangs_or_cannot_be_started_is_a_finding(monkeypatch, command, words):
    if "within" in words:
        monkeypatch.setattr(children, "DEADLINE_S", 0.5)
    process = ExaminedProcess("library", __file__, "ncclGetVersion", command=command)
    assert words in process.answer()["error"]


def test_both_of_nccls_ways_to_number_versions_are_read():
    assert [nccl_version(number) for number in (22705, 2804, 21803)] == ["2.27.5", "2.8.4", "2.18.3"]
