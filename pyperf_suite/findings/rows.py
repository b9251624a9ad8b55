"""Records of a run as rows: a case, the medians over its processes, what was observed besides time; and tables of rows.

The comparisons that probes make are made here once: one case relative to another within each process, the mean of many
such pairs, groups, and the case that differs from a row in named parameters alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral, Real
from typing import Any, Generic, TypeVar

from pyperf_suite.findings import data
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity, quantity
from pyperf_suite.record.reading import Reading, all_observed, mean_speedup, readings, speedup
from pyperf_suite.record.record import Record

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Parameters = TypeVar("Parameters")


@dataclass(frozen=True)
class Row(Generic[Parameters]):
    """One measured case: parameters `p`, times `reading`, what was `observed` besides, and all `rows` of its run."""

    reading: Reading
    observed: Mapping[str, float]
    rows: Rows[Parameters] = field(repr=False, compare=False)

    @property
    def case(self) -> Case:
        return self.reading.case

    @property
    def p(self) -> Parameters:
        """The parameters of its case."""
        return self.reading.case.parameters

    @property
    def implementation(self) -> str:
        return self.reading.case.implementation

    @property
    def seconds(self) -> float:
        """Seconds of one launch."""
        return self.reading.seconds

    def by_name(self, name: str) -> Any:
        """The first parameter, field of the case, computed, observed or reading's of that name, or AttributeError."""
        if hasattr(self.p, name):
            return getattr(self.p, name)
        if name in ("implementation", "mode", "operator"):
            return getattr(self.case, name)
        if name in self.rows.computed:
            return self.rows.computed[name](self)
        if name in self.observed and not hasattr(self.reading, name):
            return self.observed[name]
        return self.reading if name == "reading" else getattr(self.reading, name)

    def key(self, *but: str) -> tuple[Any, ...]:
        """Return the case without the named parameters: equal for rows that differ in those alone."""
        case, parameters = self.case, self.case.parameters
        what: dict[str, Any] = {"operator": case.operator, "implementation": case.implementation, "mode": case.mode}
        # Fields alone: what parameters keep once computed is no part of what they are.
        what |= {name: getattr(parameters, name) for name in parameters.__dataclass_fields__}
        return tuple((name, value) for name, value in what.items() if name not in but)

    def like(self, **changed: Any) -> Row[Parameters] | None:
        """The row that differs from this one in the named parameters alone, and has these values of them."""
        for row in self.rows.same_except(self, *changed):
            if all(row.by_name(name) == value for name, value in changed.items()):
                return row
        return None

    def against(self, **base: Any) -> Ratio | None:
        """How many times as fast it is as the row that differs in the named parameters alone; None without another."""
        other = self.like(**base)
        return None if other is None or other is self else self.faster_than(other)

    def faster_than(self, slow: Row[Any]) -> Ratio | None:
        """The other's time over its own, over the processes that measured both."""
        return speedup(slow.reading, self.reading)

    def remark(self, template: str, *, kind: data.Kind = "", effect: str = "", **values: Any) -> data.Remark:
        """A remark on this row: what the template names and `values` lack is the row's own, as `{dtype}` is."""
        return data.remark(template, self, kind=kind, effect=effect, **values)

    def judge(
        self, claim: data.Claim, template: str, measured: Ratio | Quantity | float, **values: Any
    ) -> data.ClaimVerdict:
        """The verdict of a claim on this row, whose template is filled as that of a remark."""
        return claim.judge(template, measured, self, **values)


class Rows(list[Row[Parameters]]):
    """The rows of a run, in order; `records` are all that they were made from, those of failed cases too.

    `computed` is what each row has besides its own, by name: `{model}` of a template is `computed["model"](row)`.
    """

    records: Sequence[Record] = ()
    computed: Mapping[str, Callable[[Any], Any]] = {}

    def where(self, is_wanted: Callable[[Row[Parameters]], bool] | None = None, **values: Any) -> Rows[Parameters]:
        """Rows that a condition and these values by name hold for."""
        return Rows(
            row
            for row in self
            if (is_wanted is None or is_wanted(row)) and all(row.by_name(name) == v for name, v in values.items())
        )

    def same_except(self, row: Row[Parameters], *but: str) -> list[Row[Parameters]]:
        """Rows that differ from `row` in the named parameters at most."""
        return self._grouped(but, lambda each: each.key(*but)).get(row.key(*but), [])

    def sharing(self, row: Row[Parameters], key: Callable[[Row[Parameters]], Hashable]) -> list[Row[Parameters]]:
        """Rows with the same key as `row`."""
        return self._grouped(key, key).get(key(row), [])

    def _grouped(self, name: Hashable, key: Callable[[Row[Parameters]], Any]) -> dict[Any, list[Row[Parameters]]]:
        """Grouped once for each name: probes request the group of every row."""
        if not hasattr(self, "_groups"):
            self._groups: dict[Hashable, dict[Any, list[Row[Parameters]]]] = {}
        if name not in self._groups:
            self._groups[name] = grouped(self, key)
        return self._groups[name]

    def groups(self, *but: str) -> list[Rows[Parameters]]:
        """Rows that differ in the named parameters alone, group by group."""
        return [Rows(group) for group in grouped(self, lambda row: row.key(*but)).values()]

    def against(self, **base: Any) -> Ratio | None:
        pairs = [(other.reading, row.reading) for row in self if (other := row.like(**base)) and other is not row]
        return mean_speedup(pairs)

    def first(self, **values: Any) -> Row[Parameters] | None:
        return next(iter(self.where(**values)), None)


def rows_of(
    records: Sequence[Record],
    order: Callable[[Row[Any]], Any] | None = None,
    computed: Mapping[str, Callable[[Row[Any]], Any]] | None = None,
) -> Rows[Any]:
    """A row for each case that was timed, or counted as bytes are, in the order of measuring or as `order` sorts."""
    observed, rows = all_observed(records), Rows[Any]()
    static = {each.case_id: each for each in records if each.kind == "static" and each.outcome == "ok"}
    counted = [
        Reading(
            each.parsed_case(),
            math.nan,
            math.nan,
            math.nan,
            flop=0,
            converged=True,
            kernel=dict(each.kernel),
            by_process={},
        )
        for each in static.values()
    ]
    rows += [Row(reading, observed.get(reading.case.case_id, {}), rows) for reading in (*readings(records), *counted)]
    rows.records, rows.computed = records, computed or {}
    if order is not None:
        rows.sort(key=order)
    return rows


def series(
    label: str,
    items: Iterable[Item],
    x: Callable[[Item], float] | str,
    y: Callable[[Item], Any] | str,
    style: str = "points",
) -> data.Series:
    """Points of items: `y` gives a number, or a Ratio or Quantity, whose bounds become bars; None has no point.

    As text, `x` and `y` name attributes. Each point has a bar, of no length where no bounds are known; lines have none.
    """
    place, height = getter(x), getter(y)
    points = [(place(item), quantity(value)) for item in items if (value := height(item)) is not None]
    places, values = [at for at, _ in points], [value for _, value in points]
    barred = values if style == "points" else []
    low = [each.value if math.isnan(each.low) else each.low for each in barred]
    high = [each.value if math.isnan(each.high) else each.high for each in barred]
    return data.Series(label, places, [value.value for value in values], style, low, high)


def series_by(by: str, rows: Iterable[Row[Any]], x: str, y: str, fewest: int = 1) -> tuple[data.Series, ...]:
    """Points of rows, a series for each value of `by` that has `fewest` places; all three name what a row has."""
    groups = grouped(rows, lambda row: str(row.by_name(by)))
    drawn = (series(label, group, x, y) for label, group in groups.items())
    return tuple(each for each in drawn if len(set(each.x)) >= fewest)


def law_over_sizes(
    label: str, law: Any, smallest: float, largest: float, points: int, factor: float = 1.0
) -> data.Series:
    """The rate that a law of seconds over bytes promises between two sizes, times a factor."""
    import numpy as np

    sizes = np.geomspace(smallest, largest, points)
    return data.Series(label, sizes.tolist(), (sizes / law.seconds(sizes) * factor).tolist(), "line")


def getter(path: Callable[[Any], Any] | str) -> Callable[[Any], Any]:
    """A function of an item, where text names an attribute of it, or one of its attribute's; true without text."""
    if callable(path):
        return path
    return partial(data.named, path=path) if path else lambda _: True


def misses(errors: Iterable[float]) -> dict[str, Any]:
    """Return `count`, `median` and `worst` of a law's errors as values of a remark."""
    import statistics

    known = [*map(float, errors)]
    return {"count": len(known), "median": Quantity(statistics.median(known), "%"), "worst": Quantity(max(known), "%")}


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by key, in the order of the first of each."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


@dataclass(frozen=True)
class Column:
    """A quantity of each row, or of each item of another kind: what it is called, how an item has it, its unit.

    `value` gives a number in the base of the unit, a Ratio, a Quantity, a name, or None where it is not known; as text
    it names an attribute of the item, or one of its attribute's, or a key of a mapping, by default that of the column's
    own name. `predicted` says that a law gives it.
    """

    name: str
    value: Callable[[Any], Any] | str = ""
    unit: str = ""
    priority: int = 1
    predicted: bool = False

    def cell(self, item: Any) -> data.Cell:
        if callable(self.value):
            value = self.value(item)
        elif isinstance(item, Mapping):
            value = item[self.value or self.name]
        else:
            value = data.named(item, self.value or self.name)
        if value is None or isinstance(value, str | Quantity):
            return value
        # Numbers of numpy are numbers too.
        is_whole = isinstance(value, Integral)
        if isinstance(value, Real | Ratio) and (self.unit or not is_whole):
            found = quantity(value, self.unit, self.predicted)
            is_own = isinstance(item, Row) and (self.value or self.name) in ("seconds", "flop_per_s")
            return replace(found, converged=item.reading.converged) if is_own else found
        return int(value) if is_whole and not isinstance(value, bool) else str(value)


def table(title: str, columns: Sequence[Column], items: Iterable[Any]) -> data.Table:
    """One row an item."""
    return data.Table(
        title,
        tuple(data.Heading(column.name, column.unit, column.priority) for column in columns),
        tuple(tuple(column.cell(item) for column in columns) for item in items),
    )
