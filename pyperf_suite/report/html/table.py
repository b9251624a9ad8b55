"""Tables of findings as HTML: figures to the right, headings that sort, a frame that scrolls and not the page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyperf_suite.report.html.escape import text
from pyperf_suite.report.html.predicted import mark_if_predicted
from pyperf_suite.spec.findings import Table

# Rows beyond this many are left to the records; the page stays one that can be sent.
MOST_ROWS = 1000
_TALL = 16
# Characters from which on the words of a cell are broken into lines rather than push figures out of sight.
_LONG = 28
_SORT = '<button type="button" class="sort">'
# A number, or none: with its unit and its interval, but no more words.
_FIGURE = re.compile(r"-?|([+\-−]?[\d.,]+(e[+\-]?\d+)?)( ?(%|[A-Za-z/]{1,6}))?( \[.*\]( %)?)?")


def draw_table(table: Table) -> str:
    """The table with its title as caption; what is left out is said below."""
    left_out = len(table.rows) - MOST_ROWS
    tall = " tall" if len(table.rows) > _TALL else ""
    numeric = [_is_figure([row[place] for row in table.rows]) for place in range(len(table.columns))]
    heads = "".join(
        f'<th scope="col"{_class(numeric[place])}>{_SORT}{text(name) or "&#8203;"}</button></th>'
        for place, name in enumerate(table.columns)
    )
    rows = "".join(
        f"<tr>{''.join(_cell(cell, is_figure) for cell, is_figure in zip(row, numeric, strict=True))}</tr>"
        for row in table.rows[:MOST_ROWS]
    )
    said = f'<p class="quiet">{left_out} more rows are not shown; the records hold all.</p>' if left_out > 0 else ""
    return (
        f'<div class="table-frame{tall}" role="region" tabindex="0" aria-label="{text(table.title)}">'
        f"<table><caption>{text(table.title)}{mark_if_predicted(table.title)}</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{said}"
    )


def draw_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values below each other."""
    return (
        '<dl class="pairs">'
        + "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in pairs)
        + "</dl>"
    )


def _is_figure(cells: Sequence[str]) -> bool:
    return any(cells) and all(_FIGURE.fullmatch(cell) for cell in cells)


def _class(is_figure: bool) -> str:
    return ' class="figure"' if is_figure else ""


def _cell(cell: str, is_figure: bool) -> str:
    long = ' class="long"' if len(cell) > _LONG and not is_figure else ""
    return f"<td{_class(is_figure)}{long}>{text(cell)}</td>"
