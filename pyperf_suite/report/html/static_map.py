"""A heat map as SVG without a script, in colours that the style sheet mixes."""

from __future__ import annotations

import math

from pyperf_suite.report.html.escape import text
from pyperf_suite.spec.findings import HeatMap

_CELL_WIDTH, _CELL_HEIGHT = 38, 24
_LEFT, _TOP, _RIGHT, _BOTTOM = 74, 8, 8, 52
# Cells of more than this many have no room for a number.
_MOST_NUMBERS = 260
# A map in which nothing differs must not be painted in full colour.
LEAST_SPREAD = 0.02


def spread_of(heat_map: HeatMap) -> float:
    """How far from 1 the colours reach."""
    values = [abs(value - 1) for row in heat_map.values for value in row if math.isfinite(value)]
    return max(LEAST_SPREAD, max(values, default=0.0))


def least_width(heat_map: HeatMap) -> int:
    """In pixels, so that numbers in neighbouring cells do not touch."""
    return _LEFT + _RIGHT + 32 * len(heat_map.x)


def draw_map(heat_map: HeatMap) -> str:
    """Cells from below upwards, their numbers where they have room, a frame around what others are compared with."""
    rows, columns = len(heat_map.y), len(heat_map.x)
    width, height = _LEFT + columns * _CELL_WIDTH + _RIGHT, _TOP + rows * _CELL_HEIGHT + _BOTTOM
    spread = spread_of(heat_map)
    numbered = rows * columns <= _MOST_NUMBERS
    parts = [f'<svg class="still map" viewBox="0 0 {width} {height}" aria-hidden="true" focusable="false">']
    for row, values in enumerate(heat_map.values):
        for column, value in enumerate(values):
            parts += _cell(_LEFT + column * _CELL_WIDTH, _top(rows, row), value, spread, numbered)
    if heat_map.here is not None:
        row, column = heat_map.here
        parts.append(
            f'<rect class="here" x="{_LEFT + column * _CELL_WIDTH}" y="{_top(rows, row)}" width="{_CELL_WIDTH}" '
            f'height="{_CELL_HEIGHT}"/>'
        )
    bottom = _TOP + rows * _CELL_HEIGHT
    for column in range(0, columns, max(1, math.ceil(columns / 24))):
        x = _LEFT + (column + 0.5) * _CELL_WIDTH
        parts.append(f'<text x="{x}" y="{bottom + 15}" text-anchor="middle">{text(heat_map.x[column])}</text>')
    for row in range(0, rows, max(1, math.ceil(rows / 30))):
        y = _top(rows, row) + _CELL_HEIGHT / 2 + 4
        parts.append(f'<text x="{_LEFT - 6}" y="{y}" text-anchor="end">{text(heat_map.y[row])}</text>')
    parts.append(
        f'<text class="label" x="{(_LEFT + width - _RIGHT) / 2}" y="{height - 12}" text-anchor="middle">'
        f"{text(heat_map.x_label)}</text>"
        f'<text class="label" transform="translate(13,{(_TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{text(heat_map.y_label)}</text></svg>"
    )
    return "".join(parts)


def _top(rows: int, row: int) -> int:
    return _TOP + (rows - 1 - row) * _CELL_HEIGHT


def _cell(x: int, y: int, value: float, spread: float, numbered: bool) -> list[str]:
    if not math.isfinite(value):
        return [f'<rect class="none" x="{x}" y="{y}" width="{_CELL_WIDTH}" height="{_CELL_HEIGHT}"/>']
    towards = "high" if value > 1 else "low"
    share = min(100, round(100 * abs(value - 1) / spread))
    parts = [
        f'<rect x="{x}" y="{y}" width="{_CELL_WIDTH}" height="{_CELL_HEIGHT}" '
        f'style="fill:color-mix(in srgb,var(--{towards}) {share}%,var(--middle))"/>'
    ]
    if numbered:
        dark = ' class="on-dark"' if share > 55 else ' class="in-cell"'
        parts.append(
            f'<text{dark} x="{x + _CELL_WIDTH / 2}" y="{y + _CELL_HEIGHT / 2 + 4}" text-anchor="middle">'
            f"{value:.2f}</text>"
        )
    return parts
