"""Join ranks: agree, connect, join torch's process group, time steps one by one, compare gradients.

Nobody begins to connect before all have what it takes, so no rank waits for one that cannot come. Which rank draws what
is fixed by its number, so that any process can make any rank's micro-batches.
"""

from __future__ import annotations

import datetime
import importlib
import inspect
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware import cpu, memory
from pyperf_suite.ranks.group import Group, RanksMissing, connect
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.workloads.backends import fingerprint, require_installed
from pyperf_suite.workloads.workload import (
    Checked,
    ExecutionContext,
    Implementation,
    Parameters,
    RankTimes,
    Transfers,
    Workload,
    together,
)

Result = TypeVar("Result")

# Longer than any deadline of ours: the watchdog, which knows who is missing, is to speak first.
TORCH_PATIENCE_S = 3600.0
RANKS_A_CORE = 8  # with more on a core gloo measures the scheduler, and starting them takes minutes

# NCCL reads once, when it is loaded, whether it copies between GPUs directly: ranks must be started for it.
WITHOUT_DIRECT_COPIES = {"NCCL_P2P_DISABLE": "1"}

# The process groups that this process is in, by backend: it belongs to one group of ranks for as long as it lives.
_JOINED: dict[str, Any] = {}

# Dtypes of ranks, with the bytes of an element.
DTYPES = {"float32": 4, "bfloat16": 2}
MOST_RANKS = 1 << 15

# Makes a case ready of parameters, where this rank is, and the process group that it has joined.
Steps = Callable[[Any, ExecutionContext, Any], Transfers]


def agree(group: Group, doing: str, attempt: Callable[[], Result], deadline_s: float) -> Result:
    """Return the result of `attempt` once all ranks have theirs. Raises Unsupported on all where it fails on any."""
    results: list[Result] = []
    trouble = ""
    try:
        results.append(attempt())
    except (Unsupported, UserError) as reason:
        trouble = str(reason)
    except Exception as error:  # the others wait to hear of it, whatever it is
        trouble = f"{type(error).__name__}: {error}"
    troubles = group.gather(doing, trouble, deadline_s)
    found = [(rank, reported) for rank, reported in enumerate(troubles) if reported]
    if found:
        rank, first = found[0]
        raise Unsupported(first if len(set(troubles)) == 1 else f"Rank {rank}: {first}")
    return results[0]


def do_together(group: Group, doing: str, action: Callable[[], Result], deadline_s: float) -> Result:
    """Return the result of `action`, which all ranks are in. Raises RanksMissing on all where it fails on one."""
    with group.within(doing, deadline_s):
        try:
            return action()
        except RanksMissing:
            raise
        except Exception as error:
            raise group.broken(doing, error) from error


def torch_place(place: ExecutionContext) -> str:
    """The device as torch names it."""
    return "cpu" if place.device.kind == "cpu" else f"cuda:{place.device.index}"


def process_group(place: ExecutionContext, backend: str) -> Any:
    """Torch's process group of all ranks (None: its default), made once. Raises Unsupported or RanksMissing."""
    if backend in _JOINED:
        return _JOINED[backend]
    require_installed("torch")
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
            "No direct copies between GPUs were requested, but these ranks were started with them: start them with "
            "NCCL_P2P_DISABLE=1, or let pyperf-suite start them."
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
    """Steps of this rank, each waited for by the host's clock or two events; `meet` has all begin at once.

    gloo gives the interpreter's lock back while it waits, and so does waiting for an event: the watchdog costs at most
    the microseconds of its heartbeat, four times a second.
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


class OverTorch(Implementation[Any]):
    """By torch's process group; `refuse`, where there is one, raises UserError for parameters under that name."""

    def __init__(self, steps: Steps, refuse: Callable[[Any, str], None] | None = None, name: str = "") -> None:
        self._steps, self._refuse = steps, refuse
        self.name = name or self.name  # type: ignore[misc]

    def validate(self, parameters: Any) -> None:
        if self._refuse is not None:
            self._refuse(parameters, self.name)


class OverGloo(OverTorch):
    """Ranks on CPU cores; each computes on as many threads as OMP_NUM_THREADS says, or one, and on gloo's own."""

    name = "gloo"
    device_kind = "cpu"

    def validate(self, parameters: Any) -> None:
        super().validate(parameters)
        if not parameters.peer_to_peer:
            raise UserError("gloo moves data between CPUs over TCP: peer_to_peer is NCCL's alone.")
        cores = cpu.detect().usable_cores
        if not rank_environment().launched and parameters.ranks > RANKS_A_CORE * cores:
            raise UserError(
                f"{parameters.ranks} ranks were requested on {cores} cores, where they would spend their time waiting "
                f"for each other: ask for at most {RANKS_A_CORE * cores}, or launch them on several machines."
            )

    def prepare(self, parameters: Any, place: ExecutionContext) -> Transfers:
        joined = process_group(place, "gloo")
        require_memory(place.ranks, parameters.footprint_bytes)
        return self._steps(parameters, place, joined)


class OverNccl(OverTorch):
    """One GPU a rank."""

    name = "nccl"
    device_kind = "cuda"

    def prepare(self, parameters: Any, place: ExecutionContext) -> Transfers:
        require_started_so(parameters.peer_to_peer)
        return self._steps(parameters, place, process_group(place, "nccl"))


class RankSteps(Transfers):
    """Steps of one rank that are over when they return; on a GPU torch's stream waits for what is exchanged."""

    def __init__(self, parameters: Any, rank: int, group: Any, where: str) -> None:
        """`where` is torch's name of the device; a group of None is torch's default."""
        torch: Any = importlib.import_module("torch")
        self.torch, self._parameters, self._rank, self._group, self._where = torch, parameters, rank, group, where
        self.is_gpu = where != "cpu"

    @classmethod
    def of(cls, parameters: Any, place: ExecutionContext, joined: Any) -> Transfers:
        return cls(parameters, place.ranks.rank, joined, torch_place(place))

    @abstractmethod
    def step(self) -> None:
        """Run the timed step."""

    def meet(self) -> None:
        """Wait for all ranks, so that what is timed begins for all at once."""
        self.torch.distributed.barrier(self._group)

    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        return timed_one_by_one(self.step, iterations, self.meet, self._where)

    def verdict(self, results: dict[str, Any], exact: dict[str, Any], scales: dict[str, Any], *wrong: str) -> Checked:
        """Gradients against what they must be, by how far rounding moves them, and what else is wrong in words."""
        from pyperf_suite.workloads.rounding import judged

        return together([judged(results, exact, scales), Checked(len(wrong), 1, wrong[0] if wrong else "")])

    def _torch_details(self) -> dict[str, Any]:
        threads = {} if self.is_gpu else {"threads": self.torch.get_num_threads()}
        return {"torch": self.torch.__version__, **threads}


def distributed(model: Any, group: Any, **options: Any) -> Any:
    """The model as torch's DistributedDataParallel, which is to leave its buffers, masks and positions, as they are."""
    torch: Any = importlib.import_module("torch")
    ddp = torch.nn.parallel.DistributedDataParallel
    # Older versions of torch have another word for it.
    names = inspect.signature(ddp).parameters
    leave_buffers = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    return ddp(model, process_group=group, **{leave_buffers: False}, **options)


def average(gradients: Sequence[Any], count: int, group: Any) -> None:
    """Average gradients by one all_reduce over `count` ranks, copied together and back as a bucket is."""
    torch: Any = importlib.import_module("torch")
    together = torch.cat([each.flatten() for each in gradients]).div_(count)
    torch.distributed.all_reduce(together, group=group)
    for gradient, part in zip(gradients, together.split([each.numel() for each in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def seed_of(rank: int, micro: int, micro_batches: int) -> int:
    """The seed of micro-batch number `micro` of that rank, of `micro_batches` that each has."""
    return 1 + rank * micro_batches + micro


def same_on_all(tensors: Iterable[Any], group: Any, place: str) -> bool:
    """True if every rank of the group holds the same bits."""
    torch: Any = importlib.import_module("torch")
    mine = torch.tensor([fingerprint(tensors)], dtype=torch.int64, device=place)
    found = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(found, mine, group=group)
    return len({int(each) for each in found}) == 1
