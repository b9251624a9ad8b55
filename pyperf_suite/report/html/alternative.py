"""What a picture shows, in words, for those who do not see it."""

from __future__ import annotations

import math

from pyperf_suite.report.html.chart import Chart, Trace
from pyperf_suite.spec.findings import HeatMap

_MOST_TOLD = 6
KINDS = {"points": "measured", "line": "law, predicted", "beside": "measured for comparison"}


def chart_in_words(chart: Chart) -> str:
    """Axes, and of each series how many values, its ends and its extremes."""
    told = [_trace_in_words(trace) for trace in chart.traces[:_MOST_TOLD] if trace.x]
    more = len(chart.traces) - _MOST_TOLD
    head = f"{chart.title}: " if chart.title else ""
    return f"{head}{chart.y_label} over {chart.x_label}. {' '.join(told)}" + (
        f" {more} more series." if more > 0 else ""
    )


def map_in_words(heat_map: HeatMap) -> str:
    """Its axes, where the best and the worst cell lie, and which one is compared with."""
    cells = [
        (value, row, column)
        for row, values in enumerate(heat_map.values)
        for column, value in enumerate(values)
        if math.isfinite(value)
    ]
    head = f"{heat_map.title}: " if heat_map.title else ""
    head += f"{heat_map.value_label} for {len(heat_map.x)} values of {heat_map.x_label} by {len(heat_map.y)} of "
    head += f"{heat_map.y_label}."
    if not cells:
        return f"{head} No cell holds a value."

    def told(value: float, row: int, column: int) -> str:
        place = f"{heat_map.x_label} {heat_map.x[column]}, {heat_map.y_label} {heat_map.y[row]}"
        return f"{value:.2f} at {place}"

    return f"{head} Highest {told(*max(cells))}; lowest {told(*min(cells))}."


def _trace_in_words(trace: Trace) -> str:
    kind = KINDS.get(trace.style, trace.style)
    if len(trace.x) == 1:
        return f"{trace.label} ({kind}): {trace.y[0]:.4g} at {trace.x[0]:.6g}."
    ends = f"from {trace.y[0]:.4g} at {trace.x[0]:.6g} to {trace.y[-1]:.4g} at {trace.x[-1]:.6g}"
    return (
        f"{trace.label} ({kind}), {trace.total} values {ends}, lowest {min(trace.y):.4g}, highest {max(trace.y):.4g}."
    )
