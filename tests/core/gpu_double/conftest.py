"""Processes that take the doubles for a GPU."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from environment import environment

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def on_the_double() -> dict[str, str]:
    """The environment in which there is the double's GPU; a skip where no compiler builds it."""
    if sys.platform != "linux":
        pytest.skip("the double shares memory between processes as Linux does")
    pytest.importorskip("pyperf_suite._native", reason="the native extension is not built: pip install -e .")
    try:
        # A pytest that these variables say is xdist's would not measure.
        return {name: value for name, value in os.environ.items() if "PYTEST" not in name} | environment()
    except FileNotFoundError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def run(on_the_double: dict[str, str]) -> Run:
    """Run Python with these arguments on the double: run("-m", "pyperf_suite", "doctor")."""

    def started(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], env=on_the_double, cwd=folder, capture_output=True, text=True, timeout=300
        )

    return started
