"""Series of stored runs: as figures for the report's page, and in the terminal, all or one whole."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.console import Console

from pyperf_suite.findings.data import Figure, Panel, Series
from pyperf_suite.findings.rows import Column, grouped, table
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.regressions.changepoints import Change
from pyperf_suite.regressions.stored.series import TIME, BenchmarkSeries, Measured
from pyperf_suite.render import text
from pyperf_suite.render.charts import Chart, chart_of, colours_of
from pyperf_suite.render.terminal import note, print_table, say

_LEAST_SPREAD = 0.1
_TICKS = 6
_LEVEL = "level between changes"
_CAPTION = (
    "A point is the median over the processes of one run, with its interval; lines are the medians between changes. "
    "Vertical lines: the machine's state changed there. "
    "The axis need not begin at zero."
)


def series_figure(series: BenchmarkSeries, steps: Sequence[Change]) -> Figure:
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
        lines.append(Series(level, *_levels(series, unit, steps), "baseline"))
    label, y_unit = ("time", "duration") if series.metric == TIME else (series.unit_of_measure, "")
    panel = Panel("", "run", label, tuple(lines), tuple(each.index - 0.5 for each in series.breaks), y_unit=y_unit)

    def listed(heading: str, events: Iterable[tuple[int, str]]) -> str:
        items = "; ".join(f"{points[index].started_at[:10]}: {what}" for index, what in events)
        return f"{heading}: {items}." if items else ""

    changed = listed("Steps", ((step.index, f"{step.effect}{_commits(step)}") for step in steps))
    broken = listed("Breaks", ((each.index, each.what) for each in series.breaks))
    caption = " ".join(filter(None, (changed or "No step.", broken, _CAPTION)))
    return Figure("", f"{series.probe}: {series.title}", caption, ((panel,),))


def _commits(step: Change, word: str = "") -> str:
    known = step.commit_before and step.commit_after
    return f" ({word}{step.commit_before[:9]} to {step.commit_after[:9]})" if known else ""


def series_chart(series: BenchmarkSeries, figure: Figure) -> Chart:
    """Runs named by day; around the values, for a spread of next to nothing is no news."""
    panel = figure.rows[0][0]
    assert isinstance(panel, Panel)

    def words(place: float) -> str:
        point = series.points[int(place)]
        return " ".join(filter(None, (point.run_id, short_commit(point), point.unit and unit_name(point.unit))))

    chart = chart_of(panel, colours_of([panel]) | {_LEVEL: 1})
    values = [value for trace in chart.traces for value in (*trace.y, *trace.low, *trace.high)] or [0.0, 1.0]
    low, high = min(values), max(values)
    half = max((high - low) / 2 * 1.2, abs(high + low) / 2 * _LEAST_SPREAD) or 0.5
    days = [point.started_at[:10] for point in series.points]
    if len(set(days)) < len(days):
        days = [point.started_at[5:16].replace("T", " ") for point in series.points]
    return replace(
        chart,
        y_range=((low + high) / 2 - half, (low + high) / 2 + half),
        x_range=(-0.6, len(days) - 0.4),
        ticks=tuple((float(index), days[index]) for index in range(0, len(days), -(-len(days) // _TICKS) or 1)),
        traces=tuple(
            replace(trace, notes=tuple(map(words, trace.x))) if trace.style == "points" else trace
            for trace in chart.traces
        ),
    )


def _levels(series: BenchmarkSeries, unit: str, steps: Sequence[Change]) -> tuple[list[float], list[float]]:
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


_NEWEST = 20


def print_list(console: Console, listed: Sequence[BenchmarkSeries], left_out: Sequence[str]) -> None:
    """A table for each machine: runs, newest value and benchmark; then what is not listed."""
    columns = (
        Column("runs", lambda series: len(series.points), priority=2),
        Column("newest", _newest),
        Column("on", lambda series: series.points[-1].started_at[:10], priority=0),
        Column("probe", priority=0),
        Column("benchmark", "title", priority=2),
    )
    for machine, own in grouped(listed, lambda series: series.machine).items():
        print_table(console, table(machine, columns, own))
    for sentence in left_out:
        note(console, sentence)


def print_series(console: Console, series: BenchmarkSeries, steps: Sequence[Change], show_all: bool) -> None:
    """One series: its name, what changed in it, and its newest points."""
    say(console, "", series.title, style="bold")
    say(console, "", f"{series.probe}, case {series.case_id}, on {series.machine}")
    for each in series.breaks:
        say(console, "[yellow]break[/yellow]", f"{series.points[each.index].started_at[:10]}: {each.what}")
    nominated = "" if series.kind == "static" else "; nominated, not confirmed: `pyperf-suite track --confirm`"
    for step in steps:
        point = series.points[step.index]
        on = f" on {unit_name(point.unit)}" if len(series.units) > 1 else ""
        message = f"{point.started_at[:10]}: {step.effect}{on}{_commits(step, 'commits ')}{nominated}"
        say(console, "[magenta]step[/magenta]", message)
    first = 0 if show_all else max(0, len(series.points) - _NEWEST)
    broken, unit = {each.index for each in series.breaks}, _unit(series)
    columns = (
        Column("run", lambda row: row[1].run_id),
        Column("begun", lambda row: row[1].started_at[:16].replace("T", " "), priority=0),
        Column(
            "time" if series.metric == TIME else series.unit_of_measure,
            lambda row: Quantity(row[1].value, unit, row[1].low, row[1].high, row[1].ok),
            unit,
            priority=2,
        ),
        Column("processes", lambda row: f"{row[1].ok}" + _failed(row[1]), priority=0),
        Column("commit", lambda row: short_commit(row[1])),
        Column("unit", lambda row: unit_name(row[1].unit) if row[1].unit else None),
        Column("", lambda row: "after a break" if row[0] in broken else ""),
    )
    print_table(console, table("", columns, list(enumerate(series.points))[first:]))
    if first:
        note(console, f"{first} earlier points are not listed: --all lists them.")
    if failed := series.failed_runs:
        note(console, f"It failed in {len(failed)} run{'s' if len(failed) > 1 else ''}, the last {failed[-1]}.")


def _newest(series: BenchmarkSeries) -> str:
    said = text.quantity_text(Quantity(series.points[-1].value, _unit(series)))
    return said if series.metric == TIME else f"{said} {series.unit_of_measure}"


def _unit(series: BenchmarkSeries) -> str:
    """The unit in which the series' median has one to three digits before the point; only times are scaled."""
    if series.metric != TIME:
        return ""
    return text.shown_in("duration", [statistics.median(series.values)])[0]


def _failed(point: Measured) -> str:
    return f" of {point.ok + point.failed}" if point.failed else ""


def unit_name(unit: str) -> str:
    """As much of a GPU's UUID as tells a handful of them apart."""
    return unit[:12] or "unnamed unit"


def short_commit(point: Measured) -> str:
    """The commit as git shortens it, with + where files were changed on top of it; empty where it is not known."""
    return f"{point.commit[:9]}{'+' if point.dirty else ''}" if point.commit else ""
