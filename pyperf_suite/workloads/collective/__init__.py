"""The parameters of a collective, the data that makes its result exact, and what each rank must find in its output.

Sizes are nccl-tests': `bytes` is its column "size", rounded down to what whole elements on every rank can fill. Inputs
are small whole numbers whose sums, products and extremes the type holds exactly in any order of adding. Which value
stands where depends on the position and on the rank, so that data from elsewhere or of nobody is seen.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import OneOf, UserError, Within
from pyperf_suite.laws.traffic import element_count, message_bytes
from pyperf_suite.workloads.operands import element_type, round_to, widen
from pyperf_suite.workloads.workload import BUILD_ON_EACH_OTHER, Checked, Transfers

Pairs = tuple[tuple[int, int], ...]

DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "int32", "int8")
REDUCTIONS = ("sum", "prod", "max", "min", "avg")

# Beyond these no machine goes; they also keep sizes inside 64-bit arithmetic.
MOST_BYTES, MOST_RANKS = 1 << 46, 1 << 15

Stored = NDArray[Any]

# Whole numbers up to this are exact in the type: two to the bits of its significand, but for integers their largest or,
# as values are made in float32, its limit.
LARGEST_EXACT = {
    "float32": 1 << 24,
    "float16": 1 << 11,
    "bfloat16": 1 << 8,
    "float8_e4m3fn": 1 << 4,
    "int32": 1 << 24,
    "int8": 127,
}

# Elements after which values repeat: a prime, so that no shift by a block, a page or a ring's slot goes unseen.
PERIOD = 65_521
POISON_BYTE = 0xFF  # NaN in every floating-point type and -1 in the integers; no correct output is either


@dataclass(frozen=True)
class Operation:
    """Parameters that an operation takes, and the name under which laws count its bytes."""

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
    copies between GPUs (NVLink or PCIe), and `registered` registers buffers with it. `symmetric` has all ranks make
    windows of their buffers together, as nccl-tests' `-R 2` does. `settings` are whole numbers of the configuration of
    NCCL's communicator by NCCL's names, as in CTAPolicy=2+maxCTAs=8; blocking=1 has NCCL wait inside its calls.
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
    symmetric: bool = False
    settings: str = ""

    @property
    def operation(self) -> Operation:
        OneOf(OPERATIONS).check("op", self.op)
        return OPERATIONS[self.op]

    @property
    def element_bytes(self) -> int:
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
            raise UserError(f"The pattern {pattern!r} was requested: write pairs of ranks, as in 0-3 or 0-1,2-3.")
        first_and_second = [pair.split("-") for pair in pattern.split(",")]
        return tuple((int(first), int(second)) for first, second in first_and_second)

    @property
    def configuration(self) -> dict[str, int]:
        """The settings by name. Raises UserError where they cannot be read."""
        if not re.fullmatch(r"(\w+=-?\d+(\+(?!$)|$))*", self.settings):
            raise UserError(
                f"The settings {self.settings!r} were requested: write names of NCCL's and whole numbers, as in "
                "CTAPolicy=2+maxCTAs=8."
            )
        each = (setting.split("=") for setting in self.settings.split("+") if setting)
        return {name: int(value) for name, value in each}

    @property
    def repeatable(self) -> bool:
        """True if a second call leaves the same: not where sums stand in the place of the addends."""
        return not (self.in_place and self.operation.reduces)

    def takes_part(self, rank: int) -> bool:
        if self.op != "bisection" and not self.operation.by_pairs:
            return True
        return any(rank in pair for pair in self.pairs)

    def send_count(self, rank: int) -> int:
        if self.op in ("broadcast", "scatter") and rank != self.root:
            return 0
        if self.op == "ping_pong":
            return self.count if self.takes_part(rank) else 0
        if self.pairs:
            return self.count if any(source == rank for source, _ in self.pairs) else 0
        return self.count * (self.ranks if self.op in ("reduce_scatter", "all_to_all", "scatter") else 1)

    def receive_count(self, rank: int) -> int:
        if self.op in ("reduce", "gather") and rank != self.root:
            return 0
        if self.op == "ping_pong":
            return self.count if self.takes_part(rank) else 0
        if self.pairs:
            return self.count * sum(destination == rank for _, destination in self.pairs)
        return self.count * (self.ranks if self.op in ("all_gather", "all_to_all", "gather") else 1)

    def buffer_counts(self, rank: int) -> tuple[int, int]:
        """Elements of the buffers to send from and to receive into; in place there is the first alone."""
        counts = self.send_count(rank), self.receive_count(rank)
        return (max(counts), 0) if self.in_place else counts

    @property
    def largest_counts(self) -> tuple[int, int]:
        """The larger of all ranks' buffers, which is that of every rank where they are windows."""
        ranks = {0, self.root, *(rank for pair in self.pairs for rank in pair)}
        send, receive = zip(*map(self.buffer_counts, ranks), strict=True)
        return max(send), max(receive)

    @property
    def footprint_bytes(self) -> int:
        ranks = {0, self.root, *(rank for pair in self.pairs for rank in pair)}
        each = [self.largest_counts] if self.symmetric else map(self.buffer_counts, ranks)
        return max(map(sum, each)) * self.element_bytes

    def validate(self) -> None:
        operation = self.operation
        if not 0 <= self.root < self.ranks:
            raise UserError(f"Root {self.root} was requested among {self.ranks} ranks: they count from 0.")
        for is_set, is_allowed, field in (
            (self.reduction != "sum", operation.reduces, "reduction"),
            (self.root != 0, operation.has_root, "root"),
            (self.pattern != "", operation.by_pairs, "pattern"),
            (self.in_place, operation.in_place, "in_place"),
        ):
            if is_set and not is_allowed:
                raise UserError(f"{self.op} was requested with {field}, which it does not take: leave it out.")
        if self.count == 0:
            least = int(message_bytes(operation.counted_as, 1, self.element_bytes, self.ranks))
            raise UserError(
                f"{self.op} of {self.bytes} bytes was requested, which is less than one {self.dtype} for each of "
                f"{self.ranks} ranks: ask for at least {least} bytes."
            )
        if self.registered and self.symmetric:
            raise UserError(
                "Registered buffers and symmetric windows were requested: a window is registered, ask for one."
            )
        self.configuration  # noqa: B018 - raises
        self._validate_pairs()

    def _validate_pairs(self) -> None:
        if self.op == "bisection" and self.ranks < 2:
            raise UserError("bisection of 1 rank was requested: it takes at least 2.")
        pairs = self.pairs if self.operation.by_pairs else ()
        for first, second in pairs:
            if first == second or max(first, second) >= self.ranks:
                raise UserError(
                    f"{self.op} of the ranks {first}-{second} was requested among {self.ranks}: give two different "
                    "ones, counted from 0."
                )
        if self.op == "ping_pong" and len({rank for pair in pairs for rank in pair}) < 2 * len(pairs):
            raise UserError(
                f"ping_pong of {self.pattern} was requested: a rank plays with one other, so name it in one pair."
            )


class Memory(Protocol):
    """A buffer of a rank, wherever it is; positions count elements, and arrays are in the type's storage."""

    def poison(self) -> None:
        """Set every byte to POISON_BYTE."""

    def repeat(self, first: int, values: Stored, count: int) -> None:
        """Fill `count` elements from `first` on with the values, which repeat."""

    def outside(self, first: int, low: Stored, high: Stored, count: int) -> tuple[int, int]:
        """Count elements of `count` from `first` that are not from low to high, and those that repeat; find the first.

        All are compared as unsigned integers of their bits, where they are; positions count from `first`, -1 is none.
        """

    def read(self, first: int, count: int) -> Stored:
        """Read `count` elements from `first` on."""


class RankData:
    """The inputs of one rank and what it must find after the collective has run once.

    In place there is one buffer, that to send from. What a rank sends is then its own part of what it receives, or the
    other way, so that one of both begins in the middle.
    """

    def __init__(self, parameters: CollectiveParameters, rank: int) -> None:
        self.parameters, self.rank = parameters, rank
        self.inputs, self.outputs = parameters.send_count(rank), parameters.receive_count(rank)
        in_place = parameters.in_place
        self.send_count, self.receive_count = (
            parameters.largest_counts if parameters.symmetric else parameters.buffer_counts(rank)
        )
        self.input_at = rank * self.inputs if in_place and self.inputs < self.outputs else 0
        self.output_at = rank * self.outputs if in_place and self.outputs < self.inputs else 0

    def fill(self, send: Memory | None, receive: Memory | None) -> None:
        for memory in (send, receive):
            if memory is not None:
                memory.poison()
        if send is not None and self.inputs:
            send.repeat(self.input_at, _inputs(self.parameters, self.rank)[: self.inputs], self.inputs)

    def check(self, output: Memory | None) -> Checked:
        """Compare all of the output with what it must be; a rank without any has none wrong.

        It is compared where it lies, so that 8 GiB on a GPU cost no more of the host than a few bytes do.
        """
        wrong, first_wrong, at, count = 0, "", 0, self.parameters.count
        for values in self.expected() if output is not None else ():
            assert output is not None
            outside, first = output.outside(self.output_at + at, *_bounds(values, self.parameters), count)
            if outside and not first_wrong:
                pair = output.read(self.output_at + at + first, 1), values[first % len(values) :][:1]
                found, due = (float(widen(value, self.parameters.dtype)[0]) for value in pair)
                first_wrong = f"element {at + first} is {found:g} and must be {due:g}"
            wrong += outside
            at += count
        return Checked(wrong, at, first_wrong)

    def expected(self) -> Iterator[Stored]:
        """Yield the elements that this rank must have received, in order, by source: values that repeat."""
        p, count = self.parameters, self.parameters.count
        # Operations that spread a buffer take of it the part that is this rank's.
        phase = self.rank * count if p.op in ("reduce_scatter", "scatter", "all_to_all") else 0
        for source in self._sources() if self.outputs else ():
            period = _reduced(p) if p.operation.reduces else _inputs(p, source)
            yield np.ascontiguousarray(np.roll(period, -(phase % len(period)))[:count])

    def _sources(self) -> Sequence[int]:
        """The ranks whose data this one receives, in the order of its buffer; any one where all are reduced to one."""
        p, rank = self.parameters, self.rank
        if p.operation.reduces or p.op in ("broadcast", "scatter"):
            return [p.root]
        if p.op == "send_receive":
            return [(rank - 1) % p.ranks]
        if p.op == "ping_pong":
            return [pair[pair[0] == rank] for pair in p.pairs if rank in pair]
        return [source for source, destination in p.pairs if destination == rank] if p.pairs else range(p.ranks)


class Exchange(Transfers):
    """One rank's buffers: filled before what is checked, and compared after it."""

    def __init__(self, parameters: CollectiveParameters, rank: int, allocated: Callable[[int], Any]) -> None:
        self.data = RankData(parameters, rank)
        self.takes_part = parameters.takes_part(rank)
        self.unchecked = "" if parameters.repeatable else BUILD_ON_EACH_OTHER
        self.send: Any
        self.receive: Any
        self.send, self.receive = (
            allocated(count) if count else None for count in (self.data.send_count, self.data.receive_count)
        )

    def poison(self, index: int | None = None) -> None:
        self.data.fill(self.send, self.receive)

    def verify_last(self, index: int = 0) -> Checked:
        return self.data.check(self.send if self.data.parameters.in_place else self.receive)

    def close(self) -> None:
        self.send = self.receive = None


def _bounds(due: Stored, parameters: CollectiveParameters) -> tuple[Stored, Stored]:
    """The least and the largest right value of each; none is negative, so floats are in the order of their bits."""
    tolerance = relative_tolerance(parameters)
    if not tolerance:
        return due, due
    wide = widen(due, parameters.dtype).astype(np.float64)
    bits = due.view(f"u{due.itemsize}").astype(np.int64)

    def beyond(step: int) -> Stored:
        """The last value that is within the tolerance, going up or down one value of the type at a time."""
        at = bits
        for _ in range(parameters.ranks + 3):  # more values than the tolerance has half units in the last place
            tried = np.maximum(at + step, 0)
            value = widen(tried.astype(f"u{due.itemsize}").view(due.dtype), parameters.dtype).astype(np.float64)
            at = np.where(np.abs(value - wide) <= tolerance * wide, tried, at)
        return at.astype(f"u{due.itemsize}").view(due.dtype)

    return beyond(-1), beyond(1)


def relative_tolerance(parameters: CollectiveParameters) -> float:
    """How far a result may be off: 0, but for the average of floats over a number of ranks that is no power of two.

    1/n is then rounded, each input times 1/n is, and so is each of n − 1 sums of positive numbers: together less than
    (n + 1) half units in the last place, and one more for those of expected values (Higham, Accuracy and Stability of
    Numerical Algorithms, 2002, lemma 3.1).
    """
    n, floating = parameters.ranks, not parameters.dtype.startswith("int")
    if parameters.reduction != "avg" or not floating or n & (n - 1) == 0:
        return 0.0
    return (n + 2) / LARGEST_EXACT[parameters.dtype]


@functools.lru_cache(maxsize=16)
def _inputs(parameters: CollectiveParameters, rank: int) -> Stored:
    """One period of what that rank sends, in storage.

    Where data is reduced all ranks hold h(i) of `_height`, but for one that holds another value: at position i rank
    i mod n, so that a rank that is left out or counted twice is seen.
    """
    position = _positions(parameters)
    if not parameters.operation.reduces:
        return _stored(_mixed(position, rank) % (LARGEST_EXACT[parameters.dtype] + 1), parameters.dtype)
    height = _height(parameters)
    base, other = height, height + _step(parameters)
    if parameters.reduction == "prod":
        base = np.ones_like(position)
    elif parameters.reduction == "min":
        base, other = other, base
    return _stored(np.where(position % parameters.ranks == rank, other, base), parameters.dtype)


@functools.lru_cache(maxsize=16)
def _reduced(parameters: CollectiveParameters) -> Stored:
    height, n = _height(parameters), parameters.ranks
    factor, step = {"sum": (n, 1), "avg": (1, _step(parameters) / n), "min": (1, 0)}.get(parameters.reduction, (1, 1))
    return _stored(factor * height + step, parameters.dtype)


def _height(parameters: CollectiveParameters) -> NDArray[np.int64]:
    """h(i): at least 1 wherever n · h(i) + 1 can be exact, and 0 for ranks too many for that."""
    largest = LARGEST_EXACT[parameters.dtype]
    if parameters.reduction in ("sum", "avg"):
        highest = (largest - _step(parameters)) // parameters.ranks
    else:
        highest = largest - 1
    if highest < 0:
        raise UserError(
            f"The average of {parameters.ranks} ranks in {parameters.dtype} was requested, but it cannot be checked "
            f"exactly beyond {largest}: ask for a wider dtype."
        )
    position = _positions(parameters)
    height: NDArray[np.int64] = 1 + _mixed(position, -1) % highest if highest else np.zeros_like(position)
    return height


def _positions(parameters: CollectiveParameters) -> NDArray[np.int64]:
    """Return the positions of one period, or of all elements if they are fewer."""
    return np.arange(min(PERIOD, parameters.count * parameters.ranks), dtype=np.int64)


def _step(parameters: CollectiveParameters) -> int:
    """By how much the one rank differs: an average of integers must be one too."""
    return parameters.ranks if parameters.reduction == "avg" and parameters.dtype.startswith("int") else 1


def _mixed(position: NDArray[np.int64], rank: int) -> NDArray[np.int64]:
    """Numbers that look random, by position and rank: the mixing step of splitmix64 (Steele et al., 2014)."""
    bits = position.astype(np.uint64) + np.uint64((rank + 1) * 0x9E3779B97F4A7C15 % 2**64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (bits >> np.uint64(33)).astype(np.int64)


def _stored(values: NDArray[Any], dtype: str) -> Stored:
    rounded = round_to(values.astype(np.float32), dtype)
    assert rounded.dtype == element_type(dtype).storage
    return rounded
