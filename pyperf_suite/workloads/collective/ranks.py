"""What ranks do together whatever they measure: agree, connect, join torch's process group, time steps one by one.

Nobody begins to connect before all have what it takes, so no rank waits for one that cannot come.
"""

from __future__ import annotations

import datetime
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware import cpu, memory
from pyperf_suite.ranks.group import Group, RanksMissing, connect
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.workloads.workload import Parameters, Place, RankTimes, Workload

Made = TypeVar("Made")

# Longer than any deadline of ours: the watchdog, which knows who is missing, is to speak first.
TORCH_PATIENCE_S = 3600.0

# With more on a core gloo measures the scheduler, and starting them takes minutes.
RANKS_A_CORE = 8

# NCCL reads once, when it is loaded, whether it copies between GPUs directly: ranks must be started for it.
WITHOUT_DIRECT_COPIES = {"NCCL_P2P_DISABLE": "1"}

# The process groups that this process is in, by backend: it belongs to one group of ranks for as long as it lives.
_JOINED: dict[str, Any] = {}


def agree(group: Group, doing: str, attempt: Callable[[], Made], deadline_s: float) -> Made:
    """What `attempt` makes on this rank alone, once it has on all. Raises Unsupported on all where it fails on any."""
    made: list[Made] = []
    trouble = ""
    try:
        made.append(attempt())
    except (Unsupported, UserError) as reason:
        trouble = str(reason)
    except Exception as error:  # the others wait to hear of it, whatever it is
        trouble = f"{type(error).__name__}: {error}"
    troubles = group.gather(doing, trouble, deadline_s)
    found = [(rank, told) for rank, told in enumerate(troubles) if told]
    if found:
        rank, first = found[0]
        raise Unsupported(first if len(set(troubles)) == 1 else f"Rank {rank}: {first}")
    return made[0]


def do_together(group: Group, doing: str, action: Callable[[], Made], deadline_s: float) -> Made:
    """What `action` makes, which all ranks are in: an error on one leaves the others waiting, so it ends the group.

    Raises RanksMissing where it fails.
    """
    with group.within(doing, deadline_s):
        try:
            return action()
        except RanksMissing:
            raise
        except Exception as error:
            raise group.broken(doing, error) from error


def torch_place(place: Place) -> str:
    """The device as torch names it."""
    return "cpu" if place.device.kind == "cpu" else f"cuda:{place.device.index}"


def process_group(place: Place, backend: str) -> Any:
    """The process group of torch with all ranks (None is its default), made when first asked for, by all together.

    Raises Unsupported on all ranks where this torch lacks the backend on any, and RanksMissing where ranks do not come.
    """
    if backend in _JOINED:
        return _JOINED[backend]
    if importlib.util.find_spec("torch") is None:
        raise Unsupported("torch is not installed.")
    group, deadline_s = place.ranks, place.deadline_s
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")

    def require() -> None:
        if not getattr(distributed, f"is_{backend}_available")():
            raise Unsupported(f"This torch was built without {backend}.")
        if backend == "nccl" and not torch.cuda.is_available():
            raise Unsupported(f"This torch ({torch.__version__}) cannot use the GPU.")

    agree(group, f"look for {backend}", require, deadline_s)
    # A client of its own, as torch's threads may ask while this one waits; and keys that nobody else writes.
    store = distributed.PrefixStore(f"process_group/{backend}", connect(group.environment, deadline_s))

    def join() -> Any:
        options: dict[str, Any] = {"timeout": datetime.timedelta(seconds=TORCH_PATIENCE_S)}
        if backend == "nccl":
            torch.cuda.set_device(torch_place(place))
            # NCCL then connects here, within the deadline, and not in the first collective of some of the ranks.
            options["device_id"] = torch.device(torch_place(place))
        if distributed.is_initialized():
            return distributed.new_group(backend=backend, **options)
        distributed.init_process_group(backend, store=store, rank=group.rank, world_size=group.count, **options)
        return None  # the default group: a call that names it takes longer, which nobody's script does

    _JOINED[backend] = do_together(group, f"connect by {backend}", join, deadline_s)
    return _JOINED[backend]


class OnRanks(Workload[Parameters]):
    """A workload whose parameters say how many ranks, how many bytes on each, and whether GPUs copy directly."""

    def ranks(self, parameters: Any) -> int:
        return int(parameters.ranks)

    def environment(self, parameters: Any) -> dict[str, str]:
        return direct_copies(parameters.peer_to_peer)

    def footprint_bytes(self, parameters: Any) -> int:
        return int(parameters.footprint_bytes)


def direct_copies(peer_to_peer: bool) -> dict[str, str]:
    """The environment of ranks that copy between GPUs directly, or are to go without."""
    return {} if peer_to_peer else WITHOUT_DIRECT_COPIES


def require_started_so(peer_to_peer: bool) -> None:
    """Raise Unsupported where a launcher started ranks with direct copies that are to go without."""
    if any(os.environ.get(name) != value for name, value in direct_copies(peer_to_peer).items()):
        raise Unsupported(
            "No direct copies between GPUs were asked for, but these ranks were started with them: start them with "
            "NCCL_P2P_DISABLE=1, or let pyperf-suite start them."
        )


def require_cores_for(ranks: int) -> None:
    """Raise UserError for more ranks than this machine's cores can keep alive, unless they run on several machines."""
    cores = cpu.detect().usable_cores
    if not rank_environment().launched and ranks > RANKS_A_CORE * cores:
        raise UserError(
            f"{ranks} ranks were asked for on {cores} cores, where they would spend their time waiting for each other: "
            f"ask for at most {RANKS_A_CORE * cores}, or launch them on several machines."
        )


def require_memory(group: Group, bytes_a_rank: int) -> None:
    """Raise Unsupported where the ranks on this machine need more memory together than it has free."""
    ranks_here = -(-group.count // max(1, group.environment.nodes))
    needed_bytes, free_bytes = ranks_here * bytes_a_rank, memory.available_bytes()
    if needed_bytes > free_bytes:
        raise Unsupported(
            f"{ranks_here} ranks on this machine need {needed_bytes / 1e9:.1f} GB, but {free_bytes / 1e9:.1f} GB of "
            "memory are free: ask for fewer ranks or less on each."
        )


def timed_one_by_one(
    step: Callable[[], object], iterations: int, meet: Callable[[], object], where: str = "cpu"
) -> RankTimes:
    """Steps of this rank, each waited for: by the host's clock, or on a GPU by two events on torch's stream around it.

    `meet` lets all ranks begin at once, as they learn of a block one after the other. The loops are as tight as Python
    allows: stamps go to lists that exist. gloo gives the interpreter's lock back while it waits, and so does waiting
    for an event: the watchdog costs at most the microseconds of its heartbeat, four times a second.
    """
    arrived_ns, done_ns, seconds = [0] * iterations, [0] * iterations, [0.0] * iterations
    stamp = time.monotonic_ns
    if where == "cpu":
        meet()
        for index in range(iterations):
            arrived_ns[index] = stamp()
            step()
            done_ns[index] = stamp()
        seconds = [(done - arrived) * 1e-9 for arrived, done in zip(arrived_ns, done_ns, strict=True)]
    else:
        torch: Any = importlib.import_module("torch")
        torch.cuda.set_device(where)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        meet()
        torch.cuda.synchronize()
        for index in range(iterations):
            arrived_ns[index] = stamp()
            begin.record()
            step()
            end.record()
            end.synchronize()
            done_ns[index] = stamp()
            seconds[index] = begin.elapsed_time(end) * 1e-3
    return RankTimes(np.array(seconds), np.array(arrived_ns, dtype=np.int64), np.array(done_ns, dtype=np.int64))
