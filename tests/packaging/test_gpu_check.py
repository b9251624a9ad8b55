"""tools/gpu_check: figures from records, steps under limits, files whole when it is killed, GPU tests kept apart."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import click
import pytest

from pyperf_suite.cli import main as cli
from tests.core.native.conftest import built


def record(implementation, seconds, probe="baseline", operator="matmul", outcome="ok", **parameters):
    return {
        "kind": "timing",
        "probe": probe,
        "outcome": outcome,
        "case": {"operator": operator, "implementation": implementation, "parameters": parameters},
        "metrics": {"time": {"value": seconds}} if outcome == "ok" else {},
    }


def attention(implementation, seconds, head_dim, **otherwise):
    return record(implementation, seconds, "attention_heads", "attention", head_dim=head_dim, heads=32, **otherwise)


def test_attention_is_held_against_flash_on_the_same_problem_and_its_slowest_case_counts(tool):
    records = [
        attention("triton", 2.0, 64, causal=True, blocks="128x128"),
        attention("triton", 1.5, 64, causal=True, blocks="64x64"),
        attention("sdpa_flash", 1.2, 64, causal=True),
        attention("triton", 1.0, 64),
        attention("sdpa_flash", 1.0, 64),
        attention("triton", 1.0, 128, backward=True),
        attention("sdpa_flash", 9.0, 128, backward=True),
    ]
    at_64, at_128 = (figure for figure in tool("gpu_check").figures(records) if "attention" in figure.name)
    assert at_64.value == pytest.approx(0.8)
    assert at_128.value is None


def every_step(tool):
    return [step for steps in tool("gpu_check").PARTS.values() for step in steps]


@pytest.mark.slow
def test_every_file_of_tests_that_a_step_names_collects_a_test(tool, checkout):
    of_pytest = [
        step.command for step in every_step(tool) if "pytest" in step.command and "--pyargs" not in step.command
    ]
    named = {command[command.index("pytest") + 1 :] for command in of_pytest}
    assert len(named) >= 11
    for arguments in named:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-qq"]
        command += [each for each in arguments if each != "-v"]
        collected = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=120).stdout
        files = [each for each in arguments if each.endswith(".py")]
        assert files
        for file in files:
            assert f"{file}: " in collected, f"{file} collects nothing:\n{collected}"


def test_every_file_of_gpu_tests_has_a_step(tool, checkout):
    named = {word for step in every_step(tool) for word in step.command}
    there = {file.relative_to(checkout).as_posix() for file in (checkout / "tests" / "core" / "gpu").glob("test_*.py")}
    assert there
    assert there <= named


def test_every_command_of_the_suite_that_a_step_names_takes_its_options(tool):
    commands = [step.command[3:] for step in every_step(tool) if step.command[1:3] == ("-m", "pyperf_suite")]
    assert len(commands) >= 8
    with click.Context(cli.main) as context:
        for name, *arguments in commands:
            command = cli.main.get_command(context, name)
            assert command is not None, name
            command.make_context(name, arguments, parent=context)


def shell(tool, name, script, seconds=1.0):
    return tool("gpu_check").Step(name, seconds, ("sh", "-c", script))


@pytest.mark.slow
def test_a_step_that_hangs_or_fails_costs_only_itself_and_everything_is_reported(tool, tmp_path):
    module = tool("gpu_check")
    steps = [
        shell(tool, "good", "echo fine; mkdir -p {runs}/machine/run; echo '{{}}' >{runs}/machine/run/records.jsonl"),
        shell(tool, "hangs", "echo before; (sleep 60 & wait)"),
        shell(tool, "bad", "echo broken; exit 3"),
        module.Step("absent", 1, ("no-such-program",)),
        shell(tool, "last", "echo end"),
    ]
    check = module.Check("1", steps, tmp_path / "out", sys.executable, seconds=5, grace_s=0.2)
    began = time.monotonic()
    assert check.run() == 1
    assert time.monotonic() - began < 20
    assert [each.outcome for each in check.outcomes] == ["passed", "timed out", "failed", "skipped", "passed"]
    summary = (tmp_path / "out" / "gpu_check_1.txt").read_text()
    assert "2 of 5 steps passed; not: hangs, bad, absent" in summary
    assert "broken" in summary
    assert b"before" in (tmp_path / "out" / "gpu_check_1.log").read_bytes()
    with tarfile.open(tmp_path / "out" / "gpu_check_1.tar.gz") as records:
        assert "records/machine/run/records.jsonl" in records.getnames()


def test_a_step_that_writes_without_end_leaves_a_log_of_bounded_size_with_its_last_lines(tool, tmp_path):
    module = tool("gpu_check")
    step = shell(tool, "talks", "yes abcdefgh | head -n 400000; echo the end", 20)
    module.Check("1", [step], tmp_path, sys.executable, seconds=20).run()
    log = (tmp_path / "gpu_check_1.log").read_bytes()
    assert len(log) < module.STEP_LOG_BYTES + 10_000
    assert log.rstrip().endswith(b"the end")


def pytest_step(module, folder, name, source):
    (folder / f"test_{name}.py").write_text(source)
    command = ("{python}", "-m", "pytest", "-p", "no:cacheprovider", str(folder / f"test_{name}.py"))
    return module.Step(name, 20, command)


@pytest.mark.slow
def test_tests_that_were_all_skipped_have_not_passed_and_failures_are_named(tool, tmp_path):
    module = tool("gpu_check")
    steps = [
        pytest_step(module, tmp_path, "skips", "import pytest\ndef test_a(): pytest.skip('no CUDA here')\n"),
        pytest_step(module, tmp_path, "fails", "def test_a(): pass\ndef test_wrong(): assert 0\n"),
        pytest_step(module, tmp_path, "passes", "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('')\n"),
    ]
    check = module.Check("1", steps, tmp_path / "out", sys.executable, seconds=60)
    assert check.run() == 1
    assert [each.outcome for each in check.outcomes] == ["skipped", "failed", "passed"]
    assert "no CUDA here" in check.outcomes[0].last
    assert check.outcomes[1].last == "1 passed, 1 failed, 0 skipped: test_wrong"


PROGRAM = """
import sys, pathlib
sys.path.insert(0, {tools!r})
import gpu_check
steps = [gpu_check.Step("first", 1, ("true",)), gpu_check.Step("long", 60, ("sleep", "60"))]
gpu_check.Check("1", steps, pathlib.Path({folder!r}), sys.executable, 61).run()
"""


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def test_what_it_did_is_on_disk_when_it_is_killed(checkout, tmp_path):
    program = PROGRAM.format(tools=str(checkout / "tools"), folder=str(tmp_path))
    running = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    summary = tmp_path / "gpu_check_1.txt"
    deadline = time.monotonic() + 20
    while not (summary.exists() and any(line[:7] == "running" and "long" in line for line in _lines(summary))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert _lines(summary)[2].startswith("passed")
    assert "1 of 2 steps passed" in summary.read_text()


LOSES = """
import types, pytest
from pyperf_suite.workloads import backends

class Lost:
    lost = False
    def synchronize(self):
        if Lost.lost:
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

@pytest.fixture(autouse=True)
def device(monkeypatch):
    made = lambda index: types.SimpleNamespace(context=Lost())
    made.cache_info = lambda: types.SimpleNamespace(currsize=1)
    backends.cuda_device = made  # for good: the context is looked at after the test

def test_before():
    pass

@pytest.mark.parametrize("case", [0, 1])
def test_that_loses_it(case):
    Lost.lost = case == 0
    assert case

def test_after():
    pass
"""


def gpu_tests(checkout: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the tests above under tests/core/gpu's conftest.py."""
    shutil.copy(checkout / "tests" / "core" / "gpu" / "conftest.py", folder)
    (folder / "test_context.py").write_text(LOSES)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(folder), *arguments]
    # The inner pytest must not take itself for one of xdist's workers, in which these tests may run.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_a_lost_context_costs_the_test_that_lost_it_and_a_fresh_worker_takes_the_rest(checkout, tmp_path):
    pytest.importorskip("xdist")
    said = gpu_tests(checkout, tmp_path, "-n", "1").stdout
    assert "3 passed" in said
    assert "crashed while running" in said


@pytest.mark.slow
def test_without_workers_a_lost_context_ends_the_run_with_a_sentence(checkout, tmp_path):
    done = gpu_tests(checkout, tmp_path, "-p", "no:xdist")
    assert done.returncode == 3
    assert "test_that_loses_it[0] lost the CUDA context (CUDA_ERROR_ILLEGAL_ADDRESS)" in done.stdout


@pytest.mark.slow
def test_against_a_double_of_the_driver_it_runs_to_its_end_and_names_what_failed(tool, checkout, tmp_path):
    double, out = built("fake_libcuda", tmp_path), tmp_path / "out"
    done = subprocess.run(
        [checkout / "tools" / "gpu_check.sh", "1", "--python", sys.executable, "--seconds", "6"],
        env=os.environ | {"PYPERF_LIBCUDA": str(double), "OUT": str(out), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    lines = _lines(out / "gpu_check_1.txt")
    assert {line.split()[0] for line in lines[2:10]} <= {"failed", "timed", "passed", "skipped"}
    assert "GEMM on Hopper" in lines[-1]
    assert (out / "gpu_check_1.log").read_bytes().count(b"\n== ") == len(tool("gpu_check").PARTS["1"]) - 1


def test_the_kernels_of_the_short_calls_are_carried(tool, monkeypatch):
    from pyperf_suite.hardware import devices

    for name in ("driver", "_present"):  # which the tool sets
        monkeypatch.setattr(devices, name, getattr(devices, name))
    options = [" ".join(source[4]) for source in tool("gpu_check").planned_sources()]
    assert len(options) == len(set(options)) >= 10
    for tile in ("-DTILE_M=128 -DTILE_N=256 -DTILE_K=64", "-DTILE_M=128 -DTILE_N=128 -DTILE_K=64"):
        assert any(tile in each for each in options)
    for dtype in ("-DIN_TYPE=bf16", "-DIN_TYPE=fp16", "-DIN_TYPE=e4m3"):
        assert any(dtype in each for each in options)
