"""Figures for the page: what its script gives to plotly, what one sees in words, and the values as tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyperf_suite.render.charts import Chart, Trace, bars_range, caption_of, charts_of, kept, spread_of, with_unit
from pyperf_suite.render.text import shown_in
from pyperf_suite.spec.findings import Bars, Figure, Heading, HeatMap, Panel, Quantity, Table, quantity

KINDS = {"points": "measured", "line": "law, predicted", "beside": "measured for comparison"}
# Values listed beside a panel; the picture shows more.
_MOST_LISTED = 120
_CHART_PX, _CELL_PX, _CELL_WIDTH_PX, _BAR_PX = 300, 24, 32, 26


@dataclass(frozen=True)
class Picture:
    """One panel: what is drawn, how high, how narrow it may become, and what one sees in words."""

    title: str
    words: str
    data: dict[str, Any]
    height: int = _CHART_PX
    width: int = 0
    key: str = ""


@dataclass(frozen=True)
class Shown:
    """A figure on the page: panels in rows, a place in a row that is too short being None; values; series to hide."""

    title: str
    caption: str
    rows: list[list[Picture | None]]
    tables: list[Table]
    legend: list[Trace]
    predicted: bool = False

    @property
    def columns(self) -> int:
        """The most panels beside each other."""
        return max(map(len, self.rows), default=1)


def shown(figure: Figure) -> Shown:
    """The figure with all its panels."""
    rows = charts_of(figure)
    panels = [panel for row in figure.rows for panel in row]
    measured = any(
        isinstance(panel, Bars) or any(each.style == "points" for each in getattr(panel, "series", ()))
        for panel in panels
    )
    tables = list(map(_table, panels))
    predicted = not measured and "redicted" in figure.caption
    return shown_charts(figure.title, caption_of(figure, rows), rows, tables, predicted)


def shown_charts(
    title: str, caption: str, rows: Sequence[Sequence[Any]], tables: list[Table], predicted: bool = False
) -> Shown:
    """The same from charts that are ready."""
    columns = max(map(len, rows), default=0)
    pictures = [[*map(_picture, row), *[None] * (columns - len(row))] for row in rows]
    traces = [trace for row in rows for chart in row if isinstance(chart, Chart) for trace in chart.traces if trace.x]
    return Shown(title, caption, pictures, tables, list({each.label: each for each in traces}.values()), predicted)


def table_of_panel(panel: Panel) -> Table:
    """Every value, or of many the extremes, in base units."""
    columns = (
        *(Heading("series"), Heading("kind"), Heading(panel.x_label, panel.x_unit)),
        *(Heading(name, panel.y_unit) for name in (panel.y_label, "from", "to")),
    )
    room = max(2, _MOST_LISTED // max(1, len(panel.series)))
    rows = tuple(
        (
            series.label,
            KINDS.get(series.style, series.style),
            _known(series.x[at], panel.x_unit),
            *(_known(ends[at], panel.y_unit) if len(ends) else None for ends in (series.y, series.low, series.high)),
        )
        for series in panel.series
        for at in kept([float(y) for y in series.y], room)
    )
    return Table(panel.title or panel.y_label, columns, rows)


def _table(panel: Panel | HeatMap | Bars) -> Table:
    """The values of a panel in rows."""
    if isinstance(panel, Panel):
        return table_of_panel(panel)
    if isinstance(panel, HeatMap):
        names = (Heading(f"{panel.y_label} \\ {panel.x_label}"), *(Heading(str(x), "x") for x in panel.x))
        upwards = reversed(list(zip(panel.y, panel.values, strict=True)))
        cells = tuple((str(y), *(_known(value, "x") for value in values)) for y, values in upwards)
        return Table(f"{panel.value_label}: {panel.title}".rstrip(": "), names, cells)
    numbers = (Heading(name, panel.unit) for name in (panel.x_label, "half the error bar", panel.mark_label))
    cells = tuple(
        (bar.name, *(_known(each, panel.unit) for each in (bar.value, bar.error, bar.mark)), bar.note)
        for bar in panel.bars
    )
    return Table(panel.title or panel.x_label, (Heading(panel.label), *numbers, Heading("note")), cells)


def _known(value: float, unit: str) -> Quantity | None:
    return quantity(float(value), unit) if math.isfinite(value) else None


def _picture(panel: Chart | HeatMap | Bars) -> Picture:
    if isinstance(panel, Chart):
        series = ", ".join(f"{each.label} ({KINDS.get(each.style, each.style)})" for each in panel.traces if each.x)
        words = f"{panel.y_label} over {panel.x_label}: {series}"
        return Picture(panel.title, words, {"kind": "chart", **dataclasses.asdict(panel)})
    if isinstance(panel, HeatMap):
        words = f"{panel.value_label} by {panel.x_label} and {panel.y_label}"
        data = {"kind": "map", **dataclasses.asdict(panel), "spread": spread_of(panel)}
        height, width = 70 + len(panel.y) * _CELL_PX, 82 + len(panel.x) * _CELL_WIDTH_PX
        return Picture(panel.title, words, data, height, width, panel.value_label)
    unit, scale = shown_in(panel.unit, [bar.value for bar in panel.bars])
    label = with_unit(panel.x_label, unit)
    bars = {
        "names": [bar.name for bar in panel.bars],
        "notes": [bar.note for bar in panel.bars],
        **{f"{name}s": [getattr(bar, name) / scale for bar in panel.bars] for name in ("value", "error", "mark")},
    }
    data = {"kind": "bars", "x_label": label, "label": panel.label, "mark_label": panel.mark_label, **bars}
    data["x_range"] = [end / scale for end in bars_range(panel)]
    marks = f", {panel.mark_label} as a line" if panel.mark_label else ""
    words = f"{label} of {', '.join(bar.name for bar in panel.bars)}"
    return Picture(panel.title, words, data, 60 + len(panel.bars) * _BAR_PX, key=f"Bars: {panel.label}{marks}")
