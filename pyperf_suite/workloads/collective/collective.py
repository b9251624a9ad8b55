"""Collectives as a workload, and by torch.distributed: over gloo between CPUs, over NCCL between GPUs.

Arguments are bound beforehand, so that only the cost of Python and the dispatcher in training scripts is left.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyperf_suite.errors import Unsupported
from pyperf_suite.workloads import on_ranks
from pyperf_suite.workloads.collective import POISON_BYTE, CollectiveParameters, Exchange, Stored
from pyperf_suite.workloads.collective.nccl import Nccl, NcclGraph
from pyperf_suite.workloads.on_ranks import OnRanks, OverGloo, OverNccl
from pyperf_suite.workloads.operands import element_type
from pyperf_suite.workloads.workload import ExecutionContext, Kernel, RankTimes, Transfers, Work, by_name

DTYPES = ("float32", "float16", "bfloat16", "int32", "int8")  # types of gloo

# Functions' names in older versions of torch.
OLDER_NAMES = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}
REDUCE_OPS = {"prod": "PRODUCT", "max": "MAX", "min": "MIN", "avg": "AVG"}  # torch's names of reductions

# Elements that are compared at once on a GPU, where each step costs a launch, and on the host.
CHUNK, HOST_CHUNK = 1 << 24, 1 << 20

# Function to call, and its name for people, with the calls that it is composed of.
Call = Callable[[], object]
Named = tuple[Call, str]


def over_gloo(parameters: CollectiveParameters, place: ExecutionContext, joined: Any) -> Transfers:
    """TCP between processes, reductions on the CPU: what a laptop has, with the same cases as NCCL."""
    if parameters.dtype not in DTYPES:
        raise Unsupported(f"gloo has no {parameters.dtype}: choose from {', '.join(DTYPES)}.")
    if parameters.reduction == "avg" and parameters.dtype.startswith("int"):
        raise Unsupported(f"gloo has no average of {parameters.dtype}: ask for its sum, or for another dtype.")
    if parameters.op == "send_receive" and parameters.ranks == 1:
        raise Unsupported("gloo does not let a rank send to itself: ask for at least 2 ranks.")
    if parameters.registered or parameters.symmetric or parameters.settings or not parameters.peer_to_peer:
        raise Unsupported(
            "gloo moves data between CPUs over TCP: peer_to_peer, registered, symmetric and settings are NCCL's alone."
        )
    return TorchTransfers(parameters, place, joined, "gloo")


def over_nccl(parameters: CollectiveParameters, place: ExecutionContext, joined: Any) -> Transfers:
    """torch.distributed over NCCL; compared with our own calls it shows what Python costs."""
    if parameters.registered or parameters.symmetric or parameters.settings:
        raise Unsupported(
            "torch.distributed registers no buffers that are handed to it and makes its own communicator: leave "
            "registered, symmetric and settings out."
        )
    if parameters.dtype.startswith("float8") and parameters.operation.reduces:
        raise Unsupported("Not every torch.distributed reduces float8: ask for bfloat16, or for nccl.")
    torch: Any = importlib.import_module("torch")
    try:
        return TorchTransfers(parameters, place, joined, "c10d nccl")
    except torch.cuda.OutOfMemoryError as error:
        raise Unsupported(str(error).split(". ", 1)[0] + ": ask for a smaller size.") from None


class TorchTransfers(Exchange):
    """One rank's tensors and the call. A process group of None is torch's default."""

    def __init__(
        self, parameters: CollectiveParameters, place: ExecutionContext, process_group: Any, path: str
    ) -> None:
        torch: Any = importlib.import_module("torch")
        self._distributed: Any = importlib.import_module("torch.distributed")
        self._group, self._where = process_group, on_ranks.torch_place(place)
        dtype = getattr(torch, parameters.dtype)

        def allocated(count: int) -> TensorMemory:
            return TensorMemory(torch.empty(count, dtype=dtype, device=self._where), parameters.dtype)

        super().__init__(parameters, place.ranks.rank, allocated)
        data, into = self.data, self.send if parameters.in_place else self.receive
        # The parts of the buffers that hold input and output, or None.
        self._input: Any
        self._output: Any
        self._input = self.send.tensor[data.input_at :][: data.inputs] if data.inputs else None
        self._output = into.tensor[data.output_at :][: data.outputs] if data.outputs else None
        self.call: Any
        self.call, function = self._bound()
        self.kernel = Kernel(function, path, {"torch": torch.__version__})

    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        count = iterations if self.takes_part else 0
        return on_ranks.timed_one_by_one(self.call, count, lambda: self._distributed.barrier(self._group), self._where)

    def close(self) -> None:
        self.call = self._input = self._output = None
        super().close()

    def _bound(self) -> Named:
        p, sent, received = self.data.parameters, self._input, self._output
        if p.operation.counted_as == "send_receive":
            return self._transfers()
        # For its default no reduction is named, as each argument takes time in a call of a few microseconds.
        reduction = {"op": getattr(self._distributed.ReduceOp, REDUCE_OPS[p.reduction])} if p.reduction != "sum" else {}
        calls: dict[str, Callable[[], Named]] = {
            "all_reduce": lambda: self._after_copy("all_reduce", **reduction),
            "reduce": lambda: self._after_copy("reduce", dst=p.root, **reduction),
            "broadcast": lambda: self._after_copy("broadcast", src=p.root),
            "all_gather": lambda: self._plain("all_gather_single", received, sent),
            "reduce_scatter": lambda: self._plain("reduce_scatter_single", received, sent, **reduction),
            "all_to_all": lambda: self._plain("all_to_all_single", received, sent),
            "gather": lambda: self._plain("gather", sent, self._parts(received), dst=p.root),
            "scatter": lambda: self._plain("scatter", received, self._parts(sent), src=p.root),
        }
        return calls[p.op]()

    def _plain(self, function: str, *tensors: Any, **options: Any) -> Named:
        if not hasattr(self._distributed, function):
            function = OLDER_NAMES[function]
        if self._group is not None:
            options["group"] = self._group
        return functools.partial(getattr(self._distributed, function), *tensors, **options), function

    def _after_copy(self, function: str, **options: Any) -> Named:
        """A function that torch has in place only: out of place the input is copied to the output first."""
        sent, received = self._input, self._output
        if self.data.parameters.in_place:
            return self._plain(function, sent if received is None else received, **options)
        # Ranks that reduce for another's output need somewhere to work.
        target = received if received is not None else sent.clone()
        collective, name = self._plain(function, target, **options)
        if sent is None:
            return collective, name
        return _in_turn(functools.partial(target.copy_, sent), collective), f"copy, {name}"

    def _parts(self, tensor: Any) -> list[Any] | None:
        p = self.data.parameters
        return list(tensor.split(p.count)) if self.data.rank == p.root else None

    def _transfers(self) -> Named:
        p, rank, distributed = self.data.parameters, self.data.rank, self._distributed
        if p.op == "ping_pong":
            return self._ping_pong(), "send, recv"
        to, sources = [(rank + 1) % p.ranks], [(rank - 1) % p.ranks]
        if p.op != "send_receive":
            to = [destination for source, destination in p.pairs if source == rank]
            sources = [source for source, destination in p.pairs if destination == rank]
        parts = self._output.split(p.count) if sources else ()
        transfers: list[Any] = [(distributed.isend, self._input, peer) for peer in to] + [
            (distributed.irecv, part, peer) for part, peer in zip(parts, sources, strict=True)
        ]
        if distributed.get_backend(self._group) == "gloo":
            # All begun, then waited for: gloo moves each on threads of its own.
            starts = [functools.partial(*transfer, group=self._group) for transfer in transfers]
            return lambda: _wait([start() for start in starts]), "isend, irecv"
        # NCCL would wait for each in turn, in a ring forever.
        operations = [distributed.P2POp(*transfer, group=self._group) for transfer in transfers]
        together = functools.partial(distributed.batch_isend_irecv, operations)
        return (lambda: _wait(together())) if operations else _nothing, "batch_isend_irecv"

    def _ping_pong(self) -> Call:
        rank, distributed = self.data.rank, self._distributed
        pair = next((pair for pair in self.data.parameters.pairs if rank in pair), None)
        if pair is None:
            return _nothing
        begins = pair[0] == rank
        send = functools.partial(distributed.send, self._input, pair[begins], group=self._group)
        receive = functools.partial(distributed.recv, self._output, pair[begins], group=self._group)
        return _in_turn(send, receive) if begins else _in_turn(receive, send)


class TensorMemory:
    """A tensor as data.Memory, by the bits of its elements: numpy has no bfloat16 and no float8."""

    def __init__(self, tensor: Any, dtype: str) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._element = element_type(dtype)
        words = {1: self._torch.int8, 2: self._torch.int16, 4: self._torch.int32}
        self.tensor, self._bits = tensor, tensor.view(words[self._element.size_bytes])

    @property
    def is_on_host(self) -> bool:
        return bool(self.tensor.device.type == "cpu")

    def poison(self) -> None:
        self._bits.view(self._torch.uint8).fill_(POISON_BYTE)

    def read(self, first: int, count: int) -> Stored:
        read: Stored = self._bits[first : first + count].cpu().numpy().view(self._element.storage)
        return read

    def repeat(self, first: int, values: Stored, count: int) -> None:
        bits, period = self._bits[first : first + count], self._uploaded(values)
        whole = count - count % len(period)
        bits[:whole].view(-1, len(period)).copy_(period.expand(whole // len(period), -1))
        bits[whole:].copy_(period[: count - whole])

    def outside(self, first: int, low: Stored, high: Stored, count: int) -> tuple[int, int]:
        bits, lower, upper = self._bits[first : first + count], self._uploaded(low), self._uploaded(high)
        chunk = CHUNK
        if self.is_on_host:
            # numpy compares several times as fast as torch does here, in pieces that stay in a cache.
            bits, lower, upper, chunk = bits.numpy(), lower.numpy(), upper.numpy(), HOST_CHUNK
        exact, period = np.array_equal(low, high), len(low)
        length = max(1, chunk // period) * period
        wrong, first_wrong = 0, -1
        for begin in range(0, count, length):
            part = bits[begin : begin + length]
            whole = len(part) - len(part) % period
            for at, found in ((begin, part[:whole].reshape(-1, period)), (begin + whole, part[whole:])):
                width = found.shape[-1]
                # Signed here, as torch has it: values that are not negative keep the order, NaN of sign 1 is below it.
                bad = found != lower[:width] if exact else (found < lower[:width]) | (found > upper[:width])
                if bad.any():
                    places = bad.reshape(-1).nonzero()
                    first_wrong = first_wrong if first_wrong >= 0 else at + int(places[0].reshape(-1)[0])
                    wrong += int(bad.sum())
        return wrong, first_wrong

    def _uploaded(self, values: Stored) -> Any:
        bits = values.view(f"i{values.itemsize}").copy()  # torch takes no array that cannot be written
        return self._torch.from_numpy(bits).to(self.tensor.device)


def _in_turn(first: Call, second: Call) -> Call:
    def both() -> None:
        first()
        second()

    return both


def _wait(works: Sequence[Any]) -> None:
    for work in works:
        work.wait()


def _nothing() -> None:
    """Do nothing, as an idle rank."""


class Collective(OnRanks[CollectiveParameters]):
    """One collective operation among ranks; its output is compared with what it must be on every rank, exactly."""

    name = "collective"
    parameters_type = CollectiveParameters
    implementations = by_name(OverGloo(over_gloo), Nccl(), NcclGraph(), OverNccl(over_nccl, name="c10d_nccl"))

    def work(self, parameters: CollectiveParameters) -> Work:
        return Work(bytes=parameters.message_bytes)
