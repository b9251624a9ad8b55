"""Exchanges of ranks that train together: a data-parallel step with its options, and work that hides an exchange.

In a step every rank trains the same transformer on a batch of its own; the weights stay as they are, so each step is
the same. The gradients that it leaves are compared with those of a single process that sees every rank's batch, and
with the other ranks' bit for bit. `overlap` has a matrix product and an all_reduce at once: each alone, in turn, both
at once, and each while the other goes on. On a GPU the two are on streams of their own; on a CPU gloo's threads
exchange while the main thread computes.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from pyperf_suite.errors import OneOf, Unsupported, UserError, Within
from pyperf_suite.laws.traffic import bus_factor
from pyperf_suite.laws.training.memory import ActivationPolicy, kept_bytes
from pyperf_suite.measure.verify import Verification, verify_product
from pyperf_suite.workloads import scratch
from pyperf_suite.workloads.on_ranks import (
    DTYPES,
    MOST_RANKS,
    OnRanks,
    OverGloo,
    OverNccl,
    OverTorch,
    RankSteps,
    average,
    distributed,
    same_on_all,
    seed_of,
    torch_place,
)
from pyperf_suite.workloads.training import TransformerShape
from pyperf_suite.workloads.workload import (
    BUILD_ON_EACH_OTHER,
    Checked,
    ExecutionContext,
    Kernel,
    RankTimes,
    Transfers,
    Work,
    by_name,
    together,
)

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
        return 3 * self.gradient_bytes + int(kept_bytes(self.dimensions, self.batch, self.seq, keeping).total)

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
        if self.exchange == "dp" and self.accumulate > 1:
            raise UserError("DataParallel exchanges in each micro-batch: leave accumulate out.")
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
        from pyperf_suite.workloads.rounding import Rounding

        p = self._parameters
        names = [f"the gradient of {name}" for name, _ in self.model.named_parameters()]
        self._due = self._due or self._single_process()
        exact = dict(zip(names, self._due, strict=True))
        terms = p.accumulate * (p.ranks if p.exchange != "none" else 1) + 1
        rounding = Rounding.of(p.dtype)
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
        """Return the exchange for records: the buckets that DDP cut, and the bytes that this rank sends in a step."""
        p = self._parameters
        weights = sum(each.numel() for each in self.model.parameters())
        details: dict[str, Any] = {"parameters": weights, **self._torch_details()}
        if p.exchange in ("ddp", "after"):
            buckets = [weights * DTYPES[p.dtype]]
            if p.exchange == "ddp":
                # The first step shows DDP the order of gradients, by which it cuts buckets anew in the second; that is
                # logged as the third begins.
                for _ in range(3):
                    self._run(self.call)
                logged = self.call._get_ddp_logging_data()
                sizes = str(logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"])
                buckets = [int(size) for size in sizes.split(",")]
            sent = round(p.exchanges * sum(buckets) * float(bus_factor("all_reduce", p.ranks)))
            details |= {"buckets": buckets, "exchanges": p.exchanges, "wire_bytes": sent}
        return details

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

        micro_batches = []
        for micro in range(p.accumulate):
            seeds = [seed_of(rank, micro, p.accumulate) for rank in ranks]
            drawn = [gpt.inputs(p, seed) for seed in seeds]
            upstream = None
            if not p.vocab:
                # Another seed than any input's. The mean over ranks, as of a loss.
                upstream = placed([gpt.inputs(p, 10**6 + seed)[0] for seed in seeds]) / len(ranks)
            micro_batches.append((tuple(placed(parts) for parts in zip(*drawn, strict=True)), upstream))
        return micro_batches

    def _single_process(self) -> list[Any]:
        """Each weight's mean gradient over ranks, computed here in float64.

        On a GPU, where models are large, in float32: its rounding is far below any error that is looked for.
        """
        wide = self.torch.float32 if self.is_gpu else self.torch.float64
        everyone = range(self._parameters.ranks) if self._parameters.exchange != "none" else [self._rank]
        batches = ((*each, 1 / len(everyone)) for rank in everyone for each in self._micro_batches([rank]))
        return self._gpt.summed(self.model, batches, wide)[1]


def _refuse_another(parameters: DataParallelParameters, name: str) -> None:
    if (parameters.exchange == "dp") != (name == "dp"):
        raise UserError(
            f"exchange={parameters.exchange} was requested by {name}, but DataParallel is one process: ask for the "
            "implementation dp with exchange=dp, or for neither."
        )


class InThreads(OverTorch):
    """torch.nn.DataParallel: a single process that scatters the batch and gathers gradients on its first GPU."""

    name = "dp"
    device_kind = "cuda"

    def prepare(self, parameters: DataParallelParameters, place: ExecutionContext) -> Transfers:
        import torch

        present: Any = torch.cuda.device_count()
        if present < parameters.ranks:
            raise Unsupported(f"DataParallel over {parameters.ranks} GPUs was requested, but torch sees {present}.")
        return Replica(parameters, 0, None, torch_place(place))


class DataParallel(OnRanks[DataParallelParameters]):
    """Steps of all ranks together; on each the gradients are compared with those of a single process."""

    name = "data_parallel"
    parameters_type = DataParallelParameters
    implementations = by_name(*(kind(Replica.of, _refuse_another) for kind in (OverGloo, OverNccl, InThreads)))

    def ranks(self, parameters: DataParallelParameters) -> int:
        return 1 if parameters.exchange == "dp" else parameters.ranks

    def work(self, parameters: DataParallelParameters) -> Work:
        return Work(bytes=parameters.exchanges * parameters.gradient_bytes)


# Timed runs. "product_beside" times products while all_reduces go on throughout, "all_reduce_beside" the other way.
RUNS = ("product", "all_reduce", "in_turn", "together", "product_beside", "all_reduce_beside")
MOST_SIZE, MOST_BYTES = 1 << 17, 1 << 40
WIDE_BYTES = 8  # bytes of an element of the float64 copies by which products and means are compared

# The background operation runs MARGIN times as long as the timed one, which may get slower and must not outlast it.
MARGIN = 1.5
MOST_OTHERS = 16
TRIALS = 3

# Inputs are whole numbers below this plus the rank: their mean, and each step to it, is exact where there is room for
# the bits of 1/n. Elsewhere, and where n is no power of two, 1/n is rounded and so is each sum.
PERIOD = 61
RANKS_EXACT = {"float32": 1 << 16, "bfloat16": 4}
MEAN_LIMIT = {"float32": 1e-5, "bfloat16": 3e-2}

Times = tuple[float, int, int]  # seconds, arrived and done by time.monotonic_ns()


@dataclass(frozen=True)
class OverlapParameters:
    """A product of `size`³ in `dtype` on every rank, and an all_reduce of `bytes` of that type among `ranks`."""

    size: Annotated[int, Within(1, MOST_SIZE)]
    bytes: Annotated[int, Within(1, MOST_BYTES)]
    ranks: Annotated[int, Within(1, MOST_RANKS)] = 2
    run: Annotated[str, OneOf(RUNS)] = "together"
    dtype: Annotated[str, OneOf(DTYPES)] = "float32"

    # No run of these is of interest without direct copies between GPUs.
    peer_to_peer = True

    @property
    def count(self) -> int:
        return self.bytes // DTYPES[self.dtype]

    @property
    def footprint_bytes(self) -> int:
        return (3 * DTYPES[self.dtype] + WIDE_BYTES) * self.size**2 + self.bytes + 2 * WIDE_BYTES * self.count

    @property
    def has_all_reduce(self) -> bool:
        return self.run != "product"

    def validate(self) -> None:
        if self.count == 0:
            least = DTYPES[self.dtype]
            raise UserError(f"bytes={self.bytes} was requested, but one {self.dtype} takes {least}: ask for that.")


class SideBySide(RankSteps):
    """One rank's operands of a product and buffer of an all_reduce, of the mean, which repeated changes nothing."""

    def __init__(self, parameters: OverlapParameters, rank: int, group: Any, where: str) -> None:
        super().__init__(parameters, rank, group, where)
        torch, dtype = self.torch, getattr(self.torch, parameters.dtype)
        generator = torch.Generator().manual_seed(rank)
        shape = (parameters.size, parameters.size)
        self._a, self._b = (torch.randn(shape, generator=generator).to(where, dtype) for _ in range(2))
        self._out = torch.empty_like(self._a)
        self._message = torch.empty(parameters.count, dtype=dtype, device=where)
        self._mean = torch.distributed.ReduceOp.AVG
        self.poison()
        # A mean that is rounded drifts when it is taken again and again.
        self.unchecked = BUILD_ON_EACH_OTHER if parameters.has_all_reduce and not self._mean_is_exact else ""
        self._others = 0
        self._others = self._agreed_others()
        self.kernel = Kernel("product_and_all_reduce", f"{where.split(':')[0]} {parameters.run}", self._details())

    @abstractmethod
    def timed(self, run: str) -> Times:
        """One of RUNS, and how long it took."""

    def step(self) -> None:
        self.timed(self._parameters.run)

    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        self.meet()
        self._synchronize()
        times = (self.timed(self._parameters.run) for _ in range(iterations))
        seconds, arrived, done = zip(*times, strict=True)
        return RankTimes(np.array(seconds), np.array(arrived, dtype=np.int64), np.array(done, dtype=np.int64))

    def poison(self, index: int | None = None) -> None:
        self._out.fill_(float("nan"))
        self._message.copy_(self._input() + self._rank)

    def verify_last(self, index: int = 0) -> Checked:
        """The product against float64 where it ran, and every element of the mean where that did."""
        p, checks = self._parameters, []
        if p.run != "all_reduce":
            product = self._product_verified()
            checks.append(Checked(int(not product.passed), self._out.numel(), product.message))
        if p.has_all_reduce:
            due = (self._input().double() + (p.ranks - 1) / 2).cpu()
            off = (self._message.cpu().double() - due).abs()
            bad = ~(off <= (0.0 if self._mean_is_exact else MEAN_LIMIT[p.dtype]) * due)
            checks.append(
                Checked(int(bad.sum()), bad.numel(), f"{int(bad.sum())} elements are not the mean of the ranks")
            )
        return together(checks)

    def close(self) -> None:
        self._a = self._b = self._out = self._message = None

    def _product_verified(self) -> Verification:
        p = self._parameters
        if self.is_gpu:
            return verify_product(self._out, self._a, self._b, p.dtype, p.dtype)
        keep = scratch.shared(f"product of {p.size} in {p.dtype} drawn by rank {self._rank}")
        out, a, b = (each.float().numpy() for each in (self._out, self._a, self._b))
        return verify_product(out, a, b, p.dtype, p.dtype, keep=keep)

    @property
    def _mean_is_exact(self) -> bool:
        p = self._parameters
        return bool(p.ranks & (p.ranks - 1) == 0 and p.ranks <= RANKS_EXACT[p.dtype])

    def _input(self) -> Any:
        return self.torch.arange(self._parameters.count, device=self._where) % PERIOD

    def _product(self) -> None:
        self.torch.mm(self._a, self._b, out=self._out)

    def _all_reduce(self, asynchronous: bool = False, message: Any = None) -> Any:
        message = self._message if message is None else message
        return self.torch.distributed.all_reduce(message, op=self._mean, group=self._group, async_op=asynchronous)

    def _agreed_others(self) -> int:
        """How often the other runs meanwhile: rank 0 times both alone, as all ranks must send equally often."""
        run = self._parameters.run
        if not run.endswith("_beside"):
            return 0
        self.timed("product"), self.timed("all_reduce")
        product_s, all_reduce_s = (
            statistics.median(self.timed(alone)[0] for _ in range(TRIALS)) for alone in ("product", "all_reduce")
        )
        ratio = product_s / all_reduce_s if run == "product_beside" else all_reduce_s / product_s
        wanted = self.torch.tensor([min(MOST_OTHERS, max(1, math.ceil(MARGIN * ratio)))], device=self._where)
        self.torch.distributed.broadcast(wanted, src=0, group=self._group)
        return int(wanted)

    def _details(self) -> dict[str, Any]:
        return self._torch_details() | ({"beside": self._others} if self._others else {})

    def _synchronize(self) -> None:
        """Wait until all that was begun is over, where the host goes on meanwhile."""


class OnCpu(SideBySide):
    """By the host's clock; an all_reduce that was begun goes on in gloo's threads, which say when it is through."""

    def __init__(self, parameters: OverlapParameters, rank: int, group: Any, where: str) -> None:
        super().__init__(parameters, rank, group, where)
        # gloo runs several at once, which may not share a buffer.
        others = self._others - 1 if parameters.run == "product_beside" else 0
        self._messages = [self._message, *(self._message.clone() for _ in range(others))]

    def timed(self, run: str) -> Times:
        if run == "product_beside":
            begun = [self._all_reduce(asynchronous=True, message=each) for each in self._messages]
            times = _clocked(self._product)
            for work in begun:
                work.wait()
            return times
        if run == "all_reduce_beside":
            return self._all_reduce_with_products()
        alone_or_both = {"product": self._product, "all_reduce": self._all_reduce, "in_turn": self._in_turn}
        return _clocked(alone_or_both.get(run, self._together))

    def _in_turn(self) -> None:
        self._product()
        self._all_reduce()

    def _together(self) -> None:
        begun = self._all_reduce(asynchronous=True)
        self._product()
        begun.wait()

    def _all_reduce_with_products(self) -> Times:
        through: list[int] = []
        arrived = time.monotonic_ns()
        begun = self._all_reduce(asynchronous=True)
        reported = begun.get_future().then(lambda _: through.append(time.monotonic_ns()))
        # Products go on until it is through, so that it never runs alone, however slow it gets; and it may be through
        # before the first has begun, where this thread had to wait for its core.
        self._product()
        while not through:
            self._product()
        reported.wait()
        begun.wait()
        return (through[0] - arrived) * 1e-9, arrived, through[0]


class OnGpu(SideBySide):
    """By events on two streams: torch's own computes, the other waits for NCCL's."""

    def __init__(self, parameters: OverlapParameters, rank: int, group: Any, where: str) -> None:
        import torch

        torch.cuda.set_device(where)
        self._side: Any = torch.cuda.Stream(where)
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        super().__init__(parameters, rank, group, where)

    def timed(self, run: str) -> Times:
        """Time products and all_reduces from one beginning to the end of one of their streams, or of both."""
        products, all_reduces, end = {
            "product": (1, 0, "main"),
            "all_reduce": (0, 1, "side"),
            "in_turn": (1, 1, "side"),
            "together": (1, 1, "both"),
            "product_beside": (1, self._others, "main"),
            "all_reduce_beside": (self._others, 1, "side"),
        }[run]
        main = self.torch.cuda.current_stream(self._where)
        arrived = time.monotonic_ns()
        self._begin.record(main)
        if run == "in_turn":
            self._products(products)
        self._side.wait_stream(main)
        with self.torch.cuda.stream(self._side):
            for _ in range(all_reduces):
                self._all_reduce()
            if end == "side":
                self._end.record(self._side)
        if run != "in_turn":
            self._products(products)
        if end == "both":
            main.wait_stream(self._side)
        if end != "side":
            self._end.record(main)
        self._end.synchronize()
        done = time.monotonic_ns()
        seconds = self._begin.elapsed_time(self._end) * 1e-3
        # Background work that goes on belongs to this iteration, not to the next.
        self._synchronize()
        return seconds, arrived, done

    def _products(self, count: int) -> None:
        for _ in range(count):
            self._product()

    def _details(self) -> dict[str, Any]:
        blocks = _blocks_of_nccl(self.torch, self._all_reduce) if self._parameters.has_all_reduce else None
        properties = self.torch.cuda.get_device_properties(self._where)
        # NCCL starts one block a channel, and a block of its kernels fills an SM's shared memory.
        return super()._details() | {"nccl_blocks": blocks, "multiprocessors": properties.multi_processor_count}

    def _synchronize(self) -> None:
        self.torch.cuda.synchronize(self._where)


def _clocked(action: Callable[[], object]) -> Times:
    arrived = time.monotonic_ns()
    action()
    done = time.monotonic_ns()
    return (done - arrived) * 1e-9, arrived, done


def _blocks_of_nccl(torch: Any, all_reduce: Callable[[], object]) -> int | None:
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        all_reduce()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory(dir=scratch.folder()) as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        return blocks_in_trace(json.loads(trace.read_text()).get("traceEvents", []))


def blocks_in_trace(events: list[dict[str, Any]]) -> int | None:
    """Thread blocks of the first NCCL kernel among a Chrome trace's events, from its grid; None without one."""
    for event in events:
        grid = event.get("args", {}).get("grid")
        if "nccl" in str(event.get("name", "")).lower() and grid:
            return math.prod(int(each) for each in grid)
    return None


class Overlap(OnRanks[OverlapParameters]):
    """Products and all_reduces of all ranks; the product is compared with float64, the mean of the ranks exactly."""

    name = "overlap"
    parameters_type = OverlapParameters
    implementations = by_name(OverGloo(OnCpu.of), OverNccl(OnGpu.of))

    def work(self, parameters: OverlapParameters) -> Work:
        return Work(bytes=parameters.bytes if parameters.has_all_reduce else 0)
