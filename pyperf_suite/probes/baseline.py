"""How our own matrix product compares with the library's on the same shapes, in the same run.

A probe's kernel explains a machine only where it is about as fast as what people really use there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.matmul.tiling import Schedule, Tile
from pyperf_suite.operators.matmul import MatmulParameters
from pyperf_suite.probes.probe import Probe
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.axes import Shape
from pyperf_suite.spec.findings import Findings, Table
from pyperf_suite.spec.rows import Reading, readings

# A tile that our kernel chooses for the product.
CHOSEN = "chosen"

# Our kernels that are launched in clusters.
CLUSTERED = ("cuda_sm90",)
# By what a wave of tiles reads of L2: a pair of the largest, along either side, reads two thirds of what one does and
# half of what the smaller does, which fits narrow products. A stage less leaves room to store a tile without waiting.
HOPPER_TILES = ("128x256x64:c2", "128x256x64:s3:c2", "256x128x64:c1x2", "128x256x64", "128x128x64")

COLUMNS = (
    "M x N x K",
    "layout",
    "dtype",
    "schedule",
    "kernel",
    "tile",
    "ours TFLOP/s",
    "library TFLOP/s",
    "ours / library",
)

# Squares, and the products of transformer layers: tokens x out x in, for fprop and for its narrow relatives.
QUICK_SHAPES = (Shape(256, 256, 256), Shape(512, 512, 512), Shape(1024, 1024, 1024), Shape(512, 2048, 512))
STANDARD_SHAPES = (
    *QUICK_SHAPES,
    Shape(2048, 2048, 2048),
    Shape(4096, 4096, 4096),
    Shape(256, 4096, 1024),
    Shape(1024, 4096, 1024),
    Shape(2048, 1024, 4096),
)


# The products by which GPU kernels are judged here: squares, and layers of models with 4096 and 8192 hidden dimensions
# from many tokens down to few.
GPU_SHAPES = (
    Shape(4096, 4096, 4096),
    Shape(8192, 8192, 8192),
    Shape(16384, 4096, 4096),
    Shape(4096, 14336, 4096),
    Shape(8192, 28672, 8192),
    Shape(2048, 4096, 4096),
    Shape(512, 8192, 8192),
    Shape(128, 8192, 8192),
)


@dataclass(frozen=True)
class BaselineAxes:
    """What the baseline probe varies. The tile `chosen` lets our kernel choose; of several tiles the fastest counts."""

    implementation: tuple[str, ...]
    library: tuple[str, ...]
    shape: tuple[Shape, ...]
    layout: tuple[str, ...]
    dtype: tuple[str, ...]
    workers: tuple[int, ...]
    tile: tuple[str, ...]
    schedule: tuple[str, ...]
    mode: tuple[str, ...] = ("burst",)


class Baseline(Probe):
    """Our kernels, the fastest of their tiles for each product, and the library beside them."""

    name = "baseline"
    question = "How fast are our own kernels beside the library's, and beside each other by dtype?"

    def axes(self, profile: str, device: Device) -> BaselineAxes:
        """Squares and transformer-like shapes, on one core and on all, or on a whole GPU."""
        return _cuda_axes(profile, device) if device.kind == "cuda" else _cpu_axes(profile)

    def sweep(self, axes: BaselineAxes) -> list[Case]:
        """Each product by each of our kernels in each tile and schedule, and by the library."""
        cases = []
        products = itertools.product(axes.shape, axes.layout, axes.dtype, axes.workers, axes.mode)
        for shape, layout, dtype, workers, mode in products:
            library = MatmulParameters(
                shape.m, shape.n, shape.k, Schedule("library", workers), dtype=dtype, layout=layout
            )
            cases += [Case("matmul", library, implementation, mode=mode) for implementation in axes.library]
            for tile, schedule in itertools.product(axes.tile, axes.schedule):
                ours = replace(
                    library,
                    tile=None if tile == CHOSEN else Tile.parse(tile),
                    schedule=Schedule.parse(f"{schedule}@{workers}"),
                )
                # A tile for a cluster says nothing to a kernel that launches none.
                clustered = ours.tile is not None and ours.tile.ctas > 1
                takers = [name for name in axes.implementation if name in CLUSTERED or not clustered]
                cases += [Case("matmul", ours, implementation, mode=mode) for implementation in takers]
        return cases

    def findings(self, records: Sequence[Record]) -> Findings:
        """The ratio of every pair, and its geometric mean by kernel, dtype and workers."""
        pairs = _pairs(readings(records))
        ratios: dict[tuple[str, str, str, int], list[float]] = {}
        rows = []
        for ours, theirs in pairs:
            p = ours.case.parameters
            ratio = theirs.seconds / ours.seconds
            ratios.setdefault((ours.case.implementation, ours.case.mode, p.dtype, p.schedule.workers), []).append(ratio)
            rows.append(
                (
                    f"{p.m}x{p.n}x{p.k}",
                    p.layout,
                    p.dtype,
                    str(p.schedule),
                    ours.case.implementation,
                    str(ours.kernel["details"].get("tile", "")),
                    f"{ours.tflop_per_s:.3f}",
                    f"{theirs.tflop_per_s:.3f}",
                    f"{ratio:.2f}",
                )
            )
        sentences = [_sentence(*whose, values) for whose, values in sorted(ratios.items())]
        sentences += _between_dtypes([ours for ours, _ in pairs])
        return Findings(
            tuple(sentences), (Table("Our matmul beside the library's", COLUMNS, tuple(rows)),) if rows else ()
        )

    def group(self, case: Case) -> str:
        """One table a dtype and number of workers, so that ours and the library's stand together."""
        return f"baseline {case.parameters.dtype} {case.parameters.schedule.workers} workers"


def _cpu_axes(profile: str) -> BaselineAxes:
    cores = cpu.detect().usable_cores
    standard = BaselineAxes(
        implementation=("native",),
        library=("torch",),
        shape=STANDARD_SHAPES,
        layout=("NN", "TN"),
        dtype=("float32", "bfloat16"),
        workers=tuple(dict.fromkeys((1, cores))),
        tile=(CHOSEN,),
        schedule=("data_parallel",),
    )
    if profile == "quick":
        return replace(standard, shape=QUICK_SHAPES, layout=("NN",), dtype=("float32",))
    return standard


def _cuda_axes(profile: str, device: Device) -> BaselineAxes:
    gpu = gpus()[device.index]
    hopper = gpu.compute_capability == (9, 0)
    own = "cuda_sm90" if hopper else "cuda_sm80"
    quick = BaselineAxes(
        implementation=(own, "triton"),
        library=("cublas",),
        shape=GPU_SHAPES[:1],
        layout=("TN",),
        dtype=("bfloat16",),
        workers=(gpu.multiprocessors,),
        tile=HOPPER_TILES if hopper else ("128x128x32",),
        schedule=("persistent",),
    )
    if profile == "quick":
        return quick
    standard = replace(quick, shape=GPU_SHAPES, schedule=("data_parallel", "persistent", "stream_k"))
    if profile == "standard":
        return standard
    return replace(standard, layout=("TN", "NN", "NT"), dtype=("bfloat16", "float16"), mode=("burst", "sustained"))


def _pairs(found: list[Reading]) -> list[tuple[Reading, Reading]]:
    """Each of our kernels in its fastest tile and schedule, and the library's reading of the same product.

    Ordered by dtype and workers, largest product last.
    """
    library: dict[tuple[object, ...], Reading] = {}
    fastest: dict[tuple[object, ...], Reading] = {}
    for reading in found:
        p = reading.case.parameters
        product = (reading.case.mode, p.dtype, p.schedule.workers, p.m * p.n * p.k, p.m, p.n, p.k, p.layout)
        if p.schedule.policy == "library":
            library[product] = reading
            continue
        ours = (*product, reading.case.implementation)
        if ours not in fastest or reading.seconds < fastest[ours].seconds:
            fastest[ours] = reading
    return [(reading, library[ours[:-1]]) for ours, reading in sorted(fastest.items()) if ours[:-1] in library]


def _sentence(implementation: str, mode: str, dtype: str, workers: int, ratios: Sequence[float]) -> str:
    cores = f"{workers} core{'s' if workers > 1 else ''}"
    where = cores if implementation == "native" else f"{workers} multiprocessors"
    kernel = "" if implementation == "native" else f"{implementation} "
    kernel = kernel if mode == "burst" else f"{mode} {kernel}"
    return (
        f"Our {kernel}{dtype} matmul runs at {_geometric_mean(ratios):.2f} x the library's speed on {where} "
        f"(geometric mean of {len(ratios)} products, each between {min(ratios):.2f} and {max(ratios):.2f} x)."
    )


def _between_dtypes(ours: Sequence[Reading]) -> list[str]:
    """How our other dtypes compare with our float32, product by product."""
    seconds: dict[tuple[object, ...], dict[str, float]] = {}
    for reading in ours:
        p = reading.case.parameters
        seconds.setdefault((reading.case.implementation, reading.case.mode, p.m, p.n, p.k, p.layout, p.schedule), {})[
            p.dtype
        ] = reading.seconds
    sentences = []
    for dtype in sorted({dtype for by_dtype in seconds.values() for dtype in by_dtype} - {"float32"}):
        ratios = [t["float32"] / t[dtype] for t in seconds.values() if {"float32", dtype} <= t.keys()]
        if ratios:
            sentences.append(
                f"Our {dtype} matmul runs at {_geometric_mean(ratios):.2f} x the speed of our float32 matmul "
                f"(geometric mean of {len(ratios)} products, the slowest at {min(ratios):.2f} x)."
            )
    return sentences


def _geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
