"""The picture of the sweep: busbw over size for each operation, with the links' peak and the law through the points."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pyperf_suite.laws.network.communication import algbw, busbw
from pyperf_suite.probes.collectives.curves import Curve, Point
from pyperf_suite.probes.collectives.peaks import peak_for
from pyperf_suite.probes.collectives.sizes import readable
from pyperf_suite.spec.findings import Figure, Panel, Series

# Two points are a table's row, not a picture.
FEWEST_SIZES = 3
# Panels of one row are still readable side by side.
MOST_IN_A_ROW = 3
LAW_POINTS = 120
MOST_TICKS = 5


def figures_of(curves: Sequence[Curve]) -> tuple[Figure, ...]:
    """One for each number of ranks and dtype: a panel an operation, a series a path or variant."""
    together: dict[tuple[int, str], dict[str, list[Curve]]] = {}
    for curve in curves:
        p = curve.setting.parameters
        if len(curve.points) >= FEWEST_SIZES:
            together.setdefault((p.ranks, p.dtype), {}).setdefault(_title(curve), []).append(curve)
    return tuple(_figure(ranks, dtype, panels) for (ranks, dtype), panels in together.items())


def _figure(ranks: int, dtype: str, by_title: dict[str, list[Curve]]) -> Figure:
    panels = [_panel(title, curves) for title, curves in by_title.items()]
    rows = [tuple(panels[start : start + MOST_IN_A_ROW]) for start in range(0, len(panels), MOST_IN_A_ROW)]
    curves = [curve for curves in by_title.values() for curve in curves]
    errors = [curve.law.held_out_error for curve in curves if curve.law and curve.law.held_out_error is not None]
    peak = peak_for(curves[0].largest.visits[0])
    told = f" {np.median(errors):.0%} off at sizes it has not seen (median)" if errors else ""
    best = max((curve.best for curve in curves), key=lambda point: point.busbw())
    return Figure(
        name=f"collectives_{ranks}_ranks_{dtype}",
        title=f"Collectives among {ranks} ranks, {dtype}",
        caption="Points: measured, bars span the visits. Line: the law, α + β·size in pieces,"
        + (told or " through the medians")
        + (f". Dashed: {peak.gb_per_s:g} GB/s, {peak.name}" if peak else "")
        + f". Highest: {best.busbw():.3g} GB/s, {best.parameters.op} of {readable(best.size_bytes)}.",
        rows=tuple(rows),
    )


def _panel(title: str, curves: Sequence[Curve]) -> Panel:
    alone = curves[0].setting.parameters.ranks == 1
    series: list[Series] = []
    for curve in curves:
        rates = [_rates(point, alone) for point in curve.points.values()]
        middle, low, high = (list(column) for column in zip(*rates, strict=True))
        series.append(Series(curve.setting.how, list(curve.points), middle, "points", low, high))
    first = curves[0]
    if first.law is not None:
        sizes = np.geomspace(min(first.points), max(first.points), LAW_POINTS)
        seconds = first.law.seconds(sizes)
        ranks = first.setting.parameters.ranks
        rate = algbw(sizes, seconds) if alone else busbw(first.operation, sizes, seconds, ranks)
        series.append(Series(f"law of {first.setting.how}", sizes.tolist(), rate.tolist(), "line"))
    peak = peak_for(first.largest.visits[0])
    if peak is not None and not alone:
        span = [min(first.points), max(first.points)]
        series.append(Series(f"peak of {peak.name}", span, [peak.gb_per_s] * 2, "beside"))
    # A single rank has no bus.
    return Panel(title, "size", "algbw GB/s" if alone else "busbw GB/s", tuple(series), x_ticks=_ticks(curves))


def _rates(point: Point, alone: bool) -> tuple[float, ...]:
    """The rate at the median, and the lowest and highest of the visits."""
    times = (point.reading.seconds, point.reading.high, point.reading.low)
    seconds = [time / point.trips for time in times]
    return tuple(float(algbw(point.size_bytes, t)) if alone else point.busbw(t) for t in seconds)


def _ticks(curves: Sequence[Curve]) -> tuple[tuple[float, str], ...]:
    """About so many powers of two as have room, evenly spaced, the largest size among them."""
    sizes = [size for curve in curves for size in curve.points]
    smallest, largest = math.log2(min(sizes)), math.log2(max(sizes))
    step = max(1, math.ceil((largest - smallest) / MOST_TICKS))
    powers = range(int(largest), math.ceil(smallest) - 1, -step)
    return tuple((2.0**power, readable(2**power)) for power in reversed(powers))


def _title(curve: Curve) -> str:
    p = curve.setting.parameters
    words = [p.op, p.reduction if p.reduction != "sum" else "", p.pattern, f"root {p.root}" if p.root else ""]
    return " ".join(word for word in words if word)
