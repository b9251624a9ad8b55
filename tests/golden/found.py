"""What the suite finds today, in the form of the golden files: the only module here that knows the types of findings.

Whoever changes those types changes this module, and neither the golden files nor the test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pyperf_suite.probes.findings import Bars, Findings, HeatMap, Panel
from pyperf_suite.report.html.sentence import judged
from pyperf_suite.report.run_report import findings_of
from pyperf_suite.runner.journal import read_journal

from .written import numbers_in, numbers_said


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


@cache
def findings_by_probe(records: Path) -> Mapping[str, Findings]:
    """The findings of each probe in a journal."""
    return findings_of(read_journal(records))


def tables(findings: Findings) -> list[Table]:
    """Every table."""
    return [Table(table.title, list(table.columns), [list(row) for row in table.rows]) for table in findings.tables]


def verdicts(findings: Findings) -> list[Verdict]:
    """Every claim that was judged, with the words of its verdict: holds, does not hold here, or undecided."""
    claims = filter(None, map(judged, findings.sentences))
    return [
        Verdict(each.claim, each.source, each.verdict, [number.value for number in numbers_in(each.measured)])
        for each in claims
    ]


def points(findings: Findings) -> list[Series]:
    """Every series of every figure, and the edges that are drawn through a panel, as series."""
    found = []
    for figure, panel in _panels(findings):
        if not isinstance(panel, Panel):
            continue
        place = (figure, panel.title)
        for series in panel.series:
            held = (series.x, series.y, series.low, series.high)
            found.append(Series(*place, series.label, series.style, *(list(map(float, values)) for values in held)))
        for label, edges in (("strong edges", panel.strong_edges), ("weak edges", panel.weak_edges)):
            if edges:
                found.append(Series(*place, "", label, list(map(float, edges)), [], [], []))
    return found


def bars(findings: Findings) -> list[Bar]:
    """Every bar of every figure."""
    return [
        Bar(figure, panel.title, bar.name, bar.value, bar.error, bar.mark)
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
    """Every number said in prose, as often as it is said and in its unit (39 for 39 %); not those of a claim's text."""
    said = []
    for sentence in findings.sentences:
        claim = judged(sentence)
        said += numbers_said(claim.measured if claim else sentence)
    return [number.value for number in said]


def documents(findings: Findings) -> Mapping[str, str]:
    """What is kept as text in a form that others know, by file name."""
    return {document.name: document.text for document in findings.documents}


def scale(figure: str, panel: str, label: str, axis: str) -> float:
    """By what the values of an axis ("x", "y" or "value") are multiplied to be in its golden unit.

    1e6 where a panel that was golden in microseconds is in seconds now.
    """
    return 1.0


def _panels(findings: Findings) -> Iterator[tuple[str, Panel | HeatMap | Bars]]:
    for figure in findings.figures:
        for row in figure.rows:
            for panel in row:
                yield figure.name, panel
