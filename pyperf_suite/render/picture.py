"""Figures of findings drawn as PNG files with matplotlib, which is imported only here and only when drawing."""

from __future__ import annotations

import io
import itertools
import textwrap
from collections.abc import Mapping
from pathlib import Path

from pyperf_suite import files
from pyperf_suite.render.bars import draw_bars
from pyperf_suite.render.heat_map import draw_heat_map
from pyperf_suite.spec.findings import Bars, Figure, HeatMap, Panel

_PANEL_WIDTH_IN, _PANEL_HEIGHT_IN = 4.2, 3.1
# A cell has its number written in it.
_CELL_WIDTH_IN, _CELL_HEIGHT_IN = 0.42, 0.3
# A bar has its name in front of it.
_BARS_WIDTH_IN, _BAR_HEIGHT_IN = 7.0, 0.27

# Readable for the colour-blind (Okabe and Ito 2008), and told apart by shape as well.
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#777777"
_MARKS = tuple(
    zip((_BLUE, _ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", _GREY), "osD^vP*X", strict=True)
)

# What is highest must not touch the frame.
_HEADROOM = 1.04


def draw(figure: Figure, folder: Path) -> Path:
    """Draw a figure into `<folder>/<name>.png` and return that path. Raises OSError where it cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = max(len(row) for row in figure.rows)
    drawn = [panel for row in figure.rows for panel in row if isinstance(panel, Panel)]
    points = [series.label for panel in drawn for series in panel.series if series.style == "points"]
    marks = dict(zip(dict.fromkeys(points), itertools.cycle(_MARKS), strict=False))
    width, height = _panel_size_in(figure)
    size = (max(1.6 * _PANEL_WIDTH_IN, columns * width), len(figure.rows) * height + 1.1)
    # Cells and bars are numbered from 0 on, so those of different sizes have no axis in common.
    mapped = len(drawn) < sum(map(len, figure.rows))
    canvas, axes = pyplot.subplots(
        len(figure.rows),
        columns,
        figsize=size,
        squeeze=False,
        sharey="none" if mapped else "row",
        sharex="none" if mapped else "col",
        layout="constrained",
    )
    for row, panels in enumerate(figure.rows):
        for column in range(columns):
            panel = panels[column] if column < len(panels) else None
            if isinstance(panel, HeatMap):
                draw_heat_map(axes[row][column], panel)
            elif isinstance(panel, Bars):
                draw_bars(axes[row][column], panel)
            elif panel is not None:
                _draw_panel(
                    axes[row][column],
                    panel,
                    marks,
                    first=column == 0,
                    titled=panel.title != _title_at(figure, row - 1, column),
                    last=_title_at(figure, row + 1, column) is None,
                )
            else:
                axes[row][column].set_visible(False)
    for row_of_axes, panels in zip(axes, figure.rows, strict=True):
        if all(isinstance(panel, Panel) for panel in panels):
            # Only now, when every panel of the row has had its say in how high it is.
            row_of_axes[0].set_ylim(0, _HEADROOM * row_of_axes[0].get_ylim()[1])
    named = {
        label: handle for each in axes.flat for handle, label in zip(*each.get_legend_handles_labels(), strict=True)
    }
    # The title belongs to the legend: matplotlib keeps room for either above the panels, not for both.
    canvas.legend(
        list(named.values()),
        list(named),
        title=textwrap.fill(figure.title, int(size[0] * 8)),
        title_fontsize=13,
        loc="outside upper center",
        ncols=_legend_columns(list(named), size[0]),
        frameon=False,
    )
    canvas.supxlabel(textwrap.fill(figure.caption, int(size[0] * 13)), fontsize=9, color="#444444")
    path = folder / f"{figure.name}.png"
    picture = io.BytesIO()
    try:
        canvas.savefig(picture, dpi=120, format="png")
    finally:
        pyplot.close(canvas)
    files.write_whole(path, picture.getvalue())
    return path


def _panel_size_in(figure: Figure) -> tuple[float, float]:
    """Width and height of each panel: the usual, or what the largest heat map's cells or the most bars ask for."""
    maps = [panel for row in figure.rows for panel in row if isinstance(panel, HeatMap)]
    bars = [panel for row in figure.rows for panel in row if isinstance(panel, Bars)]
    columns = max((len(heat_map.x) for heat_map in maps), default=0)
    rows = max((len(heat_map.y) for heat_map in maps), default=0)
    most_bars = max((len(panel.bars) for panel in bars), default=0)
    return (
        max(_PANEL_WIDTH_IN, 2 + columns * _CELL_WIDTH_IN, _BARS_WIDTH_IN if bars else 0.0),
        max(_PANEL_HEIGHT_IN, 1 + rows * _CELL_HEIGHT_IN, 1 + most_bars * _BAR_HEIGHT_IN),
    )


def _title_at(figure: Figure, row: int, column: int) -> str | None:
    """The title of the panel at that place; None where there is none."""
    there = 0 <= row < len(figure.rows) and column < len(figure.rows[row])
    return figure.rows[row][column].title if there else None


def _legend_columns(labels: list[str], width_in: float) -> int:
    """As many as have room beside each other: a letter takes a twelfth of an inch, a mark half an inch."""
    widest_in = max(map(len, labels), default=0) / 12 + 0.5
    return max(1, min(len(labels), int(width_in / widest_in)))


def _line_colour(label: str, marks: Mapping[str, tuple[str, str]]) -> str:
    """Of several sets of points a law has the colour of its own; beside a single one orange is easier to see."""
    own = [colour for points, (colour, _) in marks.items() if label == f"law of {points}"]
    return own[0] if own and len(marks) > 1 else _ORANGE


def _draw_panel(  # type: ignore[no-untyped-def]
    axes, panel: Panel, marks: Mapping[str, tuple[str, str]], first: bool, titled: bool, last: bool
) -> None:
    for position in panel.strong_edges:
        axes.axvline(position, color=_GREY, linewidth=0.9, alpha=0.55, zorder=0)
    for position in panel.weak_edges:
        axes.axvline(position, color=_GREY, linewidth=0.8, alpha=0.45, linestyle=":", zorder=0)
    for series in panel.series:
        if series.style == "line":
            axes.plot(
                series.x, series.y, color=_line_colour(series.label, marks), linewidth=1.4, label=series.label, zorder=2
            )
        elif series.style == "beside":
            axes.plot(
                series.x,
                series.y,
                color=_GREY,
                linestyle="--",
                linewidth=1.1,
                marker="x",
                markersize=3.5,
                label=series.label,
                zorder=1,
            )
        else:
            below = [max(0.0, y - low) for y, low in zip(series.y, series.low, strict=True)]
            above = [max(0.0, high - y) for y, high in zip(series.y, series.high, strict=True)]
            colour, mark = marks[series.label]
            axes.errorbar(
                series.x,
                series.y,
                yerr=(below, above),
                fmt=mark,
                markersize=3.5,
                color=colour,
                elinewidth=1,
                label=series.label,
                zorder=3,
            )
    if panel.x_ticks:
        axes.set_xscale("log")
        axes.set_xticks(*zip(*panel.x_ticks, strict=True))
        axes.minorticks_off()
    elif all(float(place).is_integer() for series in panel.series for place in series.x):
        axes.xaxis.get_major_locator().set_params(integer=True)  # there is no quarter of a loader
    axes.spines[["top", "right"]].set_visible(False)
    if titled:
        axes.set_title(panel.title, fontsize=10)
    if first:
        axes.set_ylabel(panel.y_label)
    if last:
        axes.tick_params(labelbottom=True)  # also above a place that is left empty
        axes.set_xlabel(panel.x_label)
