"""Rank processes as a launcher would start them, around a store that outlives them as torchrun's does."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

# Imports torch once, and forks a rank for each line that it is sent; asked for a rank's end, it tells the exit code.
LAUNCHER = """
import json, os, sys
import torch.distributed
import pyperf_suite.ranks.group

for line in sys.stdin:
    request = json.loads(line)
    if "wait" in request:
        print(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]), flush=True)
        continue
    pid = os.fork()
    if not pid:
        for stream in (1, 2):
            os.dup2(os.open(request["output"], os.O_WRONLY), stream)
        os.environ.update(request["environ"])
        exec(request["program"])
        break
    print(pid, flush=True)
"""
PREAMBLE = """
import os, signal, sys, time
from pyperf_suite.ranks.group import Group, RanksMissing
group = Group()
"""


@dataclass
class Rank:
    launcher: subprocess.Popen[str]
    pid: int
    stdout: IO[str]
    returncode: int | None = None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float = 40.0) -> str:
        """Return its output until it ends. It is killed after `timeout` seconds."""
        late = threading.Timer(timeout, self.send_signal, [signal.SIGKILL])
        late.start()
        with self.stdout:
            output = self.stdout.read()
        self.returncode = int(ask(self.launcher, {"wait": self.pid}))
        late.cancel()
        return output


@dataclass
class Ranks:
    """Running rank processes; `end` waits for all and returns exit codes and what each said on both streams."""

    processes: list[Rank] = field(default_factory=list)

    def end(self) -> list[tuple[int | None, str]]:
        outputs = [rank.communicate() for rank in self.processes]
        return [(rank.returncode, output) for rank, output in zip(self.processes, outputs, strict=True)]


def ask(launcher: subprocess.Popen[str], request: dict[str, Any]) -> str:
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    launcher.stdin.write(json.dumps(request) + "\n")
    launcher.stdin.flush()
    return launcher.stdout.readline()


@pytest.fixture(scope="session")
def launcher() -> Iterator[subprocess.Popen[str]]:
    environ = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdin=pipe, stdout=pipe, text=True, env=environ) as process:
        yield process
        process.communicate()


@pytest.fixture
def start_ranks(launcher: subprocess.Popen[str], tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    """`start_ranks(program, count)`: the program runs in `count` processes after it has joined as `group`."""
    distributed = pytest.importorskip("torch.distributed")
    ranks = Ranks()
    stores = []

    def start(program: str, count: int, missing: tuple[int, ...] = ()) -> Ranks:
        store = distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        stores.append(store)
        for rank in sorted({*range(count)} - {*missing}):
            place = {
                "RANK": rank,
                "WORLD_SIZE": count,
                "LOCAL_RANK": rank,
                "LOCAL_WORLD_SIZE": count,
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": store.port,
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            }
            output = tmp_path / f"output {rank}"
            os.mkfifo(output)
            request = {
                "environ": {name: str(value) for name, value in place.items()},
                "program": PREAMBLE + textwrap.dedent(program),
                "output": str(output),
            }
            pid = int(ask(launcher, request))
            ranks.processes.append(Rank(launcher, pid, output.open()))
        return ranks

    yield start
    for rank in ranks.processes:
        if rank.returncode is None:
            rank.send_signal(signal.SIGKILL)
            rank.communicate()
