"""The call of torch.distributed that does what a case asks for, its arguments bound so that nothing is left to do.

These are the public functions that training scripts call, so that what Python and the dispatcher cost is in the time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyperf_suite.workloads.collective.parameters import CollectiveParameters

Call = Callable[[], object]

# What older versions of torch call a function.
OLDER_NAMES = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}

# torch's names of reductions.
REDUCE_OPS = {"prod": "PRODUCT", "max": "MAX", "min": "MIN", "avg": "AVG"}


@dataclass(frozen=True)
class BoundCall:
    """`call()` runs the collective once; `function` names it for people, with what had to be composed."""

    call: Call
    function: str


@dataclass(frozen=True)
class Binder:
    """One rank's tensors and process group; `send` and `receive` are the parts that hold input and output, or None.

    A process group of None is torch's default.
    """

    parameters: CollectiveParameters
    rank: int
    process_group: Any
    send: Any
    receive: Any

    def bind(self) -> BoundCall:
        """The call for this case."""
        if self.parameters.operation.counted_as == "send_receive":
            return self._transfers()
        calls: dict[str, Callable[[], BoundCall]] = {
            "all_reduce": lambda: self._after_copy("all_reduce", **self._reduction),
            "reduce": lambda: self._after_copy("reduce", dst=self.parameters.root, **self._reduction),
            "broadcast": lambda: self._after_copy("broadcast", src=self.parameters.root),
            "all_gather": lambda: self._plain("all_gather_single", self.receive, self.send),
            "reduce_scatter": lambda: self._plain("reduce_scatter_single", self.receive, self.send, **self._reduction),
            "all_to_all": lambda: self._plain("all_to_all_single", self.receive, self.send),
            "gather": lambda: self._plain("gather", self.send, self._parts(self.receive), dst=self.parameters.root),
            "scatter": lambda: self._plain("scatter", self.receive, self._parts(self.send), src=self.parameters.root),
        }
        return calls[self.parameters.op]()

    @property
    def _reduction(self) -> dict[str, Any]:
        """Torch's word for it; for its default none, as each argument takes time in a call of a few microseconds."""
        reduction = self.parameters.reduction
        return {} if reduction == "sum" else {"op": getattr(_distributed().ReduceOp, REDUCE_OPS[reduction])}

    def _plain(self, function: str, *tensors: Any, **options: Any) -> BoundCall:
        """A function that takes an input and an output."""
        if not hasattr(_distributed(), function):
            function = OLDER_NAMES[function]
        if self.process_group is not None:
            options["group"] = self.process_group
        bound = functools.partial(getattr(_distributed(), function), *tensors, **options)
        return BoundCall(bound, function)

    def _after_copy(self, function: str, **options: Any) -> BoundCall:
        """A function that torch has in place only: out of place the input is copied to the output first."""
        if self.parameters.in_place:
            return self._plain(function, self.send if self.receive is None else self.receive, **options)
        # Ranks that reduce for another's output need somewhere to work.
        target = self.receive if self.receive is not None else self.send.clone()
        bound = self._plain(function, target, **options)
        if self.send is None:
            return bound
        copy, collective = functools.partial(target.copy_, self.send), bound.call

        def copy_first() -> None:
            copy()
            collective()

        return BoundCall(copy_first, f"copy, {function}")

    def _parts(self, tensor: Any) -> list[Any] | None:
        """The root's tensor as one part a rank; None elsewhere."""
        if self.rank != self.parameters.root:
            return None
        return list(tensor.split(self.parameters.count))

    def _transfers(self) -> BoundCall:
        """Sends to and receives from single ranks."""
        distributed, parameters, rank = _distributed(), self.parameters, self.rank
        if parameters.op == "ping_pong":
            return self._ping_pong()
        if parameters.op == "send_receive":
            to, sources = [(rank + 1) % parameters.ranks], [(rank - 1) % parameters.ranks]
        else:
            to = [destination for source, destination in parameters.pairs if source == rank]
            sources = [source for source, destination in parameters.pairs if destination == rank]
        parts = self.receive.split(parameters.count) if sources else ()
        transfers = [(distributed.isend, self.send, peer) for peer in to] + [
            (distributed.irecv, part, peer) for part, peer in zip(parts, sources, strict=True)
        ]
        if distributed.get_backend(self.process_group) == "gloo":
            return BoundCall(_one_by_one(transfers, self.process_group), "isend, irecv")
        # NCCL would wait for each in turn, in a ring forever.
        operations = [distributed.P2POp(*transfer, group=self.process_group) for transfer in transfers]

        def together() -> None:
            for work in distributed.batch_isend_irecv(operations):
                work.wait()

        return BoundCall(together if operations else _nothing, "batch_isend_irecv")

    def _ping_pong(self) -> BoundCall:
        distributed = _distributed()
        pair = next((pair for pair in self.parameters.pairs if self.rank in pair), None)
        if pair is None:
            return BoundCall(_nothing, "send, recv")
        begins = pair[0] == self.rank
        send = functools.partial(distributed.send, self.send, pair[begins], group=self.process_group)
        receive = functools.partial(distributed.recv, self.receive, pair[begins], group=self.process_group)
        first, second = (send, receive) if begins else (receive, send)

        def there_and_back() -> None:
            first()
            second()

        return BoundCall(there_and_back, "send, recv")


def _one_by_one(transfers: Sequence[tuple[Any, Any, int]], process_group: Any) -> Call:
    """All begun, then waited for: gloo moves each on threads of its own."""
    starts = [functools.partial(start, tensor, peer, group=process_group) for start, tensor, peer in transfers]

    def call() -> None:
        for work in [start() for start in starts]:
            work.wait()

    return call


def _nothing() -> None:
    """What an idle rank does."""


def _distributed() -> Any:
    import torch.distributed

    return torch.distributed
