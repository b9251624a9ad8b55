"""Figures drawn as PNG files with matplotlib, which is imported only here and only when drawing."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyperf_suite import files
from pyperf_suite.errors import printable
from pyperf_suite.render.charts import (
    BESIDE,
    COLOURS,
    MOST_NUMBERS,
    Chart,
    Trace,
    bars_range,
    caption_of,
    charts_of,
    spread_of,
    with_unit,
)
from pyperf_suite.render.text import shown_in
from pyperf_suite.spec.findings import Bars, Figure, HeatMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL_WIDTH_IN, _PANEL_HEIGHT_IN = 4.2, 3.1
# A cell has its number written in it; a bar has its name in front of it.
_CELL_WIDTH_IN, _CELL_HEIGHT_IN = 0.42, 0.3
_BARS_WIDTH_IN, _BAR_HEIGHT_IN = 7.0, 0.27
# Words get room of their own, so that panels keep theirs; a legend of many lines stands below them.
_LEGEND_LINE_IN, _TITLE_LINE_IN, _CAPTION_LINE_IN, _MOST_LINES_ABOVE = 0.21, 0.3, 0.17, 3
_MARKS = "osD^vP*X"
_GREY = "#777777"
# Blue and orange stay apart for the colour-blind, and white is "as now"; a cell without a value must not look like it.
_MAP_COLOURS, _NOTHING = "PuOr", "#c8c8c8"


def draw(figure: Figure, folder: Path) -> Path:
    """Draw a figure into `<folder>/<name>.png` and return that path. Raises OSError where it cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = charts_of(figure)
    columns = max(map(len, rows))
    panel_width, panel_height = _panel_size_in([panel for row in rows for panel in row])
    width = max(1.6 * _PANEL_WIDTH_IN, columns * panel_width)
    title = textwrap.fill(plain(figure.title), int(width * 8))
    caption = textwrap.fill(plain(caption_of(figure, rows)), int(width * 13))
    canvas, axes = pyplot.subplots(len(rows), columns, squeeze=False, layout="constrained")
    try:
        for place, row in enumerate(rows):
            for column, axis in enumerate(axes[place]):
                if column < len(row):
                    _draw_panel(axis, rows, place, column)
                else:
                    axis.set_visible(False)
        named = {
            label: handle for each in axes.flat for handle, label in zip(*each.get_legend_handles_labels(), strict=True)
        }
        legend_columns = _legend_columns(list(named), width)
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
            canvas.suptitle(f"{title}\n" + textwrap.fill(plain(caption_of(figure, rows)), int(width * 11)), fontsize=11)
        else:
            canvas.supxlabel(caption, fontsize=9, color="#444444")
        words_in = _TITLE_LINE_IN * (title.count("\n") + 1) + _CAPTION_LINE_IN * (caption.count("\n") + 1)
        canvas.set_size_inches(width, len(rows) * panel_height + words_in + _LEGEND_LINE_IN * legend_lines + 0.2)
        picture = io.BytesIO()
        canvas.savefig(picture, dpi=120, format="png")
    finally:
        pyplot.close(canvas)
    path = folder / f"{figure.name}.png"
    files.write_whole(path, picture.getvalue())
    return path


def plain(said: str) -> str:
    """Text in which matplotlib finds no formula."""
    return printable(said).replace("$", r"\$")


def _panel_size_in(panels: Sequence[Any]) -> tuple[float, float]:
    """Width and height of each panel: the usual, or what the largest heat map's cells or the most bars ask for."""
    maps = [panel for panel in panels if isinstance(panel, HeatMap)]
    bars = [panel for panel in panels if isinstance(panel, Bars)]
    return (
        max([_PANEL_WIDTH_IN, *(2 + len(each.x) * _CELL_WIDTH_IN for each in maps), *(_BARS_WIDTH_IN for _ in bars)]),
        max(
            _PANEL_HEIGHT_IN,
            *(1 + len(each.y) * _CELL_HEIGHT_IN for each in maps),
            *(1 + len(each.bars) * _BAR_HEIGHT_IN for each in bars),
            0.0,
        ),
    )


def _legend_columns(labels: Sequence[str], width_in: float) -> int:
    """As many as have room beside each other: a letter takes a twelfth of an inch, a mark half an inch."""
    widest_in = max(map(len, labels), default=0) / 12 + 0.5
    return max(1, min(len(labels), int(width_in / widest_in)))


def _draw_panel(axis: Axes, rows: Sequence[Sequence[Any]], place: int, column: int) -> None:
    """With its title, unless the panel above has the same; axes of one row or column that are alike are named once."""

    def at(row: int, beside: int) -> Any:
        return rows[row][beside] if 0 <= row < len(rows) and 0 <= beside < len(rows[row]) else None

    panel, above, left, below = (
        at(place, column),
        at(place - 1, column),
        at(place, column - 1),
        at(place + 1, column),
    )
    if isinstance(panel, HeatMap):
        _draw_heat_map(axis, panel)
    elif isinstance(panel, Bars):
        _draw_bars(axis, panel)
    elif isinstance(panel, Chart):
        draw_chart(axis, panel)
        if getattr(left, "y_label", None) != panel.y_label:
            axis.set_ylabel(plain(panel.y_label))
        if getattr(below, "x_label", None) != panel.x_label:
            axis.set_xlabel(plain(panel.x_label))
    if getattr(above, "title", None) != panel.title:
        axis.set_title(plain(panel.title), fontsize=10)


def draw_chart(axis: Axes, chart: Chart) -> None:
    """Edges behind lines behind points, within the chart's ranges."""
    for position in chart.strong_edges:
        axis.axvline(position, color=_GREY, linewidth=0.9, alpha=0.55, zorder=0)
    for position in chart.weak_edges:
        axis.axvline(position, color=_GREY, linewidth=0.8, alpha=0.45, linestyle=":", zorder=0)
    for trace in chart.traces:
        _draw_trace(axis, trace)
    if chart.ticks:
        axis.set_xscale("log")
        axis.set_xticks([at for at, _ in chart.ticks], [plain(name) for _, name in chart.ticks])
        axis.minorticks_off()
    elif all(x.is_integer() for trace in chart.traces for x in trace.x):
        # There is no quarter of a loader.
        axis.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    axis.set_xlim(chart.x_range)
    axis.set_ylim(chart.y_range)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_trace(axis: Axes, trace: Trace) -> None:
    label = plain(trace.label)
    if trace.colour == BESIDE or not isinstance(trace.colour, int):
        axis.plot(trace.x, trace.y, "x--", color=_GREY, linewidth=1.1, markersize=3.5, label=label, zorder=1)
        return
    colour = COLOURS[trace.colour]
    if trace.style == "line":
        axis.plot(trace.x, trace.y, color=colour, linewidth=1.4, label=label, zorder=2)
        return
    axis.errorbar(
        trace.x,
        trace.y,
        yerr=trace.whiskers,
        fmt=_MARKS[trace.colour],
        markersize=3.5,
        color=colour,
        elinewidth=1,
        label=label,
        zorder=3,
    )


def _draw_heat_map(axis: Axes, heat_map: HeatMap) -> None:
    """The cells, their numbers where they have room, a frame around `here` and the bar that reads the colours."""
    spread = spread_of(heat_map)
    image = axis.imshow(
        heat_map.values,
        cmap=_MAP_COLOURS,
        vmin=1 - spread,
        vmax=1 + spread,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    axis.set_facecolor(_NOTHING)
    for side, sizes, most in ((axis.xaxis, heat_map.x, 18), (axis.yaxis, heat_map.y, 24)):
        places = range(0, len(sizes), max(1, math.ceil(len(sizes) / most)))
        side.set_ticks(list(places), [str(sizes[place]) for place in places])
    axis.tick_params(axis="x", rotation=45 if len(heat_map.x) > 6 else 0, labelsize=8)
    axis.tick_params(axis="y", labelsize=8)
    cells = [(r, c, v) for r, row in enumerate(heat_map.values) for c, v in enumerate(row) if math.isfinite(v)]
    for row, column, value in cells if len(cells) <= MOST_NUMBERS else ():
        colour = "white" if abs(value - 1) > 0.65 * spread else "black"
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
    if heat_map.here is not None:
        row, column = heat_map.here
        across, up = (-0.5, 0.5, 0.5, -0.5, -0.5), (-0.5, -0.5, 0.5, 0.5, -0.5)
        axis.plot(
            [column + each for each in across],
            [row + each for each in up],
            color="black",
            linewidth=2,
            label="as asked",
            clip_on=False,
        )
    axis.set_xlabel(plain(heat_map.x_label))
    axis.set_ylabel(plain(heat_map.y_label))
    axis.figure.colorbar(image, ax=axis, label=plain(heat_map.value_label))


def _draw_bars(axis: Axes, panel: Bars) -> None:
    """A bar, its error and its second mark for each that has a value, and in words why the others have none."""
    unit, scale = shown_in(panel.unit, [bar.value for bar in panel.bars])
    shown = [place for place, bar in enumerate(panel.bars) if math.isfinite(bar.value)]
    bars = [panel.bars[place] for place in shown]
    axis.barh(
        shown,
        [bar.value / scale for bar in bars],
        xerr=[bar.error / scale for bar in bars],
        color=COLOURS[0],
        alpha=0.75,
        height=0.62,
        error_kw={"elinewidth": 1.2, "capsize": 3, "ecolor": "black"},
        label=plain(panel.label),
        zorder=2,
    )
    marked = [place for place in shown if math.isfinite(panel.bars[place].mark)]
    if marked:
        axis.plot(
            [panel.bars[place].mark / scale for place in marked],
            marked,
            linestyle="",
            marker="D",
            markersize=5,
            markerfacecolor="none",
            markeredgewidth=1.4,
            color=COLOURS[1],
            label=plain(panel.mark_label),
            zorder=3,
        )
    low, high = (end / scale for end in bars_range(panel))
    axis.set_xlim(low, high)
    for place, bar in enumerate(panel.bars):
        if not math.isfinite(bar.value):
            note = plain(bar.note)
            axis.text(0.01 * high, place, note, va="center", fontsize=7, color=_GREY, style="italic")
    axis.set_yticks(range(len(panel.bars)), [plain(bar.name) for bar in panel.bars], fontsize=8)
    axis.set_ylim(len(panel.bars) - 0.4, -0.6)  # the first on top
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel(plain(with_unit(panel.x_label, unit)))
