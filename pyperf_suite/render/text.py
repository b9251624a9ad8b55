"""Quantities, tables, remarks and verdicts as text; every number that the suite shows is written here.

A number has three significant digits and its unit; a ratio two decimals, so that two of them can be compared at sight.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.errors import printable
from pyperf_suite.findings.data import UNITS, Cell, Claim, ClaimVerdict, Heading, Quantity, Remark, Table
from pyperf_suite.findings.summary import SummaryPoint

NOT_KNOWN = "-"
# From here on digits are powers of ten.
HUGE = 1e15
FINE = 0.1
# A change beyond this is easier to read as a factor.
AS_FACTOR = 9.0
SUFFIX = {"x": "×", "count": "", "+%": "%", "%": "%"}
PERCENTAGES = ("%", "+%")
SCALES = {
    "duration": (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)),
    "joules": (("J", 1.0), ("mJ", 1e-3), ("µJ", 1e-6)),
    "size": (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0)),
}


def quantity_text(quantity: Quantity) -> str:
    """With unit and interval, as in a sentence: `1.25 × [1.20, 1.31]`, `3.14 ms`, `+39 %`."""
    number, unit, interval = _parts(quantity)
    return " ".join(filter(None, (number, unit, interval)))


def bare(quantity: Quantity) -> str:
    """Without the unit if the column's heading has it: `1.25 [1.20, 1.31]`, `3.14`, `39 %`."""
    number, unit, interval = _parts(quantity)
    return " ".join(filter(None, (number, unit if unit != _in_heading(quantity.unit) else "", interval)))


def cell(value: Cell) -> str:
    """The text of one cell of a table."""
    if value is None:
        return NOT_KNOWN
    return bare(value) if isinstance(value, Quantity) else printable(str(value))


def heading(column: Heading) -> str:
    """A column's name with the unit of its numbers: `time, ms`, `gain, ×`."""
    return with_unit(column.name, _in_heading(column.unit))


def with_unit(label: str, unit: str) -> str:
    """`time, ms`; the label alone if there is no unit."""
    return f"{label}, {unit}" if unit else label


def _in_heading(unit: str) -> str:
    return SUFFIX.get(unit, unit) if unit not in (*SCALES, *PERCENTAGES) else ""


@dataclass(frozen=True)
class WrittenTable:
    """A table as text, without columns that have no value in any row. Columns of numbers stand to the right."""

    title: str
    columns: tuple[Heading, ...]
    headings: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    cells: tuple[tuple[Cell, ...], ...]


def written(table: Table) -> WrittenTable:
    """What the terminal, Markdown and the page show of a table."""
    places = [place for place in range(len(table.columns)) if any(row[place] not in (None, "") for row in table.rows)]
    columns = tuple(table.columns[place] for place in places)
    cells = tuple(tuple(row[place] for place in places) for row in table.rows)
    numeric = tuple(
        bool(column.unit) or all(isinstance(row[place], int | Quantity | None) for row in cells)
        for place, column in enumerate(columns)
    )
    rows = tuple(tuple(map(cell, row)) for row in cells)
    headings = tuple(printable(heading(column)) for column in columns)
    return WrittenTable(printable(table.title), columns, headings, numeric, rows, cells)


def sentence(remark: Remark | ClaimVerdict) -> str:
    """A remark with its gaps filled; a verdict with its outcome, the claim and its source."""
    if isinstance(remark, Remark):
        return f"Predicted: {_fill(remark)}" if remark.kind == "predicted" else _fill(remark)
    outcome = remark.outcome if remark.outcome != "holds" and "not" not in remark.outcome else f"claim {remark.outcome}"
    return f"{_fill(remark.message)}; {outcome} ({in_words(remark.claim)}){_why(remark)}."


def measured(verdict: ClaimVerdict) -> str:
    """What was measured, without the claim, which several verdicts may share."""
    return f"{_fill(verdict.message)}{_why(verdict)}."


def point(of: SummaryPoint) -> str:
    """One line of a summary, without its probe and without the source of a claim."""
    if isinstance(of.message, Remark):
        return _fill(of.message)
    if of.kind == "fails":
        return f"does not hold here: {of.message.claim.text} (measured: {quantity_text(of.message.measured)})"
    return f"{_fill(of.message.message)}."


def in_words(claim: Claim) -> str:
    """The claim and its source."""
    return f"{claim.text}: {claim.source}"


def by_claim(remarks: Iterable[Remark | ClaimVerdict]) -> Iterator[Remark | tuple[Claim, list[ClaimVerdict]]]:
    """Remarks that are no noise, cautions first; the verdicts on one claim together, at the place of the first."""
    held = [each for each in remarks if isinstance(each, ClaimVerdict) or not each.is_noise]
    held.sort(key=lambda each: isinstance(each, ClaimVerdict) or each.kind != "caution")
    seen = []
    for each in held:
        if isinstance(each, Remark):
            yield each
        elif each.claim not in seen:
            seen.append(each.claim)
            yield each.claim, [one for one in held if isinstance(one, ClaimVerdict) and one.claim == each.claim]


def shown_in(unit: str, values: Sequence[float]) -> tuple[str, float]:
    """The unit that an axis of these values shows, and what they are divided by; one that fits the largest."""
    if unit in PERCENTAGES:
        return "%", 0.01
    return _scale(unit, max((abs(value) for value in values if math.isfinite(value)), default=0.0))


def _why(verdict: ClaimVerdict) -> str:
    """Why it is undecided and what would decide it; empty for the others."""
    return f": {verdict.why}, {verdict.remedy}" if verdict.why else ""


def _fill(remark: Remark) -> str:
    words = {
        name: quantity_text(value) if isinstance(value, Quantity) else cell(value)
        for name, value in remark.values.items()
    }
    return printable(string.Formatter().vformat(remark.template, (), words))


def _parts(quantity: Quantity) -> tuple[str, str, str]:
    """The number, its unit and its interval, all in the same unit; a large change as a factor."""
    if quantity.unit == "+%" and quantity.value >= AS_FACTOR:
        value, low, high = (1 + each for each in (quantity.value, quantity.low, quantity.high))
        quantity = replace(quantity, unit="x", value=value, low=low, high=high)
    unit, scale = _scale(quantity.unit, quantity.value)
    known = not math.isnan(quantity.value)
    number = _number(quantity.value / scale, quantity) if known else NOT_KNOWN
    interval = ""
    if not math.isnan(quantity.low) and (quantity.processes or quantity.predicted):
        interval = f"[{_number(quantity.low / scale, quantity)}, {_number(quantity.high / scale, quantity)}]"
    if quantity.noisy:
        interval = f"{interval} noisy".lstrip()
    return number, unit if known else "", interval


def _scale(unit: str, value: float) -> tuple[str, float]:
    """The unit in which a value is shown, and what its number is divided by."""
    if scales := SCALES.get(unit):
        return next((each for each in scales if abs(value) >= each[1]), scales[-1])
    return SUFFIX.get(unit, unit), 1.0 if unit in PERCENTAGES else UNITS[unit][1]


def _number(value: float, of: Quantity) -> str:
    if not math.isfinite(value):
        return NOT_KNOWN if math.isnan(value) else "any"
    if of.unit in PERCENTAGES:
        form = ".3g" if abs(value) >= HUGE else f".{1 if 0 < abs(value) < 0.1 else 0}f"
        return f"{100 * value:{'+' if of.unit == '+%' else ''}{form}}"
    if of.unit in ("x", "count") and abs(value) >= HUGE:
        return f"{value:.3g}"
    if of.unit == "x":
        # Small gains that are known well differ in the third decimal.
        is_fine = abs(of.value - 1) < FINE and 0 < of.high - of.low < FINE
        return f"{value:.{3 if is_fine else 2}f}" if abs(value) < 100 else f"{value:.0f}"
    if of.unit == "count":
        return f"{value:.0f}"
    # Three significant digits, but no whole number is rounded to fewer than it has.
    digits = 4 if of.unit in ("size", "ms", "us") else 3
    short = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in short and 1 <= abs(value) < HUGE else short
