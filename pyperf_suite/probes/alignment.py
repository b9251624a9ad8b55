"""Divisibility: what odd dimensions cost, and whether padding them wins after its own extra work.

Sizes climb a ladder of divisors around the products of transformer layers. Padding is measured as a larger product, as
with weights padded once, and as padding, product and slice at each call; where rates jump, a search finds the edge.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, UserError, Within
from pyperf_suite.findings.axes import Shape, all_cores, by, multiprocessors, one_and_all_cores, parsed
from pyperf_suite.findings.data import Figure, Findings, Panel, Remark, Table, findings, remark
from pyperf_suite.findings.probe import Probe
from pyperf_suite.findings.rows import Column, Row, Rows, grouped, rows_of, series, table
from pyperf_suite.hardware.devices import Device
from pyperf_suite.kernels.matmul import UNHINTED
from pyperf_suite.kernels.static import hinted_kernels, triton_targets
from pyperf_suite.laws.tiling import Schedule, Tile, elements_in, largest_power_of_two, nearest_with, round_up
from pyperf_suite.probes.baseline import (
    CHOSEN,
    BaselinePair,
    Dtypes,
    Implementations,
    ProductAxes,
    Sweep,
    Workers,
    own_kernel,
    sweeps_along,
)
from pyperf_suite.probes.static_kernels import count, instructions
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.reading import is_settled, mean_speedup, wins
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.exact import CompiledKernelParameters
from pyperf_suite.workloads.matmul import MatmulParameters
from pyperf_suite.workloads.operands import element_type

# The largest power of two of the ladder 1, 2, 4 … of divisors; what divides by more is taken as dividing by this.
TOP_CLASS = 128
OFF_BY_ONE_MULTIPLE = 64  # tokens of a batch come in multiples of this; one more or less is off by one

# The layout in which a layer's passes multiply: y = x·Wᵀ, dx = dy·W, dW = dyᵀ·x.
BASE_LAYOUTS = {"square": "TN", "fprop": "TN", "dgrad": "NN", "wgrad": "NT", "skinny": "TN"}


def class_of(size: int) -> int:
    """The alignment class: the largest power of two that divides the size, the top of the ladder at most."""
    return min(largest_power_of_two(size), TOP_CLASS)


@dataclass(frozen=True)
class Base:
    """A product around which one dimension at a time is varied, and what part it has in a network.

    With tokens, in and out features of a linear layer, M x N x K is tokens x out x in for fprop, tokens x in x out for
    dgrad and out x in x tokens for wgrad.
    """

    part: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.part}:{self.shape}"

    @classmethod
    def parse(cls, text: str) -> Base:
        part, _, shape = text.strip().partition(":")
        if part not in BASE_LAYOUTS:
            raise UserError(
                f"{text!r} is not a base: write PART:MxNxK with one of {', '.join(BASE_LAYOUTS)}, "
                "as in fprop:256x1024x1024."
            )
        return cls(part, Shape.parse(shape))


@dataclass(frozen=True)
class RealLife:
    """A size that people stumble over in a layer's fprop: `sizes`, or `offsets` from the usual; `pad_to` multiples."""

    along: str
    known_as: str
    pad_to: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()


REAL_LIFE = {
    "vocabulary": RealLife("n", "vocabulary of GPT-2", (64,), sizes=(50257,)),
    "ffn": RealLife("n", "FFN of 8/3 x 4096", (64, 256), sizes=(10922,)),
    "ffn_down": RealLife("k", "FFN of 8/3 x 4096, on the way down", (64, 256), sizes=(10922,)),
    "hidden": RealLife("k", "hidden size off by one", (64,), sizes=(4095, 4097)),
    "tokens": RealLife("m", "batch x sequence off by one", (8,), offsets=(-1, 1)),
    "none": RealLife("m", "none", ()),
}


def known_as(along: str, size: int) -> str | None:
    """Return the common name of this size of this dimension, None if there is no reason to pad to another size."""
    for case in REAL_LIFE.values():
        off_by_one = any((size - offset) % OFF_BY_ONE_MULTIPLE == 0 for offset in case.offsets)
        if along == case.along and (size in case.sizes or off_by_one):
            return case.known_as
    return None


@dataclass(frozen=True)
class DimensionSweep:
    """One dimension of a product and the sizes it takes, ascending; `pad_to` the multiples they are padded to."""

    shape: Shape
    layout: str
    along: str
    sizes: tuple[int, ...]
    pad_to: tuple[int, ...]

    def shapes(self) -> list[dict[str, Any]]:
        """M, N and K for every size, and for every size that one is padded to."""
        padded = (round_up(size, multiple) for size in self.sizes for multiple in self.pad_to)
        return [vars(self.shape) | {self.along: size} for size in sorted({*self.sizes, *padded})]


# The layout of the base's own part in a network, and the hints that Triton finds itself.
OWN_LAYOUT, OWN_HINTS = "own", "own"

EVERY_OFFSET = tuple(range(-16, 17))
# Ladder of powers of two; the size nearest to a base's size is far from it for larger ones.
LADDER = tuple(1 << power for power in range(17))
EVERY_CLASS = tuple(divisor for divisor in LADDER if divisor <= TOP_CLASS)
EVERY_SPAN = (0.5, 1.0)
EVERY_REAL = tuple(name for name in REAL_LIFE if name != "none")
ALL_LAYERS = parsed(
    Base, "fprop:256x1024x1024 square:768x768x768 dgrad:256x1024x4096 wgrad:1024x1024x256 skinny:16x1024x1024"
)
ALL_GPU_LAYERS = parsed(
    Base, "square:4096x4096x4096 fprop:4096x14336x4096 dgrad:4096x4096x14336 wgrad:14336x4096x4096 skinny:64x8192x8192"
)
GPU_DTYPES = ("float32", "tfloat32", "bfloat16", "float16", "float8_e4m3fn", "int8")


def own_kernels(device: Device) -> tuple[str, ...]:
    """Return the device's own kernels and those of compute capability 8.0, whose narrower paths show what TMA wins."""
    return tuple(dict.fromkeys((*own_kernel(device), "cuda_sm80", "triton")))


@dataclass(frozen=True)
class AlignmentAxes(ProductAxes):
    """A few classes of the ladder in the quick profile; every dimension and the real-life cases in the others.

    `ladder` are the largest powers of two to divide a size, `span` how many times the base's size others are that the
    search begins at. `padded` are the implementations that pad at each call, to multiples of `pad_to`. Real-life cases
    have their own sizes and multiples; their other dimensions are `tokens` and `hidden`. Layouts are those of the
    bases' parts, and -a layout=TT is there for the fourth. `hints` are those our Triton kernel is compiled
    with: timed where it is among the implementations, else read as machine code of each generation of GPUs.
    """

    workers: Workers = by(all_cores, full=one_and_all_cores, cuda=multiprocessors)
    implementation: Implementations = by(("native",), cuda=by(own_kernel, standard=own_kernels))
    dtype: Dtypes = by(
        ("float32",), full=("float32", "bfloat16"), cuda=by(("bfloat16",), ("bfloat16", "float16"), GPU_DTYPES)
    )
    padded: Implementations = by(("torch_padded",), cuda=("cublas_padded",))
    base: tuple[Base, ...] = by(
        parsed(Base, "fprop:128x512x512"), ALL_LAYERS[:1], ALL_LAYERS, cuda=by(ALL_GPU_LAYERS[:1], full=ALL_GPU_LAYERS)
    )
    along: Annotated[tuple[str, ...], OneOf(("m", "n", "k"))] = by(("n", "k"), standard=("m", "n", "k"))
    offset: tuple[int, ...] = by((0,), full=EVERY_OFFSET, cuda=by((0,), standard=(0, 1, 8), full=EVERY_OFFSET))
    ladder: Annotated[tuple[int, ...], OneOf(LADDER)] = by((1,), (1, 8), EVERY_CLASS, cuda=by((1, 8), EVERY_CLASS))
    # Further away from its base a product is another one.
    span: Annotated[tuple[float, ...], Within(0.01, 16)] = by((1.0,), full=EVERY_SPAN, cuda=by((1.0,), EVERY_SPAN))
    pad_to: Annotated[tuple[int, ...], Within(2)] = (64,)
    # Tokens off by one are the base's own M on a CPU, but for the full profile.
    real: Annotated[tuple[str, ...], OneOf(REAL_LIFE)] = by(
        ("none",), standard=("vocabulary", "ffn", "hidden"), full=EVERY_REAL, cuda=by(("none",), EVERY_REAL)
    )
    tokens: Annotated[tuple[int, ...], Within(1)] = by((64,), cuda=(4096,))
    hidden: Annotated[tuple[int, ...], Within(1)] = by((256,), cuda=(4096,))
    layout: tuple[str, ...] = (OWN_LAYOUT,)
    tile: tuple[str, ...] = (CHOSEN,)
    schedule: tuple[str, ...] = ("data_parallel",)
    hints: Annotated[tuple[str, ...], OneOf((OWN_HINTS, *UNHINTED))] = (OWN_HINTS,)


def sweep(axes: AlignmentAxes) -> Iterator[Case]:
    """Every size by every implementation, and those that can be padded by the ones that pad at each call.

    What an implementation never takes (float8 in another layout than TN) is left out, unless nothing is left then:
    raises UserError with the first reason.
    """
    refusals: dict[tuple[str, str, str], UserError | None] = {}
    for case in _every_case(axes):
        # One case speaks for its kind; what is wrong with a later one is for whoever validates the sweep.
        kind = (case.implementation, case.parameters.dtype, case.parameters.layout)
        if kind not in refusals:
            refusals[kind] = None
            try:
                case.validate()
            except UserError as refusal:
                refusals[kind] = refusal
        if refusals[kind] is None:
            yield case
    if "triton" not in axes.implementation:
        for target, hints in itertools.product(triton_targets(), axes.hints):
            if hints != OWN_HINTS:
                kernel = list(hinted_kernels(target))[list(UNHINTED).index(hints)]
                yield Case("compiled_kernel", CompiledKernelParameters(kernel, target), "triton")
    reasons = list(refusals.values())
    if reasons and reasons[0] is not None and None not in reasons:
        raise reasons[0]


def _every_case(axes: AlignmentAxes) -> Iterator[Case]:
    """Real-life sizes are the library's alone."""
    sizes = [(varied, axes.implementation) for varied in _around_bases(axes)]
    sizes += [(varied, ()) for varied in _in_real_life(axes)]
    for workers, dtype, mode, (varied, kernels) in itertools.product(axes.workers, axes.dtype, axes.mode, sizes):
        library = MatmulParameters(1, 1, 1, Schedule("library", workers), dtype=dtype, layout=varied.layout)
        requested: list[tuple[str, MatmulParameters]] = []
        for implementation, tile, schedule, hints in itertools.product(kernels, axes.tile, axes.schedule, axes.hints):
            if implementation != "triton" and hints != OWN_HINTS:
                continue
            chosen = Tile.parse(tile) if tile != CHOSEN else None
            if chosen is None and implementation == "triton":
                # Our Triton kernel chooses none itself; steps of 128 bytes of K are what the others choose on Hopper.
                chosen = Tile(128, 128, elements_in(LINE_BYTES["cuda"], element_type(dtype).size_bytes))
            ours = Schedule.parse(f"{schedule}@{workers}")
            kernel = replace(library, schedule=ours, tile=chosen, hints="" if hints == OWN_HINTS else hints)
            requested += [(implementation, replace(kernel, **shape)) for shape in varied.shapes()]
        requested += [(name, replace(library, **shape)) for name in axes.library for shape in varied.shapes()]
        # Padded at each call where that changes this dimension and no other.
        others = [size for name, size in vars(varied.shape).items() if name != varied.along]
        for name, size, multiple in itertools.product(axes.padded, varied.sizes, varied.pad_to):
            if size % multiple and not any(other % multiple for other in others):
                shape = vars(varied.shape) | {varied.along: size, "pad_to": multiple}
                requested.append((name, replace(library, **shape)))
        yield from (Case("matmul", parameters, implementation, mode=mode) for implementation, parameters in requested)


def _around_bases(axes: AlignmentAxes) -> Iterator[DimensionSweep]:
    """Sizes at the offsets from each base's, and the nearest ones to it for each class of the ladder of divisors.

    At the base's size times each span stand that size and the nearest of the ladder's least class: the search for
    cliffs works between sizes of the same divisor.
    """
    for base, layout, along in itertools.product(axes.base, axes.layout, axes.along):
        middle = getattr(base.shape, along)
        sizes = {middle + offset for offset in axes.offset} | {nearest_with(each, middle) for each in axes.ladder}
        for span in axes.span:
            far = max(1, round(middle * span))
            sizes |= {far, nearest_with(min(axes.ladder), far)}
        own = BASE_LAYOUTS[base.part] if layout == OWN_LAYOUT else layout
        yield DimensionSweep(base.shape, own, along, tuple(sorted(size for size in sizes if size >= 1)), axes.pad_to)


def _in_real_life(axes: AlignmentAxes) -> Iterator[DimensionSweep]:
    """The sizes people meet, in the fprop of a layer of `hidden` features in and out."""
    for name, tokens, hidden in itertools.product(axes.real, axes.tokens, axes.hidden):
        case, shape = REAL_LIFE[name], Shape(tokens, hidden, hidden)
        near = (getattr(shape, case.along) + offset for offset in case.offsets)
        sizes = tuple(sorted({*case.sizes, *(size for size in near if size >= 1)}))
        yield DimensionSweep(shape, BASE_LAYOUTS["fprop"], case.along, sizes, case.pad_to)


# Lines of memory: of a CPU's caches, and the 128 bytes in which GPUs since A100 like their rows (NVIDIA, Linear/Fully-
# Connected Layers User's Guide).
LINE_BYTES = {"cpu": 64, "cuda": 128}
CLIFF = 1.15  # rates that differ by less are a slope, not an edge
MOST_PADDING = 0.25  # padded by more than this part of itself, a dimension is another one
# Padding of at most this share is searched; among sizes of about the same time, the smallest is the one to pad to.
ABOUT_THE_SAME = 1.02
WIDEST_SEARCH = 2.5  # a search begins between two sizes whose ratio is at most this
SEARCHES_AT_ONCE = 4  # edges that one round closes in on


@dataclass(frozen=True)
class Pad(BaselinePair):
    """A size and the larger one to pad it to: `gain` is what it wins to build the larger one."""

    @property
    def known_as(self) -> str | None:
        return known_as(self.sweep.along, self.size)

    @property
    def at_each_call(self) -> Ratio | None:
        """Return the gain of padding with the padding and the slice at each call included, if that was measured."""
        name = f"{self.row.implementation}_padded"
        calls = [
            call
            for call in self.row.rows.same_except(self.row, "implementation", "pad_to")
            if self.size % call.p.pad_to
        ]
        gains = [call.faster_than(self.row) for call in calls if call.implementation == name]
        return max(filter(None, gains), key=lambda gain: gain.value, default=None)

    @property
    def verdict(self) -> str:
        """Return the advice about the size: pad it where it is made, at each call as well, or leave it."""
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
    """All sizes with one divisor, each paired with the next aligned size; `gain` is net of the larger one's work."""

    sweep: Sweep
    divisor: int
    pairs: Sequence[BaselinePair]
    gain: Ratio

    @property
    def rate(self) -> Ratio:
        return self.gain.inverse * statistics.geometric_mean(each.size / each.other for each in self.pairs)


def sweeps_of(rows: Rows[MatmulParameters]) -> list[Sweep]:
    """Rows that share all but one dimension, the library's first; a base belongs to the sweeps of all three."""
    unpadded = rows.where(operator="matmul", pad_to=1)
    unpadded.sort(key=lambda row: (row.p.m, row.p.n, row.p.k, str(row.p.schedule), str(row.p.tile)))
    unpadded.sort(key=lambda row: (row.p.dtype, row.p.layout, row.p.schedule.policy != "library", row.implementation))
    return [*itertools.chain(*by_setting(sweep for along in "mnk" for sweep in sweeps_along(along, unpadded)))]


def by_setting(sweeps: Iterable[Sweep]) -> list[list[Sweep]]:
    """Group sweeps with the same operands, implementation and other dimensions."""
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


def classes_of(sweeps: Iterable[Sweep]) -> Iterator[AlignmentClass]:
    """By setting, dimension and divisor: sizes with the next that divides by more and ends on a line of memory."""
    for members in grouped(sweeps, lambda sweep: (sweep.base.key("m", "n", "k"), sweep.along)).values():
        pairs: list[BaselinePair] = []
        for sweep in members:
            device = find_workload("matmul").implementation(sweep.base.implementation).device_kind
            line = elements_in(LINE_BYTES[device], element_type(sweep.base.p.dtype).size_bytes)
            aligned = {size: [each for each in _to_pad_to(sweep, size) if each % line == 0] for size in sweep.rows}
            pairs += BaselinePair.each(sweep, ((size, larger[0]) for size, larger in aligned.items() if larger))
        for divisor, similar in sorted(grouped(pairs, lambda pair: class_of(pair.size)).items()):
            gain = mean_speedup([(pair.row.reading, pair.other_row.reading) for pair in similar])
            if gain is not None:
                yield AlignmentClass(members[0], divisor, similar, gain)


def edges_of(sweep: Sweep) -> list[BaselinePair]:
    """Every jump in rate between neighbours of the same divisor, beyond its interval; the larger size comes first."""
    similar = grouped(sweep.rows, class_of)
    neighbours = [each for divisor in sorted(similar) for each in itertools.pairwise(similar[divisor])]
    near = BaselinePair.each(sweep, ((above, size) for size, above in neighbours if above <= WIDEST_SEARCH * size))
    return [each for each in near if jump(each) >= CLIFF and not each.rate.low <= 1 <= each.rate.high]


def jump(edge: BaselinePair) -> float:
    """By how much the rates differ, in whichever direction."""
    return max(edge.rate.value, 1 / edge.rate.value)


def _step(edge: BaselinePair) -> int:
    """Odd multiples of a class lie two classes apart; at the top all its multiples count."""
    divisor = class_of(edge.size)
    return divisor if divisor == TOP_CLASS else 2 * divisor


def next_of_searches(rows: Rows[MatmulParameters]) -> list[Case]:
    """The middle of each of the widest jumps that are not yet closed in on, but for those measured before."""
    requested = {record.case_id for record in rows.records}
    # An edge is found if no size of this class lies between the two.
    wide = [edge for sweep in sweeps_of(rows) for edge in edges_of(sweep) if edge.size - edge.other != _step(edge)]
    cases: dict[str, Case] = {}
    for edge in sorted(wide, key=jump, reverse=True):
        middle = edge.other + (edge.size - edge.other) // (2 * _step(edge)) * _step(edge)
        changed: dict[str, Any] = {edge.sweep.along: middle}
        case = replace(edge.other_row.case, parameters=replace(edge.other_row.p, **changed))
        if case.case_id not in requested:
            cases[case.case_id] = case
    return list(cases.values())[:SEARCHES_AT_ONCE]


MOST_NAMED = 3  # sizes that a cell names; the tables of sizes and the picture hold all of them
FEWEST_SIZES = 3  # a sweep of fewer sizes is a table's row, not a picture
MAX_SIZE_DISTANCE = 0.125  # sizes further than this part from the middle one would squeeze the others into a line


def analyse(rows: Rows[MatmulParameters]) -> Findings:
    """Advice for sizes with a name, what padding wins in each setting, and the widest cliff."""
    sweeps = sweeps_of(rows)
    classes = [*classes_of(sweeps)]
    pads = sorted((pad for sweep in sweeps for pad in pads_of(sweep)), key=lambda pad: pad.known_as is None)
    # A person pads for the library: kernels of ours have rows of their own only where they were measured alone.
    of_library = [pad for pad in pads if pad.row.p.schedule.policy == "library"]
    found = (edge for sweep in sweeps for edge in edges_of(sweep) if edge.size - edge.other == _step(edge))
    edges = sorted(found, key=jump, reverse=True)
    return findings(
        None if not classes or any(len(row.reading.by_process) > 1 for row in rows) else remark(ALONE, kind="caution"),
        (_advice(pad) for pad in of_library if pad.known_as),
        (_best(similar) for similar in grouped(classes, lambda each: each.sweep.setting).values()),
        (_at_each_call(similar) for similar in grouped(of_library, lambda pad: pad.sweep.setting).values()),
        (remark(JUMPS, edge, effect="rate") for edge in edges[:1]),
        table("Throughput by divisor, relative to the next aligned size", CLASS_COLUMNS, classes),
        table("Pad or not, net of the padding's own work", PAD_COLUMNS, of_library or pads),
        table("Cliffs between sizes of the same divisor", EDGE_COLUMNS, edges),
        _by_hints(rows.where(operator="compiled_kernel")),
        _figures(sweeps),
    )


def _by_hints(rows: Rows[Any]) -> Iterator[Remark | Table]:
    """Yield the loss of a kernel whose compiler is not told that pointers and strides divide by 16."""
    copies = count("instructions_LDGSTS")
    ordered = sorted(rows, key=lambda row: (row.p.target, row.p.kernel))
    for target, similar in grouped(ordered, lambda row: row.p.target).items():
        told, untold = max(similar, key=copies), min(similar, key=copies)
        if copies(untold) < copies(told):
            yield remark(
                "{kernel} for {target}: {left} of {all} copies run ahead still, in {shared} of {before} shared",
                kernel=untold.p.kernel,
                target=target,
                left=copies(untold),
                all=copies(told),
                shared=Quantity(untold.observed["dynamic_shared_memory"], "B"),
                before=Quantity(told.observed["dynamic_shared_memory"], "B"),
            )
    yield table("Our Triton product by what its compiler is told to divide by 16", HINT_COLUMNS, ordered)


ALONE = (
    "One process measured this, and its intervals know nothing of how processes differ: for advice use "
    "--profile standard, which has three"
)
PLACE = "{sweep.name} = {size} ({sweep.setting}, {sweep.shape})"
JUMPS = PLACE + " runs at {rate} the rate of {other}, which has the same divisor"


def _advice(pad: Pad) -> Remark:
    call = ", padded at each call {at_each_call}" if pad.at_each_call else ""
    sentence = f"{PLACE}, {{known_as}}: built as {{other}} it runs {{gain}} as fast{call}: {{verdict}}"
    # An answer that padding wins nothing is an effect; an undecided one is not.
    return remark(sentence, pad, effect="" if pad.verdict == "leave it" else "gain")


def _best(classes: Sequence[AlignmentClass]) -> Remark | None:
    best = max(classes, key=lambda each: (wins(each.gain), each.gain.value))
    sentence = (
        "{sweep.setting}: where {sweep.name} divides by {divisor}, products built with the next aligned size run "
    )
    return (
        remark(sentence + "{gain} as fast, net of their extra work", best, effect="gain") if wins(best.gain) else None
    )


def _at_each_call(pads: Sequence[Pad]) -> Remark | None:
    calls = [call for pad in pads if (call := pad.at_each_call) is not None]
    if not calls:
        return None
    sentence, winning = "{setting}: padded at each call, {winning} of {tried} sizes run faster", sum(map(wins, calls))
    if winning:
        sentence += ", the best {gain} as fast"
    return remark(
        sentence,
        setting=pads[0].sweep.setting,
        winning=winning,
        tried=len(calls),
        gain=max(calls, key=lambda call: call.value),
    )


def _kernel(row: Row[MatmulParameters]) -> str:
    """Return the kernel's name, with its path where the name does not hold it."""
    kernel = row.reading.kernel
    path, name = str(kernel.get("path", "")), str(kernel.get("name", "")) or "a kernel without a name"
    return f"{name} ({path})" if path and path not in name else name


def _sizes(similar: AlignmentClass) -> str:
    sizes = sorted({pair.size for pair in similar.pairs})
    shown, more = ", ".join(map(str, sizes[:MOST_NAMED])), len(sizes) - MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _paths(similar: AlignmentClass) -> str | None:
    paths = {str(pair.row.reading.kernel.get("path", "")) for pair in similar.pairs}
    return "/".join(sorted(paths - {""})) or None


SETTING = Column("implementation, dtype, layout", "sweep.setting")
SWEPT = (SETTING, Column("M x N x K", "sweep.shape"))
CLASS_COLUMNS = (
    SETTING,
    Column("along", "sweep.name", priority=2),
    Column("divides by", "divisor", priority=2),
    Column("sizes", _sizes, priority=0),
    Column("rate / next aligned", "rate", "x"),
    Column("gain by padding", "gain", "x", priority=2),
    Column("path", _paths, priority=0),
)
PAD_COLUMNS = (
    *SWEPT,
    Column("size", priority=2),
    Column("known as", "known_as"),
    Column("pad to", "other", priority=2),
    Column("rate / padded", "rate.value", "x", priority=0),
    Column("gain if built so", "gain", "x"),
    Column("gain at each call", "at_each_call", "x"),
    Column("verdict", priority=2),
)
HINT_COLUMNS = (
    Column("kernel", priority=2),
    Column("target", priority=2),
    Column("registers", count("registers")),
    Column("local memory", instructions("LDL", "STL")),
    Column("shared memory", "dynamic_shared_memory", "B", 2),
    Column("loads", instructions("LDGSTS", "LDG"), priority=2),
    Column("stores", instructions("STG"), priority=0),
    Column("instructions", count("instructions_all")),
)
EDGE_COLUMNS = (
    *SWEPT,
    Column("from -> to", lambda edge: f"{edge.other} -> {edge.size}", priority=2),
    Column("rate", unit="x", priority=2),
    Column("kernel before", lambda edge: _kernel(edge.other_row)),
    Column("kernel after", lambda edge: _kernel(edge.row)),
)


def _figures(sweeps: Sequence[Sweep]) -> Iterator[Figure]:
    """One a dtype, layout and mode: a row for each setting, a column for each sweep that all of them have."""
    drawn = [sweep for sweep in sweeps if len(sweep.rows) >= FEWEST_SIZES]
    kinds = grouped(
        drawn, lambda each: (each.base.case.mode, each.base.p.dtype, each.base.p.layout, each.base.p.schedule.workers)
    )
    for (mode, dtype, layout, workers), similar in kinds.items():
        settings = by_setting(similar)
        in_all = set.intersection(*({sweep.shape for sweep in setting} for setting in settings))
        if in_all:
            yield Figure(
                name=f"alignment_{mode}_{dtype}_{layout}_w{workers}",
                title=f"Throughput by divisor: {dtype} matmul, {layout}, {workers} workers",
                caption="Each mark is a size, by the largest power of two that divides it; its bar spans the "
                "processes. Useful work alone counts: what padding adds does not. Sizes far from these are in the "
                "tables.",
                rows=tuple(tuple(_panel(sweep) for sweep in own if sweep.shape in in_all) for own in settings),
            )


def _panel(sweep: Sweep) -> Panel:
    middle = statistics.median_low(sweep.rows)
    near = [row for size, row in sweep.rows.items() if abs(size - middle) <= MAX_SIZE_DISTANCE * middle]
    similar = sorted(grouped(near, lambda row: class_of(getattr(row.p, sweep.along))).items())
    return Panel(
        title=sweep.shape,
        x_label=sweep.name,
        y_label=sweep.base.implementation,
        y_unit="TFLOP/s",
        series=tuple(series(f"divides by {divisor}", rows, sweep.along, "throughput") for divisor, rows in similar),
    )


PROBE = Probe(
    name="alignment",
    question="Which dimensions are worth padding, what does it win after its own work, and where are the cliffs?",
    topic="products",
    title="Divisibility and cliffs",
    axes=AlignmentAxes.of,
    sweep=sweep,
    analyse=analyse,
    # The middles of the widest jumps in rate between sizes of the same divisor: a bisection of each.
    follow_up=lambda records: next_of_searches(rows_of(records)),
    group=lambda case: (
        f"alignment {getattr(case.parameters, 'dtype', case.operator)} {getattr(case.parameters, 'layout', '')}"
    ),
)
