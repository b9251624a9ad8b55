"""What each way to train in parallel sends in a step, and whether a measured network is enough for it.

A step's transfers have the S of nccl-tests, so that a measured curve of time over size can be read at them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.laws.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.laws.traffic import bus_factor
from pyperf_suite.laws.training.data_parallel import BACKWARD_SHARE
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
# Exposed communication of more than this share of a step is called network-bound: what a user would act on.
TOLERATED_SHARE = 0.1

# Seconds of one operation, measured; called with operation, S in bytes, ranks.
SecondsOf = Callable[[str, float, int], float]


@dataclass(frozen=True)
class AlphaBetaOverRanks:
    """One operation's law at several numbers of ranks, and between them.

    Between two measured numbers of ranks the time at a size is drawn straight over log n. Beyond them the nearest
    curve is read at the size with as many bytes on the bus, which scales bandwidth and not latency.

    On the published tables of ai-dynamo/aiconfigurator (095f58a5), all GPUs and libraries, the median error is 9 % for
    4 ranks from 2 and 8, and 16 % for 8 from 2 and 4: beyond what was measured this is a first guess.
    """

    operation: str
    curves: Mapping[int, PiecewiseAlphaBeta]

    def seconds(self, size_bytes: ArrayLike, ranks: int) -> NDArray[np.float64]:
        """Predicted seconds of messages of `size_bytes` among that many ranks; 1 rank moves nothing in no time."""
        size = np.asarray(size_bytes, dtype=np.float64)
        if ranks == 1:
            return np.zeros(size.shape)
        known = np.array(sorted(self.curves))
        if not known[0] <= ranks <= known[-1]:
            nearest = int(known[0] if ranks < known[0] else known[-1])
            scale = bus_factor(self.operation, ranks) / bus_factor(self.operation, nearest)
            return self.curves[nearest].seconds(size * scale)
        above = int(known[np.searchsorted(known, ranks)])
        if above == ranks:
            return self.curves[above].seconds(size)
        below = int(known[np.searchsorted(known, ranks) - 1])
        share = np.log(ranks / below) / np.log(above / below)
        return (1 - share) * self.curves[below].seconds(size) + share * self.curves[above].seconds(size)


def seconds_of(laws: Mapping[str, AlphaBetaOverRanks]) -> SecondsOf:
    """The laws of several operations as one function. It raises UserError for an operation that has no law."""

    def seconds(operation: str, size_bytes: float, ranks: int) -> float:
        if operation not in laws:
            known = ", ".join(sorted(laws)) or "nothing"
            raise UserError(f"{operation} was not measured, only {known}: measure it for a verdict that needs it.")
        return float(laws[operation].seconds(size_bytes, ranks))

    return seconds


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

    def seconds(self, seconds_of: SecondsOf) -> float:
        """All calls together; nothing among one rank."""
        return self.calls * float(seconds_of(self.operation, self.size_bytes, self.ranks)) if self.ranks > 1 else 0.0


@dataclass(frozen=True)
class Traffic:
    """Everything that one rank takes part in, in one step, for one kind of parallelism."""

    parallelism: str
    transfers: tuple[StepTransfer, ...]

    @property
    def bus_bytes(self) -> float:
        return sum(transfer.bus_bytes for transfer in self.transfers)

    def seconds(self, seconds_of: SecondsOf) -> float:
        return sum(transfer.seconds(seconds_of) for transfer in self.transfers)


def data_parallel(stage: int, model: ModelDimensions, work: TrainingWorkload, ranks: int) -> Traffic:
    """What data-parallel ranks send by the stage of ZeRO, DDP by stage 0 (`SENT_BY_STAGE`): 2Ψ, (m + 1)Ψ or 3mΨ."""
    transfers = []
    for sent in SENT_BY_STAGE[stage]:
        element_bytes = work.gradient_bytes if sent.what == "gradients" else work.element_bytes
        times, share = (work.micro_batches, 1.0) if sent.each else (1, 1 / work.micro_batches)
        for where, calls, size in _messages(model, element_bytes, stage):
            name = f"{sent.what}{where}, {sent.behind}"
            transfers.append(StepTransfer(name, sent.operation, times * calls, size, ranks, sent.behind, share))
    return Traffic(f"ZeRO-{stage}" if stage else "DDP", tuple(transfers))


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
    return Traffic(
        "TP",
        (
            StepTransfer("activations", "all_reduce", 2 * model.layers * m, size, ranks),
            StepTransfer("gradients of activations", "all_reduce", 2 * model.layers * m, size, ranks),
            StepTransfer("embedding and output", "all_reduce", 2 * m, size, ranks),
            StepTransfer("loss", "all_reduce", 3 * m, per_token, ranks),
        ),
    )


def tensor_and_sequence_parallel(model: ModelDimensions, work: TrainingWorkload, ranks: int) -> Traffic:
    """TP + SP: each all_reduce of TP becomes a reduce_scatter and an all_gather of the same bytes in total.

    Only a share of the sequence is kept between the blocks, so backward gathers each block's input once more, during
    the product that does not need it (Korthikanti et al. 2022, section 4.2.2). The rest as `tensor_parallel`.
    """
    split = [
        replace(transfer, operation=operation)
        for transfer in tensor_parallel(model, work, ranks).transfers
        for operation in (("all_reduce",) if transfer.purpose == "loss" else ("reduce_scatter", "all_gather"))
    ]
    again = 2 * model.layers * work.micro_batches
    size = work.activation_bytes(model.hidden)
    return Traffic("TP+SP", (*split, StepTransfer("inputs of blocks", "all_gather", again, size, ranks, "backward")))


def pipeline_parallel(model: ModelDimensions, work: TrainingWorkload, stages: int) -> Traffic:
    """PP: each micro-batch goes to the next stage, and its gradient to the one before.

    A stage in the middle is counted, which does both (Narayanan et al. 2021, section 2.2). Among more than one
    micro-batch transfers can run during the computation of another.
    """
    if not 1 <= stages <= model.layers:
        raise UserError(f"{model.layers} layers cannot be cut into {stages} stages.")
    if stages == 1:
        return Traffic("PP", ())
    size, calls = work.activation_bytes(model.hidden), work.micro_batches
    sent: tuple[tuple[str, Phase], ...] = (("activations", "forward"), ("gradients of activations", "backward"))
    return Traffic(
        "PP",
        tuple(StepTransfer(what, "send_receive", calls, size, 2, phase if calls > 1 else None) for what, phase in sent),
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
    return Traffic("EP", tuple(StepTransfer(what, "all_to_all", calls, size, ranks) for what in both))


PARALLELISMS: Mapping[str, Callable[[ModelDimensions, TrainingWorkload, int], Traffic]] = {
    "DDP": functools.partial(data_parallel, 0),
    **{f"ZeRO-{stage}": functools.partial(data_parallel, stage) for stage in range(1, LAST_STAGE + 1)},
    "TP": tensor_parallel,
    "TP+SP": tensor_and_sequence_parallel,
    "PP": pipeline_parallel,
    "EP": expert_parallel,
}
"""Each way to train over all ranks; it raises UserError where a model cannot be spread so."""


@dataclass(frozen=True)
class NetworkVerdict:
    """Whether the network is enough for one kind of parallelism at one compute time; all in seconds a step.

    `exposed_s` is what no computation hides: what has to be waited for, and what is longer than what it overlaps.
    """

    parallelism: str
    compute_s: float
    communication_s: float
    exposed_s: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exposed_s

    @property
    def exposed_share(self) -> float:
        return self.exposed_s / self.step_s if self.step_s else 0.0

    @property
    def network_bound(self) -> bool:
        return self.exposed_share > TOLERATED_SHARE


def verdict(traffic: Traffic, compute_s: float, seconds_of: SecondsOf) -> NetworkVerdict:
    """Judge a parallelism by a measured curve, at `compute_s` of computing a step.

    A third of that is taken for the forward pass. The best case: all that can overlap a pass does so from its start
    to its end. Raises UserError for a negative compute time.
    """
    if compute_s < 0:
        raise UserError(f"A step cannot compute for {compute_s} s.")
    passes_s = {"forward": (1 - BACKWARD_SHARE) * compute_s, "backward": BACKWARD_SHARE * compute_s, None: 0.0}
    sent_s: dict[tuple[Phase | None, float], float] = {}
    for each in traffic.transfers:
        during = each.behind, each.share
        sent_s[during] = sent_s.get(during, 0.0) + each.seconds(seconds_of)
    exposed = (exposed_comm_s(sent, share * passes_s[behind]) for (behind, share), sent in sent_s.items())
    return NetworkVerdict(traffic.parallelism, compute_s, traffic.seconds(seconds_of), float(sum(exposed)))


def bound_below_s(sent: Traffic, seconds_of: SecondsOf) -> float:
    """Seconds of computing a step below which that traffic is network-bound; inf where it always is, 0 where never."""
    low, high = 1e-7, 1e7
    if verdict(sent, high, seconds_of).network_bound:
        return math.inf
    if not verdict(sent, low, seconds_of).network_bound:
        return 0.0
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if verdict(sent, middle, seconds_of).network_bound else (low, middle)
    return high
