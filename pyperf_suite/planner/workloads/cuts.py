"""Cuts of a GPT over ranks by torch's own engine: into stages of a pipeline, by heads and columns, and by ZeRO.

Imported where a case is prepared and nowhere else, for its classes are torch's.
"""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from pyperf_suite.planner.workloads.parallel_layout import DEEPSPEED, SHARDED_FROM_STAGE, ParallelStepParameters
from pyperf_suite.workloads.on_ranks import average, distributed
from pyperf_suite.workloads.training.held_bytes import bytes_of

LEARNING_RATE = 1e-4
# Prefix of attention's first matrix, of queries, keys and values.
FUSED = "attention.qkv."

_BLOCK = re.compile(r"(?<=^blocks\.blocks\.)\d+")


def stages_of(parameters: ParallelStepParameters, pipeline_rank: int) -> list[int]:
    """Numbers of the stages that a rank of the pipeline holds: every pipeline-th from its own."""
    return [pipeline_rank + chunk * parameters.pipeline for chunk in range(parameters.chunks)]


class ModelPart(nn.Module):
    """A stage of the GPT: blocks `first` to `last` - 1, whose modules it takes over; `layers` is how many the GPT has.

    The embeddings are before the first block and the loss is behind the last. Called with tokens[batch, seq], or what
    the part before returned, and with targets[batch, seq] where it is the last. It returns x[batch, seq, hidden] or the
    mean loss in nats as [1]. Under tensor parallelism x is this rank's share of the sequence, and the logits are cut by
    vocabulary.
    """

    def __init__(self, model: Any, first: int, last: int, layers: int) -> None:
        super().__init__()
        self.first = first
        self.tokens = model.tokens if first == 0 else None
        self.positions = model.positions if first == 0 else None
        self.blocks = model.blocks
        model.blocks.blocks = model.blocks.blocks[first:last]
        self.norm = model.norm if last == layers else None
        self.logits = model.logits if last == layers else None
        self.register_buffer("places", model.get_buffer("places"), persistent=False)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        if self.tokens is not None and self.positions is not None:
            x = self.tokens(x) + self.positions(self.get_buffer("places")[: x.shape[1]])
        x = self.blocks(x)
        if self.norm is None or self.logits is None:
            return x
        assert targets is not None
        logits = self.logits(self.norm(x)).flatten(0, 1).float()
        loss = functional.cross_entropy(logits, targets.flatten())
        # No view of the loss: FSDP warns of views, and pipelining joins micro-batches' losses along an axis.
        return torch.stack((loss.to_local() if isinstance(loss, DTensor) else loss,))

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, weight in self.named_parameters():
            yield _BLOCK.sub(lambda number: str(int(number[0]) + self.first), name), weight


class Pipeline:
    """One rank's stages by torch's own schedules, 1F1B or interleaved, called for a whole iteration at once."""

    def __init__(self, calls: Sequence[Any], parameters: ParallelStepParameters, mesh: Any, where: str) -> None:
        """`calls` are this rank's parts as data parallelism has wrapped them, in order of their stages."""
        pipelining: Any = importlib.import_module("torch.distributed.pipelining")
        p, group = parameters, mesh["pp"].get_group()
        numbers = stages_of(p, mesh["pp"].get_local_rank())
        count = p.pipeline * p.chunks
        self.is_first, self.is_last = 0 in numbers, count - 1 in numbers
        stages = [
            pipelining.PipelineStage(call, number, count, torch.device(where), *_shapes(p, number, count), group=group)
            for call, number in zip(calls, numbers, strict=True)
        ]
        # The loss is the last part's result: of logits that were returned, the schedule would keep every micro-batch's.
        options = {"loss_fn": lambda loss, _targets: loss.sum() / p.micro_batches, "scale_grads": False}
        if p.chunks == 1:
            self._schedule: Any = pipelining.Schedule1F1B(stages[0], p.micro_batches, **options)
        else:
            self._schedule = pipelining.ScheduleInterleaved1F1B(stages, p.micro_batches, **options)
        names = inspect.signature(self._schedule.step).parameters
        self._leave_out = {"return_outputs": False} if "return_outputs" in names else {}

    def run(self, tokens: Tensor, targets: Tensor) -> None:
        inputs = (tokens,) if self.is_first else ()
        wanted = {"target": targets, "targets": targets} if self.is_last else {}
        self._schedule.step(*inputs, **wanted, **self._leave_out)


def _shapes(p: ParallelStepParameters, number: int, count: int) -> tuple[Any, Any]:
    tokens = torch.empty(p.batch, p.seq, dtype=torch.int64, device="meta")
    # A tensor that needs a gradient is sent one back.
    between: Any = {"device": "meta", "requires_grad": True}
    x = torch.empty(p.batch, p.seq // p.tensor, p.hidden, dtype=getattr(torch, p.dtype), **between)
    loss = torch.empty(1, dtype=torch.float32, **between)
    return (tokens if number == 0 else x,), (loss if number == count - 1 else x,)


def cut_by_tensor(part: ModelPart, parameters: ParallelStepParameters, mesh: Any) -> None:
    """Turn the parameters of a part into DTensors over `mesh`, in place: tensor with sequence parallelism.

    Between blocks each rank holds its share of the sequence; it is gathered before attention and MLP, whose matrices
    are cut by heads and by columns, and summed and scattered behind them (Korthikanti et al. 2022, section 4.2.2).
    Norms lie whole on each rank, and so do the biases of attention's and the MLP's second matrix.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    def gathered() -> Any:
        return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))

    in_block = {
        "attention_norm": SequenceParallel(),
        "attention": gathered(),
        "attention.qkv": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "mlp_norm": SequenceParallel(),
        "mlp": gathered(),
        **({"mlp.gate": ColwiseParallel()} if parameters.gated else {}),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    order = rows_by_rank(parameters)
    for block in part.blocks.blocks:
        attention = block.attention
        with torch.no_grad():
            for each in attention.qkv.parameters():
                each.copy_(each[order.to(each.device)])
        attention.split = tuple(size // parameters.tensor for size in attention.split)
        parallelize_module(block, mesh, in_block)
    if part.tokens is not None:
        # Rows of both tables are cut; what a rank finds in its own is summed and scattered along the sequence.
        tables: dict[str, Any] = {
            "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        }
        parallelize_module(part, mesh, tables)
    if part.logits is not None:
        logits = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(part, mesh, {"norm": SequenceParallel(), "logits": logits})
        if parameters.tied and part.tokens is not None:
            part.logits.weight = part.tokens.weight


def rows_by_rank(parameters: ParallelStepParameters) -> Tensor:
    """The order of the rows of attention's first matrix in which each rank's queries, keys and values are one piece."""
    head = parameters.hidden // parameters.heads
    rows = torch.arange((parameters.heads + 2 * parameters.key_value_heads) * head)
    kinds = rows.split([count * head for count in (parameters.heads, *[parameters.key_value_heads] * 2)])
    by_rank = zip(*(kind.chunk(parameters.tensor) for kind in kinds), strict=True)
    return torch.cat([piece for pieces in by_rank for piece in pieces])


def loss_cut_by_vocabulary(parameters: ParallelStepParameters) -> AbstractContextManager[Any]:
    """Context of forward and backward in which logits cut by vocabulary are not gathered for their loss."""
    if parameters.tensor == 1:
        return nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel

    return loss_parallel()


def local(tensor: Any) -> Any:
    """The part of a DTensor on this rank; a plain tensor is its own."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class DataCut:
    """The parts of this rank as they are called, and what data-parallel ranks do with gradients and updates."""

    path: str
    optimizer: Any

    def __init__(self, parts: Sequence[ModelPart], parameters: ParallelStepParameters, mesh: Any) -> None:
        self.parts, self._parameters, self._group = parts, parameters, mesh["dp"].get_group()
        self._is_alone = parameters.data == 1
        self.calls: list[Any] = list(parts)

    @property
    def weights(self) -> list[Any]:
        return [each for part in self.parts for each in part.parameters()]

    def clear(self) -> None:
        """Before an iteration: no gradients."""
        for each in self.weights:
            each.grad = None

    def micro_batch(self, is_last: bool) -> AbstractContextManager[Any]:
        """Context of forward and backward of a micro-batch where there is no pipeline."""
        return nullcontext()

    def finish(self) -> None:
        """Exchange the rest after the last backward, and run AdamW's update."""
        self.optimizer.step()

    def backward(self, loss: Any, micro_batches: int) -> None:
        """Run backward of one micro-batch's share of the mean."""
        (loss / micro_batches).backward()

    def seeded(self) -> list[Any]:
        """Copies of what lies on this rank of the weights, which `restore` takes."""
        return [local(each.detach()).cpu().clone() for each in self.weights]

    def restore(self, seeded: Sequence[Any]) -> None:
        for weight, kept in zip(self.weights, seeded, strict=True):
            local(weight).copy_(kept)

    # True if gradients are gone after an iteration, and `watch` has to keep those of one.
    is_watched = False

    def watch(self, step: Callable[[], None]) -> None:
        step()

    def gradient(self, weight: Any) -> Any:
        return weight.grad

    def moments(self) -> Iterator[tuple[str, Any]]:
        owner = getattr(self.optimizer, "optim", self.optimizer)
        for state in owner.state.values():
            yield from ((name, local(each)) for name, each in state.items() if torch.is_tensor(each))

    def allocated(self) -> dict[str, int]:
        """Bytes on this rank after an iteration; each storage counts once and whole, padding included."""
        return {
            "parameter_bytes": bytes_of(self.weights),
            "gradient_bytes": bytes_of([each.grad for each in self.weights]),
            "optimizer_bytes": bytes_of([each for name, each in self.moments() if name != "step"]),
        }

    def _update(self, weights: Sequence[Any]) -> str:
        """Take the optimizer of these weights, in one kernel for all on a CPU as on a GPU; its name.

        Stage 1 gives each rank whole parameters to update, which it then broadcasts; else each updates all it has.
        """
        if self._parameters.zero_stage != 1 or self._is_alone:
            self.optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE, fused=True)
            return "AdamW"
        with warnings.catch_warnings():
            # Its neighbours are compiled by torch.jit, of which newer versions of torch warn.
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch.distributed.optim import ZeroRedundancyOptimizer
        adamw, group = torch.optim.AdamW, self._group
        self.optimizer = ZeroRedundancyOptimizer(
            weights, optimizer_class=adamw, process_group=group, lr=LEARNING_RATE, fused=True
        )
        return "ZeroRedundancyOptimizer"


class Replicated(DataCut):
    """Stages 0 and 1: DistributedDataParallel, whose gradients lie in its buckets; without it on one rank.

    Weights, gradients and moments are all of the dtype: torch's DDP keeps no float32 master copy of bfloat16.
    """

    def __init__(self, parts: Sequence[ModelPart], parameters: ParallelStepParameters, mesh: Any) -> None:
        super().__init__(parts, parameters, mesh)
        self.path = self._update(self.weights)
        if not self._is_alone:
            self.calls = [distributed(part, self._group, gradient_as_bucket_view=True) for part in parts]
            self.path = f"DistributedDataParallel, {self.path}"

    def clear(self) -> None:
        # Zeroed and not dropped: what no_sync adds up is else made anew outside the buckets, and copied there.
        for call in self.calls:
            call.zero_grad(set_to_none=self._is_alone)

    def micro_batch(self, is_last: bool) -> AbstractContextManager[Any]:
        if is_last or self._is_alone:
            return nullcontext()
        held: AbstractContextManager[Any] = self.calls[0].no_sync()
        return held


class ReducedLocally(DataCut):
    """Stages 0 and 1 of parameters that tensor parallelism has cut, which DDP does not take.

    What lies on this rank is averaged with that of the same place in the other data-parallel ranks, in one all_reduce
    after backward, and the optimizer updates the local tensors.
    """

    def __init__(self, parts: Sequence[ModelPart], parameters: ParallelStepParameters, mesh: Any) -> None:
        super().__init__(parts, parameters, mesh)
        # Parameters of the same storage, so that an update is seen by the model.
        self._locals = [nn.Parameter(local(each.detach())) for each in self.weights]
        self.path = self._update(self._locals)
        if not self._is_alone:
            self.path = f"all_reduce of local gradients after backward, {self.path}"

    def finish(self) -> None:
        for weight, mine in zip(self.weights, self._locals, strict=True):
            # A weight that all tensor-parallel ranks hold gets a part of its gradient on each.
            weight.grad = weight.grad.redistribute(placements=weight.placements)
            mine.grad = local(weight.grad)
        if not self._is_alone:
            average([mine.grad for mine in self._locals], self._parameters.data, self._group)
        self.optimizer.step()
        for mine in self._locals:
            mine.grad = None


class Sharded(DataCut):
    """Stages 2 and 3: FSDP2, each block a unit and the rest of a part another.

    Parameters lie in float32 shards, which are the master copy where products are computed in bfloat16; gradients are
    reduced in float32. As in ZeRO's paper gradients never lie whole on a rank: each micro-batch scatters its own, and
    what adds up are shards. Stage 2 keeps the gathered parameters until the last micro-batch is over; stage 3 gathers
    them for each forward and each backward. But in a pipeline torch's own schedules decide: there whole gradients add
    up and are scattered once, and parameters stay gathered from the first backward on.
    """

    def __init__(self, parts: Sequence[ModelPart], parameters: ParallelStepParameters, mesh: Any) -> None:
        super().__init__(parts, parameters, mesh)
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

        self._keeps = parameters.zero_stage <= SHARDED_FROM_STAGE
        options: dict[str, Any] = {"mesh": mesh["dp"], "reshard_after_forward": not self._keeps}
        if parameters.dtype != "float32":
            dtype = getattr(torch, parameters.dtype)
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        offload = parameters.offload != "none"
        if offload:
            # Only memory that a GPU copies from can be pinned.
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
        for part in parts:
            for block in part.blocks.blocks:
                fully_shard(block, **options)
            fully_shard(part, **options)
        policy = ", CPUOffloadPolicy" if offload else ""
        self.path = f"FSDP2 reshard_after_forward={not self._keeps}{policy}, {self._update(self.weights)}"

    def micro_batch(self, is_last: bool) -> AbstractContextManager[Any]:
        if self._keeps:
            for part in self.calls:
                part.set_reshard_after_backward(is_last)
        return nullcontext()


class ByDeepSpeed(DataCut):
    """DeepSpeed's engine with torch's AdamW: its ZeRO 0 to 3, and offload of states, with stage 3 of parameters too.

    What it holds is not counted by parts. Nothing of it is compiled on a CPU, where its own operators would be first.
    """

    is_watched = True

    def __init__(self, parts: Sequence[ModelPart], parameters: ParallelStepParameters, mesh: Any) -> None:
        super().__init__(parts, parameters, mesh)
        deepspeed: Any = importlib.import_module("deepspeed")
        self._deepspeed, self._utils = deepspeed, importlib.import_module("deepspeed.utils")
        p = parameters
        if not torch.cuda.is_available():
            deepspeed.ops.__compatible_ops__.update(dict.fromkeys(deepspeed.ops.__compatible_ops__, False))
        self._copies = [each.detach().cpu().clone() for each in self.weights]
        self._stage, self._gradients, self._is_watching = p.zero_stage, dict[int, Any](), False
        # Else stage 3 puts a linear function of its own into torch, for what gradients are compared with as well.
        zero: dict[str, Any] = {"stage": p.zero_stage, "memory_efficient_linear": False}
        if p.offload != "none":
            zero["offload_optimizer"] = {"device": p.offload}
            zero |= {"offload_param": {"device": p.offload}} if p.zero_stage > SHARDED_FROM_STAGE else {}
        config = {
            "train_micro_batch_size_per_gpu": p.batch,
            "gradient_accumulation_steps": p.micro_batches,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "bf16": {"enabled": p.dtype == "bfloat16"},
            "zero_optimization": zero,
        }
        self.optimizer = torch.optim.AdamW(self.weights, lr=LEARNING_RATE)
        made = deepspeed.initialize(model=parts[0], optimizer=self.optimizer, config=config, dist_init_required=False)
        self._engine: Any = made[0]
        self.calls = [self._engine]
        offload = f", offload to the {p.offload}" if p.offload != "none" else ""
        self.path = f"DeepSpeed {deepspeed.__version__} ZeRO {p.zero_stage}{offload}, AdamW"

    def clear(self) -> None:
        """The engine does it behind each update."""

    @contextmanager
    def micro_batch(self, is_last: bool) -> Iterator[None]:
        yield
        if is_last and self._is_watching:
            full = self._utils.safe_get_full_grad
            self._gradients = {id(each): (full(each) if self._stage else each.grad).clone() for each in self.weights}
        self._engine.step()

    def backward(self, loss: Any, micro_batches: int) -> None:
        self._engine.backward(loss)  # which divides by the micro-batches

    def finish(self) -> None:
        """The engine has updated behind the last micro-batch."""

    def seeded(self) -> list[Any]:
        return self._copies

    def restore(self, seeded: Sequence[Any]) -> None:
        for weight, kept in zip(self.weights, seeded, strict=True):
            with self._deepspeed.zero.GatheredParameters(
                [weight], modifier_rank=0, enabled=self._stage > SHARDED_FROM_STAGE
            ):
                weight.data.copy_(kept)
            if self._stage:
                self._utils.safe_set_full_fp32_param(weight, kept.to(weight.device, torch.float32))

    def watch(self, step: Callable[[], None]) -> None:
        self._is_watching = True
        try:
            step()
        finally:
            self._is_watching = False

    def gradient(self, weight: Any) -> Any:
        return self._gradients[id(weight)]

    def allocated(self) -> dict[str, int]:
        return {}


def cut_by_data(parts: Sequence[ModelPart], parameters: ParallelStepParameters, mesh: Any) -> DataCut:
    """Wrap parts that lie on their device as the stage of ZeRO asks."""
    if parameters.engine == DEEPSPEED:
        return ByDeepSpeed(parts, parameters, mesh)
    if parameters.is_sharded:
        return Sharded(parts, parameters, mesh)
    return (Replicated if parameters.tensor == 1 else ReducedLocally)(parts, parameters, mesh)
