"""Figures as charts: numbers in the units shown, thinned, with ranges and colours; drawn as PNG, and for the page.

matplotlib draws the pictures and plotly the page from the same charts, so that both show the same. matplotlib is
imported only when it draws.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyperf_suite import files
from pyperf_suite.errors import printable
from pyperf_suite.findings.data import Bars, Figure, Heading, HeatMap, Panel, Series, Table
from pyperf_suite.record.quantity import Quantity, quantity
from pyperf_suite.render.text import shown_in, with_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito 2008, readable for the colour-blind; each has a shape of its own as well. The page has dark ones, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#777777")
BASELINE = "baseline"  # the style and the colour of a baseline
KINDS = {"points": "measured", "line": "law, predicted", BASELINE: "measured for comparison"}
_LAW = 1  # the colour of a law of a single set of points: orange is easier to see than another blue
MOST_POINTS = 600  # drawn of one series
_HEADROOM, _MARGIN = 1.06, 0.04
WIDE = 30
# An interval that reaches further beyond all values than this share of their height is not drawn; the axis then ends
# at the other share, and a chart of which more than half are like this is not fit for use.
_WHISKER_SHARE, _ENDS_AT = 0.6, 0.25
# Panels of so few places need not begin at 0 if values differ by less than this share.
_MAX_PLACES, _LOW_SHARE = 6, 0.5
# A map in which nothing differs must not be painted in full colour.
_LEAST_SPREAD = 0.02


@dataclass(frozen=True)
class Trace:
    """One series: `colour` is a number of COLOURS or "baseline"; `notes` are further words for each value."""

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
    """One pair of axes; `ticks` name places of the x axis with their unit; `log` and `y_log` make axes logarithmic."""

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
    y_log: bool = False
    x_title: str = ""

    def unfit(self, trace: Trace) -> list[bool]:
        """Mark each point with an interval that is larger than the chart."""
        bottom, top = self.y_range
        return [high > top or low < bottom for low, high in zip(trace.low, trace.high, strict=True)]

    @property
    def cut(self) -> int:
        return sum(map(sum, map(self.unfit, self.traces)))

    @property
    def verdict(self) -> str:
        """Words on a chart of which most intervals are larger than itself."""
        barred = sum(len(each.low) for each in self.traces)
        return f"Not fit for use: {self.cut} of {barred} intervals are larger than this panel" * (2 * self.cut > barred)


def charts_of(figure: Figure) -> list[list[Any]]:
    """The figure's panels as charts: one unit a quantity, one y range a row, one x range a column and axis."""
    panels = [panel for row in figure.rows for panel in row if isinstance(panel, Panel)]
    colours = colours_of(panels)
    values: dict[str, list[float]] = {}
    for panel in panels:
        values.setdefault(panel.y_unit, []).extend(y for series in panel.series for y in series.y)
    units = {unit: shown_in(unit, held) for unit, held in values.items()}
    rows: list[list[Any]] = []
    for row in figure.rows:
        charts = [chart_of(each, colours, units[each.y_unit]) if isinstance(each, Panel) else each for each in row]
        rows.append(_shared(charts, lambda chart: chart.y_label, _vertical))
    columns = [
        _shared(column, lambda chart: chart.x_label, lambda same: {"x_range": _around(each.x_range for each in same)})
        for column in itertools.zip_longest(*rows)
    ]
    return [[columns[place][number] for place in range(len(row))] for number, row in enumerate(rows)]


def _shared(row: Sequence[Any], key: Callable[[Chart], str], of: Callable[[list[Chart]], dict[str, Any]]) -> list[Any]:
    """The panels with one range for all charts of the same key, because they are compared by eye."""
    charts = [each for each in row if isinstance(each, Chart)]
    changes = {name: of([each for each in charts if key(each) == name]) for name in set(map(key, charts))}
    return [replace(each, **changes[key(each)]) if isinstance(each, Chart) else each for each in row]


def _around(ranges: Iterable[tuple[float, float]]) -> tuple[float, float]:
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


def colours_of(panels: Iterable[Panel]) -> dict[str, int | str]:
    """By label: each set of points its own, a law that of its points if it names them, a baseline grey."""
    series = [each for panel in panels for each in panel.series]
    points = dict.fromkeys(each.label for each in series if each.style == "points")
    colours: dict[str, int | str] = dict(zip(points, itertools.cycle(range(len(COLOURS))), strict=False))
    several = len(points) > 1
    spare = itertools.cycle(range(len(points) % len(COLOURS), len(COLOURS)) if several else (_LAW, *range(2, 8)))
    for each in series:
        if each.label not in colours:
            of_points = colours.get(each.label.removeprefix("law of ")) if several else None
            colour = BASELINE if each.style == BASELINE else of_points
            colours[each.label] = next(spare) if colour is None else colour
    return colours


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
        x_title=panel.x_label if log else with_unit(panel.x_label, x_name),
    )
    return replace(chart, x_range=_x_range(chart), **_vertical([chart]))


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


def kept(y: Sequence[float], max_points: int = MOST_POINTS) -> list[int]:
    """Places of the values to draw: all, or the lowest and the highest of `max_points / 2` stretches of equal count.

    >>> kept([5.0, 1.0, 9.0, 4.0, 4.0, 4.0], max_points=4)
    [1, 2, 3]
    """
    if len(y) <= max_points:
        return list(range(len(y)))
    stretches = max_points // 2
    places = []
    for number in range(stretches):
        stretch = range(number * len(y) // stretches, (number + 1) * len(y) // stretches)
        places += sorted({min(stretch, key=y.__getitem__), max(stretch, key=y.__getitem__)})
    return places


def _x_range(chart: Chart) -> tuple[float, float]:
    values = [x for trace in chart.traces for x in trace.x]
    if not values:
        return (1.0, 10.0) if chart.log else (0.0, 1.0)
    low, high = min(values), max(values)
    # A bound not far beyond all values, as a budget is, is what they are read against.
    high = max([high, *(edge for edge in chart.strong_edges if edge <= 2 * high - low)])
    if chart.log:
        factor = (high / low) ** _MARGIN if high > low else 2.0
        return low / factor, high * factor
    margin = _MARGIN * (high - low) or 0.5
    return low - margin, high + margin


def _vertical(charts: Sequence[Chart]) -> dict[str, Any]:
    """The y range of charts that are compared by eye; logarithmic where values above zero span more than `WIDE`."""
    values = [value for chart in charts for trace in chart.traces for value in trace.y]
    if values and min(values) > 0 and max(values) > WIDE * min(values):
        margin = (max(values) / min(values)) ** _MARGIN
        return {"y_log": True, "y_range": (min(values) / margin, max(values) * margin)}
    # From zero, or below where values are, to a little above the highest; few values close together from near them.
    traces = [trace for chart in charts for trace in chart.traces]
    ends = [end for trace in traces for end in (*trace.low, *trace.high) if math.isfinite(end)]
    low, high = min([0.0, *values]), max([0.0, *values])
    height = high - low
    top, bottom = max([high, *ends]), min([*values, *ends], default=0.0)
    top = top * _HEADROOM if top - high <= _WHISKER_SHARE * height else high + _ENDS_AT * height
    if values and len({x for trace in traces for x in trace.x}) <= _MAX_PLACES and bottom > _LOW_SHARE * high > 0:
        return {"y_log": False, "y_range": (bottom - max(top - bottom, 0.1 * high) * 2 * _MARGIN, top)}
    bottom = min(0.0, bottom)
    bottom = bottom * _HEADROOM if low - bottom <= _WHISKER_SHARE * height else low - _ENDS_AT * height
    return {"y_log": False, "y_range": (bottom, top or 1.0)}


def caption_of(figure: Figure, rows: Sequence[Sequence[Any]]) -> str:
    """The figure's own, and what was done to draw it: whiskers cut, values left out, axes that do not begin at 0."""
    charts = [panel for row in rows for panel in row if isinstance(panel, Chart)]
    # A law's line loses nothing that one sees.
    measured = [trace for chart in charts for trace in chart.traces if trace.style != "line"]
    cut = sum(chart.cut for chart in charts)
    total, drawn = sum(trace.total for trace in measured), sum(len(trace.x) for trace in measured)
    sentences = [figure.caption]
    if cut:
        those = "The hollow point is" if cut == 1 else f"{cut} hollow points are"
        sentences.append(f"{those} not fit for use: intervals larger than the panel are left out.")
    if total > drawn:
        rule = "of each stretch of equally many neighbours the lowest and the highest"
        sentences.append(f"Of {total} values {drawn} are drawn: {rule}.")
    if any(chart.y_range[0] > 0 and not chart.y_log for chart in charts) and "zero" not in figure.caption:
        sentences.append("The vertical axis does not begin at 0.")
    return " ".join(filter(None, sentences))


def _spread_of(heat_map: HeatMap) -> float:
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
    low, high = min([0.0, *ends]), max([0.0, *ends])
    return (low * _HEADROOM, high * _HEADROOM) if high > low else (0.0, 1.0)


_MOST_LISTED = 120  # values listed for a panel; the picture shows more
_CHART_PX, _CELL_PX, _CELL_WIDTH_PX, _BAR_PX = 300, 24, 32, 26


@dataclass(frozen=True)
class PagePanel:
    """One panel: its chart, its height, its least width, and its content in words."""

    title: str
    words: str
    data: dict[str, Any]
    height: int = _CHART_PX
    width: int = 0
    key: str = ""


@dataclass(frozen=True)
class PageFigure:
    """A figure on the page: panels in rows, None filling a row that is too short; values; series that can be hidden."""

    title: str
    caption: str
    rows: list[list[PagePanel | None]]
    tables: list[Table]
    legend: list[Trace]
    predicted: bool = False

    @property
    def columns(self) -> int:
        return max(map(len, self.rows), default=1)


def page_figure(figure: Figure, charts: Sequence[Sequence[Any]] | None = None) -> PageFigure:
    """The figure with all its panels, and with these charts of them where they are made already."""
    rows = charts or charts_of(figure)
    panels = [panel for row in figure.rows for panel in row]
    measured = any(
        isinstance(panel, Bars) or any(each.style == "points" for each in getattr(panel, "series", ()))
        for panel in panels
    )
    columns = max(map(len, rows), default=0)
    traces = [trace for row in rows for chart in row if isinstance(chart, Chart) for trace in chart.traces if trace.x]
    return PageFigure(
        figure.title,
        figure.caption if charts else caption_of(figure, rows),
        [[*map(_page_panel, row), *[None] * (columns - len(row))] for row in rows],
        list(map(_values, panels)),
        list({each.label: each for each in traces}.values()),
        not measured and "redicted" in figure.caption,
    )


def _values(panel: Panel | HeatMap | Bars) -> Table:
    """The values of a panel in rows, in base units; of many the extremes."""

    def known(value: float, unit: str) -> Quantity | None:
        return quantity(float(value), unit) if math.isfinite(value) else None

    rows: Iterable[tuple[Any, ...]]
    if isinstance(panel, HeatMap):
        names = (Heading(f"{panel.y_label} \\ {panel.x_label}"), *(Heading(str(x), "x") for x in panel.x))
        rows = zip(panel.y[::-1], panel.values[::-1], strict=True)
        rows = ((str(y), *(known(value, "x") for value in values)) for y, values in rows)
        return Table(f"{panel.value_label}: {panel.title}".rstrip(": "), names, tuple(rows))
    if isinstance(panel, Bars):
        numbers = (Heading(name, panel.unit) for name in (panel.x_label, "half the error bar", panel.mark_label))
        rows = (
            (bar.name, *(known(each, panel.unit) for each in (bar.value, bar.error, bar.mark)), bar.note)
            for bar in panel.bars
        )
        return Table(panel.title or panel.x_label, (Heading(panel.label), *numbers, Heading("note")), tuple(rows))
    room = max(2, _MOST_LISTED // max(1, len(panel.series)))
    rows = (
        (
            series.label,
            KINDS.get(series.style, series.style),
            known(series.x[at], panel.x_unit),
            *(known(ends[at], panel.y_unit) if len(ends) else None for ends in (series.y, series.low, series.high)),
        )
        for series in panel.series
        for at in kept([float(y) for y in series.y], room)
    )
    ends = (Heading(name, panel.y_unit) for name in (panel.y_label, "from", "to"))
    columns = (Heading("series"), Heading("kind"), Heading(panel.x_label, panel.x_unit), *ends)
    return Table(panel.title or panel.y_label, columns, tuple(rows))


def _page_panel(panel: Chart | HeatMap | Bars) -> PagePanel:
    if isinstance(panel, Chart):
        series = ", ".join(f"{each.label} ({KINDS.get(each.style, each.style)})" for each in panel.traces if each.x)
        words = f"{panel.y_label} over {panel.x_label}: {series}"
        drawn = {"kind": "chart", **dataclasses.asdict(panel), "unfit": [*map(panel.unfit, panel.traces)]}
        return PagePanel(panel.title, words, {**drawn, "verdict": panel.verdict})
    if isinstance(panel, HeatMap):
        words = f"{panel.value_label} by {panel.x_label} and {panel.y_label}"
        data = {"kind": "map", **dataclasses.asdict(panel), "spread": _spread_of(panel)}
        height, width = 70 + len(panel.y) * _CELL_PX, 82 + len(panel.x) * _CELL_WIDTH_PX
        return PagePanel(panel.title, words, data, height, width, panel.value_label)
    unit, scale = shown_in(panel.unit, [bar.value for bar in panel.bars])
    label = with_unit(panel.x_label, unit)
    data = {
        "kind": "bars",
        "x_label": label,
        "label": panel.label,
        "mark_label": panel.mark_label,
        "names": [bar.name for bar in panel.bars],
        "notes": [bar.note for bar in panel.bars],
        "x_range": [end / scale for end in bars_range(panel)],
        **{f"{name}s": [getattr(bar, name) / scale for bar in panel.bars] for name in ("value", "error", "mark")},
    }
    marks = f", {panel.mark_label} as a line" if panel.mark_label else ""
    words = f"{label} of {', '.join(bar.name for bar in panel.bars)}"
    return PagePanel(panel.title, words, data, 60 + len(panel.bars) * _BAR_PX, key=f"Bars: {panel.label}{marks}")


_PANEL_WIDTH_IN, _PANEL_HEIGHT_IN = 4.2, 3.1
# A cell has its number written in it if there are at most _MOST_NUMBERS cells; a bar has its name in front of it.
_CELL_WIDTH_IN, _CELL_HEIGHT_IN, _MOST_NUMBERS = 0.42, 0.3, 240
_BARS_WIDTH_IN, _BAR_HEIGHT_IN = 7.0, 0.27
# Words get room of their own, so that panels keep theirs; a legend of many lines stands below them.
_LEGEND_LINE_IN, _TITLE_LINE_IN, _CAPTION_LINE_IN, _MOST_LINES_ABOVE = 0.21, 0.3, 0.17, 3
_MARKS = "osD^vP*X"
_GREY = "#777777"
# Blue and orange stay apart for the colour-blind, and white is "as now"; a cell without a value must not look like it.
_MAP_COLOURS, _NOTHING = "PuOr", "#c8c8c8"


def draw(figure: Figure, folder: Path) -> Path:
    """Draw a figure into `<folder>/<name>.png` and return that path. Raises OSError if it cannot be written."""
    path = folder / f"{figure.name}.png"
    files.write_whole(path, picture(figure, charts_of(figure)))
    return path


def picture(figure: Figure, rows: Sequence[Sequence[Any]]) -> bytes:
    """The figure as a PNG, with these charts of its panels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = max(map(len, rows))
    panel_width, panel_height = _panel_size_in([panel for row in rows for panel in row])
    width = max(1.6 * _PANEL_WIDTH_IN, columns * panel_width)
    title = textwrap.fill(_plain(figure.title), int(width * 8))
    words = _plain(caption_of(figure, rows))
    caption = textwrap.fill(words, int(width * 13))
    canvas, axes = pyplot.subplots(len(rows), columns, squeeze=False, layout="constrained")
    try:
        for axis in axes.flat:
            axis.set_visible(False)
        for place, row in enumerate(rows):
            for column in range(len(row)):
                axes[place][column].set_visible(True)
                _draw_panel(axes[place][column], rows, place, column)
        pairs = (zip(*each.get_legend_handles_labels(), strict=True) for each in axes.flat)
        named = {label: handle for handle, label in itertools.chain(*pairs)}
        # As many names in a line as have room: a letter takes a twelfth of an inch, a mark half an inch.
        widest_in = max(map(len, named), default=0) / 12 + 0.5
        legend_columns = max(1, min(len(named), int(width / widest_in)))
        legend_lines = -(-len(named) // legend_columns)
        below = legend_lines > _MOST_LINES_ABOVE
        # Above the panels matplotlib keeps room for either a legend, which then has the title, or a title.
        canvas.legend(
            list(named.values()),
            list(named),
            title=None if below else title,
            title_fontsize=13,
            loc="outside lower center" if below else "outside upper center",
            ncols=legend_columns,
            frameon=False,
        )
        if below:
            canvas.suptitle(f"{title}\n{textwrap.fill(words, int(width * 11))}", fontsize=11)
        else:
            canvas.supxlabel(caption, fontsize=9, color="#444444")
        words_in = _TITLE_LINE_IN * (title.count("\n") + 1) + _CAPTION_LINE_IN * (caption.count("\n") + 1)
        canvas.set_size_inches(width, len(rows) * panel_height + words_in + _LEGEND_LINE_IN * legend_lines + 0.2)
        content = io.BytesIO()
        with warnings.catch_warnings():
            # Others name their benchmarks in any script: what the font has not is drawn as a box.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            canvas.savefig(content, dpi=120, format="png")
    finally:
        pyplot.close(canvas)
    return content.getvalue()


def _plain(words: str) -> str:
    """Text in which matplotlib finds no formula."""
    return printable(words).replace("$", r"\$")


def _panel_size_in(panels: Sequence[Any]) -> tuple[float, float]:
    """Width and height of each panel: the usual, or what the largest heat map's cells or the most bars need."""
    widths, heights = [_PANEL_WIDTH_IN], [_PANEL_HEIGHT_IN]
    for panel in panels:
        if isinstance(panel, HeatMap):
            widths.append(2 + len(panel.x) * _CELL_WIDTH_IN)
            heights.append(1 + len(panel.y) * _CELL_HEIGHT_IN)
        elif isinstance(panel, Bars):
            widths.append(_BARS_WIDTH_IN)
            heights.append(1 + len(panel.bars) * _BAR_HEIGHT_IN)
    return max(widths), max(heights)


def _draw_panel(axis: Axes, rows: Sequence[Sequence[Any]], place: int, column: int) -> None:
    """With its title, unless the panel above has the same; axes of one row or column that are equal are named once."""

    def neighbour(row: int, at: int, name: str) -> Any:
        there = 0 <= row < len(rows) and 0 <= at < len(rows[row])
        return getattr(rows[row][at], name, None) if there else None

    panel = rows[place][column]
    if isinstance(panel, HeatMap):
        _draw_heat_map(axis, panel)
    elif isinstance(panel, Bars):
        draw_bars(axis, panel)
    else:
        draw_chart(axis, panel)
        if neighbour(place, column - 1, "y_label") != panel.y_label:
            axis.set_ylabel(_plain(panel.y_label))
        if neighbour(place + 1, column, "x_label") != panel.x_label:
            axis.set_xlabel(_plain(panel.x_title))
    if neighbour(place - 1, column, "title") != panel.title:
        axis.set_title(textwrap.fill(_plain(panel.title), 110), fontsize=10)


def draw_chart(axis: Axes, chart: Chart) -> None:
    """Edges behind lines behind points, within the chart's ranges."""
    for position in chart.strong_edges:
        axis.axvline(position, color=_GREY, linewidth=0.9, alpha=0.55, zorder=0)
    for position in chart.weak_edges:
        axis.axvline(position, color=_GREY, linewidth=0.8, alpha=0.45, linestyle=":", zorder=0)
    for line in chart.traces:
        label = _plain(line.label)
        if not isinstance(line.colour, int):
            axis.plot(line.x, line.y, "x--", color=_GREY, linewidth=1.1, markersize=3.5, label=label, zorder=1)
        elif line.style in ("line", BASELINE):
            axis.plot(line.x, line.y, color=COLOURS[line.colour], linewidth=1.4, label=label, zorder=2)
        else:
            look: dict[str, Any] = {"color": COLOURS[line.colour], "fmt": _MARKS[line.colour], "markersize": 3.5}
            unfit = chart.unfit(line) or [False] * len(line.x)
            for hollow in (False, True):
                at = [place for place, is_unfit in enumerate(unfit) if is_unfit is hollow]
                x, y = ([values[place] for place in at] for values in (line.x, line.y))
                if hollow:
                    axis.plot(x, y, look["fmt"], color=look["color"], markersize=3.5, markerfacecolor="none", zorder=3)
                    continue
                below = [max(0.0, line.y[place] - line.low[place]) for place in at if line.low]
                above = [max(0.0, line.high[place] - line.y[place]) for place in at if line.high]
                whiskers = (below, above) if below and above else None
                axis.errorbar(x, y, yerr=whiskers, elinewidth=1, label=label, zorder=3, **look)
    if chart.verdict:
        look = {"transform": axis.transAxes, "ha": "center", "va": "center", "color": COLOURS[1], "fontsize": 11}
        axis.text(0.5, 0.5, chart.verdict.replace(": ", ":\n"), zorder=4, **look)
    if chart.log:
        axis.set_xscale("log")
    if chart.y_log:
        axis.set_yscale("log")
    if chart.ticks:
        axis.set_xticks([at for at, _ in chart.ticks], [_plain(name) for _, name in chart.ticks])
        axis.minorticks_off()
    elif all(x.is_integer() for trace in chart.traces for x in trace.x):
        # There is no quarter of a loader.
        axis.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    axis.set_xlim(chart.x_range)
    axis.set_ylim(chart.y_range)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_heat_map(axis: Axes, heat_map: HeatMap) -> None:
    """The cells, their numbers where they have room, and the bar that explains the colours."""
    spread = _spread_of(heat_map)
    look: dict[str, Any] = {"cmap": _MAP_COLOURS, "vmin": 1 - spread, "vmax": 1 + spread}
    image = axis.imshow(heat_map.values, origin="lower", aspect="auto", interpolation="nearest", **look)
    axis.set_facecolor(_NOTHING)
    for side, sizes, most in ((axis.xaxis, heat_map.x, 18), (axis.yaxis, heat_map.y, 24)):
        places = range(0, len(sizes), max(1, math.ceil(len(sizes) / most)))
        side.set_ticks(list(places), [str(sizes[place]) for place in places])
    axis.tick_params(axis="x", rotation=45 if len(heat_map.x) > 6 else 0, labelsize=8)
    axis.tick_params(axis="y", labelsize=8)
    cells = [(r, c, v) for r, row in enumerate(heat_map.values) for c, v in enumerate(row) if math.isfinite(v)]
    for row, column, value in cells if len(cells) <= _MOST_NUMBERS else ():
        colour = "white" if abs(value - 1) > 0.65 * spread else "black"
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
    axis.set_xlabel(_plain(heat_map.x_label))
    axis.set_ylabel(_plain(heat_map.y_label))
    axis.figure.colorbar(image, ax=axis, label=_plain(heat_map.value_label))


def draw_bars(axis: Axes, panel: Bars) -> None:
    """A bar, its error and its second mark for each that has a value, and in words why the others have none."""
    unit, scale = shown_in(panel.unit, [bar.value for bar in panel.bars])
    low, high = (end / scale for end in bars_range(panel))
    shown = [place for place, bar in enumerate(panel.bars) if math.isfinite(bar.value)]
    lengths, errors = ([getattr(panel.bars[at], name) / scale for at in shown] for name in ("value", "error"))
    look: dict[str, Any] = {"color": COLOURS[0], "alpha": 0.75, "height": 0.62, "zorder": 2}
    of_errors = {"elinewidth": 1.2, "capsize": 3, "ecolor": "black"}
    axis.barh(shown, lengths, xerr=errors, error_kw=of_errors, label=_plain(panel.label), **look)
    if marked := [place for place in shown if math.isfinite(panel.bars[place].mark)]:
        marks = [panel.bars[place].mark / scale for place in marked]
        look = {"markersize": 5, "markerfacecolor": "none", "markeredgewidth": 1.4, "color": COLOURS[1], "zorder": 3}
        axis.plot(marks, marked, linestyle="", marker="D", label=_plain(panel.mark_label), **look)
    for place, bar in enumerate(panel.bars):
        if not math.isfinite(bar.value):
            note = _plain(bar.note)
            axis.text(0.01 * high, place, note, va="center", fontsize=7, color=_GREY, style="italic")
    axis.set_xlim(low, high)
    axis.set_yticks(range(len(panel.bars)), [_plain(bar.name) for bar in panel.bars], fontsize=8)
    axis.set_ylim(len(panel.bars) - 0.4, -0.6)  # the first on top
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel(_plain(with_unit(panel.x_label, unit)))
