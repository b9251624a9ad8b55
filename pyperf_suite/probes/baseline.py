"""How our own matrix product compares with the library's on the same shapes, in the same run.

A probe's kernel explains a machine only where it is about as fast as what people really use there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Any, TypeVar

from pyperf_suite.errors import OneOf, Within
from pyperf_suite.findings.axes import AxisTable, Shape, all_cores, by, multiprocessors, one_and_all_cores, parsed
from pyperf_suite.findings.data import Findings, Remark, findings
from pyperf_suite.findings.probe import Probe, RowTable
from pyperf_suite.findings.rows import Column, Row, Rows, grouped
from pyperf_suite.hardware.catalogue import architecture
from pyperf_suite.hardware.devices import Device, gpus
from pyperf_suite.kernels import gemm_sm90
from pyperf_suite.kernels.static import families
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.reading import mean_speedup
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.matmul import MatmulParameters
from pyperf_suite.workloads.operands import ELEMENT_TYPES

Pairs = TypeVar("Pairs", bound="BaselinePair")

# A tile that our kernel chooses for the product.
CHOSEN = "chosen"
Workers = Annotated[tuple[int, ...], Within(1, 100_000)]
Implementations = Annotated[tuple[str, ...], OneOf(find_workload("matmul").implementations)]
Dtypes = Annotated[tuple[str, ...], OneOf(ELEMENT_TYPES)]


def own_kernel(device: Device) -> tuple[str, ...]:
    """The kernel of ours that is written for a GPU."""
    return (f"cuda_{architecture(gpus()[device.index].compute_capability).cuda_kernels}",)


def own_and_triton(device: Device) -> tuple[str, ...]:
    """Return the device's own kernel, and Triton's."""
    return (*own_kernel(device), "triton")


@dataclass(frozen=True)
class ProductAxes(AxisTable):
    """Axes of every probe of products; workers are cores, or a GPU's multiprocessors."""

    workers: Workers = by(all_cores, cuda=multiprocessors)
    implementation: Implementations = by(("native",), cuda=own_kernel)
    library: Implementations = by(("torch",), cuda=("cublas",))
    dtype: Dtypes = by(("float32",), cuda=("bfloat16",))
    mode: tuple[str, ...] = ("burst",)


def library_of(row: Row[MatmulParameters]) -> Row[MatmulParameters] | None:
    """The library's row of the same product on as many workers."""
    theirs = Schedule("library", row.p.schedule.workers)
    similar = row.rows.same_except(row, "implementation", "schedule", "tile")
    return next((other for other in similar if other.p.schedule == theirs), None)


def relative_rate(row: Row[MatmulParameters]) -> Ratio | None:
    """Its rate over the library's, with the interval that says whether noise explains it."""
    library = library_of(row)
    return row.faster_than(library) if library else None


@dataclass(frozen=True)
class Sweep:
    """Rows that differ in the size `along` alone, by that size, ascending."""

    along: str
    rows: Mapping[int, Row[MatmulParameters]]

    @property
    def base(self) -> Row[MatmulParameters]:
        """The smallest, for what all of them have in common."""
        return next(iter(self.rows.values()))

    @property
    def fastest(self) -> Row[MatmulParameters]:
        return max(self.rows.values(), key=lambda row: row.reading.flop_per_s)

    @property
    def setting(self) -> str:
        """Implementation and schedule, whatever the shape: `native data_parallel@2, float32, TN`."""
        row = self.base
        mode = "" if row.case.mode == "burst" else row.case.mode
        schedule = "" if row.p.schedule.policy == "library" else row.p.schedule
        how = (mode, row.implementation, row.p.tile, schedule, row.p.hints and f"hints={row.p.hints}")
        return f"{' '.join(str(word) for word in how if word)}, {row.p.dtype}, {row.p.layout}"

    @property
    def name(self) -> str:
        return self.along.upper()

    @property
    def shape(self) -> str:
        """`256 x N x 1024`."""
        return " x ".join(self.name if each == self.along else str(getattr(self.base.p, each)) for each in "mnk")


@dataclass(frozen=True)
class BaselinePair:
    """Two sizes of a sweep; `gain` is the time of the first over that of the other."""

    sweep: Sweep
    size: int
    other: int
    gain: Ratio

    @property
    def row(self) -> Row[MatmulParameters]:
        return self.sweep.rows[self.size]

    @property
    def other_row(self) -> Row[MatmulParameters]:
        return self.sweep.rows[self.other]

    @property
    def rate(self) -> Ratio:
        return self.gain.inverse * (self.size / self.other)

    @classmethod
    def each(cls: type[Pairs], sweep: Sweep, sizes: Iterable[tuple[int, int]]) -> list[Pairs]:
        """Two sizes at a time, but for those that no process measured both of."""
        gains = [(size, other, sweep.rows[other].faster_than(sweep.rows[size])) for size, other in sizes]
        return [cls(sweep, size, other, gain) for size, other, gain in gains if gain is not None]


def sweeps_along(along: str, rows: Rows[MatmulParameters], fewest: int = 2) -> list[Sweep]:
    """Return sweeps of at least `fewest` sizes."""
    groups = ({getattr(row.p, along): row for row in group} for group in rows.groups(along))
    return [Sweep(along, dict(sorted(by_size.items()))) for by_size in groups if len(by_size) >= fewest]


# Our kernels that are launched in clusters.
CLUSTERED = tuple(f"cuda_{name}" for name, family in families().items() if family.CLUSTERS)


# Squares, and the products of transformer layers: tokens x out x in, for fprop and for its narrow relatives.
QUICK_SHAPES = parsed(Shape, "256x256x256 512x512x512 1024x1024x1024 512x2048x512")
LARGER_SHAPES = parsed(Shape, "2048x2048x2048 4096x4096x4096 256x4096x1024 1024x4096x1024 2048x1024x4096")
# The products by which GPU kernels are judged here: squares, and layers of models with 4096 and 8192 hidden dimensions
# from many tokens down to few.
GPU_SHAPES = parsed(
    Shape,
    "4096x4096x4096 8192x8192x8192 16384x4096x4096 4096x14336x4096 8192x28672x8192 2048x4096x4096 512x8192x8192 "
    "128x8192x8192",
)


@dataclass(frozen=True)
class BaselineAxes(ProductAxes):
    """Squares and transformer-like shapes, on one core and on all, or on a whole GPU.

    The tile `chosen` lets our kernel choose; of several tiles the fastest counts. Each `tile_n` adds a tile of that
    number of columns, for the kernels that take any multiple of 8.
    """

    workers: Workers = by(one_and_all_cores, cuda=multiprocessors)
    implementation: Implementations = by(("native",), cuda=own_and_triton)
    dtype: Dtypes = by(("float32",), ("float32", "bfloat16"), cuda=by(("bfloat16",), full=("bfloat16", "float16")))
    mode: tuple[str, ...] = by(("burst",), cuda=by(("burst",), full=("burst", "sustained")))
    shape: tuple[Shape, ...] = by(QUICK_SHAPES[1:2], QUICK_SHAPES + LARGER_SHAPES, cuda=by(GPU_SHAPES[:1], GPU_SHAPES))
    layout: tuple[str, ...] = by(("NN",), standard=("NN", "TN"), cuda=by(("TN",), full=("TN", "NN", "NT")))
    tile: tuple[str, ...] = by(
        (CHOSEN,), cuda=lambda gpu: tuple(families()[own_kernel(gpu)[0].removeprefix("cuda_")].MEASURED_TILES)
    )
    tile_n: Annotated[tuple[int, ...], OneOf(gemm_sm90.TILE_N)] = ()
    schedule: tuple[str, ...] = by(
        ("data_parallel",), cuda=by(("persistent",), standard=("data_parallel", "persistent", "stream_k"))
    )


def sweep(axes: BaselineAxes) -> Iterator[Case]:
    """Each product by each of our kernels in each tile and schedule, and by the library."""
    products = itertools.product(axes.shape, axes.layout, axes.dtype, axes.workers, axes.mode)
    for shape, layout, dtype, workers, mode in products:
        library = MatmulParameters(shape.m, shape.n, shape.k, Schedule("library", workers), dtype=dtype, layout=layout)
        for implementation in axes.library:
            yield Case("matmul", library, implementation, mode=mode)
        wide = tuple(map(gemm_sm90.tile_of_columns, axes.tile_n))
        tried = itertools.product((*axes.tile, *wide), axes.schedule, axes.implementation)
        for tile_name, schedule, implementation in tried:
            tile = None if tile_name == CHOSEN else Tile.parse(tile_name)
            # A tile for a cluster says nothing to a kernel that launches none, and most widths are refused by others.
            if tile is None or (tile.ctas == 1 and tile_name not in wide) or implementation in CLUSTERED:
                ours = replace(library, tile=tile, schedule=Schedule.parse(f"{schedule}@{workers}"))
                yield Case("matmul", ours, implementation, mode=mode)


def is_fastest(row: Row[MatmulParameters]) -> bool:
    """True if it is our kernel's fastest tile and schedule for a product."""
    if row.p.schedule.policy == "library":
        return False
    similar = row.rows.same_except(row, "schedule", "tile")
    tried = [other for other in similar if other.p.schedule.workers == row.p.schedule.workers]
    return row is min(tried, key=lambda other: other.seconds)


def float32_of(row: Row[MatmulParameters]) -> Row[MatmulParameters] | None:
    """The fastest float32 row of the same product by the same kernel; None for itself."""
    similar = row.rows.same_except(row, "dtype", "tile")
    return next((other for other in similar if other.p.dtype == "float32" != row.p.dtype and is_fastest(other)), None)


def peak_of(row: Row[MatmulParameters]) -> float | None:
    """The most that our CPU kernel's instructions multiply, FLOP/s, the highest of its setting; None where unknown."""
    # Other users of the cores can only lower it.
    same = row.rows.sharing(row, lambda each: (each.implementation, each.p.dtype, each.p.schedule.workers))
    seen = (other.reading.details.get("peak_flop_per_s") or 0.0 for other in same)
    return max(seen) or None


def share_of_peak(row: Row[MatmulParameters]) -> float | None:
    """Return the rate as a share of our CPU kernel's peak; None where that was not measured."""
    return row.reading.flop_per_s / peak if (peak := peak_of(row)) else None


def watts(row: Row[MatmulParameters]) -> float | None:
    """Mean power under a sustained load, in W; None of a burst, and where it was not read."""
    return row.observed.get("power") if row.case.mode == "sustained" else None


def joules_per_tflop(row: Row[MatmulParameters]) -> float | None:
    """Joules for 1e12 useful FLOP under a sustained load: power times time."""
    return None if (power := watts(row)) is None else power * row.seconds / row.reading.flop * 1e12


def analyse(rows: Rows[MatmulParameters]) -> Findings:
    """For each kernel, dtype and number of workers its means over products, and what it draws under a load."""
    kernels = grouped(
        rows.where(is_fastest), lambda row: (row.implementation, row.case.mode, row.p.dtype, row.p.schedule.workers)
    )
    loads = grouped(
        rows.where(lambda row: watts(row) is not None and (is_fastest(row) or row.p.schedule.policy == "library")),
        lambda row: (row.implementation, row.p.dtype, row.p.schedule.workers),
    )
    return findings(
        *(
            (
                _mean("the library's speed", library_of, kernels[name], ""),
                _mean("the speed of our float32 matmul", float32_of, kernels[name], "mean"),
            )
            for name in sorted(kernels)
        ),
        (_under_load(loads[name]) for name in sorted(loads)),
    )


def _under_load(rows: Sequence[Row[MatmulParameters]]) -> Remark:
    """Power, clock and energy of one kernel under sustained loads, each the median over products."""
    middle: dict[str, Any] = {
        "watts": Quantity(median(each for row in rows if (each := watts(row)) is not None), "W"),
        "joules": median(each for row in rows if (each := joules_per_tflop(row)) is not None),
        "rate": Quantity(median(row.reading.flop_per_s for row in rows), "TFLOP/s"),
    }
    return rows[0].remark(
        "Under a sustained load {implementation} {dtype} runs at {rate} and {mhz} MHz, draws {watts} and takes "
        "{joules} J/TFLOP (medians of {products} products)",
        mhz=round(median(row.reading.clock_hz for row in rows) / 1e6),
        products=len(rows),
        **middle,
    )


def _mean(
    rate_name: str,
    base: Callable[[Row[MatmulParameters]], Row[MatmulParameters] | None],
    rows: Sequence[Row[MatmulParameters]],
    effect: str,
) -> Remark | None:
    """How our products compare with others; None where no process measured them all."""
    pairs = [(other.reading, row.reading) for row in rows if (other := base(row))]
    mean = mean_speedup(pairs)
    if mean is None:
        return None
    ratios = [other.seconds / ours.seconds for other, ours in pairs]
    return rows[0].remark(
        "Our {implementation} {dtype} matmul runs at {mean} {what} (workers={schedule.workers}, mode={mode}; geometric "
        "mean of {products} products, each between {least:x} and {most:x})",
        effect=effect,
        mean=mean,
        what=rate_name,
        products=len(pairs),
        least=min(ratios),
        most=max(ratios),
    )


PROBE = Probe(
    name="baseline",
    question="How fast are our own kernels compared with the library's, and with each other by dtype?",
    topic="products",
    title="Our product compared with the library's",
    axes=BaselineAxes.of,
    sweep=sweep,
    order=lambda row: (
        *(row.case.mode, row.p.dtype, row.p.schedule.workers, row.reading.flop),
        *(row.p.m, row.p.n, row.p.k, row.p.layout),
    ),
    tables=(
        RowTable(
            "Our matmul and the library's",
            (
                Column("M x N x K", lambda row: str(Shape(row.p.m, row.p.n, row.p.k)), priority=2),
                Column("layout"),
                Column("dtype"),
                Column("schedule", priority=0),
                Column("kernel", "implementation"),
                Column("tile", lambda row: str(row.reading.details.get("tile", "")), priority=0),
                Column("ours", "flop_per_s", "TFLOP/s"),
                Column("the library's", lambda row: (other := library_of(row)) and other.reading.flop_per_s, "TFLOP/s"),
                Column("ours / the peak", share_of_peak, "%"),
                # A GPU's time is that at the reference clock; this is the clock that was seen.
                Column("elasticity", priority=0),
                Column("seen at, MHz", lambda row: round(row.reading.clock_hz / 1e6) or None, priority=0),
                Column("mode", priority=0),
                Column("power", watts, "W", priority=0),
                Column("J/TFLOP", joules_per_tflop, priority=0),
                Column("ours / the library's", relative_rate, "x", priority=2),
            ),
            where=is_fastest,
        ),
    ),
    analyse=analyse,
    group=lambda case: f"baseline {case.parameters.dtype} {case.parameters.schedule.workers} workers",
)
