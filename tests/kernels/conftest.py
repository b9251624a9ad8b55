"""What tests of kernels share: a process in which Triton interprets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def version_of(module: ModuleType) -> tuple[int, int]:
    """Major and minor version."""
    major, minor = module.__version__.split(".")[:2]
    return int(major), int(minor)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Callable[[str], Callable[[dict], dict]]]:
    """Starts a script of this folder, where Triton interprets, and gives what asks it one question at a time."""
    pytest.importorskip("torch")
    triton = pytest.importorskip("triton")
    if version_of(triton) < (3, 7) and version_of(np) >= (2, 4):
        pytest.skip(f"the interpreter of Triton {triton.__version__} cannot loop with numpy {np.__version__}")
    started = []

    def start(script: str) -> Callable[[dict], dict]:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)

        def ask(question: dict) -> dict:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        return ask

    yield start
    for process in started:
        with process:
            process.stdin.close()
