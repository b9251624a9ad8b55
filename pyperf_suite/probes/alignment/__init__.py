"""Divisibility: what odd dimensions cost, and whether padding them wins after its own extra work.

Sizes climb a ladder of divisors around the products of transformer layers. Padding is measured as a larger product, as
with weights padded once, and as padding, product and slice at each call; where rates jump, a search finds the edge.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, UserError, Within
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.matmul.alignment import elements_in, nearest_with
from pyperf_suite.laws.matmul.tiling import Schedule, Tile
from pyperf_suite.probes._products import CHOSEN, IMPLEMENTATIONS, ProductAxes, on_gpu
from pyperf_suite.probes.alignment.findings import analyse
from pyperf_suite.probes.alignment.sizes import BASE_LAYOUTS, REAL_LIFE, TOP_CLASS, Base, Varied
from pyperf_suite.probes.alignment.sweeps import LINE_BYTES, next_of_searches
from pyperf_suite.runner.record import Case
from pyperf_suite.spec.axes import Shape, parsed
from pyperf_suite.spec.probe import Probe
from pyperf_suite.spec.rows import rows_of
from pyperf_suite.workloads.dtypes import element_type
from pyperf_suite.workloads.matmul import MatmulParameters

# The layout of the base's own part in a network.
OWN_LAYOUT = "own"

EVERY_OFFSET = tuple(range(-16, 17))
# Of larger ones the nearest to a base's size is far from it.
LADDER = tuple(1 << power for power in range(17))
EVERY_SIZE: dict[str, Any] = {
    "ladder": tuple(divisor for divisor in LADDER if divisor <= TOP_CLASS),
    "span": (0.5, 1.0),
    "real": tuple(name for name in REAL_LIFE if name != "none"),
}


@dataclass(frozen=True)
class AlignmentAxes(ProductAxes):
    """What the probe varies, as it is on a CPU in a minute.

    `ladder` are the largest powers of two to divide a size, `span` how many times the base's size others are that the
    search begins at. `padded` are the implementations that pad at each call, to multiples of `pad_to`. Real-life cases
    have their own sizes and multiples; their other dimensions are `tokens` and `hidden`.
    """

    padded: Annotated[tuple[str, ...], IMPLEMENTATIONS] = ("torch_padded",)
    base: tuple[Base, ...] = parsed(Base, "fprop:128x512x512")
    along: Annotated[tuple[str, ...], OneOf(("m", "n", "k"))] = ("n", "k")
    offset: tuple[int, ...] = (0,)
    ladder: Annotated[tuple[int, ...], OneOf(LADDER)] = (1,)
    # Further away from its base a product is another one.
    span: Annotated[tuple[float, ...], Within(0.01, 16)] = (1.0,)
    pad_to: Annotated[tuple[int, ...], Within(2)] = (64,)
    real: Annotated[tuple[str, ...], OneOf(REAL_LIFE)] = ("none",)
    tokens: Annotated[tuple[int, ...], Within(1)] = (64,)
    hidden: Annotated[tuple[int, ...], Within(1)] = (256,)
    layout: tuple[str, ...] = (OWN_LAYOUT,)
    tile: tuple[str, ...] = (CHOSEN,)
    schedule: tuple[str, ...] = ("data_parallel",)


def axes(profile: str, device: Device) -> AlignmentAxes:
    """A few classes of the ladder in the quick profile; every dimension and the real-life cases in the others."""
    if device.kind == "cuda":
        own, shared = on_gpu(device)
        square = parsed(Base, "square:4096x4096x4096")
        quick = AlignmentAxes(
            **shared, padded=("cublas_padded",), base=square, ladder=(1, 8), tokens=(4096,), hidden=(4096,)
        )
        standard = replace(
            quick,
            # The kernel for compute capability 8.0 takes any size, by narrower paths: they show what TMA wins.
            implementation=tuple(dict.fromkeys((own, "cuda_sm80", "triton"))),
            dtype=("bfloat16", "float16"),
            along=("m", "n", "k"),
            **EVERY_SIZE,
            offset=(0, 1, 8),
        )
        # A night's work: the layouts are those of the bases' parts, and -a layout=TT is there for the fourth.
        others = parsed(Base, "fprop:4096x14336x4096 dgrad:4096x4096x14336 wgrad:14336x4096x4096 skinny:64x8192x8192")
        full = replace(standard, dtype=("float32", "tfloat32", "bfloat16", "float16", "float8_e4m3fn", "int8"))
    else:
        cores = cpu.detect().usable_cores
        quick = AlignmentAxes((cores,))
        standard = replace(
            quick,
            base=parsed(Base, "fprop:256x1024x1024"),
            along=("m", "n", "k"),
            ladder=(1, 8),
            # Tokens off by one are the base's own M here.
            real=("vocabulary", "ffn", "hidden"),
        )
        others = parsed(Base, "square:768x768x768 dgrad:256x1024x4096 wgrad:1024x1024x256 skinny:16x1024x1024")
        both = tuple(dict.fromkeys((1, cores)))
        full = replace(standard, workers=both, dtype=("float32", "bfloat16", "int8"), **EVERY_SIZE)
    full = replace(full, base=standard.base + others, offset=EVERY_OFFSET)
    return {"quick": quick, "standard": standard, "full": full}[profile]


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
    reasons = list(refusals.values())
    if reasons and reasons[0] is not None and None not in reasons:
        raise reasons[0]


def _every_case(axes: AlignmentAxes) -> Iterator[Case]:
    """Real-life sizes are the library's alone."""
    sizes = [(varied, axes.implementation) for varied in _around_bases(axes)]
    sizes += [(varied, ()) for varied in _in_real_life(axes)]
    for workers, dtype, mode, (varied, kernels) in itertools.product(axes.workers, axes.dtype, axes.mode, sizes):
        library = MatmulParameters(1, 1, 1, Schedule("library", workers), dtype=dtype, layout=varied.layout)
        asked: list[tuple[str, MatmulParameters]] = []
        for implementation, tile, schedule in itertools.product(kernels, axes.tile, axes.schedule):
            ours = Schedule.parse(f"{schedule}@{workers}")
            kernel = replace(library, schedule=ours, tile=_tile(tile, implementation, dtype))
            asked += [(implementation, replace(kernel, **shape)) for shape in varied.shapes()]
        asked += [(name, replace(library, **shape)) for name in axes.library for shape in varied.shapes()]
        asked += [(name, replace(library, **shape)) for name in axes.padded for shape in varied.padded_at_each_call()]
        yield from (Case("matmul", parameters, implementation, mode=mode) for implementation, parameters in asked)


def _around_bases(axes: AlignmentAxes) -> Iterator[Varied]:
    """Sizes at the offsets from each base's, and the nearest ones to it for each class of the ladder of divisors.

    At the base's size times each span stand that size and the nearest of the ladder's least class: the search for
    cliffs works between sizes that divide alike.
    """
    for base, layout, along in itertools.product(axes.base, axes.layout, axes.along):
        middle = getattr(base.shape, along)
        sizes = {middle + offset for offset in axes.offset} | {nearest_with(each, middle) for each in axes.ladder}
        for span in axes.span:
            far = max(1, round(middle * span))
            sizes |= {far, nearest_with(min(axes.ladder), far)}
        own = BASE_LAYOUTS[base.part] if layout == OWN_LAYOUT else layout
        yield Varied(base.shape, own, along, tuple(sorted(size for size in sizes if size >= 1)), axes.pad_to)


def _in_real_life(axes: AlignmentAxes) -> Iterator[Varied]:
    """The sizes people meet, in the fprop of a layer of `hidden` features in and out."""
    for name, tokens, hidden in itertools.product(axes.real, axes.tokens, axes.hidden):
        case, shape = REAL_LIFE[name], Shape(tokens, hidden, hidden)
        beside = (getattr(shape, case.along) + offset for offset in case.beside)
        sizes = tuple(sorted({*case.sizes, *(size for size in beside if size >= 1)}))
        yield Varied(shape, BASE_LAYOUTS["fprop"], case.along, sizes, case.pad_to)


def _tile(word: str, implementation: str, dtype: str) -> Tile | None:
    if word != CHOSEN:
        return Tile.parse(word)
    if implementation == "triton":
        # Our Triton kernel chooses none itself; steps of 128 bytes of K are what the others choose on Hopper.
        return Tile(128, 128, elements_in(LINE_BYTES["cuda"], element_type(dtype).size_bytes))
    return None


PROBE = Probe(
    name="alignment",
    question="Which dimensions are worth padding, what does it win after its own work, and where are the cliffs?",
    topic="products",
    title="Divisibility and cliffs",
    axes=axes,
    sweep=sweep,
    analyse=analyse,
    # The middles of the widest jumps in rate between sizes that divide alike: a bisection of each.
    follow_up=lambda records: next_of_searches(rows_of(records)),
    group=lambda case: f"alignment {case.parameters.dtype} {case.parameters.layout}",
)
