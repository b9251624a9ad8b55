"""The experts of a mixture: one launch for all beside a loop and a padded batch, where tokens are spread evenly or not.

The law counts waves over the tiles of all experts: a loop rounds each expert's tiles up to whole waves, a padded batch
computes every expert as large as the largest, one launch fills its waves with whatever tiles there are.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.matmul.staircase import relative_error
from pyperf_suite.operators.grouped_matmul import DTYPES, GroupedMatmulParameters
from pyperf_suite.runner.case import Case
from pyperf_suite.spec.axes import OneOf, Shape, Within
from pyperf_suite.spec.findings import Claim, Figure, Findings, Panel, Remark, findings, remark
from pyperf_suite.spec.probe import Probe, RowClaim, RowTable
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import Column, Row, Rows, grouped, series

ORDER = ("dtype", "n", "k", "rows", "experts", "skew")
WAYS = ("loop", "padded", "grouped_mm", "triton")
IN_ONE_LAUNCH = ("grouped_mm", "triton")
PYTORCH = "PyTorch, Accelerating MoEs with a Triton Persistent Cache-Aware Grouped GEMM Kernel (2025)"
MEGABLOCKS = "Gale et al. 2022, MegaBlocks"

ONE_LAUNCH = Claim("one launch is 1.42 to 2.62 x as fast as a loop over experts (DeepSeek-V3, H100)", PYTORCH, 1.42)
PADDING_WASTES = Claim("padding to the largest expert wastes computation where experts differ", MEGABLOCKS, 0.0, 1.0)
SKEW_IS_FREE = Claim("experts that differ in size cost a grouped product nothing, taken as 10 %", MEGABLOCKS, 0.9)


@dataclass(frozen=True)
class GroupedAxes:
    """What the probe varies. M of a `shape` are the rows of all experts together; a skew of 0 spreads them evenly."""

    implementation: Annotated[tuple[str, ...], OneOf(WAYS)]
    experts: Annotated[tuple[int, ...], Within(1, 4096)]
    shape: tuple[Shape, ...]
    skew: Annotated[tuple[float, ...], Within(0, 8)]
    dtype: Annotated[tuple[str, ...], OneOf(DTYPES)]
    workers: Annotated[tuple[int, ...], Within(0)]


def axes(profile: str, device: Device) -> GroupedAxes:
    """Layers of a small mixture on a CPU; of Mixtral (8 experts) and of DeepSeek-V3 (many small ones) on a GPU."""
    if device.kind == "cuda":
        quick = GroupedAxes(WAYS, (8,), (Shape(8192, 14336, 4096),), (0.0, 1.0), ("bfloat16",), (0,))
        many = replace(quick, experts=(8, 64), shape=(*quick.shape, Shape(8192, 2048, 7168)), skew=(0.0, 0.5, 1.0))
    else:
        cores = cpu.detect().usable_cores
        quick = GroupedAxes(WAYS[:3], (8,), (Shape(512, 512, 256),), (0.0, 1.0), ("float32",), (cores,))
        shapes = (*quick.shape, Shape(2048, 512, 256), Shape(256, 1024, 512))
        many = replace(quick, experts=(4, 8, 32), shape=shapes, skew=(0.0, 0.5, 1.0))
    if profile == "quick":
        return quick
    return many if profile == "standard" else replace(many, skew=(0.0, 0.25, 0.5, 1.0, 1.5), experts=(4, 8, 32, 64))


def sweep(axes: GroupedAxes) -> Iterator[Case]:
    """Every spread of every mixture in every way."""
    everything = itertools.product(axes.experts, axes.shape, axes.dtype, axes.workers, axes.skew, axes.implementation)
    for experts, shape, dtype, workers, skew, way in everything:
        parameters = GroupedMatmulParameters(experts, shape.m, shape.n, shape.k, skew, dtype, workers)
        yield Case("grouped_matmul", parameters, way)


def waves(row: Row) -> int:
    """Of tiles that the slots take at once; of a library whose tile is not known, of single rows in one slot."""
    p, details = row.parameters, row.kernel["details"]
    tile_m, tile_n = details.get("tile", (1, p.n, p.k))[:2]
    slots, across = details.get("slots", 1), math.ceil(p.n / tile_n)
    rows = [count for count in p.rows_of_experts if count]
    if row.implementation == "padded":
        rows = [max(rows)] * p.experts
    tiles = [math.ceil(count / tile_m) * across for count in rows]
    if row.implementation == "loop":
        return sum(math.ceil(each / slots) for each in tiles)
    return math.ceil(sum(tiles) / slots)


@dataclass(frozen=True)
class Law:
    """seconds = calls · start_s + waves · wave_s; `errors` are those of cases it was not fitted on."""

    start_s: float
    wave_s: float
    errors: tuple[float, ...]

    def seconds(self, row: Row) -> float:
        """What it says of a row."""
        return row.kernel["details"]["calls"] * self.start_s + waves(row) * self.wave_s


def law_of(rows: list[Row]) -> Law | None:
    """Fitted on every other case by its waves, judged on the rest; None where either part has less than two."""
    from scipy.optimize import nnls

    ordered = sorted(rows, key=waves)
    fitted, held_out = ordered[::2], ordered[1::2]
    if min(len(fitted), len(held_out)) < 2:
        return None
    terms = np.array([[row.kernel["details"]["calls"], waves(row)] for row in fitted], dtype=float)
    seconds = np.array([row.seconds for row in fitted])
    # Relative errors count: each equation in units of its own time.
    (start_s, wave_s), _ = nnls(terms / seconds[:, None], np.ones(len(fitted)))
    law = Law(float(start_s), float(wave_s), ())
    said, found = [law.seconds(row) for row in held_out], [row.seconds for row in held_out]
    return replace(law, errors=tuple(map(float, relative_error(np.array(said), np.array(found)))))


def laws_of(rows: Rows) -> dict[tuple[str, int, int, str], Law]:
    """By way and shape of an expert's product: a wave of another depth takes another time."""
    by_product = grouped(rows, lambda row: (row.implementation, row.n, row.k, row.dtype))
    fitted = {key: law_of(members) for key, members in by_product.items()}
    return {key: law for key, law in fitted.items() if law is not None}


def analyse(rows: Rows) -> Findings:
    """The laws with their errors, and a picture of what skew costs each way."""
    laws = laws_of(rows)
    return findings((_law_remark(*key, law) for key, law in laws.items()), _figure(rows))


def _law_remark(way: str, n: int, k: int, dtype: str, law: Law) -> Remark:
    return remark(
        "{way}, N = {n}, K = {k}, {dtype}: time = calls x {start} + waves x {wave}; it misses {count} cases held out "
        "by {median} in the median, {worst} at worst.",
        kind="law",
        way=way,
        n=n,
        k=k,
        dtype=dtype,
        start=Quantity(law.start_s, "duration", predicted=True),
        wave=Quantity(law.wave_s, "duration", predicted=True),
        count=len(law.errors),
        median=Quantity(statistics.median(law.errors), "%"),
        worst=Quantity(max(law.errors), "%"),
    )


def _figure(rows: Rows) -> Figure | None:
    """Throughput by skew, a panel a mixture that was measured with three skews or more."""
    panels = []
    for group in rows.groups("skew", "implementation"):
        ways = grouped(sorted(group, key=lambda row: row.skew), lambda row: row.implementation)
        if max(map(len, ways.values())) < 3:
            continue
        drawn = tuple(
            series(way, members, lambda row: row.skew, lambda row: row.throughput) for way, members in ways.items()
        )
        panels.append(Panel(mixture(group[0]), "skew", "throughput", drawn, y_unit="TFLOP/s"))
    caption = "Useful FLOP a second: what is computed of padding does not count. Bars span the processes."
    figures = [panels[start : start + 2] for start in range(0, len(panels), 2)]
    return Figure("grouped_matmul", "Experts of a mixture", caption, tuple(map(tuple, figures))) if panels else None


def mixture(row: Row) -> str:
    """`8 experts of 512 x 512 x 256`, with the rows of all of them."""
    return f"{row.experts} experts of {row.parameters.rows} x {row.n} x {row.k}"


PROBE = Probe(
    name="grouped_matmul",
    question="How should the experts of a mixture be multiplied, and what do experts of different sizes cost?",
    topic="products",
    title="Experts of a mixture: grouped products",
    axes=axes,
    sweep=sweep,
    order=lambda row: (
        row.dtype,
        row.n,
        row.k,
        row.parameters.rows,
        row.experts,
        row.skew,
        WAYS.index(row.implementation),
    ),
    analyse=analyse,
    claims=(
        RowClaim(
            ONE_LAUNCH,
            "{implementation} is {measured} as fast as a loop over {mixture}, skew {skew}",
            ratio=lambda row: row.against(implementation="loop"),
            where=lambda row: row.implementation in IN_ONE_LAUNCH,
            values={"mixture": mixture},
        ),
        RowClaim(
            PADDING_WASTES,
            "padded is {measured} as fast as a loop over {mixture}, skew {skew}",
            ratio=lambda row: row.against(implementation="loop"),
            where=lambda row: row.implementation == "padded" and row.skew > 0,
            values={"mixture": mixture},
        ),
        RowClaim(
            SKEW_IS_FREE,
            "{implementation} with skew {skew} is {measured} as fast as balanced, {mixture}",
            ratio=lambda row: row.against(skew=0.0),
            where=lambda row: row.implementation in IN_ONE_LAUNCH and row.skew > 0,
            values={"mixture": mixture},
        ),
    ),
    tables=(
        RowTable(
            "Experts by spread and way",
            (
                Column("experts", priority=2),
                Column("rows x N x K", lambda row: f"{row.parameters.rows}x{row.n}x{row.k}"),
                Column("skew", priority=2),
                Column("largest expert", lambda row: max(row.parameters.rows_of_experts)),
                Column("dtype", priority=0),
                Column("way", "implementation", priority=2),
                Column("time", unit="ms"),
                Column("throughput", "flop_per_s", "TFLOP/s", priority=2),
                Column("beside a loop", lambda row: row.against(implementation="loop"), "x", priority=2),
                Column("beside balanced", lambda row: row.against(skew=0.0), "x"),
                Column("waves", waves, priority=0),
            ),
        ),
    ),
    group=lambda case: f"grouped_matmul {case.parameters.experts} experts {case.parameters.dtype}",
)
