"""A rank's place among how many, as torchrun or SLURM say, and a launcher of ranks on this machine.

`python -m pyperf_suite.ranks.launch COUNT MODULE` starts ranks on this machine, and ends with its parent. It imports
torch once; its ranks are copies of it, so that they share memory and start at once. They start with SIGTERM blocked,
which a launcher sends to all when one has died: it then waits until a rank can name the dead.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import math
import os
import re
import runpy
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.process import system

# A port for the rendezvous of one SLURM job, away from those that systems hand out and the same on all its ranks.
FIRST_PORT, PORTS = 15_000, 15_000

# Modules that ranks of this machine need, imported once by the launcher.
PRELOADED = ("torch.distributed", "pyperf_suite.runner.measuring")
# Ranks are given so long to name one that failed, as by torchrun; stopped ones are looked for this often.
ENDS_WITHIN_S, LOOK_S, NEXT_LOOK_S = 30.0, 0.25, 60.0
_PR_SET_NAME = 15


@dataclass(frozen=True)
class RankEnvironment:
    """`rank` of `count`; `local_rank` of those on this node; where the store is, and who hosts it.

    `launcher` is "torchrun", "slurm", "variables" or "none"; `agent_store` says that the launcher hosts the store, so
    that it outlives every rank.
    """

    rank: int
    count: int
    local_rank: int
    nodes: int
    address: str
    port: int
    launcher: str
    agent_store: bool = False
    restart: int = 0
    on_node: int = 0  # how many of the ranks run on this node, numbered one after the other; 0 if that is not known

    @property
    def launched(self) -> bool:
        """True if a launcher started this process as one of several or of one."""
        return self.launcher != "none"

    @property
    def is_pod(self) -> bool:
        """True if only variables tell, as in each pod of a cluster's job: nothing else may have been started."""
        return self.launcher == "variables" and self.on_node <= 1


# Variables that launchers set for a rank: a process without any is no rank, though its parent may be.
LAUNCHER_VARIABLES = ("RANK", "TORCHELASTIC_RUN_ID", "SLURM_PROCID")
# Programs that start no ranks, though a shell may have a launcher's variables, and those that do as the first process.
SHELLS = re.compile(r"-?(sh|bash|dash|zsh|fish|ksh|tcsh|tmux: server|screen|sshd|login|systemd)")
LAUNCHERS = ("python", "torchrun", "pt_")

ALONE = RankEnvironment(0, 1, 0, 1, "localhost", 0, "none")


def rank_environment(environ: Mapping[str, str] = os.environ) -> RankEnvironment:
    """This process's place. Raises UserError where a launcher's variables contradict each other or are incomplete.

    A shell may hold what a launcher set: a batch script or an interactive shell of SLURM is no step of several tasks,
    and what torchrun left to a shell has no torchrun above it.
    """
    if "RANK" in environ or "TORCHELASTIC_RUN_ID" in environ:
        if "TORCHELASTIC_RUN_ID" in environ and _is_left_over():
            return ALONE
        place = _of_torchrun(environ)
    elif "SLURM_STEP_ID" in environ and "SLURM_PTY_PORT" not in environ and _step_tasks(environ) > 1:
        place = _of_slurm(environ)
    else:
        return ALONE
    if not 0 <= place.rank < place.count:
        raise UserError(
            f"This process was launched as rank {place.rank} of {place.count}, but ranks run from 0 to "
            f"{place.count - 1}: check WORLD_SIZE and how ranks are numbered."
        )
    return place


def leave_launch() -> None:
    """Have this process and those that it starts be no ranks."""
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)


def ranks_here(usual: tuple[int, ...]) -> tuple[int, ...]:
    """The number that a launcher started, or else those that a profile has."""
    launched = rank_environment()
    return (launched.count,) if launched.launched else usual


def require_launched(requested: Iterable[int]) -> None:
    """Raise UserError for another number of ranks than a launcher started."""
    launched = rank_environment()
    others = [ranks for ranks in requested if launched.launched and ranks != launched.count]
    if others:
        raise UserError(
            f"ranks={others[0]} was requested, but the launcher started {launched.count}: leave the axis out, or "
            f"start {others[0]}."
        )


def launcher_process() -> int:
    """Return the nearest ancestor that is no rank itself: a script may stand between a launcher and this process."""
    pid = os.getppid()
    while pid > 1:
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # somebody else's, as the daemon of a batch system is
            return pid
        if not any(variable.startswith(f"{name}=".encode()) for name in LAUNCHER_VARIABLES for variable in environ):
            return pid
        pid = system.parent_of(pid)
    return pid


@functools.cache
def _is_left_over() -> bool:
    """True if a shell or the first process started this one, and no program that starts ranks."""
    launcher = launcher_process()
    try:
        name = Path(f"/proc/{launcher}/comm").read_text().strip()
    except OSError:
        return False
    return (launcher == 1 and not name.startswith(LAUNCHERS)) or bool(SHELLS.fullmatch(name))


def _step_tasks(environ: Mapping[str, str]) -> int:
    return _number(environ, "SLURM_STEP_NUM_TASKS", _number(environ, "SLURM_NTASKS", 1))


def _of_torchrun(environ: Mapping[str, str]) -> RankEnvironment:
    rank, count = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    on_node, address = _number(environ, "LOCAL_WORLD_SIZE", 0), environ.get("MASTER_ADDR", "")
    if not address:
        raise UserError("The launcher did not set MASTER_ADDR: start the ranks with torchrun.")
    is_hosted = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return RankEnvironment(
        rank=rank,
        count=count,
        local_rank=_number(environ, "LOCAL_RANK", rank),
        nodes=_number(environ, "GROUP_WORLD_SIZE", -(-count // (on_node or max(1, count)))),
        address=address,
        port=_number(environ, "MASTER_PORT"),
        launcher="torchrun" if "TORCHELASTIC_RUN_ID" in environ or is_hosted else "variables",
        agent_store=is_hosted,
        restart=_number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
        on_node=on_node,
    )


def _of_slurm(environ: Mapping[str, str]) -> RankEnvironment:
    """As srun says where it starts the ranks itself; rank 0 hosts the store."""
    job = _number(environ, "SLURM_JOB_ID", 0)
    address = environ.get("MASTER_ADDR") or environ.get("SLURM_LAUNCH_NODE_IPADDR")
    if not address:
        raise UserError(
            "srun started this process but does not say where rank 0 runs: set MASTER_ADDR to its node, as in "
            "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)."
        )
    nodes = _number(environ, "SLURM_STEP_NUM_NODES", _number(environ, "SLURM_NNODES", 1))
    return RankEnvironment(
        rank=_number(environ, "SLURM_PROCID"),
        count=_step_tasks(environ),
        local_rank=_number(environ, "SLURM_LOCALID", 0),
        nodes=nodes,
        address=address,
        port=_number(environ, "MASTER_PORT", FIRST_PORT + job % PORTS),
        launcher="slurm",
        on_node=_step_tasks(environ) if nodes == 1 else 0,
    )


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    try:
        return int(text)
    except ValueError:
        raise UserError(
            f"The launcher's variable {name} is {text!r}, but a whole number was expected: start the ranks with "
            "torchrun, as in torchrun --nproc-per-node=8 -m pyperf_suite collectives."
        ) from None


def main() -> None:
    """Serve as the launcher of COUNT ranks of MODULE on this machine, and end with 1 where one of them failed."""
    from pyperf_suite.process.serving import PARENT_VARIABLE, end_with_parent

    count, module = int(sys.argv[1]), sys.argv[2]
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Nobody outside this machine has to reach the store.
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    ranks = {_fork(rank, count, port, listener, module): rank for rank in range(count)}
    store = _host(port, listener.detach())
    failed = _wait_for(ranks)
    del store
    # As in a worker: torch would be taken apart for a second, in which the run waits.
    os._exit(int(failed))


def _fork(rank: int, count: int, port: int, listener: socket.socket, module: str) -> int:
    """Start a rank as a copy of this process, which has imported what ranks need, and return its process number."""
    pid = os.fork()
    if pid:
        return pid
    listener.close()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, f"rank {rank}".encode())  # as `ps` and `top` show it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    place = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count, "GROUP_WORLD_SIZE": 1}
    os.environ |= {name: str(value) for name, value in place.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__")
    os._exit(0)


def _host(port: int, descriptor: int) -> object:
    """Host the ranks' store, so that it outlives each of them; None without torch, of which the ranks tell."""
    try:
        distributed: Any = importlib.import_module("torch.distributed")
    except ImportError:
        return None
    how = {"is_master": True, "wait_for_workers": False, "multi_tenant": True}
    return distributed.TCPStore("127.0.0.1", port, master_listen_fd=descriptor, **how)


def _wait_for(ranks: Mapping[int, int]) -> bool:
    """Wait until all ranks have ended, by process number, and return True where one failed.

    The others then get SIGTERM, for they may still name it, and SIGKILL if they do not end or are stopped.
    """
    running, failed, kill_at_s = dict(ranks), False, math.inf
    while running:
        received = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM}, LOOK_S if failed else NEXT_LOOK_S)
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                rank = running.pop(pid)
                if status:
                    failed = True
                    code = os.waitstatus_to_exitcode(status)
                    how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
                    print(f"Rank {rank} ended: {how}.", file=sys.stderr, flush=True)
        if received is not None and received.si_signo == signal.SIGTERM:
            failed = True
        if failed and kill_at_s == math.inf:
            kill_at_s = time.monotonic() + ENDS_WITHIN_S
            for pid in running:
                os.kill(pid, signal.SIGTERM)
        for pid in running if failed else ():
            if time.monotonic() >= kill_at_s or system.state_of(pid) in "Tt":
                os.kill(pid, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    main()
