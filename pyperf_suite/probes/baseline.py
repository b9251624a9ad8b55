"""How our own matrix product compares with the library's on the same shapes, in the same run.

A probe's kernel explains a machine only where it is about as fast as what people really use there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.matmul.tiling import Schedule, Tile
from pyperf_suite.probes._products import CHOSEN, ProductAxes, library_of, on_gpu, relative_rate
from pyperf_suite.runner.record import Case
from pyperf_suite.spec.axes import Shape, parsed
from pyperf_suite.spec.findings import Findings, Remark, findings
from pyperf_suite.spec.probe import Probe, RowTable
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import Column, Row, Rows, grouped, mean_speedup
from pyperf_suite.workloads.matmul import MatmulParameters

# Our kernels that are launched in clusters.
CLUSTERED = ("cuda_sm90",)
# By what a wave of tiles reads of L2: a pair of the largest, along either side, reads two thirds of what one does and
# half of what the smaller does, which fits narrow products. A stage less leaves room to store a tile without waiting.
HOPPER_TILES = ("128x256x64:c2", "128x256x64:s3:c2", "256x128x64:c1x2", "128x256x64", "128x128x64")


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
    """What the probe varies, as it is on a CPU in a minute.

    The tile `chosen` lets our kernel choose; of several tiles the fastest counts.
    """

    shape: tuple[Shape, ...] = QUICK_SHAPES
    layout: tuple[str, ...] = ("NN",)
    tile: tuple[str, ...] = (CHOSEN,)
    schedule: tuple[str, ...] = ("data_parallel",)


def axes(profile: str, device: Device) -> BaselineAxes:
    """Squares and transformer-like shapes, on one core and on all, or on a whole GPU."""
    if device.kind == "cuda":
        own, shared = on_gpu(device)
        tiles = HOPPER_TILES if own in CLUSTERED else ("128x128x32",)
        quick = BaselineAxes(**shared, shape=GPU_SHAPES[:1], layout=("TN",), tile=tiles, schedule=("persistent",))
        quick = replace(quick, implementation=(own, "triton"))
        standard = replace(quick, shape=GPU_SHAPES, schedule=("data_parallel", "persistent", "stream_k"))
        full = replace(standard, layout=("TN", "NN", "NT"), dtype=("bfloat16", "float16"), mode=("burst", "sustained"))
    else:
        quick = BaselineAxes(workers=tuple(dict.fromkeys((1, cpu.detect().usable_cores))))
        shapes = QUICK_SHAPES + LARGER_SHAPES
        full = standard = replace(quick, shape=shapes, layout=("NN", "TN"), dtype=("float32", "bfloat16"))
    return {"quick": quick, "standard": standard, "full": full}[profile]


def sweep(axes: BaselineAxes) -> Iterator[Case]:
    """Each product by each of our kernels in each tile and schedule, and by the library."""
    products = itertools.product(axes.shape, axes.layout, axes.dtype, axes.workers, axes.mode)
    for shape, layout, dtype, workers, mode in products:
        library = MatmulParameters(shape.m, shape.n, shape.k, Schedule("library", workers), dtype=dtype, layout=layout)
        for implementation in axes.library:
            yield Case("matmul", library, implementation, mode=mode)
        for tile_name, schedule, implementation in itertools.product(axes.tile, axes.schedule, axes.implementation):
            tile = None if tile_name == CHOSEN else Tile.parse(tile_name)
            # A tile for a cluster says nothing to a kernel that launches none.
            if tile is None or tile.ctas == 1 or implementation in CLUSTERED:
                ours = replace(library, tile=tile, schedule=Schedule.parse(f"{schedule}@{workers}"))
                yield Case("matmul", ours, implementation, mode=mode)


def is_fastest(row: Row) -> bool:
    """Whether it is our kernel's fastest tile and schedule for a product that the library multiplied too."""
    if row.schedule.policy == "library" or library_of(row) is None:
        return False
    alike = row.rows.alike(row, "schedule", "tile")
    tried = [other for other in alike if other.schedule.workers == row.schedule.workers]
    return row is min(tried, key=lambda other: other.seconds)


def float32_of(row: Row) -> Row | None:
    """The fastest float32 row of the same product by the same kernel; None for itself."""
    alike = row.rows.alike(row, "dtype", "tile")
    return next((other for other in alike if other.dtype == "float32" != row.dtype and is_fastest(other)), None)


def analyse(rows: Rows) -> Findings:
    """For each kernel, dtype and number of workers its means over products."""
    kernels = grouped(
        rows.where(is_fastest), lambda row: (row.implementation, row.mode, row.dtype, row.schedule.workers)
    )
    return findings(
        (
            _mean("the library's speed", library_of, kernels[name], ""),
            _mean("the speed of our float32 matmul", float32_of, kernels[name], "mean"),
        )
        for name in sorted(kernels)
    )


def _mean(what: str, base: Callable[[Row], Row | None], rows: Sequence[Row], effect: str) -> Remark | None:
    """How our products compare with others; None where no process measured them all."""
    pairs = [(other.reading, row.reading) for row in rows if (other := base(row))]
    mean = mean_speedup(pairs)
    if mean is None:
        return None
    ratios = [other.seconds / ours.seconds for other, ours in pairs]
    return rows[0].remark(
        "Our {implementation} {dtype} matmul runs at {mean} {what} (workers={workers}, mode={mode}; geometric mean of "
        "{products} products, each between {least} and {most})",
        effect=effect,
        mean=mean,
        what=what,
        workers=rows[0].schedule.workers,
        products=len(pairs),
        least=Quantity(min(ratios), "x"),
        most=Quantity(max(ratios), "x"),
    )


PROBE = Probe(
    name="baseline",
    question="How fast are our own kernels beside the library's, and beside each other by dtype?",
    topic="products",
    title="Our product compared with the library's",
    axes=axes,
    sweep=sweep,
    order=lambda row: (row.mode, row.dtype, row.schedule.workers, row.flop, row.m, row.n, row.k, row.layout),
    tables=(
        RowTable(
            "Our matmul beside the library's",
            (
                Column("M x N x K", lambda row: str(Shape(row.m, row.n, row.k)), priority=2),
                Column("layout"),
                Column("dtype"),
                Column("schedule", priority=0),
                Column("kernel", "implementation"),
                Column("tile", lambda row: str(row.details.get("tile", "")), priority=0),
                Column("ours", "flop_per_s", "TFLOP/s"),
                Column("the library's", lambda row: row.flop_per_s / relative_rate(row), "TFLOP/s"),
                Column("ours / the library's", relative_rate, "x", priority=2),
            ),
            where=is_fastest,
        ),
    ),
    analyse=analyse,
    group=lambda case: f"baseline {case.parameters.dtype} {case.parameters.schedule.workers} workers",
)
