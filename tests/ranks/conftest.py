"""Rank processes as a launcher would start them, around a store that outlives them as torchrun's does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

PREAMBLE = """
import os, signal, sys, time
from pyperf_suite.ranks.group import Group, RanksMissing
group = Group()
"""


@dataclass
class Ranks:
    """Running rank processes; `end` waits for all and returns exit codes and what each said on both streams."""

    processes: list[subprocess.Popen[str]]

    def end(self, timeout_s: float = 40.0) -> list[tuple[int, str]]:
        ended = []
        for process in self.processes:
            output, _ = process.communicate(timeout=timeout_s)
            ended.append((process.returncode, output))
        return ended


@pytest.fixture
def start_ranks() -> Iterator[Callable[[str, int], Ranks]]:
    """`start_ranks(program, count)`: the program runs in `count` processes after it has joined as `group`."""
    distributed = pytest.importorskip("torch.distributed")
    started: list[subprocess.Popen[str]] = []
    stores = []

    def start(program: str, count: int, missing: tuple[int, ...] = ()) -> Ranks:
        store = distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        stores.append(store)
        text = PREAMBLE + textwrap.dedent(program)
        for rank in range(count):
            if rank in missing:
                continue
            place = {
                "RANK": rank,
                "WORLD_SIZE": count,
                "LOCAL_RANK": rank,
                "LOCAL_WORLD_SIZE": count,
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": store.port,
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            }
            environ = os.environ | {name: str(value) for name, value in place.items()} | {"OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-c", text]
            started.append(
                subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
        return Ranks(started)

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
