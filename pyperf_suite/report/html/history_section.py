"""The history of a machine's benchmarks: what changed, and the series in which one sees it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace

from pyperf_suite.history.changes.nominations import Nomination
from pyperf_suite.history.changes.steps import Step, steps_of
from pyperf_suite.history.changes.tracking import Tracked, track
from pyperf_suite.history.shown.drawing import short_commit, unit_name
from pyperf_suite.history.shown.quantities import Scale, scale_for
from pyperf_suite.history.stored.series import Benchmark, Series
from pyperf_suite.history.stored.store import Store
from pyperf_suite.report.html.chart import Chart, chart_of, colours_of
from pyperf_suite.report.html.escape import text
from pyperf_suite.report.html.figure import draw_panels
from pyperf_suite.report.html.findings import draw_sentences
from pyperf_suite.report.html.provenance import Source
from pyperf_suite.spec.findings import Panel
from pyperf_suite.spec.findings import Series as Line

# Drawn one by one: those with changes first, then those of most points.
MOST_SERIES = 12
FEWEST_POINTS = 3
_LEAST_SPREAD = 0.1
_TICKS = 6
# A figure of machine code is only of interest where it moved, and a machine has thousands.
_MOST_LOOKED_AT = 400

_CAPTION = (
    "A point is the median over the processes of one run, with its interval; lines are the medians between changes. "
    "Vertical lines: the machine's state changed there, and no change is looked for across them. "
    "The axis need not begin at zero."
)


def draw_history(store: Store, machine: str, anchor: str) -> str:
    """The section; empty where no benchmark of the machine was measured twice."""
    benchmarks = [each for each in store.benchmarks(None, machine) if each.count > 1]
    if not benchmarks:
        return ""
    # Of machine code there are thousands of figures, and one that never changed takes as long to search.
    found = track(store, [each for each in benchmarks if not (each.kind == "static" and each.constant)])
    shown = _worth_drawing(store, found, benchmarks)
    changes = [f"Nominated, not confirmed: {each.sentence}" for each in found.current]
    source = Source(f"pyperf-suite track --machine {machine}", f"{machine}/*/records.jsonl")
    return "".join(
        (
            f'<section id="{anchor}"><h3>History and change points</h3>',
            '<p class="question">What changed from run to run, when, and with which commits?</p>',
            draw_sentences(changes) if changes else _nothing(found),
            '<div class="columns wide">',
            *(_draw(series, source) for series in shown),
            "</div>",
            f'<p class="quiet">{len(benchmarks)} benchmarks were measured more than once; drawn are those that '
            f"changed, then those of most runs, at most {MOST_SERIES}, from {FEWEST_POINTS} runs on. "
            f"<code>pyperf-suite history BENCHMARK --machine {text(machine)}</code> shows any.</p>",
            f"<details><summary>Notes</summary>{draw_sentences(found.notes)}</details>",
            "</section>",
        )
    )


def _nothing(found: Tracked) -> str:
    searched = f"{found.searched} series were searched" if found.searched else "No series is long enough to be searched"
    return f'<ul class="said"><li>No change stands: {searched} for changes.</li></ul>'


def _worth_drawing(store: Store, found: Tracked, benchmarks: Sequence[Benchmark]) -> list[Series]:
    nominations: list[Nomination] = [*found.current, *found.of_the_machine, *found.earlier]
    changed = {(each.series.probe, each.series.case_id, each.series.metric): each.series for each in nominations}
    longest = sorted(benchmarks, key=lambda each: (each.kind == "static", -each.count))[:_MOST_LOOKED_AT]
    for each in longest:
        if len(changed) >= MOST_SERIES:
            break
        key = (each.probe, each.case_id, each.metric)
        if each.count >= FEWEST_POINTS and each.kind != "static" and key not in changed:
            changed[key] = store.series(each)
    return list(changed.values())[:MOST_SERIES]


def _draw(series: Series, source: Source) -> str:
    scale = scale_for(series.values, series.unit_of_measure)
    steps = steps_of(series)
    told = [
        f"{series.points[step.index].started_at[:10]}: {step.effect}"
        + (
            f" ({step.commit_before[:9]} to {step.commit_after[:9]})"
            if step.commit_before and step.commit_after
            else ""
        )
        for step in steps
    ]
    breaks = [f"{series.points[each.index].started_at[:10]}: {each.what}" for each in series.breaks]
    caption = " ".join(
        (
            f"Steps: {'; '.join(told)}." if told else "No step.",
            f"Breaks: {'; '.join(breaks)}." if breaks else "",
            _CAPTION,
        )
    )
    return draw_panels(f"{series.probe}: {series.title}", caption, [[chart_of_series(series, steps, scale)]], source)


def chart_of_series(series: Series, steps: Sequence[Step], scale: Scale) -> Chart:
    """Runs across, numbered from 0 and named by day and commit; each unit's points, and the medians between steps."""
    lines = []
    units = list(dict.fromkeys(point.unit for point in series.points))
    for unit in units:
        own = [(index, point) for index, point in enumerate(series.points) if point.unit == unit]
        label = unit_name(unit) if len(units) > 1 else "median of a run"
        x = [float(index) for index, _ in own]
        y, low, high = ([getattr(point, name) * scale.factor for _, point in own] for name in ("value", "low", "high"))
        lines.append(Line(label, x, y, "points", low, high))
        across, level = _levels(series, unit, steps, scale.factor)
        lines.append(Line(f"law of {label}" if len(units) > 1 else "level between changes", across, level, "beside"))
    panel = Panel("", "run", scale.unit, tuple(lines), tuple(each.index - 0.5 for each in series.breaks))
    chart = chart_of(panel, colours_of([panel]) | {"level between changes": 1})
    return replace(
        chart,
        y_range=_around(chart),
        x_range=(-0.6, len(series.points) - 0.4),
        ticks=_names(series),
        traces=tuple(replace(trace, notes=_notes(series, trace.x, trace.style)) for trace in chart.traces),
    )


def _levels(series: Series, unit: str, steps: Sequence[Step], factor: float) -> tuple[list[float], list[float]]:
    """A staircase: the median of every stretch without a break or step, drawn from its start to the next one's."""
    edges = sorted({0, len(series.points), *(s.index for s in steps), *(b.index for b in series.breaks)})
    across: list[float] = []
    level: list[float] = []
    for start, end in itertools.pairwise(edges):
        values = [point.value for point in series.points[start:end] if point.unit == unit]
        if values:
            across += [start - 0.5, end - 0.5]
            level += [statistics.median(values) * factor] * 2
    return across, level


def _around(chart: Chart) -> tuple[float, float]:
    """What there is and a margin; a spread of next to nothing is drawn small."""
    values = [value for trace in chart.traces for value in (*trace.y, *trace.low, *trace.high)]
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    half = max((high - low) / 2 * 1.2, abs(high + low) / 2 * _LEAST_SPREAD) or 0.5
    return (low + high) / 2 - half, (low + high) / 2 + half


def _names(series: Series) -> tuple[tuple[float, str], ...]:
    points = series.points
    every = max(1, -(-len(points) // _TICKS))
    days = [point.started_at[:10] for point in points]
    if len(set(days)) < len(days):
        days = [point.started_at[5:16].replace("T", " ") for point in points]
    return tuple((float(index), days[index]) for index in range(0, len(points), every))


def _notes(series: Series, places: Sequence[float], style: str) -> tuple[str, ...]:
    if style != "points":
        return ()
    points = [series.points[int(place)] for place in places]
    return tuple(
        " ".join(filter(None, (point.run_id, short_commit(point), point.unit and unit_name(point.unit))))
        for point in points
    )
