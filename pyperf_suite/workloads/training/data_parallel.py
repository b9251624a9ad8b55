"""A training step on several ranks that average their gradients: DDP with its options, and what stands beside it.

Every rank trains the same transformer on a batch of its own; the weights stay as they are, so each step is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.laws.training.activations import Keeping, kept_bytes
from pyperf_suite.workloads.collective import direct_copies
from pyperf_suite.workloads.collective.torch_group import process_group
from pyperf_suite.workloads.training import on_ranks
from pyperf_suite.workloads.training.on_ranks import DTYPES, MOST_RANKS
from pyperf_suite.workloads.training.replica import GpuReplica, Replica
from pyperf_suite.workloads.training.shape import TransformerShape
from pyperf_suite.workloads.workload import Implementation, Place, Transfers, Work, Workload

# "ddp" exchanges buckets while backward goes on; "after" all gradients at once when it is over; "none" not at all, so
# that its time is what the others add to; "dp" is torch's DataParallel, one process whose threads drive all GPUs.
EXCHANGES = ("ddp", "after", "none", "dp")
# torch's own default.
BUCKET_BYTES = 25 * 2**20
MOST_MICRO_BATCHES = 1 << 10


@dataclass(frozen=True)
class DataParallelParameters(TransformerShape):
    """A transformer on `ranks` ranks, each with `accumulate` micro-batches of `batch` sequences a step.

    `bucket_bytes` is DDP's bucket_cap_mb. With `no_sync` gradients are exchanged in the last micro-batch alone, without
    in each. `peer_to_peer` False has NCCL go without direct copies between GPUs (NCCL_P2P_DISABLE).
    """

    ranks: int = 2
    exchange: str = "ddp"
    bucket_bytes: int = BUCKET_BYTES
    accumulate: int = 1
    no_sync: bool = True
    static_graph: bool = False
    peer_to_peer: bool = True
    dtype: str = "float32"

    @property
    def gradient_bytes(self) -> int:
        """Of one rank's gradients."""
        counted = self.dimensions.parameters
        # The laws' model always has an embedding and a last norm: a stack of blocks has neither.
        return DTYPES[self.dtype] * (counted if self.vocab else counted - self.dimensions.outer_parameters)

    @property
    def footprint_bytes(self) -> int:
        """Of one rank: weights, gradients and the single process's to compare them with, and what forward keeps."""
        width = DTYPES[self.dtype]
        kind, every = self.checkpointing.kind, self.checkpointing.every
        keeping = Keeping(width, width, checkpointing=kind, every=every, ends=bool(self.vocab))
        activations = kept_bytes(self.dimensions, self.batch, self.seq, keeping).total
        return 3 * self.gradient_bytes + int(activations)

    @property
    def exchanges(self) -> int:
        """How many times a step all gradients are exchanged."""
        return 0 if self.exchange == "none" else 1 if self.no_sync or self.exchange != "ddp" else self.accumulate

    def validate(self) -> None:
        """Raise UserError for what cannot be, whoever implements it."""
        super().validate()
        on_ranks.require_words(self, {"exchange": EXCHANGES, "dtype": tuple(DTYPES)})
        on_ranks.require_within(self, {"ranks": (1, MOST_RANKS), "accumulate": (1, MOST_MICRO_BATCHES)})
        if self.bucket_bytes < 1:
            raise UserError(f"Buckets of {self.bucket_bytes} bytes were asked for: ask for at least 1.")
        if self.dropout:
            raise UserError("Gradients of a step with dropout cannot be compared with a single process's: leave it 0.")
        if self.exchange != "ddp":
            self._refuse_options_of_ddp()
        if self.accumulate == 1 and not self.no_sync:
            raise UserError("no_sync=false differs from true only with several micro-batches: ask for accumulate=2.")
        if self.static_graph and self.accumulate > 1:
            raise UserError("DDP takes no static graph with several micro-batches: leave one of them out.")

    def _refuse_options_of_ddp(self) -> None:
        usual = DataParallelParameters()
        for name in ("bucket_bytes", "no_sync", "static_graph"):
            if getattr(self, name) != getattr(usual, name):
                raise UserError(f"{name} is DDP's, but exchange={self.exchange} was asked for: leave it out.")


class DataParallel(Workload[DataParallelParameters]):
    """Steps of all ranks together; on each the gradients are compared with those of a single process."""

    name = "data_parallel"
    parameters_type = DataParallelParameters

    def __init__(self) -> None:
        self.implementations: Mapping[str, Implementation[DataParallelParameters]] = {
            each.name: each for each in (OverGloo(), OverNccl(), InThreads())
        }

    def validate(self, parameters: DataParallelParameters) -> None:
        """Raise UserError for a transformer or an exchange that cannot be."""
        parameters.validate()

    def ranks(self, parameters: DataParallelParameters) -> int:
        """How many processes train: DataParallel is one."""
        return 1 if parameters.exchange == "dp" else parameters.ranks

    def environment(self, parameters: DataParallelParameters) -> dict[str, str]:
        """What NCCL must be told before it is loaded."""
        return direct_copies.environment(parameters.peer_to_peer)

    def work(self, parameters: DataParallelParameters) -> Work:
        """Bytes of gradients that one rank hands over in a step."""
        return Work(bytes=parameters.exchanges * parameters.gradient_bytes)

    def footprint_bytes(self, parameters: DataParallelParameters) -> int:
        """Of one rank."""
        return parameters.footprint_bytes


class OverGloo(Implementation[DataParallelParameters]):
    """Ranks on CPU cores that exchange over gloo; each computes on as many threads as OMP_NUM_THREADS says, or one."""

    name = "gloo"
    device_kind = "cpu"

    def validate(self, parameters: DataParallelParameters) -> None:
        """Raise UserError for DataParallel, for what is NCCL's, and for more ranks than cores can keep alive."""
        _refuse_dp(parameters, self.name)
        on_ranks.require_for_gloo(parameters.ranks, parameters.peer_to_peer)

    def prepare(self, parameters: DataParallelParameters, place: Place) -> Transfers:
        """Join gloo's process group and build this rank's model and batches. Raises Unsupported for want of memory."""
        joined = process_group(place.ranks, "gloo", place.deadline_s)
        on_ranks.require_memory(place.ranks, parameters.footprint_bytes)
        return Replica(parameters, place.ranks.rank, joined, "cpu")


class OverNccl(Implementation[DataParallelParameters]):
    """One GPU a rank, exchanging over NCCL."""

    name = "nccl"
    device_kind = "cuda"

    def validate(self, parameters: DataParallelParameters) -> None:
        """Raise UserError for DataParallel, which has no ranks."""
        _refuse_dp(parameters, self.name)

    def prepare(self, parameters: DataParallelParameters, place: Place) -> Transfers:
        """Join NCCL's process group and build this rank's model and batches on its GPU.

        Raises Unsupported for ranks that go without direct copies and were started with them.
        """
        direct_copies.require_started_so(parameters.peer_to_peer)
        gpu = f"cuda:{place.device.index}"
        return GpuReplica(
            parameters, place.ranks.rank, process_group(place.ranks, "nccl", place.deadline_s, device=gpu), gpu
        )


class InThreads(Implementation[DataParallelParameters]):
    """torch.nn.DataParallel: a single process that scatters the batch and gathers gradients on its first GPU."""

    name = "dp"
    device_kind = "cuda"

    def validate(self, parameters: DataParallelParameters) -> None:
        """Raise UserError for exchanges of several processes."""
        if parameters.exchange != "dp":
            raise UserError(f"dp is one process, but exchange={parameters.exchange} was asked for: ask for dp.")
        if parameters.accumulate > 1:
            raise UserError("DataParallel exchanges in each micro-batch: leave accumulate out.")

    def prepare(self, parameters: DataParallelParameters, place: Place) -> Transfers:
        """Build the model and the batches of all GPUs. Raises Unsupported where there are fewer GPUs."""
        import torch

        present: Any = torch.cuda.device_count()
        if present < parameters.ranks:
            raise Unsupported(f"DataParallel over {parameters.ranks} GPUs was asked for, but torch sees {present}.")
        return GpuReplica(parameters, 0, None, f"cuda:{place.device.index}")


def _refuse_dp(parameters: DataParallelParameters, name: str) -> None:
    if parameters.exchange == "dp":
        raise UserError(f"DataParallel is one process, but {name} was asked for: ask for the implementation dp.")
