"""One rank's operands of a product and buffer of an all_reduce, and the ways to run the two (see overlap.py)."""

from __future__ import annotations

import importlib
import json
import math
import statistics
import tempfile
import time
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyperf_suite.measure.verify import Verification, verify_product
from pyperf_suite.workloads import scratch
from pyperf_suite.workloads.workload import BUILD_ON_EACH_OTHER, Checked, Kernel, RankTimes, Transfers

if TYPE_CHECKING:
    from pyperf_suite.workloads.training.overlap import OverlapParameters

# What goes on beside lasts so many times as long as what is timed, which may get slower and must not outlast it.
MARGIN = 1.5
MOST_BESIDE = 16
TRIALS = 3

# Inputs are whole numbers below this plus the rank: their mean, and each step to it, is exact where there is room for
# the bits of 1/n. Elsewhere, and where n is no power of two, 1/n is rounded and so is each sum.
PERIOD = 61
RANKS_EXACT = {"float32": 1 << 16, "bfloat16": 4}
MEAN_LIMIT = {"float32": 1e-5, "bfloat16": 3e-2}

Times = tuple[float, int, int]  # seconds, arrived and done by time.monotonic_ns()


class SideBySide(Transfers):
    """What CPU and GPU share: operands, checks, and how often the one runs beside the other.

    The all_reduce takes the mean: repeated on its own result it changes nothing, where sums would grow without end.
    """

    def __init__(self, parameters: OverlapParameters, rank: int, group: Any, place: str) -> None:
        torch: Any = importlib.import_module("torch")
        self.torch, self._parameters, self._rank, self._group, self._place = torch, parameters, rank, group, place
        dtype = getattr(torch, parameters.dtype)
        generator = torch.Generator().manual_seed(rank)
        shape = (parameters.size, parameters.size)
        self._a, self._b = (torch.randn(shape, generator=generator).to(place, dtype) for _ in range(2))
        self._out = torch.empty_like(self._a)
        self._message = torch.empty(parameters.count, dtype=dtype, device=place)
        self._mean = torch.distributed.ReduceOp.AVG
        self.poison()
        # A mean that is rounded drifts when it is taken again and again.
        drifts = parameters.has_all_reduce and not self._mean_is_exact
        self.unchecked = BUILD_ON_EACH_OTHER if drifts else ""
        self._beside = self._agreed_beside()
        self.kernel = Kernel("product_and_all_reduce", f"{place.split(':')[0]} {parameters.run}", self._details())

    def poison(self, index: int | None = None) -> None:
        self._out.fill_(float("nan"))
        self._message.copy_(self._input() + self._rank)

    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        run = getattr(self, f"_{self._parameters.run}")
        self.torch.distributed.barrier(self._group)
        self._synchronize()
        seconds, arrived, done = zip(*(run() for _ in range(iterations)), strict=True)
        return RankTimes(np.array(seconds), np.array(arrived, dtype=np.int64), np.array(done, dtype=np.int64))

    def left(self, index: int = 0) -> Checked:
        """The product against float64 where it ran, and every element of the mean where that did."""
        wrong, compared, first = 0, 0, ""
        p = self._parameters
        if p.has_product:
            found = self._product_verified()
            wrong, compared, first = int(not found.passed), self._out.numel(), "" if found.passed else found.message
        if p.has_all_reduce:
            due = (self._input().double() + (p.ranks - 1) / 2).cpu()
            off = (self._message.cpu().double() - due).abs()
            bad = ~(off <= (0.0 if self._mean_is_exact else MEAN_LIMIT[p.dtype]) * due)
            wrong, compared = wrong + int(bad.sum()), compared + bad.numel()
            first = first or (f"{int(bad.sum())} elements are not the mean of the ranks" if bad.any() else "")
        return Checked(wrong, compared, first)

    def _product_verified(self) -> Verification:
        """Of every element, on a GPU by the GPU; a large one on a CPU by Freivalds' check (measure/verify.py)."""
        p = self._parameters
        if self._out.is_cuda:
            return verify_product(self._out, self._a, self._b, p.dtype, p.dtype)
        keep = scratch.shared(f"product of {p.size} in {p.dtype} drawn by rank {self._rank}")
        out, a, b = (each.float().numpy() for each in (self._out, self._a, self._b))
        return verify_product(out, a, b, p.dtype, p.dtype, keep=keep)

    @property
    def _mean_is_exact(self) -> bool:
        p = self._parameters
        return p.ranks & (p.ranks - 1) == 0 and p.ranks <= RANKS_EXACT[p.dtype]

    def close(self) -> None:
        self._a = self._b = self._out = self._message = None

    def _input(self) -> Any:
        """What rank 0 holds; each next one has one more."""
        return self.torch.arange(self._parameters.count, device=self._place) % PERIOD

    def _product_once(self) -> None:
        self.torch.mm(self._a, self._b, out=self._out)

    def _all_reduce_once(self, asynchronous: bool = False, message: Any = None) -> Any:
        message = self._message if message is None else message
        return self.torch.distributed.all_reduce(message, op=self._mean, group=self._group, async_op=asynchronous)

    def _agreed_beside(self) -> int:
        """How often the other runs beside what is timed: rank 0 times both alone and tells, as all must send alike."""
        if not self._parameters.run.endswith("_beside"):
            return 0
        self._product(), self._all_reduce()
        product_s = statistics.median(self._product()[0] for _ in range(TRIALS))
        all_reduce_s = statistics.median(self._all_reduce()[0] for _ in range(TRIALS))
        ratio = product_s / all_reduce_s if self._parameters.run == "product_beside" else all_reduce_s / product_s
        wanted = self.torch.tensor([min(MOST_BESIDE, max(1, math.ceil(MARGIN * ratio)))], device=self._place)
        self.torch.distributed.broadcast(wanted, src=0, group=self._group)
        return int(wanted)

    def _details(self) -> dict[str, Any]:
        return {"torch": self.torch.__version__} | ({"beside": self._beside} if self._beside else {})

    @abstractmethod
    def _synchronize(self) -> None: ...

    @abstractmethod
    def _product(self) -> Times: ...

    @abstractmethod
    def _all_reduce(self) -> Times: ...

    @abstractmethod
    def _in_turn(self) -> Times: ...

    @abstractmethod
    def _together(self) -> Times: ...

    @abstractmethod
    def _product_beside(self) -> Times: ...

    @abstractmethod
    def _all_reduce_beside(self) -> Times: ...


class OnCpu(SideBySide):
    """By the host's clock; an all_reduce that was begun goes on in gloo's threads, which say when it is through."""

    def __init__(self, parameters: OverlapParameters, rank: int, group: Any, place: str) -> None:
        super().__init__(parameters, rank, group, place)
        # gloo runs several at once, which may not share a buffer.
        others = self._beside - 1 if parameters.run == "product_beside" else 0
        self._others = [self._message.clone() for _ in range(others)]

    def _details(self) -> dict[str, Any]:
        return super()._details() | {"threads": self.torch.get_num_threads()}

    def _synchronize(self) -> None:
        return

    def _product(self) -> Times:
        return _clocked(self._product_once)

    def _all_reduce(self) -> Times:
        return _clocked(self._all_reduce_once)

    def _in_turn(self) -> Times:
        def both() -> None:
            self._product_once()
            self._all_reduce_once()

        return _clocked(both)

    def _together(self) -> Times:
        def both() -> None:
            begun = self._all_reduce_once(asynchronous=True)
            self._product_once()
            begun.wait()

        return _clocked(both)

    def _product_beside(self) -> Times:
        messages = [self._message, *self._others]
        begun = [self._all_reduce_once(asynchronous=True, message=each) for each in messages]
        times = _clocked(self._product_once)
        for work in begun:
            work.wait()
        return times

    def _all_reduce_beside(self) -> Times:
        through: list[int] = []
        arrived = time.monotonic_ns()
        begun = self._all_reduce_once(asynchronous=True)
        told = begun.get_future().then(lambda _: through.append(time.monotonic_ns()))
        # Products go on until it is through, so that it never runs alone, however slow it gets.
        while not through:
            self._product_once()
        told.wait()
        begun.wait()
        return (through[0] - arrived) * 1e-9, arrived, through[0]


class OnGpu(SideBySide):
    """By events on two streams: torch's own computes, the other waits for NCCL's."""

    def __init__(self, parameters: OverlapParameters, rank: int, group: Any, place: str) -> None:
        torch: Any = importlib.import_module("torch")
        torch.cuda.set_device(place)
        self._side = torch.cuda.Stream(place)
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        super().__init__(parameters, rank, group, place)

    def _details(self) -> dict[str, Any]:
        blocks = _blocks_of_nccl(self.torch, self._all_reduce_once) if self._parameters.has_all_reduce else None
        properties = self.torch.cuda.get_device_properties(self._place)
        # NCCL starts one block a channel, and a block of its kernels fills an SM's shared memory.
        return super()._details() | {"nccl_blocks": blocks, "multiprocessors": properties.multi_processor_count}

    def _synchronize(self) -> None:
        self.torch.cuda.synchronize(self._place)

    def _product(self) -> Times:
        return self._run(product=1, all_reduce=0, end="main")

    def _all_reduce(self) -> Times:
        return self._run(product=0, all_reduce=1, end="side")

    def _in_turn(self) -> Times:
        return self._run(product=1, all_reduce=1, end="side", in_turn=True)

    def _together(self) -> Times:
        return self._run(product=1, all_reduce=1, end="both")

    def _product_beside(self) -> Times:
        return self._run(product=1, all_reduce=self._beside, end="main")

    def _all_reduce_beside(self) -> Times:
        return self._run(product=self._beside, all_reduce=1, end="side")

    def _run(self, product: int, all_reduce: int, end: str, in_turn: bool = False) -> Times:
        """So many of each from one beginning, timed to the end of the stream that is named."""
        main = self.torch.cuda.current_stream(self._place)
        arrived = time.monotonic_ns()
        self._begin.record(main)
        if in_turn:
            self._products(product)
        self._side.wait_stream(main)
        with self.torch.cuda.stream(self._side):
            for _ in range(all_reduce):
                self._all_reduce_once()
            if end == "side":
                self._end.record(self._side)
        if not in_turn:
            self._products(product)
        if end == "both":
            main.wait_stream(self._side)
        if end != "side":
            self._end.record(main)
        self._end.synchronize()
        done = time.monotonic_ns()
        seconds = self._begin.elapsed_time(self._end) * 1e-3
        # What still goes on beside belongs to this iteration, not to the next.
        self._synchronize()
        return seconds, arrived, done

    def _products(self, count: int) -> None:
        for _ in range(count):
            self._product_once()


def _clocked(action: Any) -> Times:
    arrived = time.monotonic_ns()
    action()
    done = time.monotonic_ns()
    return (done - arrived) * 1e-9, arrived, done


def _blocks_of_nccl(torch: Any, all_reduce: Any) -> int | None:
    """Thread blocks of NCCL's kernel as torch's profiler traced it; None where it traced none."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        all_reduce()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory(dir=scratch.folder()) as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text()).get("traceEvents", [])
    return blocks_in_trace(events)


def blocks_in_trace(events: list[dict[str, Any]]) -> int | None:
    """Thread blocks of the first NCCL kernel among a Chrome trace's events, from its grid; None without one."""
    for event in events:
        grid = event.get("args", {}).get("grid")
        if "nccl" in str(event.get("name", "")).lower() and grid:
            return math.prod(int(each) for each in grid)
    return None
