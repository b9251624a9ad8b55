import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pyperf_suite

ROOT = Path(__file__).parents[1]
COMMANDS = {
    "planner": {"calibrate", "explain", "layout", "size", "study"},
    "node": {"accept", "doctor", "watch"},
}
# Tests of what asks for all of a group of entry points, commands or probes, or reads other records than runs.
ENUMERATING = "test_discovery or test_cli or test_shipped_probes or test_report_command"


@pytest.fixture(params=COMMANDS)
def part(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A part, and a copy of the checkout without it."""
    for name in ("pyperf_suite", "tests", "tools", "docs", "examples", "csrc", "kernels"):
        shutil.copytree(ROOT / name, tmp_path / name)  # with what is compiled: most of the time goes into imports
    native = Path(pyperf_suite.__file__).parent
    for library in native.glob("_native*"):
        shutil.copy2(library, tmp_path / "pyperf_suite")
    for name in ("pyproject.toml", "conftest.py", "README.md", "constraints.txt", "setup.py", "Makefile"):
        shutil.copy2(ROOT / name, tmp_path)
    (tmp_path / "bench_results").symlink_to(ROOT / "bench_results")
    for folder in ("pyperf_suite", "tests"):
        shutil.rmtree(tmp_path / folder / request.param)
    return request.param, tmp_path


def run(folder: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.slow
def test_a_deleted_part_takes_its_commands_along_and_nothing_of_the_core(part):
    """A part can be missed in two ways, and both are tried.

    By an import: every test of the core is collected, which imports them and the modules that they test; imports within
    functions are test_architecture's, as no module of the core imports another part. By name: entry points are read in
    `pyperf_suite.extensions` alone, what parts have for each other in `pyperf_suite.cli.parts`; the tests of what asks
    for all of them run. All others do in the copy what they do in the checkout.
    """
    name, folder = part
    shown = run(folder, "-m", "pyperf_suite", "--help")
    commands = {line.split()[0] for line in shown.split("Commands:")[1].splitlines() if line.startswith("  ")}
    kept = set().union(*(each for other, each in COMMANDS.items() if other != name))
    assert {"run", "ab", *kept} <= commands
    assert not COMMANDS[name] & commands
    first = run(folder, "-m", "pyperf_suite")
    assert not [command for command in COMMANDS[name] if f"pyperf-suite {command} " in first]
    assert run(folder, "-m", "pyperf_suite", "run", "--list")
    run(
        *(folder, "-m", "pytest", "tests/core", "-q", "-p", "no:cacheprovider"),
        *("-m", "not slow and not gpu", "-k", ENUMERATING),  # which deselects the others after it has imported them
    )


def test_no_test_of_the_core_imports_another_part():
    sources = {path: path.read_text() for path in (ROOT / "tests" / "core").rglob("*.py")}
    assert not [path for path, text in sources.items() if any(f"pyperf_suite.{name}" in text for name in COMMANDS)]
