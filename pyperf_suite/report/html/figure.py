"""A figure of findings on the page: a still picture that a script brings to life, its words, its values, its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pyperf_suite.report.html.alternative import KINDS, chart_in_words, map_in_words
from pyperf_suite.report.html.bars import bars_as_json, bars_in_words, draw_bars, table_of_bars
from pyperf_suite.report.html.chart import Chart, charts_of
from pyperf_suite.report.html.escape import json_island, text
from pyperf_suite.report.html.predicted import MARK, is_predicted
from pyperf_suite.report.html.provenance import Source
from pyperf_suite.report.html.static_chart import draw_chart
from pyperf_suite.report.html.static_map import draw_map, least_width, spread_of
from pyperf_suite.report.html.table import draw_table
from pyperf_suite.report.html.thinning import kept, rule
from pyperf_suite.spec.findings import Bars, Figure, HeatMap, Table

# Of one panel, in the table beside it; the picture shows more.
_MOST_LISTED = 120
_RESET = '<button type="button" class="reset">Reset view</button>'


def draw_figure(figure: Figure, source: Source) -> str:
    """The figure with all its panels. One of a kind that is not known here becomes its table."""
    return draw_panels(figure.title, figure.caption, charts_of(figure), source)


def draw_panels(title: str, caption: str, rows: Sequence[Sequence[Chart | Any]], source: Source) -> str:
    """The same from charts that are ready."""
    panels = [panel for row in rows for panel in row]
    charts = [panel for panel in panels if isinstance(panel, Chart)]
    counted = [sum(numbers) for numbers in zip(*(chart.left_out for chart in charts), strict=True)] or [0, 0]
    words = " ".join(filter(None, (caption, rule(counted[0], counted[1]))))
    predicted = is_predicted(caption) and not any(map(_is_measured, panels))
    columns = max(map(len, rows), default=1)
    tables = [draw_table(table) for panel in panels for table in tables_of(panel)]
    return "".join(
        (
            f'<figure class="card"><div class="figure-head"><h4>{text(title)}{f" {MARK}" if predicted else ""}</h4>',
            f"{_RESET if charts else ''}</div>",
            _legend(charts),
            f'<div class="panels of-{min(columns, 4)}">{_in_rows(rows, columns)}</div>',
            f"<figcaption>{text(words)}</figcaption>" if words else "<figcaption></figcaption>",
            source.drawn(),
            f'<details class="values"><summary>Values as a table</summary>{"".join(tables)}</details>'
            if tables
            else "",
            "</figure>",
        )
    )


def tables_of(panel: Any) -> list[Table]:
    """The values of a panel in rows; of a kind not known here, what of it stands in sequences of one length."""
    if isinstance(panel, Chart):
        return [_values(panel)]
    if isinstance(panel, HeatMap):
        rows = tuple(
            (str(y), *("" if value != value else f"{value:.3f}" for value in values))
            for y, values in reversed(list(zip(panel.y, panel.values, strict=True)))
        )
        return [Table(f"{panel.value_label}: {panel.title}".rstrip(": "), (_corner(panel), *map(str, panel.x)), rows)]
    return [table_of_bars(panel)] if isinstance(panel, Bars) else _table_of_unknown(panel)


def _is_measured(panel: Any) -> bool:
    """Whether what it shows was measured, whatever else its caption says was predicted."""
    if isinstance(panel, Chart):
        return any(trace.style == "points" for trace in panel.traces)
    return isinstance(panel, Bars) and not is_predicted(panel.label)


def _corner(heat_map: HeatMap) -> str:
    return f"{heat_map.y_label} \\ {heat_map.x_label}"


def _values(chart: Chart) -> Table:
    rows: list[tuple[str, ...]] = []
    room = max(2, _MOST_LISTED // max(1, len(chart.traces)))
    for trace in chart.traces:
        for place in kept(trace.y, room):
            low, high = (f"{ends[place]:.4g}" if ends else "" for ends in (trace.low, trace.high))
            kind = KINDS.get(trace.style, trace.style)
            rows.append((trace.label, kind, f"{trace.x[place]:.6g}", f"{trace.y[place]:.4g}", low, high))
    columns = ("series", "kind", chart.x_label, chart.y_label, "from", "to")
    return Table(chart.title or chart.y_label, columns, tuple(rows))


def _table_of_unknown(panel: Any) -> list[Table]:
    if not dataclasses.is_dataclass(panel):
        return []
    values = {field.name: getattr(panel, field.name) for field in dataclasses.fields(panel)}
    columns = {name: held for name, held in values.items() if isinstance(held, tuple | list) and held}
    if not columns:
        return []
    length = max(map(len, columns.values()))
    whole = {name: held for name, held in columns.items() if len(held) == length}
    rows = tuple(tuple(map(_said, row)) for row in zip(*whole.values(), strict=True))
    return [Table(str(values.get("title", "")), tuple(whole), rows)]


def _said(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _legend(charts: Sequence[Chart]) -> str:
    """A button for each series, which shows or hides it in every panel of the figure."""
    traces = {trace.label: trace for chart in charts for trace in chart.traces if trace.x}
    if not traces:
        return ""
    buttons = "".join(
        f'<button type="button" class="series" aria-pressed="true" data-series="{text(trace.label)}" '
        'title="Show or hide this series"><svg viewBox="0 0 26 12" aria-hidden="true">'
        f"{_swatch(trace.style, trace.colour)}</svg>"
        f"<span>{text(trace.label)}</span>{_kind(trace.style)}</button>"
        for trace in traces.values()
    )
    return f'<div class="legend" role="group" aria-label="Series">{buttons}</div>'


def _swatch(style: str, colour: int | str) -> str:
    if style in ("line", "beside"):
        return f'<path class="{style} k{colour}" d="M1,6H25"/>'
    shape = "square" if isinstance(colour, int) and colour % 2 else "round"
    return f'<path class="points k{colour} {shape}" d="M13,6h0"/>'


def _kind(style: str) -> str:
    return ' <span class="quiet">predicted</span>' if style == "line" else ""


def _in_rows(rows: Sequence[Sequence[Chart | Any]], columns: int) -> str:
    """The panels, each row but the last filled up, so that what stands below each other belongs together."""
    filler = '<div class="filler"></div>'
    drawn = ["".join(map(_panel, row)) + filler * (columns - len(row)) for row in rows]
    return "".join(drawn).removesuffix(filler)


def _panel(panel: Any) -> str:
    if isinstance(panel, Chart):
        return _live(panel.title, chart_in_words(panel), draw_chart(panel), panel.to_json(), "")
    if isinstance(panel, HeatMap):
        data = {
            "kind": "map",
            "x": panel.x_label,
            "y": panel.y_label,
            "value": panel.value_label,
            "xs": list(map(str, panel.x)),
            "ys": list(map(str, panel.y)),
            "values": panel.values,
            "spread": spread_of(panel),
            "here": panel.here,
        }
        key = (
            f'<p class="key"><span class="swatch low"></span>below 1 <span class="swatch middle"></span>1 '
            f'<span class="swatch high"></span>above 1: {text(panel.value_label)}</p>'
        )
        # Cells that grow beyond this only push the next figure off the screen.
        style = f"min-width:{least_width(panel)}px;max-width:{2 * least_width(panel)}px"
        return _live(panel.title, map_in_words(panel), draw_map(panel), data, key, style)
    if isinstance(panel, Bars):
        marks = f", {text(panel.mark_label)} as a line" if panel.mark_label else ""
        key = f'<p class="key">Bars: {text(panel.label)}{marks}</p>'
        return _live(panel.title, bars_in_words(panel), draw_bars(panel), bars_as_json(panel), key)
    return "".join(f'<div class="panel">{draw_table(table)}</div>' for table in tables_of(panel))


def _live(title: str, words: str, still: str, data: dict[str, Any], key: str, style: str = "") -> str:
    """`style` bounds the picture's width: below the least it scrolls in its frame instead of growing smaller."""
    heading = f"<h5>{text(title)}</h5>" if title else ""
    wide = f' style="{style}"' if style else ""
    return (
        f'<div class="panel">{heading}<div class="picture-frame"><div class="picture"{wide} role="img" '
        f'aria-label="{text(words)}">{still}</div></div>{key}'
        f'<script type="application/json" class="data">{json_island(data)}</script></div>'
    )
