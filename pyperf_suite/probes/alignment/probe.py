"""Divisibility: what odd dimensions cost, and whether padding them wins after its own extra work.

Sizes climb a ladder of divisors around the products of transformer layers; padding is measured as a larger product, as
with weights padded once, and as padding, product and slice at each call; where rates jump, a search finds the edge.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.matmul.alignment import elements_in, largest_power_of_two
from pyperf_suite.laws.matmul.tiling import Schedule, Tile
from pyperf_suite.operators import find_operator
from pyperf_suite.operators.dtypes import element_type
from pyperf_suite.operators.matmul import MatmulParameters
from pyperf_suite.probes.alignment.findings import explain
from pyperf_suite.probes.alignment.sizes import REAL_LIFE, TOP_RUNG, Base, RealLife, Varied, around, in_real_life
from pyperf_suite.probes.alignment.sweeps import LINE_BYTES, next_of_searches
from pyperf_suite.probes.baseline import CHOSEN
from pyperf_suite.probes.probe import Probe
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.axes import Shape
from pyperf_suite.spec.findings import Findings
from pyperf_suite.spec.rows import readings

# The layout of the base's own part in a network.
OWN_LAYOUT = "own"

LADDER = tuple(1 << power for power in range(TOP_RUNG.bit_length()))
EVERY_OFFSET = tuple(range(-16, 17))

# Further away from its base a product is another one.
MOST_SPAN = 16.0


@dataclass(frozen=True)
class AlignmentAxes:
    """What the probe varies.

    `ladder` are the largest powers of two to divide a size, `span` how many times the base's size others are that the
    search begins at. `padded` are the implementations that pad at each call, to multiples of `pad_to`. Real-life cases
    have their own sizes and multiples; their other dimensions are `tokens` and `hidden`.
    """

    implementation: tuple[str, ...]
    library: tuple[str, ...]
    padded: tuple[str, ...]
    base: tuple[Base, ...]
    along: tuple[str, ...]
    offset: tuple[int, ...]
    ladder: tuple[int, ...]
    span: tuple[float, ...]
    pad_to: tuple[int, ...]
    real: tuple[RealLife, ...]
    tokens: tuple[int, ...]
    hidden: tuple[int, ...]
    dtype: tuple[str, ...]
    layout: tuple[str, ...]
    workers: tuple[int, ...]
    tile: tuple[str, ...]
    schedule: tuple[str, ...]
    mode: tuple[str, ...] = ("burst",)

    def __post_init__(self) -> None:
        """Raise UserError for a name or direction there is not, or for sizes that no sweep can have."""
        for implementation in (*self.implementation, *self.library, *self.padded):
            find_operator("matmul").implementation(implementation)
        for dtype in self.dtype:
            element_type(dtype)
        unknown = set(self.along) - set("mnk")
        if unknown:
            raise UserError(f"along={', '.join(sorted(unknown))} was asked for, but a sweep goes along m, n or k.")
        for rung in self.ladder:
            if rung < 1 or rung != largest_power_of_two(rung):
                raise UserError(f"ladder={rung} was asked for, but its rungs are powers of two: 1, 2, 4 and so on.")
        for name, least in (("pad_to", 2), ("tokens", 1), ("hidden", 1), ("workers", 1)):
            for value in getattr(self, name):
                if value < least:
                    raise UserError(f"{name}={value} was asked for, but {name} is at least {least}.")
        for span in self.span:
            if not 0 < span <= MOST_SPAN:
                raise UserError(f"span={span} was asked for, but a span lies between 0 and {MOST_SPAN}.")


class Alignment(Probe):
    """Products that differ in one dimension and what divides it, unpadded and padded in both ways."""

    name = "alignment"
    question = "Which dimensions are worth padding, what does it win after its own work, and where are the cliffs?"

    def axes(self, profile: str, device: Device) -> AlignmentAxes:
        """A few rungs of the ladder in the quick profile; every dimension and the real-life cases in the others."""
        return _cuda_axes(profile, device) if device.kind == "cuda" else _cpu_axes(profile)

    def sweep(self, axes: AlignmentAxes) -> list[Case]:
        """Every size by every implementation, and those that can be padded by the ones that pad at each call.

        Real-life cases are the library's alone. What an implementation never takes (float8 in another layout than TN)
        is left out, unless nothing is left then: raises UserError with the first reason.
        """
        found = _Cases()
        for workers, dtype, mode in itertools.product(axes.workers, axes.dtype, axes.mode):
            library = MatmulParameters(1, 1, 1, Schedule("library", workers), dtype=dtype)
            for varied in _around_bases(axes):
                for implementation, tile, schedule in itertools.product(axes.implementation, axes.tile, axes.schedule):
                    ours = Schedule.parse(f"{schedule}@{workers}")
                    found.add(
                        varied,
                        replace(library, schedule=ours, tile=_tile(tile, implementation, dtype)),
                        implementation,
                        mode,
                    )
                for implementation in axes.library:
                    found.add(varied, library, implementation, mode)
                found.add_padded(varied, library, axes.padded, mode)
            for case, tokens, hidden in itertools.product(axes.real, axes.tokens, axes.hidden):
                varied = in_real_life(case, tokens, hidden)
                for implementation in axes.library:
                    found.add(varied, library, implementation, mode)
                found.add_padded(varied, library, axes.padded, mode)
        return found.all()

    def findings(self, records: Sequence[Record]) -> Findings:
        """What padding wins per size, what each divisor costs, cliffs with their kernels, and where folklore fails."""
        return explain(records)

    def follow_up(self, records: Sequence[Record]) -> list[Case]:
        """The middles of the widest jumps in rate between sizes that divide alike: a bisection of each."""
        return next_of_searches(readings(records), {record.case_id for record in records})

    def group(self, case: Case) -> str:
        """One table a dtype and layout, so that all that multiply the same stand together."""
        return f"alignment {case.parameters.dtype} {case.parameters.layout}"


def _cpu_axes(profile: str) -> AlignmentAxes:
    cores = cpu.detect().usable_cores
    quick = AlignmentAxes(
        implementation=("native",),
        library=("torch",),
        padded=("torch_padded",),
        base=(Base("fprop", Shape(128, 512, 512)),),
        along=("n", "k"),
        offset=(0,),
        ladder=(1,),
        span=(1.0,),
        pad_to=(64,),
        real=(REAL_LIFE["none"],),
        tokens=(64,),
        hidden=(256,),
        dtype=("float32",),
        layout=(OWN_LAYOUT,),
        workers=(cores,),
        tile=(CHOSEN,),
        schedule=("data_parallel",),
    )
    if profile == "quick":
        return quick
    standard = replace(
        quick,
        base=(Base("fprop", Shape(256, 1024, 1024)),),
        along=("m", "n", "k"),
        ladder=(1, 8),
        # Tokens off by one are the base's own M here.
        real=tuple(REAL_LIFE[name] for name in ("vocabulary", "ffn", "hidden")),
    )
    if profile == "standard":
        return standard
    shapes = {
        "square": (768, 768, 768),
        "dgrad": (256, 1024, 4096),
        "wgrad": (1024, 1024, 256),
        "skinny": (16, 1024, 1024),
    }
    return replace(
        standard,
        base=(*standard.base, *(Base(part, Shape(*shape)) for part, shape in shapes.items())),
        offset=EVERY_OFFSET,
        ladder=LADDER,
        span=(0.5, 1.0),
        real=tuple(case for case in REAL_LIFE.values() if case.pad_to),
        dtype=("float32", "bfloat16", "int8"),
        workers=tuple(dict.fromkeys((1, cores))),
    )


def _cuda_axes(profile: str, device: Device) -> AlignmentAxes:
    gpu = gpus()[device.index]
    hopper = gpu.compute_capability == (9, 0)
    own = "cuda_sm90" if hopper else "cuda_sm80"
    quick = AlignmentAxes(
        implementation=(own,),
        library=("cublas",),
        padded=("cublas_padded",),
        base=(Base("square", Shape(4096, 4096, 4096)),),
        along=("n", "k"),
        offset=(0,),
        ladder=(1, 8),
        span=(1.0,),
        pad_to=(64,),
        real=(REAL_LIFE["none"],),
        tokens=(4096,),
        hidden=(4096,),
        dtype=("bfloat16",),
        layout=(OWN_LAYOUT,),
        workers=(gpu.multiprocessors,),
        tile=(CHOSEN,),
        schedule=("data_parallel",),
    )
    if profile == "quick":
        return quick
    # The kernel for compute capability 8.0 takes any size, by narrower paths: beside TMA's it shows what they cost.
    standard = replace(
        quick,
        implementation=tuple(dict.fromkeys((own, "cuda_sm80", "triton"))),
        along=("m", "n", "k"),
        offset=(0, 1, 8),
        ladder=LADDER,
        span=(0.5, 1.0),
        real=tuple(case for case in REAL_LIFE.values() if case.pad_to),
        dtype=("bfloat16", "float16"),
    )
    if profile == "standard":
        return standard
    # A night's work: the layouts are those of the bases' parts, and -a layout=TT is there for the fourth.
    shapes = {
        "fprop": (4096, 14336, 4096),
        "dgrad": (4096, 4096, 14336),
        "wgrad": (14336, 4096, 4096),
        "skinny": (64, 8192, 8192),
    }
    return replace(
        standard,
        base=(*standard.base, *(Base(part, Shape(*shape)) for part, shape in shapes.items())),
        offset=EVERY_OFFSET,
        dtype=("float32", "tfloat32", "bfloat16", "float16", "float8_e4m3fn", "int8"),
    )


def _around_bases(axes: AlignmentAxes) -> Iterator[Varied]:
    for base, layout, along in itertools.product(axes.base, axes.layout, axes.along):
        layout = base.layout if layout == OWN_LAYOUT else layout
        yield around(base, layout, along, axes.offset, axes.ladder, axes.span, axes.pad_to)


def _tile(word: str, implementation: str, dtype: str) -> Tile | None:
    if word != CHOSEN:
        return Tile.parse(word)
    if implementation == "triton":
        # Our Triton kernel chooses none itself; steps of 128 bytes of K are what the others choose on Hopper.
        return Tile(128, 128, elements_in(LINE_BYTES["cuda"], element_type(dtype).size_bytes))
    return None


class _Cases:
    """Cases without duplicates, and without those whose kind an implementation never takes."""

    def __init__(self) -> None:
        self._cases: dict[str, Case] = {}
        self._refusals: dict[tuple[str, str, str], UserError | None] = {}

    def add(self, varied: Varied, parameters: MatmulParameters, implementation: str, mode: str) -> None:
        for shape in varied.shapes():
            self._add(replace(parameters, **vars(shape), layout=varied.layout), implementation, mode)

    def add_padded(
        self, varied: Varied, parameters: MatmulParameters, implementations: Iterable[str], mode: str
    ) -> None:
        for implementation, (shape, multiple) in itertools.product(implementations, varied.padded_at_each_call()):
            padded = replace(parameters, **vars(shape), layout=varied.layout, pad_to=multiple)
            self._add(padded, implementation, mode)

    def all(self) -> list[Case]:
        first = next((refusal for refusal in self._refusals.values() if refusal is not None), None)
        if not self._cases and first is not None:
            raise first
        return list(self._cases.values())

    def _add(self, parameters: MatmulParameters, implementation: str, mode: str) -> None:
        case = Case("matmul", parameters, implementation, mode=mode)
        # One case speaks for its kind; what is wrong with a later one is for whoever validates the sweep.
        kind = (implementation, parameters.dtype, parameters.layout)
        if kind not in self._refusals:
            self._refusals[kind] = _refusal(case)
        if self._refusals[kind] is None:
            self._cases.setdefault(case.case_id, case)


def _refusal(case: Case) -> UserError | None:
    try:
        case.validate()
    except UserError as refusal:
        return refusal
    return None
