"""Bytes on a network: the sizes and rates of collectives as nccl-tests counts them, and what training sends.

A step's transfers have the S of nccl-tests, so that a measured curve of time over size can be read at them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.laws.training.data_parallel import BACKWARD_SHARE, SENT_BY_STAGE, Phase, exposed_comm_s
from pyperf_suite.laws.training.memory import LAST_STAGE
from pyperf_suite.laws.transformer import ModelDimensions

GIGA = 1e9


@dataclass(frozen=True)
class Accounting:
    """How one operation is counted.

    `every_rank` says that the size counts the blocks of all ranks, each of `count` elements, rather than one buffer of
    `count`; `factor` is the share of the size that the busiest link carries, as a function of the ranks n.
    """

    every_rank: bool
    factor: Literal["2(n-1)/n", "(n-1)/n", "1"]


# nccl-tests, src/*.cu: the GetCollByteCount and GetBw functions of each operation.
ACCOUNTING = {
    "all_reduce": Accounting(False, "2(n-1)/n"),
    "all_gather": Accounting(True, "(n-1)/n"),
    "reduce_scatter": Accounting(True, "(n-1)/n"),
    "all_to_all": Accounting(True, "(n-1)/n"),
    "gather": Accounting(True, "(n-1)/n"),
    "scatter": Accounting(True, "(n-1)/n"),
    # Ranks exchange unequal parts: the size is the most bytes that any rank sends or receives, given as its count.
    "all_to_all_v": Accounting(False, "(n-1)/n"),
    "broadcast": Accounting(False, "1"),
    "reduce": Accounting(False, "1"),
    "send_receive": Accounting(False, "1"),
}
OPERATIONS = tuple(ACCOUNTING)


def message_bytes(operation: str, count: ArrayLike, element_bytes: ArrayLike, ranks: ArrayLike) -> NDArray[np.int64]:
    """The size S in bytes that nccl-tests reports and divides by the time, of a count of elements as NCCL counts them.

    That is of the whole buffer for all_reduce, broadcast, reduce and send_receive, of one rank's block for the others,
    and for all_to_all_v the most that any rank sends or receives. Raises UserError for another operation, or less than
    one rank.
    """
    buffer = np.asarray(count, dtype=np.int64) * np.asarray(element_bytes, dtype=np.int64)
    blocks = _ranks(ranks).astype(np.int64) if _accounting(operation).every_rank else np.int64(1)
    return np.asarray(buffer * blocks, dtype=np.int64)


def element_count(
    operation: str, size_bytes: ArrayLike, element_bytes: ArrayLike, ranks: ArrayLike
) -> NDArray[np.int64]:
    """The largest count, as NCCL counts elements, whose message is no larger than `size_bytes`: how nccl-tests asks.

    Raises UserError as `message_bytes` does.
    """
    one = message_bytes(operation, 1, element_bytes, ranks)
    return np.asarray(np.asarray(size_bytes, dtype=np.int64) // one, dtype=np.int64)


def bus_factor(operation: str, ranks: ArrayLike) -> NDArray[np.float64]:
    """The ratio busbw / algbw: 2(n−1)/n, (n−1)/n or 1 (nccl-tests, doc/PERFORMANCE.md).

    At n = 1 it is 0 where nothing crosses a link by the formula, and stays 1 for broadcast, reduce and send_receive.
    Raises UserError as `message_bytes` does.
    """
    n = _ranks(ranks)
    crossing = (n - 1) / n
    return {"2(n-1)/n": 2 * crossing, "(n-1)/n": crossing, "1": np.ones_like(n)}[_accounting(operation).factor]


def nvls_wire_rate(algbw_gb_per_s: ArrayLike, ranks: ArrayLike) -> NDArray[np.float64]:
    """GB/s on each GPU's links where the switch reduces (NVLS all_reduce): algbw·(n+1)/n.

    Each GPU sends its whole buffer S for the switch to add up, and its 1/n of the sum for the switch to spread. This
    rate is flat over n where busbw climbs with n, and can exceed what the links carry. Raises UserError as above.
    """
    n = _ranks(ranks)
    return np.asarray(algbw_gb_per_s, dtype=np.float64) * (n + 1) / n


def inter_node_rate(busbw_gb_per_s: ArrayLike, ranks: ArrayLike, nodes: ArrayLike) -> NDArray[np.float64]:
    """GB/s that each accelerator's share of its node's network has to carry over k nodes: busbw·(k−1)/(n−1).

    Of an all_reduce 2(k−1)/k of S leaves each node whatever the algorithm, by way of n/k accelerators. 0 on one node.
    Raises UserError where there are less than one node or more nodes than ranks.
    """
    n, k = _ranks(ranks), np.asarray(nodes, dtype=np.float64)
    if np.any(k < 1) or np.any(k > n):
        raise UserError(f"{np.max(n):g} ranks were said to live on {np.max(k):g} nodes: give 1 node up to one a rank.")
    return np.asarray(busbw_gb_per_s, dtype=np.float64) * (k - 1) / np.maximum(n - 1, 1)


def _accounting(operation: str) -> Accounting:
    if operation not in ACCOUNTING:
        raise UserError(f"Unknown collective {operation!r}: choose from {', '.join(OPERATIONS)}.")
    return ACCOUNTING[operation]


def _ranks(ranks: ArrayLike) -> NDArray[np.float64]:
    n = np.asarray(ranks, dtype=np.float64)
    if np.any(n < 1):
        raise UserError(f"A collective needs at least 1 rank, but {np.min(n):g} were given.")
    return n


# Gradients are sent in buckets: bucket_cap_mb of torch's DistributedDataParallel, in MiB.
BUCKET_BYTES = 25 * 2**20
# Exposed communication of more than this share of a step is called network-bound: what a user would act on.
TOLERATED_SHARE = 0.1

# Seconds of one operation: measured, as in AlphaBetaOverRanks.seconds. Called with operation, S in bytes, ranks.
SecondsOf = Callable[[str, float, int], float]


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
