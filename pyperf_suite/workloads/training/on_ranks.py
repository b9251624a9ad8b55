"""What training workloads of several ranks share: gloo between CPU cores or NCCL between GPUs, and steps one by one."""

from __future__ import annotations

import importlib
import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.workloads.collective import ranks
from pyperf_suite.workloads.workload import Checked, Implementation, Place, RankTimes, Transfers, together

# What ranks compute in, by bytes an element.
DTYPES = {"float32": 4, "bfloat16": 2}
MOST_RANKS = 1 << 15

# Makes a case ready of parameters, where this rank is, and the process group that it has joined.
Steps = Callable[[Any, Place, Any], Transfers]


class OverTorch(Implementation[Any]):
    """By torch's process group; `refuse`, where there is one, raises UserError for parameters under that name."""

    def __init__(self, steps: Steps, refuse: Callable[[Any, str], None] | None = None) -> None:
        self._steps, self._refuse = steps, refuse

    def validate(self, parameters: Any) -> None:
        if self._refuse is not None:
            self._refuse(parameters, self.name)


class OverGloo(OverTorch):
    """Ranks on CPU cores; each computes on as many threads as OMP_NUM_THREADS says, or one, beside gloo's own."""

    name = "gloo"
    device_kind = "cpu"

    def validate(self, parameters: Any) -> None:
        super().validate(parameters)
        if not parameters.peer_to_peer:
            raise UserError("gloo moves data between CPUs over TCP: peer_to_peer is NCCL's alone.")
        ranks.require_cores_for(parameters.ranks)

    def prepare(self, parameters: Any, place: Place) -> Transfers:
        joined = ranks.process_group(place, self.name)
        ranks.require_memory(place.ranks, parameters.footprint_bytes)
        return self._steps(parameters, place, joined)


class OverNccl(OverTorch):
    """One GPU a rank."""

    name = "nccl"
    device_kind = "cuda"

    def prepare(self, parameters: Any, place: Place) -> Transfers:
        ranks.require_started_so(parameters.peer_to_peer)
        return self._steps(parameters, place, ranks.process_group(place, self.name))


class RankSteps(Transfers):
    """Steps of one rank that are over when they return; on a GPU torch's stream waits for what is exchanged."""

    def __init__(self, parameters: Any, rank: int, group: Any, where: str) -> None:
        """`where` is torch's name of the device; a group of None is torch's default."""
        torch: Any = importlib.import_module("torch")
        self.torch, self._parameters, self._rank, self._group, self._where = torch, parameters, rank, group, where

    @classmethod
    def of(cls, parameters: Any, place: Place, joined: Any) -> Transfers:
        """As implementations make them."""
        return cls(parameters, place.ranks.rank, joined, ranks.torch_place(place))

    @property
    def is_gpu(self) -> bool:
        """Whether this rank computes on one."""
        return self._where != "cpu"

    @abstractmethod
    def step(self) -> None:
        """What is timed."""

    def meet(self) -> None:
        """Wait for all ranks, so that what is timed begins for all at once."""
        self.torch.distributed.barrier(self._group)

    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        return ranks.timed_one_by_one(self.step, iterations, self.meet, self._where)

    def verdict(self, found: dict[str, Any], exact: dict[str, Any], limits: dict[str, Any], *wrong: str) -> Checked:
        """Each element of what was found against what it must be, and what else is wrong in words."""
        from pyperf_suite.workloads.training.rounding import compared

        return together([compared(found, exact, limits), Checked(len(wrong), 1, wrong[0] if wrong else "")])

    def _torch_details(self) -> dict[str, Any]:
        """What a record says of torch."""
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
    """One all_reduce of all gradients over so many ranks, copied together and back as a bucket is."""
    torch: Any = importlib.import_module("torch")
    together = torch.cat([each.flatten() for each in gradients]).div_(count)
    torch.distributed.all_reduce(together, group=group)
    for gradient, part in zip(gradients, together.split([each.numel() for each in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
