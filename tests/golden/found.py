"""Findings of today in the form of the golden files: the only module here that knows the types of findings.

Whoever changes those types changes this module, and neither the golden files nor the test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from golden.written import numbers_said
from pyperf_suite.findings.data import Bars, Cell, Findings, HeatMap, Panel
from pyperf_suite.findings.data import ClaimVerdict as Judged
from pyperf_suite.probes import find_probe
from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.quantity import UNITS, Quantity
from pyperf_suite.render.text import bare, sentence


class Table(NamedTuple):
    """Cells are text, as people read them, in the units of the golden columns; more digits than golden are welcome."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class Verdict(NamedTuple):
    """`measured`: what was judged (value, low end, high end); other numbers may stand before, between and after."""

    claim: str
    source: str
    verdict: str
    measured: list[float]


class Series(NamedTuple):
    """One line, set of points, or set of edges (style "strong edges" or "weak edges", which have no y)."""

    figure: str
    panel: str
    label: str
    style: str
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]


class Bar(NamedTuple):
    """One bar; NaN where it has no such value."""

    figure: str
    panel: str
    name: str
    value: float
    error: float
    mark: float


class Map(NamedTuple):
    """Values over a grid; NaN where there is no such case."""

    figure: str
    panel: str
    x: list[float]
    y: list[float]
    values: list[list[float]]


OUTCOMES = {"holds": "claim holds", "does not hold here": "claim does not hold here", "undecided": "undecided"}
# Golden prose has a quantity in a unit that fitted its size.
SCALES = (1, 100, *(10.0 ** (3 * power) for power in range(-4, 5)), *(2.0 ** (10 * power) for power in (-3, -2, -1)))


@cache
def findings_by_probe(records: Path) -> Mapping[str, Findings]:
    """The findings of each probe in a journal."""
    by_probe: dict[str, list[Any]] = {}
    for record in read_journal(records):
        by_probe.setdefault(record.probe, []).append(record)
    return {name: find_probe(name).findings(held) for name, held in by_probe.items() if name != "sentinel"}


def tables(findings: Findings) -> list[Table]:
    """Every table."""
    golden_tables = []
    for table in findings.tables:
        columns = [getattr(column, "name", column) for column in table.columns]
        # Golden has an error in the cell of its value: 149 ± 3.4.
        errors = [place for place, name in enumerate(columns) if name.startswith("±")]
        cells = [[[*cell_texts(cell)] for cell in row] for row in table.rows]
        for row in cells:
            for place in errors:
                row[place - 1] = [f"{row[place - 1][0]} ± {row[place][0]}"]
        golden_tables.append(Table(table.title, columns, [[text for cell in row for text in cell] for row in cells]))
    return golden_tables


def cell_text(cell: Cell) -> str:
    """A quantity in full precision, in its unit, with its bounds where it was timed over processes."""
    if not isinstance(cell, Quantity):
        return "-" if cell is None else str(cell)
    if cell.unit in ("duration", "size"):
        return bare(cell)
    bounds = "" if cell.processes == 0 else f" [{in_unit(cell, cell.low)!r}, {in_unit(cell, cell.high)!r}]"
    return f"{in_unit(cell, cell.value)!r}{bounds}"


def cell_texts(cell: Cell) -> list[str]:
    """A cell, then the bounds of a quantity apart: golden has them in columns of their own here and there."""
    if not isinstance(cell, Quantity) or cell.processes == 0:
        return [cell_text(cell)]
    return [cell_text(cell), *(repr(in_unit(cell, value)) for value in (cell.value, cell.low, cell.high))]


def in_unit(quantity: Quantity, value: float) -> float:
    """One of its values in the unit it is shown in."""
    return value * (100 if quantity.unit in ("%", "+%") else 1 / UNITS[quantity.unit][1])


def verdicts(findings: Findings) -> list[Verdict]:
    """Every claim that was judged, with the words of its verdict: holds, does not hold here, or undecided."""
    return [
        Verdict(each.claim.text, each.claim.source, OUTCOMES[each.outcome], list(_values(each.measured)))
        for each in findings.verdicts
    ]


def _values(quantity: Quantity) -> Iterator[float]:
    for scale in (1 / UNITS[quantity.unit][1], 100):
        yield from (quantity.value * scale, quantity.low * scale, quantity.high * scale)


def points(findings: Findings) -> list[Series]:
    """Every series of every figure, and the edges that are drawn through a panel, as series."""
    series_list = []
    for figure, panel in _panels(findings):
        if not isinstance(panel, Panel):
            continue
        place = (figure, panel.title)
        for series in panel.series:
            x = [value * factor(panel.x_unit) for value in series.x]
            # Golden points always have bounds: what was counted has those of its value.
            low, high = (ends or (series.y if series.style == "points" else ()) for ends in (series.low, series.high))
            held = ([v * factor(panel.y_unit) for v in values] for values in (series.y, low, high))
            series_list.append(Series(*place, series.label, series.style, x, *held))
        for label, edges in (("strong edges", panel.strong_edges), ("weak edges", panel.weak_edges)):
            if edges:
                series_list.append(
                    Series(*place, "", label, [edge * factor(panel.x_unit) for edge in edges], [], [], [])
                )
    return series_list


def factor(unit: str) -> float:
    """By what values in the base of a unit are multiplied to be in it."""
    return 100.0 if unit in ("%", "+%") else 1 / UNITS[unit][1]


def bars(findings: Findings) -> list[Bar]:
    """Every bar of every figure."""
    return [
        Bar(
            figure,
            panel.title,
            bar.name,
            bar.value * factor(panel.unit),
            bar.error * factor(panel.unit),
            bar.mark * factor(panel.unit),
        )
        for figure, panel in _panels(findings)
        if isinstance(panel, Bars)
        for bar in panel.bars
    ]


def heat_maps(findings: Findings) -> list[Map]:
    """Every heat map of every figure."""
    return [
        Map(figure, panel.title, list(panel.x), list(panel.y), [list(row) for row in panel.values])
        for figure, panel in _panels(findings)
        if isinstance(panel, HeatMap)
    ]


def numbers(findings: Findings) -> list[float]:
    """Every number of remarks, verdicts, tables and figures, in each unit that prose may have; 39 for 39 %.

    What golden said in a sentence may stand in a table now.
    """
    figures: list[float] = []
    for each in findings.remarks:
        figures += _in_text(each if isinstance(each, str) else sentence(each))
        figures += _of_cells(
            [] if isinstance(each, str) else (each.message if isinstance(each, Judged) else each).values.values()
        )
    for table in findings.tables:
        figures += [number for row in table.rows for number in _of_cells(row)]
        figures += _in_text(table.title)
    for series in points(findings):
        figures += [
            value * scale for values in (series.y, series.low, series.high) for value in values for scale in (1, 100)
        ]
    return figures


def _in_text(text: str) -> list[float]:
    return [number.value for number in numbers_said(text)]


def _of_cells(cells: Iterable[Cell]) -> Iterator[float]:
    for cell in cells:
        if isinstance(cell, Quantity):
            yield from (value * scale for value in (cell.value, cell.low, cell.high) for scale in SCALES)
            yield 100 * (cell.value - 1)
        elif cell is not None:
            yield from _in_text(str(cell))


def documents(findings: Findings) -> Mapping[str, str]:
    """Findings kept as text in a known form, by file name."""
    return {document.name: document.text for document in findings.documents}


def _panels(findings: Findings) -> Iterator[tuple[str, Panel | HeatMap | Bars]]:
    for figure in findings.figures:
        for row in figure.rows:
            for panel in row:
                yield figure.name, panel
