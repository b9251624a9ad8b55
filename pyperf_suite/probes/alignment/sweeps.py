"""Sizes of one dimension compared with each other: padding, classes of divisors, cliffs and the search for them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from pyperf_suite.laws.matmul.alignment import elements_in
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.operators import find_operator
from pyperf_suite.operators.dtypes import element_type
from pyperf_suite.probes._products import Pair, Sweep, pair, sweeps_along
from pyperf_suite.probes.alignment.sizes import TOP_CLASS, class_of, known_as
from pyperf_suite.runner.case import Case
from pyperf_suite.spec.rows import Rows, grouped, is_settled, mean_speedup, wins

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
# What divides by more and yet runs at less than this of its neighbour's rate defies the folklore.
DEFIANT = 0.95
# Sizes so near each other differ in their divisors and in little else.
NEAR = 16


@dataclass(frozen=True)
class Pad(Pair):
    """A size and the larger one to pad it to: `gain` is what it wins to build the larger one."""

    @property
    def known_as(self) -> str | None:
        """What people know the size as."""
        return known_as(self.sweep.along, self.size)

    @property
    def at_each_call(self) -> Ratio | None:
        """What padding wins together with the padding and the slice of each call, if that was measured."""
        row = self.sweep.rows[self.size]
        calls = [
            call.faster_than(row)
            for call in row.rows.alike(row, "implementation", "pad_to")
            if call.implementation.removesuffix("_padded") == row.implementation and self.size % call.pad_to
        ]
        return max(filter(None, calls), key=lambda call: call.value, default=None)

    @property
    def verdict(self) -> str:
        """What to do about the size: pad it where it is made, at each call as well, or leave it."""
        call = self.at_each_call
        if not wins(self.gain):
            return "leave it" if is_settled(self.gain) else "undecided"
        if call is None:
            return "build it padded"
        if wins(call):
            return "pad, even at each call"
        return f"build it padded{', do not pad at each call' if is_settled(call) else '; at each call undecided'}"


@dataclass(frozen=True)
class AlignmentClass:
    """All sizes of one setting and dimension that divide alike, each compared with the next aligned size.

    `gain` is the time of these over that of those, so net of the larger products' own work; `rate` the throughput of
    these over that of those.
    """

    sweep: Sweep
    divisor: int
    sizes: tuple[int, ...]
    gain: Ratio
    rate: Ratio
    paths: str


def sweeps_of(rows: Rows) -> list[Sweep]:
    """Rows that share all but one dimension, the library's first; a base belongs to the sweeps of all three."""
    unpadded = rows.where(pad_to=1)
    unpadded.sort(key=lambda row: (row.m, row.n, row.k, str(row.schedule), str(row.tile)))
    unpadded.sort(key=lambda row: (row.dtype, row.layout, row.schedule.policy != "library", row.implementation))
    sweeps = [sweep for along in "mnk" for sweep in sweeps_along(along, unpadded)]
    return [sweep for setting in by_setting(sweeps) for sweep in setting]


def by_setting(sweeps: Iterable[Sweep]) -> list[list[Sweep]]:
    """Those in which the same multiplies in the same way."""
    return list(grouped(sweeps, lambda sweep: sweep.base.key("m", "n", "k")).values())


def pads_of(sweep: Sweep) -> list[Pad]:
    """Every size with the larger one, dividing by more, that takes about the least time: what to pad to."""
    found = []
    for size in sweep.rows:
        seconds = {larger: sweep.rows[larger].seconds for larger in _to_pad_to(sweep, size)}
        cheap = [larger for larger in seconds if seconds[larger] <= ABOUT_THE_SAME * min(seconds.values())]
        found += [pair(sweep, size, larger) for larger in cheap[:1]]
    return [Pad(**vars(each)) for each in found if each]


def _to_pad_to(sweep: Sweep, size: int) -> list[int]:
    most = size * (1 + MOST_PADDING)
    return [larger for larger in sweep.rows if size < larger <= most and class_of(larger) > class_of(size)]


def _next_aligned(sweep: Sweep, size: int) -> int | None:
    """The next size that divides by more and ends on a line of memory."""
    device = find_operator("matmul").implementation(sweep.base.implementation).device_kind
    line = elements_in(LINE_BYTES[device], element_type(sweep.base.dtype).size_bytes)
    return next((larger for larger in _to_pad_to(sweep, size) if larger % line == 0), None)


def classes_of(sweeps: Iterable[Sweep]) -> list[AlignmentClass]:
    """By setting, dimension and divisor."""
    found = []
    for members in grouped(sweeps, lambda sweep: (sweep.base.key("m", "n", "k"), sweep.along)).values():
        sizes = grouped(((size, each) for each in members for size in each.rows), lambda each: class_of(each[0]))
        for divisor in sorted(sizes):
            pairs = [(size, larger, each) for size, each in sizes[divisor] if (larger := _next_aligned(each, size))]
            gain = mean_speedup([(each.rows[size].reading, each.rows[larger].reading) for size, larger, each in pairs])
            if gain is not None:
                rate = gain.inverse * statistics.geometric_mean(size / larger for size, larger, _ in pairs)
                paths = {str(each.rows[size].kernel.get("path", "")) for size, _, each in pairs} - {""}
                alike = tuple(sorted({size for size, _, _ in pairs}))
                found.append(AlignmentClass(members[0], divisor, alike, gain, rate, "/".join(sorted(paths))))
    return found


def edges_of(sweep: Sweep) -> list[Pair]:
    """Every jump in rate between neighbours that divide alike, beyond its interval; the larger size comes first."""
    alike = grouped(sweep.rows, class_of)
    neighbours = [each for divisor in sorted(alike) for each in itertools.pairwise(alike[divisor])]
    near = [pair(sweep, above, size) for size, above in neighbours if above <= WIDEST_SEARCH * size]
    return [each for each in near if each and jump(each) >= CLIFF and not each.rate.low <= 1 <= each.rate.high]


def jump(edge: Pair) -> float:
    """By how much the rates differ, in whichever direction."""
    return max(edge.rate.value, 1 / edge.rate.value)


def _step(edge: Pair) -> int:
    """Odd multiples of a class lie two classes apart; at the top all its multiples count."""
    divisor = class_of(edge.size)
    return divisor if divisor == TOP_CLASS else 2 * divisor


def is_found(edge: Pair) -> bool:
    """Whether no size of this class lies between the two."""
    return edge.size - edge.other == _step(edge)


def next_of_searches(rows: Rows, asked: Set[str]) -> list[Case]:
    """The middle of each of the widest jumps that are not yet closed in on, but for those whose id was asked before."""
    wide = [edge for sweep in sweeps_of(rows) for edge in edges_of(sweep) if not is_found(edge)]
    cases: dict[str, Case] = {}
    for edge in sorted(wide, key=jump, reverse=True):
        middle = edge.other + (edge.size - edge.other) // (2 * _step(edge)) * _step(edge)
        below = edge.sweep.rows[edge.other].case
        case = replace(below, parameters=replace(below.parameters, **{edge.sweep.along: middle}))
        if case.case_id not in asked:
            cases[case.case_id] = case
    return list(cases.values())[:SEARCHES_AT_ONCE]


def defiances_of(sweeps: Iterable[Sweep]) -> list[Pair]:
    """Sizes that divide by more than a neighbour and are slower: the worst of each pair of classes, slowest first."""
    worst = []
    for sweep in sweeps:
        near = [(size, other) for size, other in itertools.permutations(sweep.rows, 2) if abs(size - other) <= NEAR]
        pairs = [pair(sweep, size, other) for size, other in near if class_of(size) > class_of(other)]
        slow = [each for each in pairs if each and each.rate.high < DEFIANT]
        classes = grouped(slow, lambda each: (class_of(each.size), class_of(each.other))).values()
        worst += [min(alike, key=lambda each: each.rate.value) for alike in classes]
    return sorted(worst, key=lambda each: each.rate.value)
