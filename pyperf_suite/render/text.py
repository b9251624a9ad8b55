"""Quantities, cells, remarks and verdicts as text; every number that the suite shows is written here.

A number has three significant digits and its unit; a ratio two decimals, so that two of them can be compared at sight.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pyperf_suite.errors import printable
from pyperf_suite.spec.findings import Cell, Claim, Heading, Remark, Table, Verdict
from pyperf_suite.spec.quantity import UNITS, Quantity
from pyperf_suite.spec.summary import Point

NOT_KNOWN = "-"
# From here on digits are powers of ten.
HUGE = 1e15
FINE = 0.1
# A change beyond this is easier to read as a factor.
AS_FACTOR = 9.0
SUFFIX = {"x": "×", "count": "", "+%": "%", "%": "%"}
DURATIONS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
POWERS_OF_1024 = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))


def told(quantity: Quantity) -> str:
    """With unit and interval, as in a sentence: `1.25 × [1.20, 1.31]`, `3.14 ms`, `+39 %`."""
    shown = _as_read(quantity)
    return " ".join(filter(None, (*_parts(shown), _interval(shown))))


def bare(quantity: Quantity) -> str:
    """Without the unit where the column's heading has it: `1.25 [1.20, 1.31]`, `3.14`, `39 %`."""
    shown = _as_read(quantity)
    number, unit = _parts(shown)
    return " ".join(filter(None, (number, unit if unit != _in_heading(quantity.unit) else "", _interval(shown))))


def cell(value: Cell) -> str:
    """What stands in a table."""
    if value is None:
        return NOT_KNOWN
    return bare(value) if isinstance(value, Quantity) else printable(str(value))


def heading(column: Heading) -> str:
    """A column's name with the unit of its numbers: `time, ms`, `beside the loop, ×`."""
    unit = _in_heading(column.unit)
    return f"{column.name}, {unit}" if unit else column.name


def _in_heading(unit: str) -> str:
    return SUFFIX.get(unit, unit) if unit not in ("duration", "size", "%", "+%") else ""


def is_number(table: Table, place: int) -> bool:
    """Whether a column holds numbers, which stand to the right."""
    if table.columns[place].unit:
        return True
    cells = [row[place] for row in table.rows if row[place] is not None]
    return bool(cells) and all(isinstance(each, int | Quantity) for each in cells)


def filled(table: Table) -> Table:
    """The table without columns that have no value in any row."""
    places = [place for place in range(len(table.columns)) if any(row[place] not in (None, "") for row in table.rows)]
    columns = tuple(table.columns[place] for place in places)
    return replace(table, columns=columns, rows=tuple(tuple(row[place] for place in places) for row in table.rows))


def sentence(remark: Remark | Verdict) -> str:
    """A remark with its gaps filled; a verdict with its outcome, the claim and its source."""
    if isinstance(remark, Remark):
        return f"Predicted: {_fill(remark)}" if remark.kind == "predicted" else _fill(remark)
    outcome = remark.outcome if remark.outcome != "holds" and "not" not in remark.outcome else f"claim {remark.outcome}"
    return f"{_fill(remark.told)}; {outcome} ({in_words(remark.claim)}){_why(remark)}."


def measured(verdict: Verdict) -> str:
    """What was measured, without the claim: it stands beside, or above, others that were tried on the same claim."""
    return f"{_fill(verdict.told)}{_why(verdict)}."


def point(of: Point) -> str:
    """One line of a summary, without its probe and without the source of a claim."""
    if isinstance(of.told, Remark):
        return _fill(of.told)
    if of.kind == "fails":
        return f"does not hold here: {of.told.claim.text} (measured: {told(of.told.measured)})"
    return f"{_fill(of.told.told)}."


def in_words(claim: Claim) -> str:
    """The claim and where it stands."""
    return f"{claim.text}: {claim.source}"


def by_claim(remarks: Iterable[Remark | Verdict]) -> Iterator[Remark | tuple[Claim, list[Verdict]]]:
    """Remarks that are no noise, cautions first; the verdicts on one claim together, where the first of them is."""
    told = [each for each in remarks if isinstance(each, Verdict) or not each.is_noise]
    told.sort(key=lambda each: isinstance(each, Verdict) or each.kind != "caution")
    seen = []
    for each in told:
        if isinstance(each, Remark):
            yield each
        elif each.claim not in seen:
            seen.append(each.claim)
            yield each.claim, [one for one in told if isinstance(one, Verdict) and one.claim == each.claim]


def _why(verdict: Verdict) -> str:
    """What leaves it undecided, and what would decide it; empty for the others."""
    return f": {verdict.why}, {verdict.remedy}" if verdict.why else ""


def _fill(remark: Remark) -> str:
    words = {name: told(value) if isinstance(value, Quantity) else cell(value) for name, value in remark.values.items()}
    return printable(string.Formatter().vformat(remark.template, (), words))


def _parts(quantity: Quantity) -> tuple[str, str]:
    """The number and its unit."""
    unit, scale = _shown_in(quantity)
    if math.isnan(quantity.value):
        return NOT_KNOWN, ""
    if quantity.unit in ("%", "+%"):
        return _percent(quantity.value, "+" if quantity.unit == "+%" else ""), "%"
    return _number(quantity.value / scale, quantity), unit


def _as_read(quantity: Quantity) -> Quantity:
    """A large change as a factor."""
    if quantity.unit != "+%" or not quantity.value >= AS_FACTOR:
        return quantity
    value, low, high = (1 + each for each in (quantity.value, quantity.low, quantity.high))
    return replace(quantity, unit="x", value=value, low=low, high=high)


def _shown_in(quantity: Quantity) -> tuple[str, float]:
    """The unit, and what its number is divided by."""
    if quantity.unit in ("duration", "size"):
        sizes = DURATIONS if quantity.unit == "duration" else POWERS_OF_1024
        return next((each for each in sizes if abs(quantity.value) >= each[1]), sizes[-1])
    return SUFFIX.get(quantity.unit, quantity.unit), UNITS[quantity.unit][1]


def shown_in(unit: str, values: Sequence[float]) -> tuple[str, float]:
    """The unit that an axis of these values shows, and what they are divided by; one that fits the largest."""
    if unit in ("%", "+%"):
        return "%", 0.01
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return _shown_in(Quantity(largest, unit))


def _number(value: float, of: Quantity) -> str:
    if not math.isfinite(value):
        return NOT_KNOWN if math.isnan(value) else "any"
    if of.unit in ("x", "count") and abs(value) >= HUGE:
        return f"{value:.3g}"
    if of.unit == "x":
        # Small gains that are known well are told apart by the third decimal.
        is_fine = abs(of.value - 1) < FINE and 0 < of.high - of.low < FINE
        return f"{value:.{3 if is_fine else 2}f}" if abs(value) < 100 else f"{value:.0f}"
    if of.unit == "count":
        return f"{value:.0f}"
    # Three significant digits, but no whole number is rounded to fewer than it has.
    digits = 4 if of.unit in ("size", "ms", "us") else 3
    written = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in written and 1 <= abs(value) < HUGE else written


def _percent(value: float, sign: str) -> str:
    if not math.isfinite(value):
        return "any"
    if abs(value) >= HUGE:
        return f"{100 * value:{sign}.3g}"
    decimals = 1 if 0 < abs(value) < 0.1 else 0
    return f"{100 * value:{sign}.{decimals}f}"


def _interval(quantity: Quantity) -> str:
    if math.isnan(quantity.low) or not (quantity.processes or quantity.predicted):
        return ""
    if quantity.unit in ("%", "+%"):
        sign = "+" if quantity.unit == "+%" else ""
        return f"[{_percent(quantity.low, sign)}, {_percent(quantity.high, sign)}]"
    _, scale = _shown_in(quantity)
    low, high = (_number(bound / scale, quantity) for bound in (quantity.low, quantity.high))
    return f"[{low}, {high}]"
