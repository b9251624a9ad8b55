"""Messages of a step for each way to train in parallel, of the S of nccl-tests, as curves of time over size have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
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
    """A message of data-parallel ranks in a pass: in each micro-batch if `repeats`, else in its last or first one."""

    kind: Kind
    operation: str
    behind: Phase
    repeats: bool = False


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


BUCKET_BYTES = 25 * 2**20  # gradients are sent in buckets: bucket_cap_mb of torch's DistributedDataParallel, in MiB
# Bytes of an element of parameters, gradients and activations, and of a token's loss.
ELEMENT_BYTES, LOSS_BYTES = 2, 4


@dataclass(frozen=True)
class StepTransfer:
    """`calls` of one collective in a step, each of `size_bytes` (S) among `ranks`.

    `behind` is the computation that it can overlap, None where the computation has to wait for it.
    """

    operation: str
    calls: int
    size_bytes: float
    ranks: int
    behind: Phase | None = None

    @property
    def bus_bytes(self) -> float:
        return self.calls * self.size_bytes * float(bus_factor(self.operation, self.ranks))


Traffic = tuple[StepTransfer, ...]  # collectives that one rank takes part in during a step, for one kind of parallelism


def data_parallel(stage: int, model: ModelDimensions, tokens: int, ranks: int) -> Traffic:
    """Traffic of data-parallel ranks by ZeRO stage (0: DDP): 2Ψ or 3Ψ (`SENT_BY_STAGE`), in buckets or by layer."""
    del tokens
    total_bytes = model.parameters * ELEMENT_BYTES
    buckets = -(-total_bytes // BUCKET_BYTES)
    messages: tuple[tuple[int, float], ...] = ((buckets, total_bytes / buckets),)
    if stage == LAST_STAGE:
        messages = (
            (model.layers - model.dense_layers, model.layer_parameters * ELEMENT_BYTES),
            (model.dense_layers, model.dense_layer_parameters * ELEMENT_BYTES),
            (1, model.outer_parameters * ELEMENT_BYTES),
        )
    return tuple(
        StepTransfer(sent.operation, calls, size, ranks, sent.behind)
        for sent in SENT_BY_STAGE[stage]
        for calls, size in messages
        if calls
    )


def tensor_parallel(cuts_sequence: bool, model: ModelDimensions, tokens: int, ranks: int) -> Traffic:
    """TP: per layer two all_reduces of the activations forward and two backward, none of them hidden.

    The embedding sums up once forward, the output matrix once backward; the loss three numbers a token (Shoeybi et al.
    2019, Megatron-LM, section 3). With SP each becomes a reduce_scatter and an all_gather of the same bytes in total,
    and backward gathers each block's input once more, during the product that does not need it (Korthikanti et al.
    2022, section 4.2.2). Raises UserError for dimensions that the ranks cannot divide.
    """
    for name in ("heads", "ffn"):
        if getattr(model, name) % ranks:
            raise UserError(f"TP over {ranks} ranks cannot divide {name} = {getattr(model, name)} evenly.")
    size, operations = tokens * model.hidden * ELEMENT_BYTES, ["all_reduce"]
    again: Traffic = ()
    if cuts_sequence:
        operations = ["reduce_scatter", "all_gather"]
        again = (StepTransfer("all_gather", 2 * model.layers, size, ranks, "backward"),)
    sums = (StepTransfer(operation, 4 * model.layers + 2, size, ranks) for operation in operations)
    return (*sums, StepTransfer("all_reduce", 3, tokens * LOSS_BYTES, ranks), *again)


def pipeline_parallel(model: ModelDimensions, tokens: int, stages: int) -> Traffic:
    """PP: a middle stage sends activations on and gradients back. Raises UserError for more stages than layers."""
    if stages > model.layers:
        raise UserError(f"{model.layers} layers cannot be cut into {stages} stages.")
    return (StepTransfer("send_receive", 2, tokens * model.hidden * ELEMENT_BYTES, 2),)


def expert_parallel(model: ModelDimensions, tokens: int, ranks: int) -> Traffic:
    """EP: per layer tokens are sent to their experts and back, forward and backward: four all_to_alls.

    S is a rank's tokens × top_k × hidden, for routing that is even (Lepikhin et al. 2020, GShard; Rajbhandari et al.
    2022, DeepSpeed-MoE, section 5). Raises UserError where the experts cannot be spread evenly.
    """
    if model.experts % ranks:
        raise UserError(f"{model.experts} experts cannot be spread over {ranks} ranks evenly.")
    size = tokens * model.top_k * model.hidden * ELEMENT_BYTES
    return (StepTransfer("all_to_all", 4 * model.sparse_layers, size, ranks),)


PARALLELISMS: Mapping[str, Callable[[ModelDimensions, int, int], Traffic]] = {
    "DDP": partial(data_parallel, 0),
    **{f"ZeRO-{stage}": partial(data_parallel, stage) for stage in range(1, LAST_STAGE + 1)},
    "TP": partial(tensor_parallel, False),
    "TP+SP": partial(tensor_parallel, True),
    "PP": pipeline_parallel,
    "EP": expert_parallel,
}
"""Each way to train over all ranks, two at least; it raises UserError where a model cannot be spread so."""
