"""How our own matrix product compares with the library's on the same shapes, in the same run.

A probe's kernel explains a machine only where it is about as fast as what people really use there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.operators.matmul import MatmulParameters
from pyperf_suite.probes.findings import Findings, Table
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.readings import Reading, readings
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record


@dataclass(frozen=True)
class Shape:
    """M x N x K of one product."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @classmethod
    def parse(cls, text: str) -> Shape:
        """The inverse of `str`. Raises UserError for anything else."""
        parts = text.split("x")
        if len(parts) != 3 or not all(part.strip().lstrip("-").isdigit() for part in parts):
            raise UserError(f"{text!r} is not a shape: write MxNxK, as in 512x4096x1024.")
        return cls(*(int(part) for part in parts))


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


@dataclass(frozen=True)
class BaselineAxes:
    """What the baseline probe varies."""

    shape: tuple[Shape, ...]
    layout: tuple[str, ...]
    dtype: tuple[str, ...]
    workers: tuple[int, ...]


class Baseline(Probe):
    """Our kernel with the tile it would choose, and the library beside it."""

    name = "baseline"
    question = "How fast are our own kernels beside the library's, and beside each other by dtype?"

    def axes(self, profile: str, device: Device) -> BaselineAxes:
        """Squares and transformer-like shapes, on one core and on all."""
        cores = cpu.detect().usable_cores
        workers = tuple(dict.fromkeys((1, cores)))
        if profile == "quick":
            return BaselineAxes(QUICK_SHAPES, ("NN",), ("float32",), workers)
        return BaselineAxes(STANDARD_SHAPES, ("NN", "TN"), ("float32", "bfloat16"), workers)

    def sweep(self, axes: BaselineAxes) -> list[Case]:
        """Each shape by our kernel and by torch."""
        cases = []
        for shape in axes.shape:
            for layout in axes.layout:
                for dtype in axes.dtype:
                    for workers in axes.workers:
                        for implementation, policy in (("native", "data_parallel"), ("torch", "library")):
                            parameters = MatmulParameters(
                                shape.m,
                                shape.n,
                                shape.k,
                                Schedule(policy, workers),
                                dtype=dtype,
                                layout=layout,
                            )
                            cases.append(Case("matmul", parameters, implementation))
        return cases

    def findings(self, records: Sequence[Record]) -> Findings:
        """The ratio of every pair, and its geometric mean by dtype and workers."""
        pairs = _pairs(readings(records))
        rows = []
        ratios: dict[tuple[str, int], list[float]] = {}
        for ours, theirs in pairs:
            p = ours.case.parameters
            ratio = theirs.seconds / ours.seconds
            ratios.setdefault((p.dtype, p.schedule.workers), []).append(ratio)
            rows.append(
                (
                    f"{p.m}x{p.n}x{p.k}",
                    p.layout,
                    p.dtype,
                    str(p.schedule.workers),
                    ours.kernel["details"]["tile"],
                    f"{ours.tflop_per_s:.3f}",
                    f"{theirs.tflop_per_s:.3f}",
                    f"{ratio:.2f}",
                )
            )
        sentences = [_sentence(dtype, workers, values) for (dtype, workers), values in sorted(ratios.items())]
        sentences += _between_dtypes([ours for ours, _ in pairs])
        columns = (
            "M x N x K",
            "layout",
            "dtype",
            "workers",
            "our tile",
            "ours TFLOP/s",
            "torch TFLOP/s",
            "ours / torch",
        )
        return Findings(tuple(sentences), (Table("Our matmul beside torch", columns, tuple(rows)),) if rows else ())

    def group(self, case: Case) -> str:
        """One table a dtype and number of workers, so that ours and the library's stand together."""
        return f"baseline {case.parameters.dtype} {case.parameters.schedule.workers} workers"


def _pairs(found: list[Reading]) -> list[tuple[Reading, Reading]]:
    """Ours and the library's reading of the same product, largest product last."""
    by_product: dict[tuple[object, ...], dict[str, Reading]] = {}
    for reading in found:
        p = reading.case.parameters
        key = (p.dtype, p.schedule.workers, p.m * p.n * p.k, p.m, p.n, p.k, p.layout)
        by_product.setdefault(key, {})[reading.case.implementation] = reading
    return [
        (product["native"], product["torch"])
        for _, product in sorted(by_product.items())
        if {"native", "torch"} <= product.keys()
    ]


def _sentence(dtype: str, workers: int, ratios: Sequence[float]) -> str:
    return (
        f"Our {dtype} matmul runs at {_geometric_mean(ratios):.2f} x the library's speed on {workers} "
        f"core{'s' if workers > 1 else ''} (geometric mean of {len(ratios)} products, each between {min(ratios):.2f} "
        f"and {max(ratios):.2f} x)."
    )


def _between_dtypes(ours: Sequence[Reading]) -> list[str]:
    """How our other dtypes compare with our float32, product by product."""
    seconds: dict[tuple[object, ...], dict[str, float]] = {}
    for reading in ours:
        p = reading.case.parameters
        seconds.setdefault((p.m, p.n, p.k, p.layout, p.schedule), {})[p.dtype] = reading.seconds
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
