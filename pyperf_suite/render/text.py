"""Quantities, tables, remarks and verdicts as text, and findings as Markdown and as JSON.

Every number that the suite shows is written here: three significant digits and a unit, a ratio with two decimals, so
that two of them can be compared at sight. docs/findings.md has every field of the JSON.
"""

from __future__ import annotations

import dataclasses
import json
import math
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyperf_suite.errors import printable
from pyperf_suite.findings import data
from pyperf_suite.findings.summary import SummaryPoint, cautions_of, summary_of
from pyperf_suite.record.quantity import UNITS, UNKNOWN_SPAN, VAGUE_SPAN, Quantity

if TYPE_CHECKING:
    from pyperf_suite.record.record import Record

NOT_KNOWN = "-"
# After the figures of a case whose measuring ended at its time limit.
LOOSE = "*"
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
SCHEMA, VERSION = "pyperf-suite findings", 1
_KINDS = {data.Panel: "panel", data.HeatMap: "heat map", data.Bars: "bars"}
# Fields that name a unit: what the values are counted in, and what they are shown in.
_UNITS = ("unit", "x_unit", "y_unit")


def quantity_text(quantity: Quantity) -> str:
    """With unit and interval, as in a sentence: `1.25 × [1.20, 1.31]`, `3.14 ms`, `+39 %`."""
    number, unit, interval = _parts(quantity)
    return " ".join(filter(None, (number, unit, interval)))


def bare(quantity: Quantity) -> str:
    """Without the unit if the column's heading has it: `1.25 [1.20, 1.31]`, `3.14`, `39 %`."""
    number, unit, interval = _parts(quantity)
    return " ".join(filter(None, (number, unit if unit != _in_heading(quantity.unit) else "", interval)))


def cell(value: data.Cell) -> str:
    """The text of one cell of a table."""
    if value is None:
        return NOT_KNOWN
    return bare(value) + LOOSE * (not value.converged) if isinstance(value, Quantity) else printable(str(value))


def heading(column: data.Heading) -> str:
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
    columns: tuple[data.Heading, ...]
    headings: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    cells: tuple[tuple[data.Cell, ...], ...]

    @property
    def legend(self) -> str:
        """Return the meaning of the cells' mark; empty where no cell has it."""
        marked = any(isinstance(each, Quantity) and not each.converged for row in self.cells for each in row)
        return f"{LOOSE} measuring ended at its time limit, before the interval was as narrow as required" * marked


def written(table: data.Table) -> WrittenTable:
    """Return a table as the terminal, Markdown and the page show it."""
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


def sentence(remark: data.Remark | data.ClaimVerdict) -> str:
    """A remark with its gaps filled; a verdict with its outcome, the claim and its source."""
    if isinstance(remark, data.Remark):
        return f"Predicted: {_fill(remark)}" if remark.kind == "predicted" else _fill(remark)
    outcome = remark.outcome if remark.outcome != "holds" and "not" not in remark.outcome else f"claim {remark.outcome}"
    return f"{_fill(remark.message)}; {outcome} ({in_words(remark.claim)}){_why(remark)}."


def measured(verdict: data.ClaimVerdict) -> str:
    """Return the measurement without the claim, which several verdicts may share."""
    return f"{_fill(verdict.message)}{_why(verdict)}."


def point(of: SummaryPoint) -> str:
    """One line of a summary, without its probe and without the source of a claim."""
    if isinstance(of.message, data.Remark):
        return _fill(of.message)
    if of.kind == "fails":
        return f"does not hold here: {of.message.claim.text} (measured: {quantity_text(of.message.measured)})"
    return f"{_fill(of.message.message)}."


def in_words(claim: data.Claim) -> str:
    """The claim and its source."""
    return f"{claim.text}: {claim.source}"


def by_claim(
    remarks: Iterable[data.Remark | data.ClaimVerdict],
) -> Iterator[data.Remark | tuple[data.Claim, list[data.ClaimVerdict]]]:
    """Remarks that are no noise, cautions first; the verdicts on one claim together, at the place of the first."""
    shown = [each for each in remarks if isinstance(each, data.ClaimVerdict) or not each.is_noise]
    shown.sort(key=lambda each: isinstance(each, data.ClaimVerdict) or each.kind != "caution")
    seen = []
    for each in shown:
        if isinstance(each, data.Remark):
            yield each
        elif each.claim not in seen:
            seen.append(each.claim)
            yield each.claim, [one for one in shown if isinstance(one, data.ClaimVerdict) and one.claim == each.claim]


def shown_in(unit: str, values: Sequence[float]) -> tuple[str, float]:
    """The unit that an axis of these values shows, and what they are divided by; one that fits the largest."""
    if unit in PERCENTAGES:
        return "%", 0.01
    return _scale(unit, max((abs(value) for value in values if math.isfinite(value)), default=0.0))


def _why(verdict: data.ClaimVerdict) -> str:
    """Why it is undecided and what would decide it; empty for the others."""
    return f": {verdict.why}, {verdict.remedy}" if verdict.why else ""


def _fill(remark: data.Remark) -> str:
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
    is_known = not math.isnan(quantity.value)
    number = _number(quantity.value / scale, quantity) if is_known else NOT_KNOWN
    interval = "noisy" if quantity.is_unknown else ""
    if quantity.span <= UNKNOWN_SPAN and not math.isnan(quantity.low) and (quantity.processes or quantity.predicted):
        ends = [_number(each / scale, quantity) for each in (quantity.low, quantity.high)]
        interval = f"[{ends[0]}, {ends[1]}] {interval}".rstrip()
    return number, unit if is_known else "", interval


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
    # Three significant digits, but no whole number is rounded to fewer than it has. Else two, or one.
    digits = 4 if of.unit in ("size", "ms", "us") else 3
    if of.span > VAGUE_SPAN:
        return f"{float(f'{value:.{1 if of.span > UNKNOWN_SPAN else 2}g}'):g}"
    short = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in short and 1 <= abs(value) < HUGE else short


def markdown_page(
    title: str,
    findings: Mapping[str, data.Findings],
    records: Sequence[Record],
    pictures: Sequence[Path],
    commands: Mapping[str, str] = MappingProxyType({}),
    summary: Iterable[str] = (),
) -> str:
    """Findings of every probe, below what measures it again (`commands`); pictures are named as files in one folder."""
    drawn = {picture.stem: picture.name for picture in pictures}
    of_the_run, of_probes = cautions_of(records, findings)
    lines = [f"# {markdown_escape(title)}", "", *_listed(summary)]
    lines += _listed(f"Caution: {sentence(each)}" for each in of_the_run)
    for name, found in findings.items():
        lines += [f"## {markdown_escape(name)}", ""]
        if name in commands:
            lines += [f"    {printable(commands[name])}", ""]
        lines += markdown_of(data.Findings(tuple(of_probes[name])) + found, drawn)
    return "\n".join(lines)


def markdown_of(findings: data.Findings, drawn: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Lines of remarks, pictures (`drawn` has the file by the figure's name) and tables."""
    lines = []
    for each in by_claim(findings.remarks):
        if isinstance(each, data.Remark):
            lines.append(f"- {'Caution: ' if each.kind == 'caution' else ''}{markdown_escape(sentence(each))}")
        else:
            claim, verdicts = each
            lines.append(f"- Claim: {markdown_escape(in_words(claim))}")
            lines += [f"  - **{verdict.outcome}**: {markdown_escape(measured(verdict))}" for verdict in verdicts]
    lines.append("")
    for figure in findings.figures:
        if figure.name in drawn:
            lines += [f"![{markdown_escape(figure.title)}]({drawn[figure.name]})", ""]
    for table in findings.tables:
        lines += [*markdown_table(table), ""]
    return lines


def markdown_table(table: data.Table) -> list[str]:
    """Lines of a table."""
    shown = written(table)
    rule = ["---:" if numeric else "---" for numeric in shown.numeric]
    rows = [[markdown_escape(word) for word in row] for row in (shown.headings, *shown.rows)]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])]
    lines += ["", markdown_escape(shown.legend)] if shown.legend else []
    return [f"**{markdown_escape(shown.title)}**", "", *lines] if shown.title else lines


def markdown_escape(words: str) -> str:
    """Plain text that Markdown or HTML would take for its own, on one line; what cannot be encoded is replaced."""
    one_line = " ".join(printable(words).split())
    harmless = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{character}" if character in "\\`*[]|#~" else character for character in harmless)


def _listed(sentences: Iterable[str]) -> list[str]:
    items = [f"- {markdown_escape(each)}" for each in sentences]
    return [*items, ""] if items else []


def as_text(content: Mapping[str, Any]) -> str:
    """The file's content: ASCII, and strict JSON whatever a producer put in."""
    return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"


def plain(value: Any, digits: int = 17) -> Any:
    """The same with only what JSON has: numpy scalars become numbers, what is not finite null, all else its text."""
    if isinstance(value, Mapping):
        return {printable(str(key)): plain(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, digits) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | float) else printable(str(value))


def answer(findings: Mapping[str, data.Findings], details: Mapping[str, Any] | None = None) -> str:
    """Return the JSON of a command that measures nothing: findings by name as `probes` have them, and its `details`."""
    parts = [{"name": name, **findings_as_data(found)} for name, found in findings.items()]
    summary = as_data(summary_of(findings))
    return as_text({"schema": SCHEMA, "version": VERSION, "summary": summary, "probes": parts, **(details or {})})


def findings_as_data(findings: data.Findings) -> dict[str, Any]:
    """Remarks, verdicts, tables and figures."""
    remarks = [each for each in findings.remarks if isinstance(each, data.Remark)]
    return {
        "cautions": as_data([each for each in remarks if each.kind == "caution"]),
        "remarks": as_data([each for each in remarks if each.kind != "caution"]),
        **{name: as_data(getattr(findings, name)) for name in ("verdicts", "tables", "figures", "documents")},
    }


def as_data(value: Any) -> Any:
    """Convert findings to plain data: of each object its fields, and figures that a reader would have to work out."""
    if isinstance(value, Quantity):
        held = vars(value)
        return {"value": held["value"], "unit": value.base, "shown": value.unit} | dict(list(held.items())[2:])
    if isinstance(value, data.Document):
        return value.name
    if isinstance(value, SummaryPoint):
        return {"kind": value.kind, "probe": value.probe or None, "text": point(value)}
    if isinstance(value, Mapping):
        return {name: as_data(each) for name, each in value.items()}
    if isinstance(value, list | tuple | range):
        return [as_data(each) for each in value]
    if not dataclasses.is_dataclass(value):
        return value
    fields = {
        name: {"base": UNITS[each][0], "shown": each} if name in _UNITS else as_data(each)
        for name, each in vars(value).items()
    }
    if isinstance(value, data.Remark):
        return {"text": sentence(value), **fields, "noise": value.is_noise}
    if isinstance(value, data.ClaimVerdict):
        return {"text": sentence(value), **fields}
    if isinstance(value, data.Series):
        return {**fields, "predicted": value.predicted}
    return {"kind": _KINDS[type(value)], **fields} if type(value) in _KINDS else fields
