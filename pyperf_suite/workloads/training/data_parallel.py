"""A training step on several ranks that average their gradients: DDP with its options, and what it is compared with.

Every rank trains the same transformer on a batch of its own; the weights stay as they are, so each step is the same.
The gradients that a step leaves are compared with those of a single process that sees every rank's batch, and with the
other ranks' bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, Unsupported, UserError, Within
from pyperf_suite.laws.traffic import bus_factor
from pyperf_suite.laws.training.memory import ActivationPolicy, kept_bytes
from pyperf_suite.workloads.on_ranks import (
    DTYPES,
    MOST_RANKS,
    OnRanks,
    OverGloo,
    OverNccl,
    RankSteps,
    average,
    distributed,
    same_on_all,
    seed_of,
    torch_place,
)
from pyperf_suite.workloads.training import TransformerShape
from pyperf_suite.workloads.workload import Checked, ExecutionContext, Implementation, Kernel, Transfers, Work, by_name

# "ddp" exchanges buckets while backward goes on; "after" all gradients at once when it is over; "none" not at all, so
# that its time is what the others add to; "dp" is torch's DataParallel, one process whose threads drive all GPUs.
EXCHANGES = {
    "ddp": "DistributedDataParallel",
    "after": "all_reduce after backward",
    "none": "no exchange",
    "dp": "DataParallel",
}
# torch's own default.
BUCKET_BYTES = 25 * 2**20
MOST_MICRO_BATCHES = 1 << 10


@dataclass(frozen=True)
class DataParallelParameters(TransformerShape):
    """A transformer on `ranks` ranks, each with `accumulate` micro-batches of `batch` sequences a step.

    `bucket_bytes` is DDP's bucket_cap_mb. With `no_sync` gradients are exchanged in the last micro-batch alone, without
    in each. `peer_to_peer` False has NCCL go without direct copies between GPUs (NCCL_P2P_DISABLE).
    """

    ranks: Annotated[int, Within(1, MOST_RANKS)] = 2
    exchange: Annotated[str, OneOf(EXCHANGES)] = "ddp"
    bucket_bytes: Annotated[int, Within(1)] = BUCKET_BYTES
    accumulate: Annotated[int, Within(1, MOST_MICRO_BATCHES)] = 1
    no_sync: bool = True
    peer_to_peer: bool = True
    dtype: Annotated[str, OneOf(DTYPES)] = "float32"

    @property
    def gradient_bytes(self) -> int:
        counted = self.dimensions.parameters
        # The laws' model always has an embedding and a last norm: a stack of blocks has neither.
        return DTYPES[self.dtype] * (counted if self.vocab else counted - self.dimensions.outer_parameters)

    @property
    def footprint_bytes(self) -> int:
        width = DTYPES[self.dtype]
        kind, every = self.checkpointing.kind, self.checkpointing.every
        keeping = ActivationPolicy(width, width, checkpointing=kind, every=every, ends=bool(self.vocab))
        activations = kept_bytes(self.dimensions, self.batch, self.seq, keeping).total
        return 3 * self.gradient_bytes + int(activations)

    @property
    def exchanges(self) -> int:
        return 0 if self.exchange == "none" else 1 if self.no_sync or self.exchange != "ddp" else self.accumulate

    def validate(self) -> None:
        super().validate()
        if self.dropout:
            raise UserError("Gradients of a step with dropout cannot be compared with a single process's: leave it 0.")
        usual = DataParallelParameters()
        for name in ("bucket_bytes", "no_sync"):
            if self.exchange != "ddp" and getattr(self, name) != getattr(usual, name):
                raise UserError(f"{name} is DDP's, but exchange={self.exchange} was requested: leave it out.")
        if self.accumulate == 1 and not self.no_sync:
            raise UserError("no_sync=false differs from true only with several micro-batches: ask for accumulate=2.")


class Replica(RankSteps):
    """One rank's copy of the model, its micro-batches, and the step in which gradients are exchanged."""

    # No step changes the weights, and each makes its gradients anew.
    unchecked = ""

    def __init__(self, parameters: DataParallelParameters, rank: int, group: Any, where: str) -> None:
        from pyperf_suite.workloads.training import gpt

        super().__init__(parameters, rank, group, where)
        dtype = getattr(self.torch, parameters.dtype)
        gpt.require_attention(parameters, where, dtype)
        self._gpt = gpt
        # Equal on all ranks, as they are built from one seed.
        self.model: Any = gpt.build(parameters).to(where, dtype)
        self._batches = self._micro_batches(range(parameters.ranks) if parameters.exchange == "dp" else [rank])
        self._due: list[Any] = []
        self.call = self._wrapped(self.model)
        self.kernel = Kernel("data_parallel_step", EXCHANGES[parameters.exchange], self._details())

    def poison(self, index: int | None = None) -> None:
        self.model.zero_grad(set_to_none=True)

    def step(self) -> None:
        self._run(self.call)
        if self._parameters.exchange == "after":
            average([each.grad for each in self.model.parameters()], self._parameters.ranks, self._group)

    def meet(self) -> None:
        if self._parameters.exchange != "dp":
            super().meet()

    def verify_last(self, index: int = 0) -> Checked:
        p = self._parameters
        names = [f"the gradient of {name}" for name, _ in self.model.named_parameters()]
        self._due = self._due or self._single_process()
        exact = dict(zip(names, self._due, strict=True))
        terms = p.accumulate * (p.ranks if p.exchange != "none" else 1) + 1
        rounding = self._gpt.Rounding.of(p.dtype)
        scales = {name: rounding.of_sums(due, terms).sqrt_() for name, due in exact.items()}
        gradients = [each.grad for each in self.model.parameters()]
        there, wrong = (each for each in gradients if each is not None), []
        if p.exchange in ("ddp", "after") and not same_on_all(there, self._group, self._where):
            wrong = ["gradients differ between ranks"]
        return self.verdict(dict(zip(names, gradients, strict=True)), exact, scales, *wrong)

    def close(self) -> None:
        self.call = self.model = None
        self._batches, self._due = [], []

    def _details(self) -> dict[str, Any]:
        """What a record says of the exchange: the buckets that DDP cut, and bytes that this rank sends in a step."""
        p = self._parameters
        weights = sum(each.numel() for each in self.model.parameters())
        found: dict[str, Any] = {"parameters": weights, **self._torch_details()}
        if p.exchange in ("ddp", "after"):
            buckets = self._buckets() if p.exchange == "ddp" else [weights * DTYPES[p.dtype]]
            sent = round(p.exchanges * sum(buckets) * float(bus_factor("all_reduce", p.ranks)))
            found |= {"buckets": buckets, "exchanges": p.exchanges, "wire_bytes": sent}
        return found

    def _buckets(self) -> list[int]:
        """Bytes of every bucket in order, by DDP's own log.

        The first step shows it the order in which gradients are made, by which it cuts buckets anew in the second; that
        is logged as the third begins.
        """
        for _ in range(3):
            self._run(self.call)
        logged = self.call._get_ddp_logging_data()
        return [int(size) for size in str(logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"]).split(",")]

    def _wrapped(self, model: Any) -> Any:
        p = self._parameters
        if p.exchange == "dp":
            return self.torch.nn.DataParallel(model, device_ids=list(range(p.ranks)))
        if p.exchange != "ddp":
            return model
        return distributed(model, self._group, bucket_cap_mb=p.bucket_bytes / 2**20)

    def _run(self, call: Any) -> None:
        call.zero_grad(set_to_none=True)
        last = len(self._batches) - 1
        for index, (inputs, upstream) in enumerate(self._batches):
            held: AbstractContextManager[Any] = nullcontext()
            if self._parameters.exchange == "ddp" and self._parameters.no_sync and index < last:
                held = call.no_sync()
            with held:
                result = call(*inputs)
                # From the mean loss, one a GPU under DataParallel, or the gradient of the last block's output.
                (result.mean() if upstream is None else result).backward(upstream)

    def _micro_batches(self, ranks: Sequence[int]) -> list[tuple[tuple[Any, ...], Any]]:
        """Inputs of each micro-batch of those ranks together, and the gradient from above; None of a loss."""
        p, gpt, dtype = self._parameters, self._gpt, getattr(self.torch, self._parameters.dtype)

        def placed(parts: Sequence[Any]) -> Any:
            whole = self.torch.cat(list(parts))
            return whole.to(self._where, dtype if whole.is_floating_point() else whole.dtype)

        found = []
        for micro in range(p.accumulate):
            seeds = [seed_of(rank, micro, p.accumulate) for rank in ranks]
            drawn = [gpt.inputs(p, seed) for seed in seeds]
            upstream = None
            if not p.vocab:
                # Another seed than any input's. The mean over ranks, as of a loss.
                upstream = placed([gpt.inputs(p, 10**6 + seed)[0] for seed in seeds]) / len(ranks)
            found.append((tuple(placed(parts) for parts in zip(*drawn, strict=True)), upstream))
        return found

    def _single_process(self) -> list[Any]:
        """Each weight's gradient: the mean over ranks, each rank's being this process's own work.

        In float64; on a GPU, whose models are large, in float32 where they are, whose rounding is far below any error
        that is looked for.
        """
        wide = self.torch.float32 if self.is_gpu else self.torch.float64
        everyone = range(self._parameters.ranks) if self._parameters.exchange != "none" else [self._rank]
        batches = ((*each, 1 / len(everyone)) for rank in everyone for each in self._micro_batches([rank]))
        return self._gpt.summed(self.model, batches, wide)[1]


class InThreads(Implementation[DataParallelParameters]):
    """torch.nn.DataParallel: a single process that scatters the batch and gathers gradients on its first GPU."""

    name = "dp"
    device_kind = "cuda"

    def validate(self, parameters: DataParallelParameters) -> None:
        if parameters.exchange != "dp":
            raise UserError(f"dp is one process, but exchange={parameters.exchange} was requested: ask for dp.")
        if parameters.accumulate > 1:
            raise UserError("DataParallel exchanges in each micro-batch: leave accumulate out.")

    def prepare(self, parameters: DataParallelParameters, place: ExecutionContext) -> Transfers:
        import torch

        present: Any = torch.cuda.device_count()
        if present < parameters.ranks:
            raise Unsupported(f"DataParallel over {parameters.ranks} GPUs was requested, but torch sees {present}.")
        return Replica(parameters, 0, None, torch_place(place))


def _refuse_dp(parameters: DataParallelParameters, name: str) -> None:
    if parameters.exchange == "dp":
        raise UserError(f"DataParallel is one process, but {name} was requested: ask for the implementation dp.")


class DataParallel(OnRanks[DataParallelParameters]):
    """Steps of all ranks together; on each the gradients are compared with those of a single process."""

    name = "data_parallel"
    parameters_type = DataParallelParameters
    implementations = by_name(OverGloo(Replica.of, _refuse_dp), OverNccl(Replica.of, _refuse_dp), InThreads())

    def ranks(self, parameters: DataParallelParameters) -> int:
        return 1 if parameters.exchange == "dp" else parameters.ranks

    def work(self, parameters: DataParallelParameters) -> Work:
        return Work(bytes=parameters.exchanges * parameters.gradient_bytes)
