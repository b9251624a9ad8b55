"""Panels made ready to be drawn, by matplotlib or plotly: numbers in the units shown, thinned, with ranges and colours.

Pictures and page draw the same charts, so that they cannot say different things.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyperf_suite.render.text import shown_in
from pyperf_suite.spec.findings import Bars, Figure, HeatMap, Panel, Series

# Okabe and Ito 2008, readable for the colour-blind; told apart by shape as well. The page has its own for the dark.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#777777")
BESIDE = "beside"
_LAW = 1  # of a single set of points: orange is easier to see than another blue
# Of one series of a panel.
MOST_POINTS = 600
_HEADROOM, _MARGIN = 1.06, 0.04
# A whisker that reaches so many times further than all values is cut at so many times their height.
_LONG_WHISKER, _CUT = 1.6, 1.25
# Panels of so few places need not begin at 0 where values differ by less than this.
_FEW_PLACES, _ALIKE = 6, 0.5
# Cells of more than this many have no room for a number.
MOST_NUMBERS = 240
# A map in which nothing differs must not be painted in full colour.
_LEAST_SPREAD = 0.02


@dataclass(frozen=True)
class Trace:
    """One series: `colour` is a number of COLOURS or "beside"; `notes` are further words for each value."""

    label: str
    style: str
    colour: int | str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    total: int = 0

    @property
    def whiskers(self) -> tuple[list[float], list[float]] | None:
        """How far they reach below and above each value; None without any."""
        if not self.low or not self.high:
            return None
        below = [max(0.0, y - low) for y, low in zip(self.y, self.low, strict=True)]
        return below, [max(0.0, high - y) for y, high in zip(self.y, self.high, strict=True)]


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
    def cut(self) -> int:
        """How many whiskers reach out of the panel."""
        return sum(high > self.y_range[1] for trace in self.traces for high in trace.high)

    @property
    def left_out(self) -> tuple[int, int]:
        """How many measured values there are, and how many of them are drawn; a law's line loses nothing one sees."""
        measured = [trace for trace in self.traces if trace.style != "line"]
        return sum(trace.total for trace in measured), sum(len(trace.x) for trace in measured)


def caption_of(figure: Figure, rows: Sequence[Sequence[Chart | Any]]) -> str:
    """The figure's own, and what was done to draw it: whiskers cut, values left out, axes that do not begin at 0."""
    charts = [panel for row in rows for panel in row if isinstance(panel, Chart)]
    cut = sum(chart.cut for chart in charts)
    total, drawn = (sum(numbers) for numbers in zip((0, 0), *(chart.left_out for chart in charts), strict=True))
    said = [figure.caption]
    if cut:
        said.append(f"{cut} {'whisker reaches' if cut == 1 else 'whiskers reach'} beyond the panel and are cut.")
    if total > drawn:
        rule = "of each stretch of equally many neighbours the lowest and the highest"
        said.append(f"Of {total} values {drawn} are drawn: {rule}.")
    if any(chart.y_range[0] > 0 for chart in charts) and "zero" not in figure.caption:
        said.append("The vertical axis does not begin at 0.")
    return " ".join(filter(None, said))


def charts_of(figure: Figure) -> list[list[Chart | HeatMap | Bars | Any]]:
    """Rows as the figure has them, panels as charts with one y range a row; what is no Panel stays what it is."""
    panels = [panel for row in figure.rows for panel in row if isinstance(panel, Panel)]
    colours = colours_of(panels)
    # One unit for all panels that show the same quantity, so that they can be compared at sight.
    values: dict[str, list[float]] = {}
    for panel in panels:
        values.setdefault(panel.y_unit, []).extend(y for series in panel.series for y in series.y)
    units = {unit: shown_in(unit, held) for unit, held in values.items()}
    rows = [
        [chart_of(each, colours, units[each.y_unit]) if isinstance(each, Panel) else each for each in row]
        for row in figure.rows
    ]
    return _share_x([share_y(row) for row in rows])


def colours_of(panels: Iterable[Panel]) -> dict[str, int | str]:
    """By label: each set of points its own, a law that of its points where it names them, a baseline grey."""
    series = [each for panel in panels for each in panel.series]
    points = dict.fromkeys(each.label for each in series if each.style == "points")
    found: dict[str, int | str] = dict(zip(points, itertools.cycle(range(len(COLOURS))), strict=False))
    if len(points) <= 1:
        spare = itertools.cycle([_LAW, *range(2, len(COLOURS))])
    else:
        spare = itertools.cycle(range(len(points) % len(COLOURS), len(COLOURS)))
    for each in series:
        if each.label not in found:
            of_points = found.get(each.label.removeprefix("law of ")) if len(points) > 1 else None
            found[each.label] = BESIDE if each.style == BESIDE else next(spare) if of_points is None else of_points
    return found


def chart_of(panel: Panel, colours: Mapping[str, int | str], y_unit: tuple[str, float] | None = None) -> Chart:
    """The panel's finite values; on a logarithmic axis the positive ones."""
    log = bool(panel.x_ticks)
    x_name, x_scale = shown_in(panel.x_unit, [x for series in panel.series for x in series.x])
    y_name, y_scale = y_unit or shown_in(panel.y_unit, [y for series in panel.series for y in series.y])
    chart = Chart(
        panel.title,
        with_unit(panel.x_label, x_name),
        with_unit(panel.y_label, y_name),
        tuple(_trace(series, colours[series.label], log, x_scale, y_scale) for series in panel.series),
        tuple(edge / x_scale for edge in panel.strong_edges if math.isfinite(edge)),
        tuple(edge / x_scale for edge in panel.weak_edges if math.isfinite(edge)),
        tuple((place / x_scale, name) for place, name in panel.x_ticks if math.isfinite(place) and place > 0),
        log,
    )
    return replace(chart, x_range=_x_range(chart), y_range=_y_range([chart]))


def with_unit(label: str, unit: str) -> str:
    """`time, ms`; the label alone where there is no unit."""
    return f"{label}, {unit}" if unit else label


def share_y(row: Sequence[Chart | Any]) -> list[Chart | Any]:
    """The row with one y range for all its charts of the same quantity, for they are read side by side."""
    ranges = {
        label: _y_range([each for each in row if isinstance(each, Chart) and each.y_label == label])
        for label in {each.y_label for each in row if isinstance(each, Chart)}
    }
    return [replace(each, y_range=ranges[each.y_label]) if isinstance(each, Chart) else each for each in row]


def _share_x(rows: Sequence[Sequence[Chart | Any]]) -> list[list[Chart | Any]]:
    """The rows with one x range for charts below each other that have the same axis."""

    def shared(chart: Chart, column: int) -> tuple[float, float]:
        ranges = [
            row[column].x_range
            for row in rows
            if column < len(row) and isinstance(row[column], Chart) and row[column].x_label == chart.x_label
        ]
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    return [
        [replace(each, x_range=shared(each, at)) if isinstance(each, Chart) else each for at, each in enumerate(row)]
        for row in rows
    ]


def kept(y: Sequence[float], most: int = MOST_POINTS) -> list[int]:
    """Places of the values to draw: all, or of `most / 2` stretches of equal count the lowest and the highest each.

    >>> kept([5.0, 1.0, 9.0, 4.0, 4.0, 4.0], most=4)
    [1, 2, 3]
    """
    if len(y) <= most:
        return list(range(len(y)))
    stretches = most // 2
    places = []
    for number in range(stretches):
        stretch = range(number * len(y) // stretches, (number + 1) * len(y) // stretches)
        places += sorted({min(stretch, key=y.__getitem__), max(stretch, key=y.__getitem__)})
    return places


def spread_of(heat_map: HeatMap) -> float:
    """How far from 1 the colours reach."""
    values = [abs(value - 1) for row in heat_map.values for value in row if math.isfinite(value)]
    return max(_LEAST_SPREAD, max(values, default=0.0))


def bars_range(panel: Bars) -> tuple[float, float]:
    """From zero, or below, to a little beyond the longest, in the base unit."""
    ends = [
        end
        for bar in panel.bars
        for end in (bar.value + (bar.error if math.isfinite(bar.error) else 0.0), bar.mark)
        if math.isfinite(end)
    ]
    low, high = min(0.0, *ends, 0.0), max(0.0, *ends, 0.0)
    return (low * _HEADROOM, high * _HEADROOM) if high > low else (0.0, 1.0)


def _trace(series: Series, colour: int | str, log: bool, x_scale: float, y_scale: float) -> Trace:
    usable = [
        place
        for place, (across, up) in enumerate(zip(series.x, series.y, strict=False))
        if math.isfinite(across) and math.isfinite(up) and (across > 0 or not log)
    ]
    places = [usable[place] for place in kept([float(series.y[place]) for place in usable])]

    def at(values: Sequence[float], scale: float) -> tuple[float, ...]:
        return tuple(float(values[place]) / scale for place in places) if len(values) == len(series.y) else ()

    y, low, high = (at(values, y_scale) for values in (series.y, series.low, series.high))
    return Trace(series.label, series.style, colour, at(series.x, x_scale), y, low, high, total=len(usable))


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
    """From zero, or below where values are, to a little above the highest; few values that are alike from near them."""
    traces = [trace for chart in charts for trace in chart.traces]
    values = [value for trace in traces for value in trace.y]
    ends = [end for trace in traces for end in (*trace.low, *trace.high) if math.isfinite(end)]
    high, low = max(values, default=1.0), min(values, default=0.0)
    furthest = max([high, *ends])
    top = furthest * _HEADROOM if furthest <= _LONG_WHISKER * high else high * _CUT
    places = {x for trace in traces for x in trace.x}
    bottom = min([low, *ends])
    if values and len(places) <= _FEW_PLACES and bottom > _ALIKE * high > 0:
        margin = max(top - bottom, 0.1 * high) * 2 * _MARGIN
        return bottom - margin, top
    return min(0.0, (bottom if furthest <= _LONG_WHISKER * high else low) * _HEADROOM), max(0.0, top) or 1.0
