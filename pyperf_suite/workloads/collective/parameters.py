"""The parameters of one collective: what is done, with how many bytes, by how many ranks, on what type.

Sizes are nccl-tests': `bytes` is its column "size", rounded down to what whole elements on every rank can fill.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pyperf_suite.errors import OneOf, UserError, Within
from pyperf_suite.laws.network.communication import element_count, message_bytes
from pyperf_suite.workloads.dtypes import element_type

Pairs = tuple[tuple[int, int], ...]

DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "int32", "int8")
REDUCTIONS = ("sum", "prod", "max", "min", "avg")

# Beyond these no machine goes; they also keep sizes inside 64-bit arithmetic.
MOST_BYTES, MOST_RANKS = 1 << 46, 1 << 15


@dataclass(frozen=True)
class Operation:
    """What parameters an operation takes, and the name under which laws count its bytes."""

    counted_as: str
    reduces: bool = False
    has_root: bool = False
    in_place: bool = False
    by_pairs: bool = False


OPERATIONS = {
    "all_reduce": Operation("all_reduce", reduces=True, in_place=True),
    "all_gather": Operation("all_gather", in_place=True),
    "reduce_scatter": Operation("reduce_scatter", reduces=True, in_place=True),
    "broadcast": Operation("broadcast", has_root=True, in_place=True),
    "reduce": Operation("reduce", reduces=True, has_root=True, in_place=True),
    "all_to_all": Operation("all_to_all"),
    "gather": Operation("gather", has_root=True, in_place=True),
    "scatter": Operation("scatter", has_root=True, in_place=True),
    "send_receive": Operation("send_receive"),
    "ping_pong": Operation("send_receive", by_pairs=True),
    "bisection": Operation("send_receive"),
    "pairs": Operation("send_receive", by_pairs=True),
}


@dataclass(frozen=True)
class CollectiveParameters:
    """One collective among `ranks` processes.

    send_receive is a ring: each rank sends to the next and receives from the one before. In bisection rank i and rank
    i + ranks // 2 exchange. `pattern` says which ranks play ping_pong ("0-1" if none, or "0-3,1-2"), there and back, or
    of pairs which sends to which; all other ranks are there and idle. `peer_to_peer` False has NCCL go without direct
    copies between GPUs (NVLink or PCIe), and `registered` registers buffers with it. `logged` has NCCL write down which
    algorithm and protocol it takes; it writes at every call, so the time of such a case is of no use.
    """

    op: Annotated[str, OneOf(OPERATIONS)]
    bytes: Annotated[int, Within(1, MOST_BYTES)]
    ranks: Annotated[int, Within(1, MOST_RANKS)]
    dtype: Annotated[str, OneOf(DTYPES)] = "float32"
    in_place: bool = False
    reduction: Annotated[str, OneOf(REDUCTIONS)] = "sum"
    root: int = 0
    pattern: str = ""
    peer_to_peer: bool = True
    registered: bool = False
    logged: bool = False

    @property
    def operation(self) -> Operation:
        """What its operation takes. Raises UserError where there is none of that name."""
        OneOf(OPERATIONS).check("op", self.op)
        return OPERATIONS[self.op]

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return element_type(self.dtype).size_bytes

    @cached_property
    def count(self) -> int:
        """Elements as NCCL counts them: what one rank sends to one other."""
        return int(element_count(self.operation.counted_as, self.bytes, self.element_bytes, self.ranks))

    @property
    def message_bytes(self) -> int:
        """The size that whole elements fill: at most `bytes`, and what rates are computed from."""
        return int(message_bytes(self.operation.counted_as, self.count, self.element_bytes, self.ranks))

    @property
    def pairs(self) -> Pairs:
        """(source, destination) of each transfer of ping_pong (who begins, who answers), bisection or pairs.

        Raises UserError where the pattern cannot be read.
        """
        if self.op == "bisection":
            half = self.ranks // 2
            return tuple((rank, (rank + half) % (2 * half)) for rank in range(2 * half))
        if not self.operation.by_pairs:
            return ()
        pattern = self.pattern or "0-1"
        if not re.fullmatch(r"\d+-\d+(,\d+-\d+)*", pattern):
            raise UserError(f"The pattern {pattern!r} was asked for: write pairs of ranks, as in 0-3 or 0-1,2-3.")
        first_and_second = [pair.split("-") for pair in pattern.split(",")]
        return tuple((int(first), int(second)) for first, second in first_and_second)

    @property
    def repeatable(self) -> bool:
        """Whether doing it again leaves the same: not where sums stand in the place of what was added."""
        return not (self.in_place and self.operation.reduces)

    def takes_part(self, rank: int) -> bool:
        """Whether that rank sends or receives anything."""
        if self.op != "bisection" and not self.operation.by_pairs:
            return True
        return any(rank in pair for pair in self.pairs)

    def send_count(self, rank: int) -> int:
        """Elements of that rank's send buffer; 0 where it sends nothing."""
        if self.op in ("broadcast", "scatter") and rank != self.root:
            return 0
        if self.op == "ping_pong":
            return self.count if self.takes_part(rank) else 0
        if self.pairs:
            return self.count if any(source == rank for source, _ in self.pairs) else 0
        return self.count * (self.ranks if self.op in ("reduce_scatter", "all_to_all", "scatter") else 1)

    def receive_count(self, rank: int) -> int:
        """Elements of that rank's receive buffer; 0 where it receives nothing."""
        if self.op in ("reduce", "gather") and rank != self.root:
            return 0
        if self.op == "ping_pong":
            return self.count if self.takes_part(rank) else 0
        if self.pairs:
            return self.count * sum(destination == rank for _, destination in self.pairs)
        return self.count * (self.ranks if self.op in ("all_gather", "all_to_all", "gather") else 1)

    @property
    def footprint_bytes(self) -> int:
        """Bytes of the buffers of the rank that has the largest."""
        ranks = {0, self.root, *(rank for pair in self.pairs for rank in pair)}
        both = max if self.in_place else lambda send, receive: send + receive
        return max(both(self.send_count(rank), self.receive_count(rank)) for rank in ranks) * self.element_bytes

    def validate(self) -> None:
        """Raise UserError for what cannot be, whoever implements it."""
        operation = self.operation
        if not 0 <= self.root < self.ranks:
            raise UserError(f"Root {self.root} was asked for among {self.ranks} ranks: they count from 0.")
        for given, taken, field in (
            (self.reduction != "sum", operation.reduces, "reduction"),
            (self.root != 0, operation.has_root, "root"),
            (self.pattern != "", operation.by_pairs, "pattern"),
            (self.in_place, operation.in_place, "in_place"),
        ):
            if given and not taken:
                raise UserError(f"{self.op} was asked for with {field}, which it does not take: leave it out.")
        if self.count == 0:
            least = int(message_bytes(operation.counted_as, 1, self.element_bytes, self.ranks))
            raise UserError(
                f"{self.op} of {self.bytes} bytes was asked for, which is less than one {self.dtype} for each of "
                f"{self.ranks} ranks: ask for at least {least} bytes."
            )
        self._validate_pairs()

    def _validate_pairs(self) -> None:
        if self.op == "bisection" and self.ranks < 2:
            raise UserError("bisection of 1 rank was asked for: it takes at least 2.")
        pairs = self.pairs if self.operation.by_pairs else ()
        for first, second in pairs:
            if first == second or max(first, second) >= self.ranks:
                raise UserError(
                    f"{self.op} of the ranks {first}-{second} was asked for among {self.ranks}: give two different "
                    "ones, counted from 0."
                )
        if self.op == "ping_pong" and len({rank for pair in pairs for rank in pair}) < 2 * len(pairs):
            raise UserError(
                f"ping_pong of {self.pattern} was asked for: a rank plays with one other, so name it in one pair."
            )
