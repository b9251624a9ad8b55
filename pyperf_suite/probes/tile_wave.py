"""Tile and wave quantization: what one element more costs at the edges of tiles and of waves.

Sweeps cross every edge by construction (k·tile − 1, k·tile, k·tile + 1). The wave law is fitted to part of the cases
and judged on the rest; the library's times for the same shapes are compared with both.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import OneOf, Within
from pyperf_suite.findings.axes import all_cores, by, multiprocessors
from pyperf_suite.findings.data import Figure, Findings, Panel, Remark, Series, findings, remark
from pyperf_suite.findings.probe import Probe
from pyperf_suite.findings.rows import Column, Row, Rows, grouped, misses, series, table
from pyperf_suite.hardware.devices import Device
from pyperf_suite.kernels.static import families
from pyperf_suite.laws.tiling import (
    JudgedLaw,
    Schedule,
    Tile,
    critical_path,
    judged_by_waves,
    library_area,
    nonnegative_fit,
    relative_error,
    tile_count,
    wave_count,
)
from pyperf_suite.probes.baseline import (
    BaselinePair,
    Dtypes,
    Implementations,
    ProductAxes,
    Sweep,
    Workers,
    library_of,
    own_and_triton,
    own_kernel,
    peak_of,
    relative_rate,
    sweeps_along,
)
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.workloads.matmul import MatmulParameters

SCHEDULES = ("data_parallel", "persistent", "split_k(2)", "stream_k")
EVERY_TILE_COUNT = 16  # up to here every tile count is measured; beyond, only those next to a wave edge
# Elements of 2 bytes that TMA needs between one row length and the next: one element more would be another kernel's.
TMA_STEP = 8
MOST_ROWS_ACROSS = 16  # rows of tiles that share their reads in L2
# The step over an edge is at most this part of a tile: one element on a CPU, 16 bytes where TMA must be able to follow.
WIDEST_STEP_SHARE = 8
MOST_OTHER_SCHEDULES = 2  # schedules in the first picture below the one with the most sizes
FEWEST_SIZES = 3  # a sweep of fewer sizes is only a corner of one along the other dimension
FEWEST_LIBRARY_SIZES = 6  # a law of two constants is fitted to three times as many sizes
MOST_TO_A_GOOD_SIZE = 4096  # elements beyond an edge within which a good size is sought


def gpu_tiles(device: Device) -> tuple[Tile, Tile]:
    """Two tiles of the kernel of ours that is written for a GPU."""
    (own,) = own_kernel(device)
    k_step = families()[own.removeprefix("cuda_")].K_STEP
    return Tile(128, 128, k_step), Tile(128, 256, k_step)


def rows_of_tiles(device: Device) -> tuple[int, ...]:
    """Return the largest number of tile rows that divides the multiprocessors, so that columns meet wave edges."""
    (count,) = multiprocessors(device)
    # A single row of tiles would read its operands at the speed of memory and show that instead.
    return (max(rows for rows in range(1, MOST_ROWS_ACROSS + 1) if count % rows == 0),)


CPU_TILES = (Tile(64, 128, 256), Tile(128, 128, 256), Tile(192, 256, 256))


@dataclass(frozen=True)
class TileWaveAxes(ProductAxes):
    """One tile along N in the quick profile; several tiles, dtypes and both directions in the others.

    On a CPU a column of tiles is a wave, which all cores share evenly; in the full profile a column is one tile.
    `schedule` is written without its workers, which are an axis of their own; `across` is how many tiles the dimension
    holds that is not varied, 0 for as many as workers; `waves` is how many are crossed. The first schedule and the
    library are measured at `inside` sizes within each wave as well, which make a staircase; the others next to edges.
    """

    workers: Workers = by(
        all_cores,
        # As if a collective held some multiprocessors.
        cuda=by(multiprocessors, full=lambda gpu: (*multiprocessors(gpu), max(1, multiprocessors(gpu)[0] - 16))),
    )
    implementation: Implementations = by(("native",), cuda=by(own_kernel, standard=own_and_triton))
    dtype: Dtypes = by(("float32",), full=("float32", "bfloat16"), cuda=by(("bfloat16",), full=("bfloat16", "float16")))
    tile: tuple[Tile, ...] = by(
        CPU_TILES[1:2], CPU_TILES[:2], CPU_TILES, cuda=by(lambda gpu: gpu_tiles(gpu)[:1], full=gpu_tiles)
    )
    schedule: tuple[str, ...] = by(("data_parallel", "stream_k"), SCHEDULES)
    k: tuple[int, ...] = by((1024,), cuda=by((2048,), standard=(4096,)))
    layout: tuple[str, ...] = by(("NN",), cuda=("TN",))
    along: Annotated[tuple[str, ...], OneOf(("m", "n"))] = by(("n",), ("n", "m"), cuda=by(("n",), full=("n", "m")))
    across: Annotated[tuple[int, ...], Within(0, 10_000)] = by((0,), full=(1,), cuda=rows_of_tiles)
    waves: Annotated[tuple[int, ...], Within(1, 1_000)] = by((2,), standard=(3,))
    offset: tuple[int, ...] = by((-1, 0, 1), cuda=by((0, TMA_STEP), standard=(-TMA_STEP, 0, TMA_STEP)))
    inside: Annotated[tuple[int, ...], Within(0, 1_000)] = (8,)


def sweep(axes: TileWaveAxes) -> Iterator[Case]:
    """Every tile, schedule and direction; the library runs the same shapes, whatever our schedule."""
    for tile, workers, along, across in itertools.product(axes.tile, axes.workers, axes.along, axes.across):
        across = across or workers
        other = "m" if along == "n" else "n"
        edges = _sizes_across_edges(getattr(tile, along), across, workers, max(axes.waves), axes.offset)
        steps = [getattr(tile, along) * (workers * wave // across) for wave in range(max(axes.waves) + 1)]
        sizes = sorted({*edges, *_sizes_inside(steps, edges, max(axes.inside), math.gcd(*axes.offset))})
        for size, k, dtype, layout in itertools.product(sizes, axes.k, axes.dtype, axes.layout):
            shape = {along: size, other: across * getattr(tile, other), "k": k}
            library = MatmulParameters(**shape, schedule=Schedule("library", workers), dtype=dtype, layout=layout)
            schedules = axes.schedule if size in edges else axes.schedule[:1]
            for schedule, implementation, mode in itertools.product(schedules, axes.implementation, axes.mode):
                ours = replace(library, schedule=Schedule.parse(f"{schedule}@{workers}"), tile=tile)
                yield Case("matmul", ours, implementation, mode=mode)
            for implementation, mode in itertools.product(axes.library, axes.mode):
                yield Case("matmul", library, implementation, mode=mode)


def _sizes_across_edges(width: int, across: int, workers: int, waves: int, offsets: Sequence[int]) -> list[int]:
    """Sizes at the offsets from each edge, first tile to last of the last wave; one tile more is `across` in all."""
    last = waves * workers // across
    if last <= EVERY_TILE_COUNT:
        counts = set(range(1, last + 1))
    else:
        edges = (workers * wave // across for wave in range(waves + 1))
        counts = {edge + offset for edge in edges for offset in (-1, 0, 1) if 1 <= edge + offset <= last}
    return sorted({size for count in counts for offset in offsets if (size := count * width + offset) >= 1})


def _sizes_inside(steps: Sequence[int], edges: Sequence[int], count: int, multiple: int) -> Iterator[int]:
    """Spread `count` sizes within each step, away from edges, each a multiple of a power of two for alignment."""
    for begin, end in itertools.pairwise(steps):
        gap = (end - begin) / (count + 1)
        unit = max(multiple, 1 << max(0, min(TMA_STEP, int(gap)).bit_length() - 1))
        for place in range(1, count + 1):
            size = round((begin + place * gap) / unit) * unit
            if begin < size < end and all(abs(size - edge) >= gap / 2 for edge in edges):
                yield size


def settings_of(rows: Rows[MatmulParameters]) -> list[Rows[MatmulParameters]]:
    """Rows of our own kernels that differ in size and policy alone; a law is fitted to each."""
    own = (row for row in rows if row.p.tile is not None)
    similar = grouped(own, lambda row: (row.key("m", "n", "schedule"), row.p.schedule.workers))
    return [Rows(group) for group in similar.values()]


@dataclass(frozen=True)
class MeasuredCliff(BaselinePair):
    """A step over an edge of tiles."""

    @property
    def step(self) -> str:
        return f"{self.size} -> {self.other}"

    @property
    def cost(self) -> Quantity:
        return _cost(self.gain.inverse)

    @property
    def opens(self) -> str:
        """Return "a wave" if the tiles before the edge fill their last wave, else "a tile"."""
        return "a wave" if fills_wave(self.row, self.row.p.m, self.row.p.n) else "a tile"

    @property
    def cost_to_library(self) -> Quantity | None:
        before, after = library_of(self.row), library_of(self.other_row)
        slower = before.faster_than(after) if before and after else None
        return None if slower is None else _cost(slower)


def _cost(slower: Ratio) -> Quantity:
    """Return the extra time of the slower one, as a share of the faster."""
    return Quantity(slower.value - 1, "+%", slower.low - 1, slower.high - 1, slower.processes)


def cliffs_of(sweep: Sweep) -> list[MeasuredCliff]:
    """Every tile edge that was measured on both sides, the far side within a small part of a tile."""
    width = getattr(sweep.base.p.tile, sweep.along)
    steps = itertools.pairwise(sweep.rows)
    return MeasuredCliff.each(
        sweep, (s for s in steps if s[0] % width == 0 and s[1] - s[0] <= width // WIDEST_STEP_SHARE)
    )


def in_slots(row: Row[MatmulParameters]) -> Schedule:
    """Its schedule with as many workers as run at once.

    Where units are handed out to whoever is free, a GPU has as many slots as multiprocessors times the blocks that fit
    on one, which the record has; elsewhere they are the requested workers, as far as there are slots for them.
    """
    schedule = row.p.schedule
    slots = row.reading.details.get("slots")
    if not slots:
        return schedule
    handed_out = schedule.policy in ("data_parallel", "split_k")
    return replace(schedule, workers=slots if handed_out else min(schedule.workers, slots))


def tile_of(row: Row[MatmulParameters]) -> Tile:
    """The tile of a row of our own kernels, which all have one."""
    assert row.p.tile is not None
    return row.p.tile


def fit(rows: Rows[MatmulParameters]) -> JudgedLaw | None:
    """The wave law of one setting, with its errors on even numbers of waves; None where the waves are too few."""
    return judged_by_waves(
        [critical_path(row.p.m, row.p.n, row.p.k, tile_of(row), in_slots(row)) for row in rows],
        [row.seconds for row in rows],
        [int(wave_count(tile_count(row.p.m, row.p.n, tile_of(row)), row.p.schedule.workers)) for row in rows],
        [row.reading.error for row in rows],
    )


def fills_wave(row: Row[MatmulParameters], m: ArrayLike, n: ArrayLike) -> NDArray[np.bool_]:
    """True where products of these sizes in the row's tiles fill their last wave."""
    return np.asarray(tile_count(m, n, tile_of(row)) % in_slots(row).workers == 0)


def analyse(rows: Rows[MatmulParameters]) -> Findings:
    """The first wave cliff of each sweep, the library on the same edges, the law with its error, and staircases."""
    sweeps: list[Sweep] = []
    parts: list[Remark | Figure | None] = []
    for setting in settings_of(rows):
        own = [*sweeps_along("m", setting, FEWEST_SIZES), *sweeps_along("n", setting, FEWEST_SIZES)]
        law = fit(setting)
        sweeps += own
        first = [next((cliff for cliff in cliffs_of(sweep) if cliff.opens == "a wave"), None) for sweep in own]
        # The library's staircase first: it is what users run.
        for similar in grouped(own, lambda sweep: sweep.along).values():
            parts += [_next_good_size(similar[0]), _library_law(similar[0]), _of_library(similar[0])]
            parts.append(_figure(similar, law))
        # A wave that costs less than nothing says how noisy the machine was; the table has it.
        parts += [remark(WAVE, cliff, effect="cost") for cliff in first if cliff and cliff.gain.value < 1]
        parts.append(_law(setting[0], law) if law else None)
    cliffs = [cliff for sweep in sweeps for cliff in cliffs_of(sweep)]
    return findings(
        parts,
        table("Tile and wave cliffs", SWEEP_COLUMNS, sweeps),
        table("Steps over the edges of tiles", CLIFF_COLUMNS, cliffs),
    )


WAVE = "{sweep.setting}, {sweep.shape}: opening a wave costs {cost} time at {sweep.name} = {step}"


def _of_library(sweep: Sweep) -> Remark | None:
    costs = [(cost, cliff.step) for cliff in cliffs_of(sweep) if (cost := cliff.cost_to_library)]
    library = library_of(sweep.base)
    if not costs or library is None:
        return None
    most, step = max(costs, key=lambda each: each[0].value)
    return library.remark(
        "{implementation} on the same shapes, {dtype}, {schedule.workers} workers: a step over those edges costs at "
        "most {most} time, at {along} = {step}, and {median:+%} at the median",
        most=most,
        along=sweep.name,
        step=step,
        median=statistics.median(cost.value for cost, _ in costs),
    )


def _library_rows(sweep: Sweep) -> list[Row[MatmulParameters]]:
    """The library's rows of a sweep if they have the envelope's staircase: cuBLAS on a GPU, at sizes enough to fit."""
    theirs = [library for row in sweep.rows.values() if (library := library_of(row))]
    return theirs if len(theirs) >= FEWEST_LIBRARY_SIZES and theirs[0].implementation == "cublas" else []


def _shape_at(sweep: Sweep, size: int) -> tuple[int, int]:
    """M and N where the sweep has this size."""
    return (sweep.base.p.m, size) if sweep.along == "n" else (size, sweep.base.p.n)


def _staircase(sweep: Sweep, theirs: Sequence[Row[MatmulParameters]]) -> tuple[list[float], list[float]]:
    """Overhead and cost of an element of the least area of tiles, in s; the law's relative errors at the sizes."""
    slots = sweep.base.reading.details["slots"]
    features = np.array([[1, library_area(row.p.m, row.p.n, slots)] for row in theirs], dtype=np.float64)
    seconds = np.array([row.seconds for row in theirs])
    law = nonnegative_fit(features, seconds)
    return law, relative_error(features @ law, seconds).tolist()


def _next_good_size(sweep: Sweep) -> Remark | None:
    """Behind our first wave, where the library's staircase has its next edge, and where our wave is full again."""
    first = next((cliff for cliff in cliffs_of(sweep) if cliff.opens == "a wave"), None)
    if first is None or not (theirs := _library_rows(sweep)):
        return None
    slots, width = sweep.base.reading.details["slots"], getattr(sweep.base.p.tile, sweep.along)
    area = lambda size: library_area(*_shape_at(sweep, size), slots)  # noqa: E731
    steps = range(-(-first.other // TMA_STEP) * TMA_STEP, first.other + MOST_TO_A_GOOD_SIZE, TMA_STEP)
    good = next((size for size in steps if area(size + TMA_STEP) > area(size)), None)
    tiles = range(-(-first.other // width) * width, first.other + MOST_TO_A_GOOD_SIZE, width)
    ours = next((size for size in tiles if fills_wave(sweep.base, *_shape_at(sweep, size))), None)
    if good is None or ours is None:
        return None
    return theirs[0].remark(
        "Beyond {along} = {size} the next good size is {good} for {implementation}, as its law has it, and {ours} for "
        "our tile {tile}, which waits for a whole wave ({shape}, {dtype}, {slots} multiprocessors)",
        along=sweep.name,
        size=first.size,
        good=good,
        ours=ours,
        tile=sweep.base.p.tile,
        shape=sweep.shape,
        slots=slots,
    )


def _library_law(sweep: Sweep) -> Remark | None:
    """The library's own staircase on a GPU: it widens its tile, so that its time follows the least area of tiles."""
    if not (theirs := _library_rows(sweep)):
        return None
    law, errors = _staircase(sweep, theirs)
    return theirs[0].remark(
        "Law for {implementation}, {dtype}, K = {k}: time = {overhead:us~} + {each:us~} a 128 x 128 of the least "
        "area of tiles that {slots} multiprocessors can share; fitted to {count} sizes, it misses them by {median} "
        "(median; worst {worst}): it widens its tile where ours opens a wave",
        kind="law",
        overhead=law[0],
        each=128 * 128 * law[1],
        slots=sweep.base.reading.details["slots"],
        **misses(errors),
    )


def _law(row: Row[MatmulParameters], judged: JudgedLaw) -> Remark:
    step, peak = judged.law.tile_seconds(row.p.k), peak_of(row)
    tile = tile_of(row)
    rate = 2.0 * tile.m * tile.n * row.p.k / step if step else 0.0
    return row.remark(
        "Law for {implementation}, tile {tile}, {dtype}, K = {k}: time = {overhead:us~} + waves x {step:us~}"
        + (", which is {share:%} of a core's peak" if peak and rate else "")
        + "; fitted to {fitted} cases with an odd number of waves, it misses the {count} others by {median} (median; "
        "worst {worst})" + ("; noise alone explains {noise}" if judged.noise else ""),
        kind="law",
        overhead=judged.law.overhead_s,
        step=step,
        share=rate * row.p.schedule.workers / peak if peak and rate else None,
        fitted=judged.fitted_on,
        noise=Quantity(judged.noise, "%"),
        **misses(judged.held_out),
    )


def _largest(sweep: Sweep) -> MeasuredCliff | None:
    return max(cliffs_of(sweep), key=lambda cliff: cliff.cost.value, default=None)


def _tile_of(library: Row[MatmulParameters] | None) -> str | None:
    return "x".join(map(str, library.reading.details.get("tile", ()))) or None if library else None


def _inside_a_wave(sweep: Sweep) -> float | None:
    inside = [cliff.cost.value for cliff in cliffs_of(sweep) if cliff.opens == "a tile"]
    return statistics.median(inside) if inside else None


SWEEP_COLUMNS = (
    Column("kernel", "base.implementation", priority=0),
    Column("dtype", "base.dtype", priority=0),
    Column("schedule", "base.schedule", priority=2),
    Column("tile", "base.tile"),
    Column("along", "name"),
    Column("best rate", "fastest.flop_per_s", "TFLOP/s"),
    Column("of the library's", lambda sweep: relative_rate(sweep.fastest), "%"),
    Column("largest cliff", lambda sweep: cliff.step if (cliff := _largest(sweep)) else None),
    Column("costs", lambda sweep: cliff.cost.value if (cliff := _largest(sweep)) else None, "+%", priority=2),
    Column("median inside a wave", _inside_a_wave, "+%"),
)

CLIFF_COLUMNS = (
    Column("setting", "sweep.setting"),
    Column("shape", "sweep.shape", priority=0),
    Column("step", priority=2),
    Column("opens"),
    Column("costs", "cost", "+%", priority=2),
    Column("rate before", "row.flop_per_s", "TFLOP/s"),
    Column("rate after", "other_row.flop_per_s", "TFLOP/s"),
    Column("costs the library", "cost_to_library", "+%"),
    Column("in tiles of", lambda cliff: _tile_of(library_of(cliff.other_row)), priority=0),
)


def _figure(sweeps: Sequence[Sweep], law: JudgedLaw | None) -> Figure:
    """The staircase of the schedule of which most sizes were measured, in time and rate; below it two others."""
    staircase = max(sweeps, key=lambda sweep: len(sweep.rows))
    others = [sweep for sweep in sweeps if sweep is not staircase][-MOST_OTHER_SCHEDULES:]
    along, row = staircase.along, staircase.base
    p = row.p
    name = f"{row.case.mode}_{row.implementation}_{p.dtype}_{p.tile}_{along}_k{p.k}_w{p.schedule.workers}"
    sizes = np.arange(min(staircase.rows), max(staircase.rows) + 1)
    rows = [
        [_panel(staircase, law, sizes, what, _libraries(staircase, what)) for what in ("time", "rate")],
        [_panel(each, law, sizes, "time") for each in others],
    ]
    return Figure(
        name=f"tile_wave_{name}".replace(":", "_"),
        title=f"{_headline(staircase)}: {row.implementation} {row.p.tile}, {row.p.dtype}",
        caption=f"{staircase.shape} on {row.p.schedule.workers} workers, which compute whole tiles: time stays level "
        "until the next wave of tiles opens (solid verticals; dotted ones open a tile). Points: measured; line: wave "
        "law; dashed: the library.",
        rows=tuple(tuple(panels) for panels in rows if panels),
    )


def _headline(sweep: Sweep) -> str:
    """Return the cost of the first wave; where noise hides it, the subject of the picture."""
    first = next((cliff for cliff in cliffs_of(sweep) if cliff.opens == "a wave"), None)
    if first is None or first.gain.value >= 1 or not first.cost.excludes(0.0):
        return "Tile and wave quantization"
    return f"{sweep.name} = {first.other} takes {1 + first.cost.value:.2f} x the time of {first.size}"


def _panel(
    sweep: Sweep, judged: JudgedLaw | None, sizes: NDArray[np.int64], value: str, library: Sequence[Series] = ()
) -> Panel:
    """Time or rate of a sweep with its law at these sizes, and the library's."""
    row, width, largest = sweep.base, getattr(sweep.base.p.tile, sweep.along), int(sizes[-1])
    drawn = [series("measured", sweep.rows.values(), sweep.along, "throughput" if value == "rate" else value)]
    if judged is not None:
        m, n = (row.p.m, sizes) if sweep.along == "n" else (sizes, row.p.n)
        seconds = judged.law.seconds(critical_path(m, n, row.p.k, tile_of(row), in_slots(row)))
        y = 2.0 * m * n * row.p.k / seconds if value == "rate" else seconds
        drawn.append(Series("wave law", sizes.tolist(), y.tolist(), "line"))
    edges = np.arange(width, largest + 1, width)
    strong = fills_wave(row, *((row.p.m, edges) if sweep.along == "n" else (edges, row.p.n)))
    return Panel(
        title=str(row.p.schedule),
        x_label=sweep.name,
        y_label=value,
        y_unit="TFLOP/s" if value == "rate" else "us",
        series=(*drawn, *library),
        strong_edges=tuple(edges[strong].tolist()),
        weak_edges=tuple(edges[~strong].tolist()),
    )


def _libraries(sweep: Sweep, y_label: str) -> list[Series]:
    """The library's times or rates at the sizes of a sweep; on a GPU its law as well."""
    library = [theirs for ours in sweep.rows.values() if (theirs := library_of(ours))]
    if not library:
        return []
    value = "throughput" if y_label == "rate" else y_label
    drawn = [series(library[0].implementation, library, sweep.along, value, "baseline")]
    if by_law := _library_rows(sweep):
        law, _ = _staircase(sweep, by_law)
        measured = [getattr(each.p, sweep.along) for each in by_law]
        places = list(range(-(-min(measured) // TMA_STEP) * TMA_STEP, max(measured) + 1, TMA_STEP))
        shapes = [_shape_at(sweep, size) for size in places]
        times = [law[0] + law[1] * library_area(m, n, sweep.base.reading.details["slots"]) for m, n in shapes]
        rates = [2.0 * m * n * sweep.base.p.k / time for (m, n), time in zip(shapes, times, strict=True)]
        drawn.append(Series(f"{by_law[0].implementation} law", places, rates if y_label == "rate" else times, "line"))
    return drawn


PROBE = Probe(
    name="tile_wave",
    question="Where are this machine's tile and wave cliffs, what do they cost, and does the wave law explain them?",
    topic="products",
    title="Tile and wave quantization",
    axes=TileWaveAxes.of,
    sweep=sweep,
    order=lambda row: (
        *(row.implementation, row.p.dtype, str(row.p.tile)),
        *(row.p.schedule.workers, row.p.k, row.p.schedule, row.p.m),
    ),
    analyse=analyse,
    group=lambda case: (
        f"tile_wave {case.implementation} {case.parameters.schedule} {case.parameters.tile or ''}".rstrip()
    ),
)
