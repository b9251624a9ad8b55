"""Readings of the alignment probe put in order: sweeps along a dimension, padding in them, the search for cliffs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

from pyperf_suite.laws.matmul.alignment import elements_in, largest_power_of_two
from pyperf_suite.laws.matmul.tiling import Schedule, Tile
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.operators import find_operator
from pyperf_suite.operators.dtypes import element_type
from pyperf_suite.probes.alignment.sizes import TOP_RUNG, name_in_real_life
from pyperf_suite.runner.case import Case
from pyperf_suite.spec.rows import Reading, speedup

# Lines of memory: of a CPU's caches, and the 128 bytes in which GPUs since A100 like their rows (NVIDIA, Linear/Fully-
# Connected Layers User's Guide).
LINE_BYTES = {"cpu": 64, "cuda": 128}

# Rates that differ by less are a slope, not an edge.
CLIFF = 1.15

# Padded by more than this part of itself, a dimension is another one.
MOST_PADDING = 0.25

# Of larger sizes that take about the same time, the smallest is the one to pad to.
ABOUT_THE_SAME = 1.02

# A search begins between sizes of which one is at most so many times the other.
WIDEST_SEARCH = 2.5

# So many edges are closed in on in one round.
SEARCHES_AT_ONCE = 4


@dataclass(frozen=True)
class Setting:
    """Who multiplies and how, whatever the shape."""

    implementation: str
    dtype: str
    layout: str
    schedule: Schedule
    tile: Tile | None
    mode: str

    @property
    def is_library(self) -> bool:
        """Whether tile and order are a library's choice."""
        return self.schedule.policy == "library"

    @property
    def line_elements(self) -> int:
        """Elements in a line of memory where this runs."""
        device = find_operator("matmul").implementation(self.implementation).device_kind
        return elements_in(LINE_BYTES[device], element_type(self.dtype).size_bytes)

    def __str__(self) -> str:
        mode = "" if self.mode == "burst" else f"{self.mode} "
        tile = f" {self.tile}" if self.tile else ""
        schedule = "" if self.is_library else f" {self.schedule}"
        return f"{mode}{self.implementation}{tile}{schedule}, {self.dtype}, {self.layout}"


@dataclass(frozen=True)
class Pad:
    """One size beside a larger one: what it wins to pad, and its own throughput beside that of the larger.

    `at_each_call` is against padding, product and slice together, where that was measured.
    """

    size: int
    padded: int
    once: Ratio
    at_each_call: Ratio | None

    @property
    def relative_rate(self) -> Ratio:
        """Throughput at the size beside that at the larger: below 1 where the divisor costs."""
        return self.once.inverse * (self.size / self.padded)


@dataclass(frozen=True)
class Edge:
    """Neighbours that divide alike, between which the rate jumps; `faster_above` is the rate above beside the other."""

    below: Reading
    above: Reading
    size: int
    size_above: int
    step: int
    faster_above: Ratio

    @property
    def is_found(self) -> bool:
        """Whether no size of this rung lies between the two."""
        return self.size_above - self.size == self.step

    @property
    def middle(self) -> int:
        """The size of this rung nearest to halfway."""
        return self.size + (self.size_above - self.size) // (2 * self.step) * self.step


@dataclass(frozen=True)
class Sweep:
    """Readings of one setting by size along one dimension, the others fixed as named.

    `padded` has readings of the same sizes padded at each call, by size.
    """

    setting: Setting
    along: str
    fixed: tuple[tuple[str, int], ...]
    readings: dict[int, Reading]
    padded: dict[int, tuple[Reading, ...]]

    @property
    def sizes(self) -> list[int]:
        """From small to large."""
        return sorted(self.readings)

    @property
    def names(self) -> dict[int, str]:
        """What people know some of the sizes as."""
        return {size: name for size in self.sizes if (name := name_in_real_life(self.along, size))}

    def shape(self, size: int | str) -> str:
        """M x N x K with that size, or word, in the place of the varied dimension."""
        sizes = {**dict(self.fixed), self.along: size}
        return " x ".join(str(sizes[name]) for name in "mnk")

    def next_aligned(self, size: int) -> int | None:
        """The next measured size that ends on a line of memory and divides by more; None where there is none."""
        line = self.setting.line_elements
        return next((larger for larger in self._to_pad_to(size) if larger % line == 0), None)

    def cheapest_above(self, size: int) -> int | None:
        """The larger measured size, dividing by more, that takes about the least time: what to pad to."""
        seconds = {larger: self.readings[larger].seconds for larger in self._to_pad_to(size)}
        return next((larger for larger in seconds if seconds[larger] <= ABOUT_THE_SAME * min(seconds.values())), None)

    def _to_pad_to(self, size: int) -> list[int]:
        rung = rung_of(size)
        most = size * (1 + MOST_PADDING)
        return [other for other in self.sizes if size < other <= most and rung_of(other) > rung]

    def faster(self, size: int, other: int) -> Ratio | None:
        """The rate at a size beside that at another; None where no process measured both."""
        time = speedup(self.readings[other], self.readings[size])
        return time * (size / other) if time is not None else None

    def pad(self, size: int, padded: int | None) -> Pad | None:
        """What padding to that size wins; None where there is no such size, or no process measured both."""
        if padded is None:
            return None
        once = speedup(self.readings[size], self.readings[padded])
        if once is None:
            return None
        calls = [speedup(self.readings[size], call) for call in self.padded.get(size, ())]
        return Pad(size, padded, once, max((call for call in calls if call), key=lambda call: call.value, default=None))

    def edges(self) -> list[Edge]:
        """Every jump in rate between neighbours that divide alike, beyond its interval."""
        found = []
        for rung in sorted({rung_of(size) for size in self.sizes}):
            alike = [size for size in self.sizes if rung_of(size) == rung]
            # Odd multiples of a rung lie two rungs apart; at the top all its multiples count.
            step = rung if rung == TOP_RUNG else 2 * rung
            edges = (self._edge(size, above, step) for size, above in itertools.pairwise(alike))
            found += [edge for edge in edges if edge is not None]
        return found

    def _edge(self, size: int, size_above: int, step: int) -> Edge | None:
        faster = self.faster(size_above, size)
        if size_above > WIDEST_SEARCH * size or faster is None:
            return None
        jumps = abs(math.log(faster.value)) >= math.log(CLIFF) and not faster.low <= 1 <= faster.high
        return Edge(self.readings[size], self.readings[size_above], size, size_above, step, faster) if jumps else None


def rung_of(size: int) -> int:
    """The largest power of two that divides the size, the top of the ladder at most."""
    return min(largest_power_of_two(size), TOP_RUNG)


def sweeps_of(found: Iterable[Reading]) -> list[Sweep]:
    """Readings that share all but one dimension, in order; a base belongs to the sweeps of all three."""
    members: dict[tuple[Setting, str, tuple[tuple[str, int], ...]], dict[int, Reading]] = {}
    padded: dict[tuple[Setting, str, tuple[tuple[str, int], ...]], dict[int, list[Reading]]] = {}
    for reading in found:
        p = reading.case.parameters
        for along in "mnk":
            fixed = tuple((name, getattr(p, name)) for name in "mnk" if name != along)
            key = (_setting(reading.case), along, fixed)
            size = getattr(p, along)
            if p.pad_to == 1:
                members.setdefault(key, {})[size] = reading
            elif size % p.pad_to:
                padded.setdefault(key, {}).setdefault(size, []).append(reading)
    sweeps = [
        Sweep(*key, readings, {size: tuple(calls) for size, calls in padded.get(key, {}).items()})
        for key, readings in members.items()
        if len(readings) > 1
    ]
    return sorted(sweeps, key=lambda sweep: (_order(sweep.setting), "mnk".index(sweep.along), sweep.fixed))


def next_of_searches(found: Sequence[Reading], asked: Set[str]) -> list[Case]:
    """The middle of each of the widest jumps that are not yet closed in on, but for those whose id was asked before."""
    wanted: list[tuple[float, Case]] = []
    for sweep in sweeps_of(found):
        for edge in sweep.edges():
            if not edge.is_found:
                between = replace(edge.below.case.parameters, **{sweep.along: edge.middle})
                wanted.append((abs(math.log(edge.faster_above.value)), replace(edge.below.case, parameters=between)))
    new = {case.case_id: case for _, case in sorted(wanted, key=lambda each: -each[0]) if case.case_id not in asked}
    return list(new.values())[:SEARCHES_AT_ONCE]


def _setting(case: Case) -> Setting:
    p = case.parameters
    # Padding at each call is a way to use the same library.
    implementation = case.implementation.removesuffix("_padded") if p.pad_to > 1 else case.implementation
    return Setting(implementation, p.dtype, p.layout, p.schedule, p.tile, case.mode)


def _order(setting: Setting) -> tuple[str, ...]:
    """The library first: it is what people use."""
    ours = "0" if setting.is_library else "1"
    return (setting.dtype, setting.layout, ours, setting.implementation, str(setting.schedule), str(setting.tile))
