"""Findings of a probe: remarks, verdicts on claims, tables, figures. Numbers are quantities until `render` writes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pyperf_suite.record.interval import Ratio, exactly
from pyperf_suite.record.quantity import Quantity, quantity

BEKMAN = "Bekman, Machine Learning Engineering"
TRANSFORMERS = "Hugging Face Transformers, Performance and Scalability"
BIGSCIENCE = "BigScience, tflops_optimization.md"


# Text and whole numbers are names: of an implementation, a dtype, a size of a dimension. None is "not known".
Cell = str | int | Quantity | None


Kind = Literal["", "law", "predicted", "caution"]


@dataclass(frozen=True)
class Remark:
    """A sentence with gaps: `template` names in braces the `values` that it speaks of.

    `kind` says what it is: "" for what was measured, "law" for a fitted law and its error, "predicted" for what nobody
    measured, "caution" for what makes other findings less sure. `effect` names the value by whose size a summary weighs
    it, a ratio or a change; where its interval leaves open that there is none, the remark is noise and not shown. So is
    one of cases of which most were `disturbed` all the time.
    """

    template: str
    values: Mapping[str, Cell] = field(default_factory=dict)
    kind: Kind = ""
    effect: str = ""
    disturbed: bool = False

    @property
    def is_noise(self) -> bool:
        """True if the effect is unknown, its interval includes none, or a quantity was never seen undisturbed."""
        if self.disturbed or any(isinstance(each, Quantity) and each.is_unknown for each in self.values.values()):
            return True
        if not self.effect:
            return False
        found = self.values.get(self.effect)
        if not isinstance(found, Quantity) or math.isnan(found.value):
            return True
        none = 0.0 if found.base == "change" else 1.0
        return not found.excludes(none) if found.has_interval else found.value == none


def remark(template: str, item: Any = None, *, kind: Kind = "", effect: str = "", **values: Any) -> Remark:
    """A remark on an item: `remark("{sweep.setting}: {size} takes {seconds:ms}, {faster} as fast", cliff)`.

    What the template names and `values` lack is an attribute of the item, or one of its attribute's; of an item only
    what is named is kept. A unit after the colon makes a quantity of a number, which is predicted where `~` follows the
    unit; a Ratio or a float is one anyway.
    """
    cells, units = dict(values), {}

    def plain(gap: re.Match[str]) -> str:
        name = gap[1].replace(".", "_")
        if name not in cells:
            cells[name] = named(item, gap[1])
        units[name] = gap[2] or ""
        return f"{{{name}}}"

    template = re.sub(r"\{([\w.]+)(?::([^}]+))?\}", plain, template)
    names = cells if item is None else [name for name in cells if name in units]
    return Remark(template, {name: _cell(cells[name], units.get(name, "")) for name in names}, kind, effect)


def named(item: Any, path: str) -> Any:
    """The attribute of an item by its dotted name; a row of cases finds names by its own `by_name`."""
    for name in path.split("."):
        item = item.by_name(name) if hasattr(item, "by_name") else getattr(item, name)
    return item


def _cell(value: Any, unit: str) -> Cell:
    if value is None or isinstance(value, str | Quantity):
        return value
    if unit or isinstance(value, Ratio | float):
        return quantity(value, unit.removesuffix("~"), predicted=unit.endswith("~"))
    return value if isinstance(value, int) else str(value)


Outcome = Literal["holds", "does not hold here", "undecided"]

ONE_PROCESS = "one process measured it"
OPEN_INTERVAL = "the interval lies on both sides of the bound"
NOT_A_NUMBER = "no value of it is known"


@dataclass(frozen=True)
class Claim:
    """A guide's claim on a ratio: it lies from `low` to `high`, both included; never mixed into measurements."""

    text: str
    source: str
    low: float = 0.0
    high: float = math.inf

    def outcome(self, measured: Quantity | Ratio) -> Outcome:
        """Holds where the whole interval lies inside the claim, does not where it lies outside, else undecided.

        So is whatever a single process timed: runs of one process minutes apart were seen to contradict each other.
        """
        if measured.processes == 1:
            return "undecided"
        if self.low <= measured.low and measured.high <= self.high:
            return "holds"
        if measured.high < self.low or measured.low > self.high:
            return "does not hold here"
        return "undecided"

    def judge(
        self,
        template: str,
        measured: Ratio | Quantity | float,
        item: Any = None,
        *,
        remedy: str = "",
        unit: str = "x",
        **values: Any,
    ) -> ClaimVerdict:
        """The verdict on what was measured, in a sentence as `remark` fills it, with `{measured}`.

        A float is counted, not timed. `remedy` says how to have more processes if --profile standard is not the way.
        """
        shown = quantity(exactly(measured) if isinstance(measured, float | int) else measured, unit)
        if shown.processes == 0 and math.isnan(shown.low):
            shown = replace(shown, low=shown.value, high=shown.value)
        outcome = self.outcome(shown)
        why, decide = "", ""
        if math.isnan(shown.value):
            why = NOT_A_NUMBER
        elif outcome == "undecided" and shown.processes == 1:
            why, decide = ONE_PROCESS, remedy or "--profile standard has three"
        elif outcome == "undecided":
            why, decide = OPEN_INTERVAL, "more processes narrow it"
        return ClaimVerdict(self, remark(template, item, measured=shown, **values), shown, outcome, why, decide)


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim and what was measured here; `why` and `remedy` say what leaves it undecided and what would decide."""

    claim: Claim
    message: Remark
    measured: Quantity
    outcome: Outcome
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Heading:
    """A column's name, and the unit of its numbers; in a narrow terminal the lowest `priority` goes first."""

    name: str
    unit: str = ""
    priority: int = 1


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns. A table without rows is not shown."""

    title: str
    columns: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Series:
    """One line or set of points; `style` is "points" (measured), "line" (a law), or "baseline" of both."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: str
    low: Sequence[float] = ()
    high: Sequence[float] = ()

    @property
    def predicted(self) -> bool:
        """True for points of a law, which nobody measured."""
        return self.style == "line"


@dataclass(frozen=True)
class Panel:
    """One pair of axes; `strong_edges` and `weak_edges` are x positions worth a solid or a dotted vertical line.

    Values are counted in the bases of `x_unit` and `y_unit`, as quantities are. `x_ticks` makes the x axis logarithmic
    and names places on it.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    strong_edges: tuple[float, ...] = ()
    weak_edges: tuple[float, ...] = ()
    x_ticks: tuple[tuple[float, str], ...] = ()
    x_unit: str = ""
    y_unit: str = ""


@dataclass(frozen=True)
class HeatMap:
    """Values over a grid of sizes: `values[row][column]` at `y[row]` and `x[column]`, NaN where there is no such case.

    Values above 1 are drawn in one colour, below in the other, both darker the further away.
    """

    title: str
    x_label: str
    y_label: str
    value_label: str
    x: tuple[int, ...]
    y: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Bar:
    """One bar: its length, half its error bar, and a second mark, NaN where there is none; `note` says why."""

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
    unit: str = ""


@dataclass(frozen=True)
class Figure:
    """Panels in rows; `name` is the file's stem, `caption` says in a sentence what one sees."""

    name: str
    title: str
    caption: str
    rows: tuple[tuple[Panel | HeatMap | Bars, ...], ...]


def figure(
    name: str, title: str, caption: str, panels: Iterable[Panel | HeatMap | Bars], across: int = 1
) -> Figure | None:
    """A figure with `across` panels in a row; None without any panel."""
    found = tuple(panels)
    rows = tuple(found[start : start + across] for start in range(0, len(found), across))
    return Figure(name, title, caption, rows) if found else None


@dataclass(frozen=True)
class Document:
    """Text in a form that others know, to be kept as a file of that name next to the records."""

    name: str
    text: str


@dataclass(frozen=True)
class Findings:
    """Remarks and verdicts, in the order of telling, carry the conclusion; the rest shows where it is from."""

    remarks: tuple[Remark | ClaimVerdict, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    documents: tuple[Document, ...] = ()

    @property
    def verdicts(self) -> list[ClaimVerdict]:
        return [each for each in self.remarks if isinstance(each, ClaimVerdict)]

    @property
    def cautions(self) -> list[Remark]:
        return [each for each in self.remarks if isinstance(each, Remark) and each.kind == "caution"]

    def __add__(self, other: Findings) -> Findings:
        return Findings(
            self.remarks + other.remarks,
            self.tables + other.tables,
            self.figures + other.figures,
            self.documents + other.documents,
        )


def findings(*parts: Remark | ClaimVerdict | Table | Figure | Document | Iterable[Any] | None) -> Findings:
    """Whatever was found, sorted by kind; None and tables without rows are left out, what is iterable is unpacked."""
    flat = list(_flat(parts))
    return Findings(
        tuple(part for part in flat if isinstance(part, Remark | ClaimVerdict)),
        tuple(part for part in flat if isinstance(part, Table) and part.rows),
        tuple(part for part in flat if isinstance(part, Figure)),
        tuple(part for part in flat if not isinstance(part, Remark | ClaimVerdict | Table | Figure)),
    )


def _flat(parts: Iterable[Any]) -> Iterable[Any]:
    for part in parts:
        if part is None:
            continue
        if isinstance(part, Iterable):
            yield from _flat(part)
        else:
            yield part
