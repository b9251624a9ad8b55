"""Series of stored runs as figures, for the report's page and as a PNG: points, levels between steps, breaks."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pyperf_suite.errors import UserError
from pyperf_suite.files import write_for_user
from pyperf_suite.history.shown.listing import short_commit, unit_name
from pyperf_suite.history.stored.series import BenchmarkSeries
from pyperf_suite.history.tracking import Step
from pyperf_suite.render.charts import Chart, chart_of, colours_of, picture
from pyperf_suite.spec.findings import Figure, Panel, Series

MOST_PANELS = 12  # of a PNG
_LEAST_SPREAD = 0.1
_TICKS = 6
_LEVEL = "level between changes"
_CAPTION = (
    "A point is the median over the processes of one run, with its interval; lines are the medians between changes. "
    "Vertical lines: the machine's state changed there, and no change is looked for across them. "
    "The axis need not begin at zero."
)


def draw_series(drawn: Sequence[BenchmarkSeries], path: Path, steps: Sequence[Sequence[Step]]) -> None:
    """Draw one panel for each series, in that order, into the PNG file `path`; `steps` are those of each series.

    Raises UserError if no series has a point, there are more than `MOST_PANELS`, or the file cannot be written.
    """
    panels = [(series, changed) for series, changed in zip(drawn, steps, strict=True) if series.points]
    if not panels:
        raise UserError("There is nothing to draw: no run holds a value of that benchmark.")
    if len(panels) > MOST_PANELS:
        raise UserError(f"A picture takes {MOST_PANELS} series, but {len(panels)} match: name fewer benchmarks.")
    figures = [series_figure(series, changed) for series, changed in panels]
    rows = []
    for (series, _), figure in zip(panels, figures, strict=True):
        # One series has its changes in the caption.
        changes = "" if len(figures) == 1 else f". {figure.caption.removesuffix(_CAPTION).strip()}"
        chart = series_chart(series, figure, commits=True)
        rows.append([replace(chart, title=f"{figure.title} on {series.machine}{changes}")])
    caption = figures[0].caption if len(figures) == 1 else _CAPTION
    write_for_user(path, picture(Figure("", "", caption, tuple(figure.rows[0] for figure in figures)), rows))


def series_figure(series: BenchmarkSeries, steps: Sequence[Step]) -> Figure:
    """Runs from left to right, numbered from 0; each unit's points, and the medians between steps."""
    points = series.points
    units = list(dict.fromkeys(point.unit for point in points))
    lines = []
    for unit in units:
        own = [(float(index), point) for index, point in enumerate(points) if point.unit == unit]
        label = unit_name(unit) if len(units) > 1 else "median of a run"
        value, low, high = ([getattr(point, name) for _, point in own] for name in ("value", "low", "high"))
        lines.append(Series(label, [index for index, _ in own], value, "points", low, high))
        level = f"law of {label}" if len(units) > 1 else _LEVEL
        lines.append(Series(level, *_levels(series, unit, steps), "beside"))
    is_time = series.unit_of_measure in ("s", "seconds")
    label, y_unit = ("time", "duration") if is_time else (series.unit_of_measure, "")
    panel = Panel("", "run", label, tuple(lines), tuple(each.index - 0.5 for each in series.breaks), y_unit=y_unit)

    def listed(heading: str, held: Iterable[tuple[int, str]]) -> str:
        items = "; ".join(f"{points[index].started_at[:10]}: {what}" for index, what in held)
        return f"{heading}: {items}." if items else ""

    changed = listed("Steps", ((step.index, f"{step.effect}{_commits(step)}") for step in steps))
    broken = listed("Breaks", ((each.index, each.what) for each in series.breaks))
    caption = " ".join(filter(None, (changed or "No step.", broken, _CAPTION)))
    return Figure("", f"{series.probe}: {series.title}", caption, ((panel,),))


def _commits(step: Step) -> str:
    known = step.commit_before and step.commit_after
    return f" ({step.commit_before[:9]} to {step.commit_after[:9]})" if known else ""


def series_chart(series: BenchmarkSeries, figure: Figure, commits: bool = False) -> Chart:
    """Runs named by day and, if asked, commit; around the values, for a spread of next to nothing is no news."""
    panel = figure.rows[0][0]
    assert isinstance(panel, Panel)

    def note(place: float) -> str:
        point = series.points[int(place)]
        return " ".join(filter(None, (point.run_id, short_commit(point), point.unit and unit_name(point.unit))))

    chart = chart_of(panel, colours_of([panel]) | {_LEVEL: 1})
    values = [value for trace in chart.traces for value in (*trace.y, *trace.low, *trace.high)] or [0.0, 1.0]
    low, high = min(values), max(values)
    half = max((high - low) / 2 * 1.2, abs(high + low) / 2 * _LEAST_SPREAD) or 0.5
    days = [point.started_at[:10] for point in series.points]
    if len(set(days)) < len(days):
        days = [point.started_at[5:16].replace("T", " ") for point in series.points]
    if commits:
        days = [f"{day}\n{short_commit(point)}".rstrip() for day, point in zip(days, series.points, strict=True)]
    return replace(
        chart,
        y_range=((low + high) / 2 - half, (low + high) / 2 + half),
        x_range=(-0.6, len(days) - 0.4),
        ticks=tuple((float(index), days[index]) for index in range(0, len(days), -(-len(days) // _TICKS) or 1)),
        traces=tuple(
            replace(trace, notes=tuple(map(note, trace.x))) if trace.style == "points" else trace
            for trace in chart.traces
        ),
    )


def _levels(series: BenchmarkSeries, unit: str, steps: Sequence[Step]) -> tuple[list[float], list[float]]:
    """A staircase: the median of every stretch without a break or step, drawn from its start to the next one's."""
    edges = sorted({0, len(series.points), *(s.index for s in steps), *(b.index for b in series.breaks)})
    across: list[float] = []
    level: list[float] = []
    for start, end in itertools.pairwise(edges):
        values = [point.value for point in series.points[start:end] if point.unit == unit]
        if values:
            across += [start - 0.5, end - 0.5]
            level += [statistics.median(values)] * 2
    return across, level
