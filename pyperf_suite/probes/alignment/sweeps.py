"""Sizes of one dimension compared with each other: padding, classes of divisors, cliffs and the search for them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.laws.matmul.alignment import elements_in
from pyperf_suite.measure.estimates import Ratio
from pyperf_suite.probes._products import Pair, Sweep, sweeps_along
from pyperf_suite.probes.alignment.sizes import TOP_CLASS, class_of, known_as
from pyperf_suite.runner.record import Case
from pyperf_suite.spec.rows import Rows, grouped, is_settled, mean_speedup, wins
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.dtypes import element_type

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
        name = f"{self.row.implementation}_padded"
        calls = [call for call in self.row.rows.alike(self.row, "implementation", "pad_to") if self.size % call.pad_to]
        gains = [call.faster_than(self.row) for call in calls if call.implementation == name]
        return max(filter(None, gains), key=lambda gain: gain.value, default=None)

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
    """All sizes of one setting and dimension that divide alike, each paired with the next aligned size.

    `gain` is the time of these over that of those, so net of the larger products' own work.
    """

    sweep: Sweep
    divisor: int
    pairs: Sequence[Pair]
    gain: Ratio

    @property
    def rate(self) -> Ratio:
        """Throughput of these over that of those."""
        return self.gain.inverse * statistics.geometric_mean(each.size / each.other for each in self.pairs)


def sweeps_of(rows: Rows) -> list[Sweep]:
    """Rows that share all but one dimension, the library's first; a base belongs to the sweeps of all three."""
    unpadded = rows.where(pad_to=1)
    unpadded.sort(key=lambda row: (row.m, row.n, row.k, str(row.schedule), str(row.tile)))
    unpadded.sort(key=lambda row: (row.dtype, row.layout, row.schedule.policy != "library", row.implementation))
    return [*itertools.chain(*by_setting(sweep for along in "mnk" for sweep in sweeps_along(along, unpadded)))]


def by_setting(sweeps: Iterable[Sweep]) -> list[list[Sweep]]:
    """Those in which the same multiplies in the same way."""
    return list(grouped(sweeps, lambda sweep: sweep.base.key("m", "n", "k")).values())


def pads_of(sweep: Sweep) -> list[Pad]:
    """Every size with the larger one, dividing by more, that takes about the least time: what to pad to."""
    targets = {}
    for size in sweep.rows:
        seconds = {larger: sweep.rows[larger].seconds for larger in _to_pad_to(sweep, size)}
        if seconds:
            least = min(seconds.values())
            targets[size] = next(larger for larger in seconds if seconds[larger] <= ABOUT_THE_SAME * least)
    return Pad.each(sweep, targets.items())


def _to_pad_to(sweep: Sweep, size: int) -> list[int]:
    most = size * (1 + MOST_PADDING)
    return [larger for larger in sweep.rows if size < larger <= most and class_of(larger) > class_of(size)]


def _next_aligned(sweep: Sweep) -> Iterator[tuple[int, int]]:
    """Every size with the next that divides by more and ends on a line of memory."""
    device = find_workload("matmul").implementation(sweep.base.implementation).device_kind
    line = elements_in(LINE_BYTES[device], element_type(sweep.base.dtype).size_bytes)
    for size in sweep.rows:
        yield from [(size, larger) for larger in _to_pad_to(sweep, size) if larger % line == 0][:1]


def classes_of(sweeps: Iterable[Sweep]) -> Iterator[AlignmentClass]:
    """By setting, dimension and divisor."""
    for members in grouped(sweeps, lambda sweep: (sweep.base.key("m", "n", "k"), sweep.along)).values():
        pairs = [pair for sweep in members for pair in Pair.each(sweep, _next_aligned(sweep))]
        for divisor, alike in sorted(grouped(pairs, lambda pair: class_of(pair.size)).items()):
            gain = mean_speedup([(pair.row.reading, pair.beside.reading) for pair in alike])
            if gain is not None:
                yield AlignmentClass(members[0], divisor, alike, gain)


def edges_of(sweep: Sweep) -> list[Pair]:
    """Every jump in rate between neighbours that divide alike, beyond its interval; the larger size comes first."""
    alike = grouped(sweep.rows, class_of)
    neighbours = [each for divisor in sorted(alike) for each in itertools.pairwise(alike[divisor])]
    near = Pair.each(sweep, ((above, size) for size, above in neighbours if above <= WIDEST_SEARCH * size))
    return [each for each in near if jump(each) >= CLIFF and not each.rate.low <= 1 <= each.rate.high]


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


def next_of_searches(rows: Rows) -> list[Case]:
    """The middle of each of the widest jumps that are not yet closed in on, but for those asked before."""
    asked = {record.case_id for record in rows.records}
    wide = [edge for sweep in sweeps_of(rows) for edge in edges_of(sweep) if not is_found(edge)]
    cases: dict[str, Case] = {}
    for edge in sorted(wide, key=jump, reverse=True):
        middle = edge.other + (edge.size - edge.other) // (2 * _step(edge)) * _step(edge)
        case = replace(edge.beside.case, parameters=replace(edge.beside.parameters, **{edge.sweep.along: middle}))
        if case.case_id not in asked:
            cases[case.case_id] = case
    return list(cases.values())[:SEARCHES_AT_ONCE]


def defiances_of(sweeps: Iterable[Sweep]) -> list[Pair]:
    """Sizes that divide by more than a neighbour and are slower: the worst of each pair of classes, slowest first."""
    worst = []
    for sweep in sweeps:
        near = [(size, other) for size, other in itertools.permutations(sweep.rows, 2) if abs(size - other) <= NEAR]
        pairs = Pair.each(sweep, (sizes for sizes in near if class_of(sizes[0]) > class_of(sizes[1])))
        slow = [each for each in pairs if each.rate.high < DEFIANT]
        classes = grouped(slow, lambda each: (class_of(each.size), class_of(each.other))).values()
        worst += [min(alike, key=lambda each: each.rate.value) for alike in classes]
    return sorted(worst, key=lambda each: each.rate.value)
