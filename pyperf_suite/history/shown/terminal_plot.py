"""A series drawn with characters: a sparkline for a row of a table, and a plot with an axis for one alone."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")

_BARS = "▁▂▃▄▅▆▇█"
_INTERVAL, _BREAK = "│", "┊"
# Of the units of one identity each has its own mark, in the order of their first point.
MARKS = "●○◆◇■□▲△"

# Less of a spread than this is drawn flat: otherwise the eye takes noise for change.
LEAST_SPREAD = 0.05


@dataclass(frozen=True)
class Column:
    """One or several neighbouring points of a series: their median, what their intervals span, and their unit."""

    value: float
    low: float
    high: float
    unit: int = 0


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The newest at the right, the lowest as the lowest bar; more values than `width` are put together by medians."""
    if not values:
        return ""
    heights = [statistics.median(part) for part in _parts(values, width)]
    bottom, top = _span(min(heights), max(heights))
    # With an even number of bars the middle lies between two: a quarter off, what is flat stays on one of them.
    bars = (max(0.0, (height - bottom) / (top - bottom) * (len(_BARS) - 1) - 0.25) for height in heights)
    return "".join(_BARS[round(bar)] for bar in bars)


def plot(
    columns: Sequence[Column],
    breaks: Sequence[int],
    told: Callable[[float], str],
    width: int = 72,
    height: int = 11,
) -> list[str]:
    """Lines of characters with an axis at the left.

    Args:
        columns: The series, oldest first; where it is longer than `width`, neighbours between two breaks share a place.
        breaks: Indices of the points that a break stands before.
        told: How a value is written at the axis.
        width: Characters for the points, the axis not counted.
        height: Lines.
    """
    places = _places(columns, breaks, width)
    drawn = [place for place in places if place is not None]
    if not drawn:
        return []
    bottom, top = _span(min(place.low for place in drawn), max(place.high for place in drawn))

    def line_of(value: float) -> int:
        return round((top - value) / (top - bottom) * (height - 1))

    cells = [[" "] * len(places) for _ in range(height)]
    for column, place in enumerate(places):
        if place is None:
            for row in cells:
                row[column] = _BREAK
            continue
        for line in range(line_of(place.high), line_of(place.low) + 1):
            cells[line][column] = _INTERVAL
        cells[line_of(place.value)][column] = MARKS[place.unit % len(MARKS)]
    labels = [""] * height
    for line in (0, (height - 1) // 2, height - 1):
        labels[line] = told(top - (top - bottom) * line / (height - 1))
    widest = max(map(len, labels))
    gap = " " if len(places) * 2 <= width else ""
    return [f"{label:>{widest}} ┤{gap.join(row)}".rstrip() for label, row in zip(labels, cells, strict=True)]


def _places(columns: Sequence[Column], breaks: Sequence[int], width: int) -> list[Column | None]:
    """A column for each place of the plot, None for a break."""
    starts = [0, *sorted({index for index in breaks if 0 < index < len(columns)}), len(columns)]
    segments = [list(columns[start:end]) for start, end in itertools.pairwise(starts) if end > start]
    room = max(len(segments), width - len(segments) + 1)
    together = -(-len(columns) // room)
    places: list[Column | None] = []
    for number, segment in enumerate(segments):
        places += [None] if number else []
        places += [_joined(part) for part in _parts(segment, -(-len(segment) // together))]
    return places


def _joined(part: Sequence[Column]) -> Column:
    """Several points as one; of their units the newest."""
    return Column(
        statistics.median(each.value for each in part),
        min(each.low for each in part),
        max(each.high for each in part),
        part[-1].unit,
    )


def _parts(values: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """`values` in at most `count` runs of neighbours, as equal in length as can be."""
    count = max(1, min(count, len(values)))
    edges = [round(number * len(values) / count) for number in range(count + 1)]
    return [values[start:end] for start, end in itertools.pairwise(edges)]


def _span(lowest: float, highest: float) -> tuple[float, float]:
    """The range to draw: what there is, widened about its middle where it is next to nothing."""
    middle = (lowest + highest) / 2
    half = max((highest - lowest) / 2, abs(middle) * LEAST_SPREAD / 2) or 0.5
    return middle - half, middle + half
