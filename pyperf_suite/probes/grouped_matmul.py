"""The experts of a mixture: one launch for all, a loop and a padded batch, where tokens are spread evenly or not.

The law counts waves over the tiles of all experts: a loop rounds each expert's tiles up to whole waves, a padded batch
computes every expert as large as the largest, one launch fills its waves with whatever tiles there are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pyperf_suite.findings.axes import AxisTable, Shape, all_cores, by, parsed
from pyperf_suite.findings.data import Claim, Figure, Findings, Panel, Remark, figure, findings
from pyperf_suite.findings.probe import Probe, RowClaim, RowTable
from pyperf_suite.findings.rows import Column, Row, Rows, grouped, misses, series_by
from pyperf_suite.laws.tiling import nonnegative_fit, relative_error
from pyperf_suite.record.case import Case
from pyperf_suite.workloads.matmul import GROUPED, GroupedMatmulParameters

WAYS = tuple(GROUPED)
IN_ONE_LAUNCH = ("grouped_mm", "triton")
PYTORCH = "PyTorch, Accelerating MoEs with a Triton Persistent Cache-Aware Grouped GEMM Kernel (2025)"
MEGABLOCKS = "Gale et al. 2022, MegaBlocks"

ONE_LAUNCH = Claim("one launch is 1.42 to 2.62 x as fast as a loop over experts (DeepSeek-V3, H100)", PYTORCH, 1.42)
PADDING_WASTES = Claim("padding to the largest expert wastes computation where experts differ", MEGABLOCKS, 0.0, 1.0)
SKEW_IS_FREE = Claim("experts that differ in size cost a grouped product nothing, taken as 10 %", MEGABLOCKS, 0.9)


# All experts' rows x N x K: layers of a small mixture; of Mixtral (8 experts), and of DeepSeek-V3 (many small ones).
CPU_SHAPES = parsed(Shape, "512x512x256 2048x512x256 256x1024x512")
GPU_SHAPES = parsed(Shape, "8192x14336x4096 8192x2048x7168")


@dataclass(frozen=True)
class GroupedAxes(AxisTable):
    """Axes of the probe. M of a `shape` are the rows of all experts together; a skew of 0 spreads them evenly."""

    implementation: tuple[str, ...] = by(WAYS[:3], cuda=WAYS)
    experts: tuple[int, ...] = by((8,), (4, 8, 32), (4, 8, 32, 64), cuda=by((8,), (8, 64), (4, 8, 32, 64)))
    shape: tuple[Shape, ...] = by(CPU_SHAPES[:1], standard=CPU_SHAPES, cuda=by(GPU_SHAPES[:1], standard=GPU_SHAPES))
    skew: tuple[float, ...] = by((1.0,), standard=(0.0, 0.5, 1.0), full=(0.0, 0.25, 0.5, 1.0, 1.5))
    dtype: tuple[str, ...] = by(("float32",), cuda=("bfloat16",))
    workers: tuple[int, ...] = by(all_cores, cuda=(0,))


def sweep(axes: GroupedAxes) -> Iterator[Case]:
    """Every spread of every mixture in every way."""
    everything = itertools.product(axes.experts, axes.shape, axes.dtype, axes.workers, axes.skew, axes.implementation)
    for experts, shape, dtype, workers, skew, way in everything:
        parameters = GroupedMatmulParameters(experts, shape.m, shape.n, shape.k, skew, dtype, workers)
        yield Case("grouped_matmul", parameters, way)


def waves(row: Row[GroupedMatmulParameters]) -> int:
    """Return the waves of tiles over the slots; of a library whose tile is unknown, of single rows in one slot."""
    details = row.reading.details
    (tile_m, tile_n, *_), slots = details.get("tile", (1, row.p.n)), details.get("slots", 1)
    rows = [count for count in row.p.rows_of_experts if count]
    if row.implementation == "padded":
        rows = [max(row.p.rows_of_experts)] * row.p.experts
    tiles = [math.ceil(count / tile_m) * math.ceil(row.p.n / tile_n) for count in rows]
    each_alone = row.implementation == "loop"
    return sum(math.ceil(count / slots) for count in (tiles if each_alone else [sum(tiles)]))


def mixture(row: Row[GroupedMatmulParameters]) -> str:
    """`8 experts of 64 x 256 x 128`."""
    return f"{row.p.experts} experts of {row.p.rows} x {row.p.n} x {row.p.k}"


def analyse(rows: Rows[GroupedMatmulParameters]) -> Findings:
    """A law for each way and shape of an expert's product, and a picture of what skew costs each way."""
    # A wave of another depth takes another time.
    similar = grouped(rows, lambda row: (row.implementation, row.p.n, row.p.k, row.p.dtype))
    return findings(map(law, similar.values()), _figure(rows))


def law(rows: list[Row[GroupedMatmulParameters]]) -> Remark | None:
    """The law fitted on every other case by its waves, judged on the rest; None where either has less than two."""
    if len(rows) < 4:
        return None
    rows = sorted(rows, key=waves)
    terms = np.array([[row.reading.details["calls"], waves(row)] for row in rows], dtype=float)
    seconds = np.array([row.seconds for row in rows])
    start_s, wave_s = nonnegative_fit(terms[::2], seconds[::2])
    errors = relative_error(terms[1::2] @ (start_s, wave_s), seconds[1::2])
    return rows[0].remark(
        "{implementation}, N = {n}, K = {k}, {dtype}: time = calls x {start:duration~} + waves x {wave:duration~}; it "
        "misses {count} cases held out by {median} in the median, {worst} at worst.",
        kind="law",
        start=start_s,
        wave=wave_s,
        **misses(errors),
    )


def _figure(rows: Rows[GroupedMatmulParameters]) -> Figure | None:
    panels = []
    for group in rows.groups("skew", "implementation"):
        drawn = series_by("implementation", group, "skew", "throughput")
        if max(len(each.x) for each in drawn) >= 3:
            panels.append(Panel(mixture(group[0]), "skew", "throughput", drawn, y_unit="TFLOP/s"))
    caption = "Useful FLOP a second: what is computed of padding does not count. Bars span the processes."
    return figure("grouped_matmul", "Experts of a mixture", caption, panels, across=2)


PROBE = Probe(
    name="grouped_matmul",
    question="How should the experts of a mixture be multiplied, and what do experts of different sizes cost?",
    topic="products",
    title="Experts of a mixture: grouped products",
    axes=GroupedAxes.of,
    sweep=sweep,
    computed={
        "waves": waves,
        "size": lambda row: f"{row.p.rows}x{row.p.n}x{row.p.k}",
        "mixture": mixture,
        "largest": lambda row: max(row.p.rows_of_experts),
        "gain": lambda row: row.against(implementation="loop"),
        "over_balanced": lambda row: row.against(skew=0.0),
    },
    order=lambda row: (
        *(row.p.dtype, row.p.n, row.p.k, row.p.rows, row.p.experts, row.p.skew),
        WAYS.index(row.implementation),
    ),
    analyse=analyse,
    claims=(
        RowClaim(
            ONE_LAUNCH,
            "{implementation} is {measured} as fast as a loop over {mixture}, skew {skew}",
            ratio="gain",
            where=lambda row: row.implementation in IN_ONE_LAUNCH,
        ),
        RowClaim(
            PADDING_WASTES,
            "padded is {measured} as fast as a loop over {mixture}, skew {skew}",
            ratio="gain",
            where=lambda row: row.implementation == "padded" and row.p.skew > 0,
        ),
        RowClaim(
            SKEW_IS_FREE,
            "{implementation} with skew {skew} is {measured} as fast as balanced, {mixture}",
            ratio="over_balanced",
            where=lambda row: row.implementation in IN_ONE_LAUNCH and row.p.skew > 0,
        ),
    ),
    tables=(
        RowTable(
            "Experts by spread and way",
            (
                Column("experts", priority=2),
                Column("rows x N x K", "size"),
                Column("skew", priority=2),
                Column("largest expert", "largest"),
                Column("dtype", priority=0),
                Column("way", "implementation", priority=2),
                Column("time", unit="ms"),
                Column("throughput", "flop_per_s", "TFLOP/s", priority=2),
                Column("relative to a loop", "gain", "x", priority=2),
                Column("relative to balanced", "over_balanced", "x"),
                Column("waves", priority=0),
            ),
        ),
    ),
    group=lambda case: f"grouped_matmul {case.parameters.experts} experts {case.parameters.dtype}",
)
