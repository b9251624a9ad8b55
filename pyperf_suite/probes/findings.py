"""What a probe has to say about its records, as data that a terminal, a picture and a page can each present."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns; figures are formatted by whoever knows their meaning."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Series:
    """One line or set of points. `style` is "points" for measurements, "line" for a law, "beside" for a baseline."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: str
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """One pair of axes; `strong_edges` and `weak_edges` are x positions worth a solid or a dotted vertical line.

    `x_ticks` makes the x axis logarithmic and names places on it.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    strong_edges: tuple[float, ...] = ()
    weak_edges: tuple[float, ...] = ()
    x_ticks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class HeatMap:
    """Values over a grid of sizes: `values[row][column]` at `y[row]` and `x[column]`, NaN where there is no such case.

    `here` is the row and column of what the others are compared with, marked as that. Values of 1 are as good as it:
    above is drawn in one colour, below in the other, both darker the further away.
    """

    title: str
    x_label: str
    y_label: str
    value_label: str
    x: tuple[int, ...]
    y: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    here: tuple[int, int] | None = None


@dataclass(frozen=True)
class Bar:
    """One bar: its length, half the length of its error bar, and a second mark beside it; NaN is none of each.

    `note` says why there is no value.
    """

    name: str
    value: float
    error: float = math.nan
    mark: float = math.nan
    note: str = ""


@dataclass(frozen=True)
class Bars:
    """Bars from the left, the first on top. `label` names their values, `mark_label` the marks, in the legend."""

    title: str
    x_label: str
    bars: tuple[Bar, ...]
    label: str
    mark_label: str = ""


@dataclass(frozen=True)
class Figure:
    """Panels in rows; `name` is the file's stem, `caption` says in a sentence what one sees."""

    name: str
    title: str
    caption: str
    rows: tuple[tuple[Panel | HeatMap | Bars, ...], ...]


@dataclass(frozen=True)
class Document:
    """Text in a form that others know, to be kept as a file of that name beside the records."""

    name: str
    text: str


@dataclass(frozen=True)
class Findings:
    """Sentences first: they carry the conclusion; tables and figures show where it comes from."""

    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    documents: tuple[Document, ...] = ()
