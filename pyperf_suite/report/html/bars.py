"""Bars of configurations as SVG and as data for the script: a length, an error, a second mark, a note where none is."""

from __future__ import annotations

import math
from typing import Any

from pyperf_suite.report.html.escape import text
from pyperf_suite.report.html.ticks import round_ticks, short
from pyperf_suite.spec.findings import Bar, Bars, Table

_WIDTH, _ROW, _TOP, _BOTTOM, _RIGHT = 760, 26, 6, 44, 64
_LETTER = 6.4
_MOST_LETTERS = 44


def draw_bars(panel: Bars) -> str:
    """The SVG: names at the left, values at the end of each bar."""
    longest = min(_MOST_LETTERS, max(len(bar.name) for bar in panel.bars))
    left = 12 + _LETTER * longest
    low, high = range_of(panel)
    height = _TOP + len(panel.bars) * _ROW + _BOTTOM
    bottom = height - _BOTTOM

    def across(value: float) -> float:
        return left + (_WIDTH - left - _RIGHT) * (value - low) / (high - low)

    parts = [f'<svg class="still bars" viewBox="0 0 {_WIDTH} {height}" aria-hidden="true" focusable="false">']
    for value in round_ticks(low, high):
        x = across(value)
        parts.append(f'<path class="grid" d="M{x:.1f},{_TOP}V{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{short(value)}</text>')
    for number, bar in enumerate(panel.bars):
        y = _TOP + number * _ROW + 4
        name = bar.name if len(bar.name) <= _MOST_LETTERS else f"{bar.name[: _MOST_LETTERS - 1]}…"
        parts.append(f'<text x="{left - 6:.1f}" y="{y + 13}" text-anchor="end">{text(name)}</text>')
        parts += _bar(bar, y, across)
    parts.append(
        f'<text class="label" x="{(left + _WIDTH - _RIGHT) / 2:.1f}" y="{height - 8}" text-anchor="middle">'
        f"{text(panel.x_label)}</text></svg>"
    )
    return "".join(parts)


def bars_as_json(panel: Bars) -> dict[str, Any]:
    """What the script draws from."""
    return {
        "kind": "bars",
        "x": panel.x_label,
        "label": panel.label,
        "mark_label": panel.mark_label,
        "xr": range_of(panel),
        "names": [bar.name for bar in panel.bars],
        "values": [bar.value for bar in panel.bars],
        "errors": [bar.error for bar in panel.bars],
        "marks": [bar.mark for bar in panel.bars],
        "notes": [bar.note for bar in panel.bars],
    }


def range_of(panel: Bars) -> tuple[float, float]:
    """From zero, or below, to a little beyond the longest."""
    ends = [
        end
        for bar in panel.bars
        for end in (bar.value + (bar.error if math.isfinite(bar.error) else 0.0), bar.mark)
        if math.isfinite(end)
    ]
    low, high = min(0.0, *ends, 0.0), max(0.0, *ends, 0.0)
    return (low * 1.06, high * 1.06) if high > low else (0.0, 1.0)


def bars_in_words(panel: Bars) -> str:
    """How many bars, the longest and the shortest."""
    told = [bar for bar in panel.bars if math.isfinite(bar.value)]
    head = f"{panel.title}: " if panel.title else ""
    head += f"{panel.x_label} of {len(panel.bars)} bars ({panel.label})."
    if not told:
        return f"{head} None holds a value."
    most, least = max(told, key=lambda bar: bar.value), min(told, key=lambda bar: bar.value)
    return f"{head} Longest: {most.name}, {most.value:.4g}; shortest: {least.name}, {least.value:.4g}."


def table_of_bars(panel: Bars) -> Table:
    """The bars in rows."""
    rows = tuple((bar.name, _said(bar.value), _said(bar.error), _said(bar.mark), bar.note) for bar in panel.bars)
    columns = ("", panel.x_label, "half the error bar", panel.mark_label or "mark", "note")
    return Table(panel.title or panel.x_label, columns, rows)


def _bar(bar: Bar, y: int, across: Any) -> list[str]:
    if not math.isfinite(bar.value):
        return [f'<text class="quiet" x="{across(0.0) + 6:.1f}" y="{y + 13}">{text(bar.note or "no value")}</text>']
    start, end = sorted((across(0.0), across(bar.value)))
    parts = [f'<rect class="b0" x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="{_ROW - 9}" rx="2"/>']
    reach = end
    middle = y + (_ROW - 9) / 2
    if math.isfinite(bar.error):
        one, other = across(bar.value - bar.error), across(bar.value + bar.error)
        parts.append(f'<path class="whisker" d="M{one:.1f},{middle}H{other:.1f}"/>')
        reach = max(reach, other)
    if math.isfinite(bar.mark):
        x = across(bar.mark)
        parts.append(f'<path class="second" d="M{x:.1f},{y - 2}V{y + _ROW - 7}"/>')
        reach = max(reach, x)
    parts.append(f'<text x="{reach + 6:.1f}" y="{y + 13}">{short(bar.value)}</text>')
    return parts


def _said(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ""
