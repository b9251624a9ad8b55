"""The picture of an alignment sweep: throughput over size, every divisor with a colour and a mark of its own."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pyperf_suite.probes.alignment.sweeps import Setting, Sweep, rung_of
from pyperf_suite.spec.findings import Figure, Panel, Series

# A sweep of fewer sizes is a table's row, not a picture.
FEWEST_SIZES = 3

# Sizes further than this part from the middle one would squeeze the others into a line.
NEARBY = 0.125


def figures_of(sweeps: Sequence[Sweep]) -> tuple[Figure, ...]:
    """One figure a dtype, layout and mode: a row for each setting, a column for each sweep that all of them have."""
    figures: dict[tuple[str, str, int, str], list[Sweep]] = {}
    for sweep in sweeps:
        setting = sweep.setting
        if len(sweep.sizes) >= FEWEST_SIZES:
            what = (setting.dtype, setting.layout, setting.schedule.workers, setting.mode)
            figures.setdefault(what, []).append(sweep)
    drawn = (_figure(*what, members) for what, members in figures.items())
    return tuple(figure for figure in drawn if figure is not None)


def _figure(dtype: str, layout: str, workers: int, mode: str, sweeps: Sequence[Sweep]) -> Figure | None:
    rows: dict[Setting, dict[str, Sweep]] = {}
    for sweep in sweeps:
        rows.setdefault(sweep.setting, {})[sweep.shape(sweep.along.upper())] = sweep
    in_all = set.intersection(*(set(row) for row in rows.values()))
    if not in_all:
        return None
    return Figure(
        name=f"alignment_{mode}_{dtype}_{layout}_w{workers}",
        title=f"Throughput by divisor: {dtype} matmul, {layout}, {workers} worker{'s' if workers > 1 else ''}",
        caption="Each mark is a size, by the largest power of two that divides it; its bar spans the processes. "
        "Useful work alone counts: what padding adds does not. Sizes far from these are in the tables.",
        rows=tuple(tuple(_panel(sweep) for shape, sweep in row.items() if shape in in_all) for row in rows.values()),
    )


def _panel(sweep: Sweep) -> Panel:
    name = sweep.along.upper()
    middle = statistics.median_low(sweep.sizes)
    sizes = [size for size in sweep.sizes if abs(size - middle) <= NEARBY * middle]
    return Panel(
        title=sweep.shape(name),
        x_label=name,
        y_label=f"{sweep.setting.implementation}, TFLOP/s",
        series=tuple(_series(sweep, sizes, rung) for rung in sorted({rung_of(size) for size in sizes})),
    )


def _series(sweep: Sweep, drawn: Sequence[int], rung: int) -> Series:
    sizes = [size for size in drawn if rung_of(size) == rung]
    readings = [sweep.readings[size] for size in sizes]
    return Series(
        label=f"divides by {rung}",
        x=sizes,
        y=[reading.tflop_per_s for reading in readings],
        style="points",
        low=[reading.flop / reading.high / 1e12 for reading in readings],
        high=[reading.flop / reading.low / 1e12 for reading in readings],
    )
