import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.errors import ExitCode, UserError, broken_package, ending_of
from pyperf_suite.record.journal import read_journal

RESULTS = Path(__file__).resolve().parents[1] / "bench_results"
MODEL = "--layers 4 --hidden 1024 --heads 8 --ffn 2816 --vocab 32000"
COMMANDS = {
    "run": "run baseline --device cpu",
    "run --list": "run --list baseline",
    "collectives": "collectives --ranks 2 --device cpu",
    "ab": "ab --old schedule=data_parallel --new schedule=stream_k baseline --device cpu",
    "compare": f"compare latest~1 latest --results {RESULTS}",
    "track": f"track --results {RESULTS}",
    "history": f"history --results {RESULTS}",
    "report": f"report {RESULTS} -o page.html",
    "findings": f"findings latest --results {RESULTS}",
    "explain": "explain 4096 4096 4096 --gpu H100",
    "size": f"size {MODEL} --gpu H100",
    "layout": f"layout {MODEL} --gpu A100 --gpus 8 --global-batch 8",
    "calibrate": f"calibrate --results {RESULTS}",
    "study": "study --device cpu --data 1",
    "accept": "accept --device cpu",
    "doctor": "doctor",
    "pytest": "pytest --pyargs pyperf_suite.benchmarks --benchmark-only -k baseline --suite-device cpu",
}


def broken(folder: Path, name: str) -> dict[str, str]:
    """An environment in which the package of that name raises when it is imported."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("raise OSError('libgone.so.3: cannot open shared object file')\n")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return inherited | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(":")}


def invoke(command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    words = command.split()
    program = ["-m", "pytest"] if words[0] == "pytest" else ["-m", "pyperf_suite", words[0]]
    return subprocess.run(
        [sys.executable, *program, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_broken_numpy_is_one_sentence_from_each_command(tmp_path, command):
    done = invoke(command, tmp_path, broken(tmp_path, "numpy"))
    said = done.stdout + done.stderr
    # pytest has its own codes: 2 where it could not collect.
    assert done.returncode == (2 if command.startswith("pytest") else ExitCode.FAILED), said
    assert "numpy is installed but cannot be imported (OSError: libgone.so.3" in said
    assert "Traceback" not in said
    assert command.startswith("pytest") or len(said.splitlines()) == 1, said


@pytest.mark.parametrize("command", ["--help", "run --help", "ab --help", "--version"])
def test_help_needs_no_numpy(tmp_path, command):
    done = invoke(command, tmp_path, broken(tmp_path, "numpy"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_broken_torch_fails_the_cases_that_need_it_and_is_tried_once(tmp_path):
    command = "run baseline --device cpu -a shape=64x64x64,96x96x96 --results results"
    done = invoke(command, tmp_path, broken(tmp_path, "torch"))
    assert done.returncode == ExitCode.FAILED
    summary = " ".join(done.stdout.partition("Summary")[2].split())
    assert "torch is installed but cannot be imported (OSError: libgone.so.3" in summary
    assert "Traceback" not in done.stdout + done.stderr
    (journal,) = tmp_path.glob("results/*/*/records.jsonl")
    of_torch = [each for each in read_journal(journal) if each.case["implementation"] == "torch"]
    assert {each.outcome for each in of_torch} == {"failed"}
    assert [" [not run: " in each.reason for each in of_torch].count(False) == 1


@pytest.mark.slow
def test_a_run_without_time_for_a_case_says_so_and_fails(tmp_path):
    command = "run baseline --device cpu -a shape=64x64x64 --budget 5 --results results"
    done = invoke(command, tmp_path, broken(tmp_path, "torch"))
    assert done.returncode == ExitCode.FAILED
    assert "leaves no time for a case" in done.stderr
    assert "Nothing was measured: no case was begun" in done.stdout


def raised(statement: str, by: str) -> Exception:
    """Return the error of the statement in a function of that module."""
    scope: dict[str, Any] = {"__name__": by}
    exec(f"def function():\n  {statement}", scope)
    try:
        scope["function"]()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def test_a_package_that_is_absent_is_named():
    said = broken_package(raised("import no_such_package.part", "pyperf_suite.runner"))
    assert said == "no_such_package is not installed: `pip install no_such_package`."


@pytest.mark.parametrize(
    "fault", ["import pyperf_suite.no_such_module", "1 / 0", "from pyperf_suite.errors import nothing_there"]
)
def test_a_fault_of_the_suites_own_keeps_its_traceback(fault):
    assert ending_of(raised(fault, "pyperf_suite.runner")) is None


@pytest.mark.parametrize("code", [ExitCode.USAGE, ExitCode.FAILED])
def test_a_sentence_of_the_suite_keeps_its_code(code):
    ending = ending_of(UserError("lost", code))
    assert ending is not None
    assert (str(ending), ending.exit_code) == ("lost", code)
