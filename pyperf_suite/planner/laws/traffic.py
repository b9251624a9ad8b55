"""Messages of a step for each way to train in parallel, of the S of nccl-tests, as curves of time over size have it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.laws.traffic import bus_factor
from pyperf_suite.laws.training.memory import LAST_STAGE
from pyperf_suite.laws.transformer import ModelDimensions

Phase = Literal["forward", "backward"]
Kind = Literal["gradients", "parameters"]


@dataclass(frozen=True)
class Sending:
    """What data-parallel ranks send during a pass: in `each` micro-batch, or once in its last or first one."""

    what: Kind
    operation: str
    behind: Phase
    each: bool = False


# By the stage of ZeRO (Rajbhandari et al. 2020, section 7; 0 is DDP), in the order in which they share a pass: without
# parameters nothing is computed, so gradients have what is left of it. From stage 2 on no rank has room to add whole
# gradients up, so each micro-batch scatters its own; stage 3 gathers parameters for every pass (as FSDP does).
SENT_BY_STAGE = (
    (Sending("gradients", "all_reduce", "backward"),),
    (Sending("gradients", "reduce_scatter", "backward"), Sending("parameters", "all_gather", "forward")),
    (Sending("gradients", "reduce_scatter", "backward", True), Sending("parameters", "all_gather", "forward")),
    (
        Sending("parameters", "all_gather", "forward", True),
        Sending("parameters", "all_gather", "backward", True),
        Sending("gradients", "reduce_scatter", "backward", True),
    ),
)


def exposed_comm_s(sent_s: Any, during_s: Any) -> Any:
    """Seconds of an exchange that are longer than the computation beside it."""
    return np.maximum(0.0, np.asarray(sent_s) - during_s)


# Gradients are sent in buckets: bucket_cap_mb of torch's DistributedDataParallel, in MiB.
BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True)
class TrainingWorkload:
    """What one data-parallel replica does in a step: `micro_batches` times `micro_batch` sequences of `seq` tokens.

    `element_bytes` is of parameters and activations, `gradient_bytes` of one element of a gradient as it is sent.
    Raises UserError where one of them is less than 1.
    """

    seq: int
    micro_batch: int = 1
    micro_batches: int = 1
    element_bytes: int = 2
    gradient_bytes: int = 2

    def __post_init__(self) -> None:
        if min(self.seq, self.micro_batch, self.micro_batches, self.element_bytes, self.gradient_bytes) < 1:
            raise UserError(f"A step needs sizes of at least 1 throughout, but {self} was requested.")

    def activation_bytes(self, hidden: int) -> int:
        return self.micro_batch * self.seq * hidden * self.element_bytes


@dataclass(frozen=True)
class StepTransfer:
    """One kind of collective in a step: `calls` of it, each of `size_bytes` (S) among `ranks`.

    `behind` is the computation that it can overlap, None where the computation has to wait for it; `share` says how
    much of that of a step: what is sent once has one micro-batch's pass.
    """

    purpose: str
    operation: str
    calls: int
    size_bytes: float
    ranks: int
    behind: Phase | None = None
    share: float = 1.0

    @property
    def bus_bytes(self) -> float:
        return self.calls * self.size_bytes * float(bus_factor(self.operation, self.ranks))


# What one rank takes part in in a step, for one kind of parallelism.
Traffic = tuple[StepTransfer, ...]


def data_parallel(stage: int, model: ModelDimensions, work: TrainingWorkload, ranks: int) -> Traffic:
    """What data-parallel ranks send by the stage of ZeRO, DDP by stage 0 (`SENT_BY_STAGE`): 2Ψ, (m + 1)Ψ or 3mΨ."""
    transfers = []
    for sent in SENT_BY_STAGE[stage]:
        element_bytes = work.gradient_bytes if sent.what == "gradients" else work.element_bytes
        times, share = (work.micro_batches, 1.0) if sent.each else (1, 1 / work.micro_batches)
        for where, calls, size in _messages(model, element_bytes, stage):
            name = f"{sent.what}{where}, {sent.behind}"
            transfers.append(StepTransfer(name, sent.operation, times * calls, size, ranks, sent.behind, share))
    return tuple(transfers)


def _messages(model: ModelDimensions, element_bytes: int, stage: int) -> list[tuple[str, int, float]]:
    """Of what, calls and bytes of each: buckets, or by stage 3 each layer and what stands outside of them."""
    if stage < LAST_STAGE:
        total_bytes = model.parameters * element_bytes
        calls = -(-total_bytes // BUCKET_BYTES)
        return [("", calls, total_bytes / calls)]
    units = (
        (" of layers", model.layers - model.dense_layers, model.layer_parameters),
        (" of dense layers", model.dense_layers, model.dense_layer_parameters),
        (" of embeddings", 1, model.outer_parameters),
    )
    return [(name, calls, parameters * element_bytes) for name, calls, parameters in units if calls]


def tensor_parallel(model: ModelDimensions, work: TrainingWorkload, ranks: int) -> Traffic:
    """TP: per layer and micro-batch two all_reduces of the activations forward and two backward, none of them hidden.

    The embedding sums up once forward, the output matrix once backward; the loss three numbers a token (Shoeybi et al.
    2019, Megatron-LM, section 3).
    """
    for name in ("heads", "ffn"):
        if getattr(model, name) % ranks:
            raise UserError(f"TP over {ranks} ranks cannot divide {name} = {getattr(model, name)} evenly.")
    size, m = work.activation_bytes(model.hidden), work.micro_batches
    per_token = work.micro_batch * work.seq * 4
    return (
        StepTransfer("activations", "all_reduce", 2 * model.layers * m, size, ranks),
        StepTransfer("gradients of activations", "all_reduce", 2 * model.layers * m, size, ranks),
        StepTransfer("embedding and output", "all_reduce", 2 * m, size, ranks),
        StepTransfer("loss", "all_reduce", 3 * m, per_token, ranks),
    )


def tensor_and_sequence_parallel(model: ModelDimensions, work: TrainingWorkload, ranks: int) -> Traffic:
    """TP + SP: each all_reduce of TP becomes a reduce_scatter and an all_gather of the same bytes in total.

    Only a share of the sequence is kept between the blocks, so backward gathers each block's input once more, during
    the product that does not need it (Korthikanti et al. 2022, section 4.2.2). The rest as `tensor_parallel`.
    """
    split = [
        replace(transfer, operation=operation)
        for transfer in tensor_parallel(model, work, ranks)
        for operation in (("all_reduce",) if transfer.purpose == "loss" else ("reduce_scatter", "all_gather"))
    ]
    again = 2 * model.layers * work.micro_batches
    size = work.activation_bytes(model.hidden)
    return (*split, StepTransfer("inputs of blocks", "all_gather", again, size, ranks, "backward"))


def pipeline_parallel(model: ModelDimensions, work: TrainingWorkload, stages: int) -> Traffic:
    """PP: each micro-batch goes to the next stage, and its gradient to the one before.

    A stage in the middle is counted, which does both (Narayanan et al. 2021, section 2.2). Among more than one
    micro-batch transfers can run during the computation of another.
    """
    if not 1 <= stages <= model.layers:
        raise UserError(f"{model.layers} layers cannot be cut into {stages} stages.")
    if stages == 1:
        return ()
    size, calls = work.activation_bytes(model.hidden), work.micro_batches
    sent: tuple[tuple[str, Phase], ...] = (("activations", "forward"), ("gradients of activations", "backward"))
    return tuple(
        StepTransfer(what, "send_receive", calls, size, 2, phase if calls > 1 else None) for what, phase in sent
    )


def expert_parallel(model: ModelDimensions, work: TrainingWorkload, ranks: int) -> Traffic:
    """EP: per layer and micro-batch tokens are sent to their experts and back, forward and backward: four all_to_alls.

    S is a rank's tokens × top_k × hidden, for routing that is even (Lepikhin et al. 2020, GShard; Rajbhandari et al.
    2022, DeepSpeed-MoE, section 5). Raises UserError where the experts cannot be spread evenly.
    """
    if model.experts % ranks:
        raise UserError(f"{model.experts} experts cannot be spread over {ranks} ranks evenly.")
    size = work.activation_bytes(model.hidden) * model.top_k
    calls = 2 * model.sparse_layers * work.micro_batches
    both = ("tokens to experts and back", "their gradients")
    return tuple(StepTransfer(what, "all_to_all", calls, size, ranks) for what in both)


PARALLELISMS: Mapping[str, Callable[[ModelDimensions, TrainingWorkload, int], Traffic]] = {
    "DDP": functools.partial(data_parallel, 0),
    **{f"ZeRO-{stage}": functools.partial(data_parallel, stage) for stage in range(1, LAST_STAGE + 1)},
    "TP": tensor_parallel,
    "TP+SP": tensor_and_sequence_parallel,
    "PP": pipeline_parallel,
    "EP": expert_parallel,
}
"""Each way to train over all ranks; it raises UserError where a model cannot be spread so."""
