"""Which rank of how many this process is, as torchrun or SLURM say, and torchrun started as a child of this process.

`python -m pyperf_suite.ranks.launch COUNT MODULE` is that child, which ends with its parent. Its ranks start with
SIGTERM blocked, which torchrun sends to all when one has died: it then waits until a rank can name the dead, and does
not end a Python that has just begun.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyperf_suite.errors import UserError

# A port for the rendezvous of one SLURM job, away from those that systems hand out and the same on all its ranks.
FIRST_PORT, PORTS = 15_000, 15_000


@dataclass(frozen=True)
class RankEnvironment:
    """`rank` of `count`; `local_rank` of those on this node; where the store is, and who hosts it.

    `launcher` is "torchrun", "slurm" or "none"; `agent_store` says that torchrun hosts the store, so that it outlives
    every rank.
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
        """Whether a launcher started this process as one of several or of one."""
        return self.launcher != "none"


# What launchers set for a rank: a process that has none of these is no rank, though its parent may be.
LAUNCHER_VARIABLES = ("RANK", "TORCHELASTIC_RUN_ID", "SLURM_PROCID")

ALONE = RankEnvironment(0, 1, 0, 1, "localhost", 0, "none")


def rank_environment(environ: Mapping[str, str] = os.environ) -> RankEnvironment:
    """This process's place. Raises UserError where a launcher's variables contradict each other or are incomplete."""
    if "RANK" in environ or "TORCHELASTIC_RUN_ID" in environ:
        found = _of_torchrun(environ)
    elif "SLURM_PROCID" in environ and _number(environ, "SLURM_NTASKS", 1) > 1:
        found = _of_slurm(environ)
    else:
        return ALONE
    if not 0 <= found.rank < found.count:
        raise UserError(
            f"This process was launched as rank {found.rank} of {found.count}, but ranks run from 0 to "
            f"{found.count - 1}: check WORLD_SIZE and how ranks are numbered."
        )
    return found


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


def _of_torchrun(environ: Mapping[str, str]) -> RankEnvironment:
    rank, count = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    on_node = _number(environ, "LOCAL_WORLD_SIZE", 0)
    return RankEnvironment(
        rank=rank,
        count=count,
        local_rank=_number(environ, "LOCAL_RANK", rank),
        nodes=_number(environ, "GROUP_WORLD_SIZE", -(-count // (on_node or max(1, count)))),
        address=_text(environ, "MASTER_ADDR"),
        port=_number(environ, "MASTER_PORT"),
        launcher="torchrun",
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
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
    return RankEnvironment(
        rank=_number(environ, "SLURM_PROCID"),
        count=_number(environ, "SLURM_NTASKS"),
        local_rank=_number(environ, "SLURM_LOCALID", 0),
        nodes=_number(environ, "SLURM_NNODES", 1),
        address=address,
        port=_number(environ, "MASTER_PORT", FIRST_PORT + job % PORTS),
        launcher="slurm",
        on_node=_number(environ, "SLURM_NTASKS") if _number(environ, "SLURM_NNODES", 1) == 1 else 0,
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


def _text(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "")
    if not text:
        raise UserError(f"The launcher did not set {name}: start the ranks with torchrun.")
    return text


def main() -> None:
    """Become torchrun, with COUNT ranks of MODULE on this machine, at a port that is free."""
    from pyperf_suite.process.serving import PARENT_VARIABLE, end_with_parent

    count, module = sys.argv[1:]
    # Both outlast exec, and the blocked signal reaches the ranks too.
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}")
    os.execv(sys.executable, (*launcher, "--max-restarts=0", "-m", module))


if __name__ == "__main__":
    main()
