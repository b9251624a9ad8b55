"""How data-parallel ranks keep, exchange and update what each of them trains: the stages of ZeRO by torch's engine."""

from __future__ import annotations

import importlib
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pyperf_suite.workloads.training.parallel.parameters import ParallelStepParameters

LEARNING_RATE = 1e-4
# From this stage on parameters lie in shards, by FSDP2.
SHARDED_FROM_STAGE = 2


def local(tensor: Any) -> Any:
    """What of a DTensor lies on this rank; a plain tensor is its own."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class DataCut(ABC):
    """The parts of this rank as they are called, and what happens to their gradients."""

    path: str
    optimizer: Any

    def __init__(self, parts: Sequence[Any], parameters: ParallelStepParameters, mesh: Any) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.parts, self._parameters, self._mesh = parts, parameters, mesh
        self.calls: list[Any] = list(parts)

    @property
    def weights(self) -> list[Any]:
        """Parameters of all parts."""
        return [each for part in self.parts for each in part.parameters()]

    def clear(self) -> None:
        """Before an iteration: no gradients."""
        for each in self.weights:
            each.grad = None

    def micro_batch(self, is_last: bool) -> AbstractContextManager[Any]:
        """What forward and backward of a micro-batch are in where there is no pipeline."""
        return nullcontext()

    @abstractmethod
    def finish(self) -> None:
        """After the last backward: what is left to exchange, and AdamW's update."""

    def moments(self) -> Iterator[tuple[str, Any]]:
        """Tensors of the optimizer's state on this rank, by what AdamW calls them."""
        owner = getattr(self.optimizer, "optim", self.optimizer)
        for state in owner.state.values():
            yield from ((name, local(each)) for name, each in state.items() if self.torch.is_tensor(each))

    def buckets(self) -> int:
        """Bytes of DDP's buckets, in which gradients lie."""
        return 0

    def _adamw(self, weights: Sequence[Any]) -> Any:
        """AdamW in one kernel for all weights, on a CPU as on a GPU."""
        return self.torch.optim.AdamW(weights, lr=LEARNING_RATE, fused=True)

    def _zero_or_adamw(self, weights: Sequence[Any]) -> Any:
        """Stage 1 gives each rank whole parameters to update, which it then broadcasts; stage 0 updates all on each."""
        if self._parameters.zero_stage == 0 or self._parameters.data == 1:
            return self._adamw(weights)
        with warnings.catch_warnings():
            # Its neighbours are compiled by torch.jit, of which newer versions of torch warn.
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch.distributed.optim import ZeroRedundancyOptimizer
        group = self._mesh["dp"].get_group()
        return ZeroRedundancyOptimizer(
            weights, optimizer_class=self.torch.optim.AdamW, process_group=group, lr=LEARNING_RATE, fused=True
        )

    @property
    def _optimizer_words(self) -> str:
        return "AdamW" if self._parameters.zero_stage == 0 or self._parameters.data == 1 else "ZeroRedundancyOptimizer"


class Replicated(DataCut):
    """Stages 0 and 1: DistributedDataParallel, whose gradients lie in its buckets; without it on one rank.

    Weights, gradients and moments are all of the dtype: torch's DDP keeps no float32 master copy of bfloat16.
    """

    def __init__(self, parts: Sequence[Any], parameters: ParallelStepParameters, mesh: Any) -> None:
        super().__init__(parts, parameters, mesh)
        self.optimizer = self._zero_or_adamw(self.weights)
        self.path = self._optimizer_words
        if parameters.data > 1:
            self.calls = [self._ddp(part) for part in parts]
            self.path = f"DistributedDataParallel, {self._optimizer_words}"

    def clear(self) -> None:
        # Zeroed and not dropped: what no_sync adds up is else made anew beside the buckets, and copied there.
        for call in self.calls:
            call.zero_grad(set_to_none=self._parameters.data == 1)

    def micro_batch(self, is_last: bool) -> AbstractContextManager[Any]:
        if is_last or self._parameters.data == 1:
            return nullcontext()
        held: AbstractContextManager[Any] = self.calls[0].no_sync()
        return held

    def finish(self) -> None:
        self.optimizer.step()

    def buckets(self) -> int:
        if self._parameters.data == 1:
            return 0
        told = [call._get_ddp_logging_data() for call in self.calls]
        sizes = [str(each.get("rebuilt_bucket_sizes") or each.get("bucket_sizes") or "0") for each in told]
        return sum(int(size) for words in sizes for size in words.split(","))

    def _ddp(self, part: Any) -> Any:
        ddp = self.torch.nn.parallel.DistributedDataParallel
        names = inspect.signature(ddp).parameters
        # Masks and positions are buffers that no step changes. Older versions of torch have another word for it.
        leave_buffers = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        group = self._mesh["dp"].get_group()
        return ddp(part, process_group=group, gradient_as_bucket_view=True, **{leave_buffers: False})


class ReducedLocally(DataCut):
    """Stages 0 and 1 of parameters that tensor parallelism has cut, which DDP does not take.

    What lies on this rank is averaged with that of the same place in the other data-parallel ranks, in one all_reduce
    after backward, and the optimizer updates the local tensors.
    """

    def __init__(self, parts: Sequence[Any], parameters: ParallelStepParameters, mesh: Any) -> None:
        super().__init__(parts, parameters, mesh)
        parameter = self.torch.nn.Parameter
        # Of the same storage, so that an update is seen by the model.
        self._locals = [parameter(local(each.detach())) for each in self.weights]
        self.optimizer = self._zero_or_adamw(self._locals)
        exchange = "all_reduce of local gradients after backward, " if parameters.data > 1 else ""
        self.path = exchange + self._optimizer_words

    def finish(self) -> None:
        for weight, mine in zip(self.weights, self._locals, strict=True):
            # A weight that all tensor-parallel ranks hold gets a part of its gradient on each.
            weight.grad = weight.grad.redistribute(placements=weight.placements)
            mine.grad = local(weight.grad)
        if self._parameters.data > 1:
            self._average([mine.grad for mine in self._locals])
        self.optimizer.step()
        for mine in self._locals:
            mine.grad = None

    def _average(self, gradients: Sequence[Any]) -> None:
        together = self.torch.cat([each.flatten() for each in gradients]).div_(self._parameters.data)
        self.torch.distributed.all_reduce(together, group=self._mesh["dp"].get_group())
        for gradient, part in zip(gradients, together.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


class Sharded(DataCut):
    """Stages 2 and 3: FSDP2, each block a unit and the rest of a part another.

    Parameters lie in float32 shards, which are the master copy where products are computed in bfloat16; gradients are
    reduced in float32. As in ZeRO's paper gradients never lie whole on a rank: each micro-batch scatters its own, and
    what adds up are shards. Stage 2 keeps the gathered parameters until the last micro-batch is over; stage 3 gathers
    them for each forward and each backward. But in a pipeline torch's own schedules decide: there whole gradients add
    up and are scattered once, and parameters stay gathered from the first backward on.
    """

    def __init__(self, parts: Sequence[Any], parameters: ParallelStepParameters, mesh: Any) -> None:
        super().__init__(parts, parameters, mesh)
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        self._keeps = parameters.zero_stage == SHARDED_FROM_STAGE
        options: Mapping[str, Any] = {"mesh": mesh["dp"], "reshard_after_forward": not self._keeps}
        if parameters.dtype != "float32":
            dtype = getattr(self.torch, parameters.dtype)
            policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=self.torch.float32)
            options = {**options, "mp_policy": policy}
        for part in parts:
            for block in part.blocks.blocks:
                fully_shard(block, **options)
            fully_shard(part, **options)
        self.optimizer = self._adamw(self.weights)
        self.path = f"FSDP2 reshard_after_forward={not self._keeps}, AdamW"

    def micro_batch(self, is_last: bool) -> AbstractContextManager[Any]:
        if self._keeps:
            for part in self.parts:
                part.set_reshard_after_backward(is_last)
        return nullcontext()

    def finish(self) -> None:
        self.optimizer.step()


def cut_by_data(parts: Sequence[Any], parameters: ParallelStepParameters, mesh: Any) -> DataCut:
    """What the stage of ZeRO asks for, of parts that lie on their device."""
    if parameters.zero_stage >= SHARDED_FROM_STAGE:
        return Sharded(parts, parameters, mesh)
    return (Replicated if parameters.tensor == 1 else ReducedLocally)(parts, parameters, mesh)
