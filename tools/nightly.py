"""Run every test in every way; then name what failed and how to run just that.

python tools/nightly.py [--once] [STEP...]: `--once` leaves out the repeats. Logs lie in build/nightly.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "nightly"
PYTHON = sys.executable
WHOLE_FILES = ("-n", "logical", "--dist", "loadfile") if find_spec("xdist") else ()


@dataclass(frozen=True)
class Step:
    """A command that passes with exit code 0; `is_repeat` where another step tries the same once."""

    name: str
    command: tuple[str, ...]
    is_repeat: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def tests(*arguments: str) -> tuple[str, ...]:
    """The command that runs tests, each core with whole files."""
    return (PYTHON, "-m", "pytest", *WHOLE_FILES, *arguments)


STEPS = (
    Step("lint", ("make", "lint")),
    # One core each, as `make test` runs them.
    Step("quick", tests("tests", "-m", "not slow and not gpu"), environment={"OMP_NUM_THREADS": "1"}),
    Step("slow", tests("tests", "-m", "slow and not gpu")),
    Step("gpu", ("make", "test-gpu")),
    Step("bench", (".ci/bench", PYTHON)),
    Step("address", ("make", "test-sanitize", "SANITIZER=address")),
    Step("thread", ("make", "test-sanitize", "SANITIZER=thread")),
    Step("install", (".ci/install_matrix", PYTHON)),
    Step("cheats", (PYTHON, "tests/core/user_kernels/count_cheats.py", "3"), is_repeat=True),
    Step("kills", (PYTHON, "tests/hardening/kill_runs.py", "200"), is_repeat=True),
    Step("drills", tests("tests/core/ranks"), is_repeat=True, environment={"PYPERF_DRILLS": "50"}),
    Step("hostile", tests("tests/hardening/test_hostile_files.py"), True, {"PYPERF_HOSTILE": "all"}),
    Step("fuzz", ("make", "fuzz"), is_repeat=True),
)


def run(step: Step) -> tuple[int, float]:
    """The exit code of a step and the seconds it took; what it prints goes to its log."""
    began_s = time.monotonic()
    with (LOGS / f"{step.name}.log").open("w") as log:
        environment = os.environ | {"PYPERF_WERROR": "1"} | step.environment
        how = {"cwd": ROOT, "stdout": log, "stderr": subprocess.STDOUT, "env": environment}
        try:
            code = subprocess.run(step.command, **how).returncode
        except OSError as error:
            code = 127
            print(f"{step.command[0]} cannot be run: {error.strerror}", file=log)
    return code, time.monotonic() - began_s


def alone(step: Step) -> list[str]:
    """The commands that run just what failed: single tests of a step that only runs tests, else the step."""
    if step.command[:3] != tests()[:3]:
        return [f"make nightly ONLY={step.name}"]
    log = (LOGS / f"{step.name}.log").read_text(encoding="utf-8", errors="replace")
    variables = "".join(f"{name}={value} " for name, value in step.environment.items())
    found = re.findall(r"^alone: (.+)$", log, re.MULTILINE)
    return [variables + command for command in found] or [f"make nightly ONLY={step.name}"]


def main() -> int:
    """Run the steps in order, each whatever became of the others; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--once", action="store_true", help="leave out the repeats")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(step.name for step in STEPS)}")
    requested = parser.parse_args()
    if unknown := set(requested.steps) - {step.name for step in STEPS}:
        parser.error(f"there is no step {', '.join(sorted(unknown))}: choose from {', '.join(s.name for s in STEPS)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    failed: list[Step] = []
    for step in STEPS:
        if step.name not in requested.steps if requested.steps else requested.once and step.is_repeat:
            continue
        code, seconds = run(step)
        failed += [step] if code else []
        says = "passed" if not code else f"FAILED with exit code {code}"
        print(f"{step.name:8} {says} after {seconds / 60:.1f} min; build/nightly/{step.name}.log", flush=True)
    for step in failed:
        print(f"\n{step.name} failed; just that:", *alone(step), sep="\n  ")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
