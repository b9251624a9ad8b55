"""Tile and wave quantization: what one element more costs at the edges of tiles and of waves.

Sweeps cross every edge by construction (k·tile − 1, k·tile, k·tile + 1). The wave law is fitted to part of the cases
and judged on the rest; the library's times for the same shapes are compared with both.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.matmul.staircase import JudgedLaw, judged_by_waves
from pyperf_suite.laws.matmul.tiling import Schedule, Tile, critical_path, tile_count, wave_count
from pyperf_suite.operators.matmul import MatmulParameters
from pyperf_suite.probes._products import (
    Pair,
    ProductAxes,
    Sweep,
    library_of,
    on_gpu,
    pair,
    relative_rate,
    series,
    sweeps_along,
)
from pyperf_suite.runner.case import Case
from pyperf_suite.spec.axes import OneOf, Within
from pyperf_suite.spec.findings import Figure, Findings, Panel, Remark, Series, findings, remark
from pyperf_suite.spec.probe import Probe
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import Column, Row, Rows, grouped, table

SCHEDULES = ("data_parallel", "persistent", "split_k(2)", "stream_k")

# Up to here every tile count is visited; beyond, only those next to a wave edge.
EVERY_TILE_COUNT = 16
# Elements of 2 bytes that TMA needs between one row length and the next: one element more would be another kernel's.
TMA_STEP = 8
# So many rows of tiles share what they read in L2.
MOST_ROWS_ACROSS = 16
# The step over an edge is at most this part of a tile: one element on a CPU, 16 bytes where TMA must be able to follow.
WIDEST_STEP_SHARE = 8
# A sweep of fewer sizes is only a corner of one along the other dimension.
FEWEST_SIZES = 3


@dataclass(frozen=True)
class TileWaveAxes(ProductAxes):
    """What the probe varies, as it is for one row of tiles on a CPU: its few tiles are many waves of few workers.

    `schedule` is written without its workers, which are an axis of their own; `across` is how many tiles the dimension
    holds that is not varied; `waves` is how many are crossed.
    """

    tile: tuple[Tile, ...] = (Tile(128, 128, 256),)
    schedule: tuple[str, ...] = SCHEDULES
    k: tuple[int, ...] = (1024,)
    layout: tuple[str, ...] = ("NN",)
    along: Annotated[tuple[str, ...], OneOf(("m", "n"))] = ("n",)
    across: Annotated[tuple[int, ...], Within(1, 10_000)] = (1,)
    waves: Annotated[tuple[int, ...], Within(1, 1_000)] = (3,)
    offset: tuple[int, ...] = (-64, -1, 0, 1)


def axes(profile: str, device: Device) -> TileWaveAxes:
    """One tile along N in the quick profile; several tiles, dtypes and both directions in the others."""
    return (_on_gpu(device) if device.kind == "cuda" else _on_cpu())[profile]


def _on_cpu() -> dict[str, TileWaveAxes]:
    quick = TileWaveAxes((cpu.detect().usable_cores,))
    standard = replace(quick, tile=(Tile(64, 128, 256), *quick.tile), along=("n", "m"), offset=(-1, 0, 1))
    full = replace(standard, tile=(*standard.tile, Tile(192, 256, 256)), dtype=("float32", "bfloat16"))
    return {"quick": quick, "standard": standard, "full": full}


def _on_gpu(device: Device) -> dict[str, TileWaveAxes]:
    """As many rows of tiles as divide the multiprocessors, so that columns of tiles meet the edges of waves.

    A single row would read its operands at the speed of memory and show that instead.
    """
    own, shared = on_gpu(device)
    (multiprocessors,) = shared["workers"]
    k_step = 64 if own == "cuda_sm90" else 32
    quick = TileWaveAxes(
        **shared,
        tile=(Tile(128, 128, k_step),),
        schedule=("data_parallel", "stream_k"),
        k=(2048,),
        layout=("TN",),
        across=(max(rows for rows in range(1, MOST_ROWS_ACROSS + 1) if multiprocessors % rows == 0),),
        waves=(2,),
        offset=(0, TMA_STEP),
    )
    standard = replace(
        quick,
        implementation=(own, "triton"),
        schedule=SCHEDULES,
        k=(4096,),
        waves=(3,),
        offset=(-TMA_STEP, 0, TMA_STEP),
    )
    full = replace(
        standard,
        tile=(*quick.tile, Tile(128, 256, k_step)),
        # Fewer workers than multiprocessors, as if a collective held the others.
        workers=(multiprocessors, max(1, multiprocessors - 16)),
        along=("n", "m"),
        dtype=("bfloat16", "float16"),
    )
    return {"quick": quick, "standard": standard, "full": full}


def sweep(axes: TileWaveAxes) -> Iterator[Case]:
    """Every tile, schedule and direction; the library runs the same shapes, whatever our schedule."""
    for tile, workers, along, across in itertools.product(axes.tile, axes.workers, axes.along, axes.across):
        other = "m" if along == "n" else "n"
        sizes = _sizes_across_edges(getattr(tile, along), across, workers, max(axes.waves), axes.offset)
        for size, k, dtype, layout in itertools.product(sizes, axes.k, axes.dtype, axes.layout):
            shape = {along: size, other: across * getattr(tile, other), "k": k}
            library = MatmulParameters(**shape, schedule=Schedule("library", workers), dtype=dtype, layout=layout)
            for schedule, implementation, mode in itertools.product(axes.schedule, axes.implementation, axes.mode):
                ours = replace(library, schedule=Schedule.parse(f"{schedule}@{workers}"), tile=tile)
                yield Case("matmul", ours, implementation, mode=mode)
            for implementation, mode in itertools.product(axes.library, axes.mode):
                yield Case("matmul", library, implementation, mode=mode)


def _sizes_across_edges(width: int, across: int, workers: int, waves: int, offsets: Sequence[int]) -> list[int]:
    """Sizes at the offsets from each edge, from the first tile to the last of the last wave.

    One tile more in this dimension is `across` tiles more in all.
    """
    last = waves * workers // across
    if last <= EVERY_TILE_COUNT:
        counts = set(range(1, last + 1))
    else:
        edges = (workers * wave // across for wave in range(waves + 1))
        counts = {edge + beside for edge in edges for beside in (-1, 0, 1) if 1 <= edge + beside <= last}
    return sorted({size for count in counts for offset in offsets if (size := count * width + offset) >= 1})


def settings_of(rows: Rows) -> list[Rows]:
    """Rows of our own kernels that differ in size and policy alone; a law is fitted to each."""
    own = (row for row in rows if row.tile is not None)
    alike = grouped(own, lambda row: (row.key("m", "n", "schedule"), row.schedule.workers))
    return [Rows(group) for group in alike.values()]


def sweeps_of(rows: Rows) -> list[Sweep]:
    """The sweeps along both directions; a corner belongs to both."""
    return [*sweeps_along("m", rows, FEWEST_SIZES), *sweeps_along("n", rows, FEWEST_SIZES)]


def cliffs_of(sweep: Sweep) -> list[Pair]:
    """Every tile edge that was measured on both sides, the far side within a small part of a tile."""
    width = getattr(sweep.base.tile, sweep.along)
    steps = (
        pair(sweep, size, after)
        for size, after in itertools.pairwise(sweep.rows)
        if size % width == 0 and after - size <= width // WIDEST_STEP_SHARE
    )
    return list(filter(None, steps))


def cost(cliff: Pair) -> Quantity:
    """How much more time the step takes."""
    gain = cliff.gain.inverse
    return Quantity(gain.value - 1, "+%", gain.low - 1, gain.high - 1, gain.processes)


def cost_to_library(cliff: Pair) -> float | None:
    """How much more time the same step takes the library."""
    before, after = (library_of(cliff.sweep.rows[size]) for size in (cliff.size, cliff.other))
    return after.seconds / before.seconds - 1 if before and after else None


def opens_wave(cliff: Pair) -> bool:
    """Whether the tiles before the edge fill their last wave."""
    before = cliff.sweep.rows[cliff.size]
    return bool(fills_wave(before, before.m, before.n))


def in_slots(row: Row) -> Schedule:
    """Its schedule with as many workers as run at once.

    Where units are handed out to whoever is free, a GPU has as many slots as multiprocessors times the blocks that fit
    on one, which the record tells; elsewhere they are the workers asked for, as far as there are slots for them.
    """
    schedule: Schedule = row.schedule
    slots = row.kernel.get("details", {}).get("slots")
    if not slots:
        return schedule
    handed_out = schedule.policy in ("data_parallel", "split_k")
    return replace(schedule, workers=slots if handed_out else min(schedule.workers, slots))


def fit(rows: Rows) -> JudgedLaw | None:
    """The wave law of one setting, with its errors on even numbers of waves; None where the waves are too few."""
    return judged_by_waves(
        [critical_path(row.m, row.n, row.k, row.tile, in_slots(row)) for row in rows],
        [row.seconds for row in rows],
        [int(wave_count(tile_count(row.m, row.n, row.tile), row.schedule.workers)) for row in rows],
    )


def fills_wave(row: Row, m: ArrayLike, n: ArrayLike) -> NDArray[np.bool_]:
    """Whether products of these sizes in the row's tiles fill their last wave."""
    return np.asarray(tile_count(m, n, row.tile) % in_slots(row).workers == 0)


def analyse(rows: Rows) -> Findings:
    """The first wave cliff of each sweep, the library on the same edges, the law with its error, and staircases."""
    sweeps: list[Sweep] = []
    parts: list[Remark | Figure | None] = []
    for setting in settings_of(rows):
        own = sweeps_of(setting)
        law = fit(setting)
        sweeps += own
        parts += [_first_wave(sweep) for sweep in own]
        for in_direction in grouped(own, lambda sweep: sweep.along).values():
            parts += [_of_library(in_direction[0]), _figure(in_direction, law)]
        parts.append(_law(setting[0], law))
    cliffs = [cliff for sweep in sweeps for cliff in cliffs_of(sweep)]
    return findings(
        parts,
        table("Tile and wave cliffs", SWEEP_COLUMNS, sweeps),
        table("Steps over the edges of tiles", CLIFF_COLUMNS, cliffs),
    )


def _first_wave(sweep: Sweep) -> Remark | None:
    cliff = next(filter(opens_wave, cliffs_of(sweep)), None)
    # A wave that costs less than nothing says how noisy the machine was; the table has it.
    if cliff is None or cliff.gain.value >= 1:
        return None
    return remark(
        "{setting}, {shape}: opening a wave costs {cost} time at {along} = {step}",
        effect="cost",
        setting=sweep.setting,
        shape=sweep.shape,
        cost=cost(cliff),
        along=sweep.name,
        step=_step(cliff),
    )


def _of_library(sweep: Sweep) -> Remark | None:
    costs = {_step(cliff): extra for cliff in cliffs_of(sweep) if (extra := cost_to_library(cliff)) is not None}
    library = library_of(sweep.base)
    if not costs or library is None:
        return None
    step = max(costs, key=lambda step: costs[step])
    return remark(
        "{library} on the same shapes, {dtype}, {workers} workers: a step over those edges costs at most {most} time, "
        "at {along} = {step}, and {median} at the median",
        library=library.implementation,
        dtype=library.dtype,
        workers=library.schedule.workers,
        most=Quantity(costs[step], "+%"),
        along=sweep.name,
        step=step,
        median=Quantity(statistics.median(costs.values()), "+%"),
    )


def _law(row: Row, found: JudgedLaw | None) -> Remark | None:
    if found is None:
        return None
    return remark(
        "Law for {kernel}, tile {tile}, {dtype}, K = {k}: time = {overhead} + waves x {step}; fitted to {fitted} cases "
        "with an odd number of waves, it misses the {held_out} others by {error} (median; worst {worst})",
        kind="law",
        kernel=row.implementation,
        tile=row.tile,
        dtype=row.dtype,
        k=row.k,
        overhead=Quantity(found.law.overhead_s, "us", predicted=True),
        step=Quantity(found.law.tile_seconds(row.k), "us", predicted=True),
        fitted=found.fitted_on,
        held_out=len(found.held_out),
        error=Quantity(statistics.median(found.held_out), "%"),
        worst=Quantity(max(found.held_out), "%"),
    )


def _step(cliff: Pair) -> str:
    return f"{cliff.size} -> {cliff.other}"


def _best(sweep: Sweep) -> Row:
    return max(sweep.rows.values(), key=lambda row: row.flop_per_s)


def _largest(sweep: Sweep) -> Pair | None:
    return max(cliffs_of(sweep), key=lambda cliff: cost(cliff).value, default=None)


def _inside_a_wave(sweep: Sweep) -> float | None:
    inside = [cost(cliff).value for cliff in cliffs_of(sweep) if not opens_wave(cliff)]
    return statistics.median(inside) if inside else None


def _tile_of_library(row: Row) -> str | None:
    library = library_of(row)
    tile = library.kernel.get("details", {}).get("tile") if library else None
    return "x".join(map(str, tile)) if tile else None


SWEEP_COLUMNS = (
    Column("kernel", lambda sweep: sweep.base.implementation, priority=0),
    Column("dtype", lambda sweep: sweep.base.dtype, priority=0),
    Column("schedule", lambda sweep: str(sweep.base.schedule), priority=2),
    Column("tile", lambda sweep: str(sweep.base.tile)),
    Column("along", lambda sweep: sweep.name),
    Column("best rate", lambda sweep: _best(sweep).flop_per_s, "TFLOP/s"),
    Column("of the library's", lambda sweep: relative_rate(_best(sweep)), "%"),
    Column("largest cliff", lambda sweep: _step(cliff) if (cliff := _largest(sweep)) else None),
    Column("costs", lambda sweep: cost(cliff).value if (cliff := _largest(sweep)) else None, "+%", priority=2),
    Column("median inside a wave", _inside_a_wave, "+%"),
)

CLIFF_COLUMNS = (
    Column("setting", lambda cliff: cliff.sweep.setting),
    Column("shape", lambda cliff: cliff.sweep.shape, priority=0),
    Column("step", _step, priority=2),
    Column("opens", lambda cliff: "a wave" if opens_wave(cliff) else "a tile"),
    Column("costs", cost, "+%", priority=2),
    Column("rate before", lambda cliff: cliff.sweep.rows[cliff.size].flop_per_s, "TFLOP/s"),
    Column("rate after", lambda cliff: cliff.sweep.rows[cliff.other].flop_per_s, "TFLOP/s"),
    Column("costs the library", cost_to_library, "+%"),
    Column("in tiles of", lambda cliff: _tile_of_library(cliff.sweep.rows[cliff.other]), priority=0),
)


def _figure(sweeps: Sequence[Sweep], law: JudgedLaw | None) -> Figure:
    along, row = sweeps[0].along, sweeps[0].base
    name = f"{row.mode}_{row.implementation}_{row.dtype}_{row.tile}_{along}_k{row.k}_w{row.schedule.workers}"
    return Figure(
        name=f"tile_wave_{name}".replace(":", "_"),
        title=f"Tile and wave quantization: {row.implementation}, tile {row.tile}, {row.dtype}",
        caption=f"{sweeps[0].shape} on {row.schedule.workers} workers. Points: measured; line: wave law; dashed: the "
        "library. Solid verticals open a wave, dotted ones a tile.",
        rows=tuple(tuple(_panel(sweep, law, as_rate) for sweep in sweeps) for as_rate in (False, True)),
    )


def _panel(sweep: Sweep, found: JudgedLaw | None, as_rate: bool) -> Panel:
    row, smallest, largest = sweep.base, min(sweep.rows), max(sweep.rows)
    drawn = [series("measured", sweep.rows, as_rate=as_rate)]
    if found is not None:
        sizes = np.arange(smallest, largest + 1)
        m, n = (row.m, sizes) if sweep.along == "n" else (sizes, row.n)
        seconds = found.law.seconds(critical_path(m, n, row.k, row.tile, in_slots(row)))
        y = 2.0 * m * n * row.k / seconds if as_rate else seconds
        drawn.append(Series("wave law", sizes.tolist(), y.tolist(), "line"))
    library = {size: theirs for size, ours in sweep.rows.items() if (theirs := library_of(ours))}
    for theirs in list(library.values())[:1]:
        drawn.append(series(theirs.implementation, library, "beside", as_rate))
    width = getattr(row.tile, sweep.along)
    edges = np.arange(width, largest + 1, width)
    strong = fills_wave(row, *((row.m, edges) if sweep.along == "n" else (edges, row.n)))
    return Panel(
        title=str(row.schedule),
        x_label=sweep.name,
        y_label="rate" if as_rate else "time",
        y_unit="TFLOP/s" if as_rate else "us",
        series=tuple(drawn),
        strong_edges=tuple(edges[strong].tolist()),
        weak_edges=tuple(edges[~strong].tolist()),
    )


PROBE = Probe(
    name="tile_wave",
    question="Where are this machine's tile and wave cliffs, what do they cost, and does the wave law explain them?",
    topic="products",
    title="Tile and wave quantization",
    axes=axes,
    sweep=sweep,
    order=lambda row: (row.implementation, row.dtype, str(row.tile), row.schedule.workers, row.k, row.schedule, row.m),
    analyse=analyse,
    group=lambda case: (
        f"tile_wave {case.implementation} {case.parameters.schedule} {case.parameters.tile or ''}".rstrip()
    ),
)
