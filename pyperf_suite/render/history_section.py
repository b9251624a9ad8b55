"""The history of a machine's benchmarks: what changed, and the series in which one sees it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyperf_suite.history.shown.listing import short_commit, unit_name
from pyperf_suite.history.stored.series import Benchmark, Series
from pyperf_suite.history.stored.store import Store
from pyperf_suite.history.tracking import Step, Tracked, steps_of, track
from pyperf_suite.render.charts import Chart, chart_of, colours_of
from pyperf_suite.render.plot import Shown, shown_charts, table_of_panel
from pyperf_suite.spec.findings import Findings, Panel, Remark, remark
from pyperf_suite.spec.findings import Series as Line

# Drawn one by one: those with changes first, then those of most points.
MOST_SERIES, FEWEST_POINTS = 12, 3
_LEAST_SPREAD = 0.1
_TICKS = 6
# A figure of machine code is only of interest where it moved, and a machine has thousands.
_MOST_LOOKED_AT = 400
_LEVEL = "level between changes"
_CAPTION = (
    "A point is the median over the processes of one run, with its interval; lines are the medians between changes. "
    "Vertical lines: the machine's state changed there, and no change is looked for across them. "
    "The axis need not begin at zero."
)


def history_of(results: Path, machine: str) -> dict[str, Any] | None:
    """What its section holds; None where no benchmark of the machine was measured twice."""
    with Store(results) as store:
        store.update()
        benchmarks = [each for each in store.benchmarks(None, machine) if each.count > 1]
        if not benchmarks:
            return None
        # Of machine code there are thousands of figures, and one that never changed takes as long to search.
        found = track(store, [each for each in benchmarks if not (each.kind == "static" and each.constant)])
        series = _worth_drawing(store, found, benchmarks)
    changes = [remark("Nominated, not confirmed: {change}", change=each.sentence) for each in found.current]
    note = (
        f"{len(benchmarks)} benchmarks were measured more than once; drawn are those that changed, then those of most "
        f"runs, at most {MOST_SERIES}, from {FEWEST_POINTS} runs on. `pyperf-suite history BENCHMARK --machine "
        f"{machine}` shows any."
    )
    return {
        "title": "History and change points",
        "question": "What changed from run to run, when, and with which commits?",
        "found": Findings(tuple(changes or [_nothing(found)])),
        "figures": tuple(map(_shown, series)),
        "notes": (note, *found.notes),
        "command": f"pyperf-suite track --machine {machine}",
        "place": f"{machine}/*/records.jsonl",
    }


def _nothing(found: Tracked) -> Remark:
    if not found.searched:
        return remark("No change is found: no series is long enough to be searched.")
    return remark("No change is found: {searched} series were searched.", searched=found.searched)


def _worth_drawing(store: Store, found: Tracked, benchmarks: Sequence[Benchmark]) -> list[Series]:
    nominations = [*found.current, *found.of_the_machine, *found.earlier]
    changed = {(each.series.probe, each.series.case_id, each.series.metric): each.series for each in nominations}
    longest = sorted(benchmarks, key=lambda each: (each.kind == "static", -each.count))[:_MOST_LOOKED_AT]
    for each in longest:
        if len(changed) >= MOST_SERIES:
            break
        key = (each.probe, each.case_id, each.metric)
        if each.count >= FEWEST_POINTS and each.kind != "static" and key not in changed:
            changed[key] = store.series(each)
    return list(changed.values())[:MOST_SERIES]


def _shown(series: Series) -> Shown:
    steps = steps_of(series)
    told = [f"{series.points[step.index].started_at[:10]}: {step.effect}{_commits(step)}" for step in steps]
    breaks = [f"{series.points[each.index].started_at[:10]}: {each.what}" for each in series.breaks]
    said = (f"Steps: {'; '.join(told)}." if told else "No step.", f"Breaks: {'; '.join(breaks)}." if breaks else "")
    panel = _panel(series, steps)
    caption = " ".join(filter(None, (*said, _CAPTION)))
    chart = _chart(series, panel)
    return shown_charts(f"{series.probe}: {series.title}", caption, [[chart]], [table_of_panel(panel)])


def _commits(step: Step) -> str:
    known = step.commit_before and step.commit_after
    return f" ({step.commit_before[:9]} to {step.commit_after[:9]})" if known else ""


def _panel(series: Series, steps: Sequence[Step]) -> Panel:
    """Runs across, numbered from 0; each unit's points, and the medians between steps."""
    lines = []
    units = list(dict.fromkeys(point.unit for point in series.points))
    for unit in units:
        own = [(index, point) for index, point in enumerate(series.points) if point.unit == unit]
        label = unit_name(unit) if len(units) > 1 else "median of a run"
        value, low, high = ([getattr(point, name) for _, point in own] for name in ("value", "low", "high"))
        lines.append(Line(label, [float(index) for index, _ in own], value, "points", low, high))
        level = f"law of {label}" if len(units) > 1 else _LEVEL
        lines.append(Line(level, *_levels(series, unit, steps), "beside"))
    is_time = series.unit_of_measure in ("s", "seconds")
    label, unit = ("time", "duration") if is_time else (series.unit_of_measure, "")
    breaks = tuple(each.index - 0.5 for each in series.breaks)
    return Panel("", "run", label, tuple(lines), breaks, y_unit=unit)


def _chart(series: Series, panel: Panel) -> Chart:
    """Runs named by day, values by run and commit; around the values, for a spread of next to nothing is no news."""
    chart = chart_of(panel, colours_of([panel]) | {_LEVEL: 1})
    values = [value for trace in chart.traces for value in (*trace.y, *trace.low, *trace.high)] or [0.0, 1.0]
    low, high = min(values), max(values)
    half = max((high - low) / 2 * 1.2, abs(high + low) / 2 * _LEAST_SPREAD) or 0.5
    return replace(
        chart,
        y_range=((low + high) / 2 - half, (low + high) / 2 + half),
        x_range=(-0.6, len(series.points) - 0.4),
        ticks=_days(series),
        traces=tuple(
            replace(trace, notes=tuple(_note(series, x) for x in trace.x)) if trace.style == "points" else trace
            for trace in chart.traces
        ),
    )


def _levels(series: Series, unit: str, steps: Sequence[Step]) -> tuple[list[float], list[float]]:
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


def _days(series: Series) -> tuple[tuple[float, str], ...]:
    points = series.points
    days = [point.started_at[:10] for point in points]
    if len(set(days)) < len(days):
        days = [point.started_at[5:16].replace("T", " ") for point in points]
    return tuple((float(index), days[index]) for index in range(0, len(points), max(1, -(-len(points) // _TICKS))))


def _note(series: Series, place: float) -> str:
    point = series.points[int(place)]
    return " ".join(filter(None, (point.run_id, short_commit(point), point.unit and unit_name(point.unit))))
