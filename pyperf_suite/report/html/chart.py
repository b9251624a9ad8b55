"""A panel made ready to be drawn, by script or without: values that are numbers, thinned, with ranges and colours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyperf_suite.report.html.thinning import kept
from pyperf_suite.spec.findings import Figure, Panel, Series

# Classes of the style sheet; colours are Okabe and Ito's, told apart by shape as well.
COLOURS = 8
BESIDE = "beside"
_LAW = 1  # the orange that picture.py gives the law of a single set of points
_HEADROOM = 1.06
_MARGIN = 0.04


@dataclass(frozen=True)
class Trace:
    """One series: `colour` is a number of the style sheet or "beside"; `notes` are further words for each value."""

    label: str
    style: str
    colour: int | str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    total: int = 0


@dataclass(frozen=True)
class Chart:
    """One pair of axes; `ticks` name places of the x axis, which is logarithmic where `log` says so."""

    title: str
    x_label: str
    y_label: str
    traces: tuple[Trace, ...]
    strong_edges: tuple[float, ...] = ()
    weak_edges: tuple[float, ...] = ()
    ticks: tuple[tuple[float, str], ...] = ()
    log: bool = False
    x_range: tuple[float, float] = (0.0, 1.0)
    y_range: tuple[float, float] = (0.0, 1.0)

    @property
    def left_out(self) -> tuple[int, int]:
        """How many measured values there are, and how many of them are drawn; a law's line loses nothing one sees."""
        measured = [trace for trace in self.traces if trace.style != "line"]
        return sum(trace.total for trace in measured), sum(len(trace.x) for trace in measured)

    def to_json(self) -> dict[str, Any]:
        """What the script draws from."""
        return {
            "kind": "chart",
            "x": self.x_label,
            "y": self.y_label,
            "log": self.log,
            "ticks": self.ticks,
            "xr": self.x_range,
            "yr": self.y_range,
            "strong": self.strong_edges,
            "weak": self.weak_edges,
            "traces": [
                {
                    "name": trace.label,
                    "style": trace.style,
                    "colour": trace.colour,
                    "x": trace.x,
                    "y": trace.y,
                    "low": trace.low,
                    "high": trace.high,
                    "notes": trace.notes,
                }
                for trace in self.traces
            ],
        }


def charts_of(figure: Figure) -> list[list[Chart | Any]]:
    """Rows as the figure has them, panels as charts with one y range a row; what is no Panel stays what it is."""
    panels = [panel for row in figure.rows for panel in row if isinstance(panel, Panel)]
    colours = colours_of(panels)
    return [
        share_y([chart_of(each, colours) if isinstance(each, Panel) else each for each in row]) for row in figure.rows
    ]


def colours_of(panels: Sequence[Panel]) -> dict[str, int | str]:
    """By label: each set of points its own, a law that of its points where it names them, a baseline grey."""
    series = [each for panel in panels for each in panel.series]
    points = dict.fromkeys(each.label for each in series if each.style == "points")
    found: dict[str, int | str] = dict(zip(points, itertools.cycle(range(COLOURS)), strict=False))
    if len(points) <= 1:
        spare = itertools.cycle([_LAW, *range(2, COLOURS)])
    else:
        spare = itertools.cycle(range(len(points) % COLOURS, COLOURS))
    for each in series:
        if each.label not in found:
            of_points = found.get(each.label.removeprefix("law of ")) if len(points) > 1 else None
            found[each.label] = BESIDE if each.style == BESIDE else next(spare) if of_points is None else of_points
    return found


def chart_of(panel: Panel, colours: Mapping[str, int | str]) -> Chart:
    """The panel's finite values; on a logarithmic axis the positive ones."""
    log = bool(panel.x_ticks)
    traces = tuple(_trace(series, colours[series.label], log) for series in panel.series)
    chart = Chart(
        panel.title,
        panel.x_label,
        panel.y_label,
        traces,
        tuple(filter(math.isfinite, panel.strong_edges)),
        tuple(filter(math.isfinite, panel.weak_edges)),
        tuple((place, name) for place, name in panel.x_ticks if math.isfinite(place) and place > 0),
        log,
    )
    return replace(chart, x_range=_x_range(chart), y_range=_y_range([chart]))


def share_y(row: Sequence[Chart | Any]) -> list[Chart | Any]:
    """The row with one y range for all its charts of the same quantity, for they are read side by side."""
    ranges = {
        label: _y_range([each for each in row if isinstance(each, Chart) and each.y_label == label])
        for label in {each.y_label for each in row if isinstance(each, Chart)}
    }
    return [replace(each, y_range=ranges[each.y_label]) if isinstance(each, Chart) else each for each in row]


def _trace(series: Series, colour: int | str, log: bool) -> Trace:
    y = [float(value) for value in series.y]
    usable = [
        place
        for place, (across, up) in enumerate(zip(series.x, y, strict=False))
        if math.isfinite(across) and math.isfinite(up) and (across > 0 or not log)
    ]
    places = [usable[place] for place in kept([y[place] for place in usable])]

    def at(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(float(values[place]) for place in places) if len(values) == len(y) else ()

    return Trace(
        series.label, series.style, colour, at(series.x), at(y), at(series.low), at(series.high), total=len(usable)
    )


def _x_range(chart: Chart) -> tuple[float, float]:
    values = [x for trace in chart.traces for x in trace.x]
    if not values:
        return (1.0, 10.0) if chart.log else (0.0, 1.0)
    low, high = min(values), max(values)
    # A bound not far beyond all values, as a budget is, is what they are read against.
    high = max([high, *(edge for edge in chart.strong_edges if edge <= 2 * high - low)])
    if chart.log:
        margin = (high / low) ** _MARGIN if high > low else 2.0
        return low / margin, high * margin
    margin = _MARGIN * (high - low) or 0.5
    return low - margin, high + margin


def _y_range(charts: Sequence[Chart]) -> tuple[float, float]:
    """From zero, or below where values are, to a little above the highest."""
    values = [
        value
        for chart in charts
        for trace in chart.traces
        for value in (*trace.y, *trace.high, *trace.low)
        if math.isfinite(value)
    ]
    high, low = max(values, default=1.0), min(values, default=0.0)
    return min(0.0, low * _HEADROOM), max(0.0, high * _HEADROOM) or 1.0
