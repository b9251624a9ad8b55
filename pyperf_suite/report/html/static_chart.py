"""A chart as SVG without a script: what is printed, and what is seen until the script has drawn its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pyperf_suite.report.html.chart import Chart, Trace
from pyperf_suite.report.html.escape import text
from pyperf_suite.report.html.ticks import round_ticks, short

WIDTH, HEIGHT = 440, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 10, 10, 46

Place = Callable[[float], float]


def draw_chart(chart: Chart) -> str:
    """The SVG; colours are the style sheet's, so that it follows light, dark and print."""
    across, up = _places(chart)
    parts = [
        f'<svg class="still" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true" focusable="false">',
        *_grid(chart, across, up),
        *_edges(chart.strong_edges, "edge", chart, across),
        *_edges(chart.weak_edges, "edge weak", chart, across),
        *(part for trace in sorted(chart.traces, key=_depth) for part in _trace(trace, across, up)),
        "</svg>",
    ]
    return "".join(parts)


def _places(chart: Chart) -> tuple[Place, Place]:
    scaled: Callable[[float], float] = math.log10 if chart.log else float
    left, right = map(scaled, chart.x_range)
    low, high = chart.y_range
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    return (
        lambda x: _LEFT + width * (scaled(x) - left) / ((right - left) or 1.0),
        lambda y: HEIGHT - _BOTTOM - height * (y - low) / ((high - low) or 1.0),
    )


def _depth(trace: Trace) -> int:
    return ("beside", "line", "points").index(trace.style) if trace.style in ("beside", "line") else 2


def _grid(chart: Chart, across: Place, up: Place) -> list[str]:
    """Lines at round values of y, names below x, and both labels."""
    bottom = HEIGHT - _BOTTOM
    parts = []
    for value in round_ticks(*chart.y_range):
        y = up(value)
        parts.append(f'<path class="grid" d="M{_LEFT},{y:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{short(value)}</text>')
    for x, name in _names(chart, across):
        parts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{text(name)}</text>')
    middle = (_TOP + bottom) / 2
    parts.append(f'<path class="axis" d="M{_LEFT},{bottom}H{WIDTH - _RIGHT}"/>')
    parts.append(
        f'<text class="label" x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{text(chart.x_label)}</text>"
    )
    parts.append(
        f'<text class="label" transform="translate(13,{middle}) rotate(-90)" text-anchor="middle">'
        f"{text(chart.y_label)}</text>"
    )
    return parts


def _names(chart: Chart, across: Place) -> list[tuple[float, str]]:
    """As many names as stand beside each other without touching."""
    if chart.ticks:
        named = [(across(place), name) for place, name in chart.ticks]
    elif chart.log:
        first, last = (math.log10(end) for end in chart.x_range)
        named = [(across(10.0**power), f"{10.0**power:g}") for power in range(math.ceil(first), int(last) + 1)]
    else:
        named = [(across(value), short(value)) for value in round_ticks(*chart.x_range)]
    shown: list[tuple[float, str]] = []
    end = 0.0
    for x, name in sorted(named):
        half = 3.2 * len(name) + 3
        if x - half >= end and x >= _LEFT - 1 and x <= WIDTH - _RIGHT + 1:
            shown.append((x, name))
            end = x + half
    return shown


def _edges(places: Sequence[float], name: str, chart: Chart, across: Place) -> list[str]:
    inside = [place for place in places if chart.x_range[0] <= place <= chart.x_range[1]]
    lines = "".join(f"M{across(place):.1f},{_TOP}V{HEIGHT - _BOTTOM}" for place in inside)
    return [f'<path class="{name}" d="{lines}"/>'] if lines else []


def _trace(trace: Trace, across: Place, up: Place) -> list[str]:
    series: dict[str, Any] = {"data-series": text(trace.label)}
    named = "".join(f' {name}="{value}"' for name, value in series.items())
    places = [(across(x), up(y)) for x, y in zip(trace.x, trace.y, strict=True)]
    if not places:
        return []
    if trace.style in ("line", "beside"):
        line = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places)
        return [f'<path class="{trace.style} k{trace.colour}"{named} d="{line}"/>']
    parts = []
    if trace.low and trace.high:
        bars = "".join(
            f"M{across(x):.1f},{up(low):.1f}V{up(high):.1f}"
            for x, low, high in zip(trace.x, trace.low, trace.high, strict=True)
            if math.isfinite(low) and math.isfinite(high)
        )
        parts.append(f'<path class="bar k{trace.colour}"{named} d="{bars}"/>')
    shape = "square" if isinstance(trace.colour, int) and trace.colour % 2 else "round"
    dots = "".join(f"M{x:.1f},{y:.1f}h0" for x, y in places)
    parts.append(f'<path class="points k{trace.colour} {shape}"{named} d="{dots}"/>')
    return parts
