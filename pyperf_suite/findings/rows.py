"""Records of a run as rows: a case, the medians over its processes, what was observed besides time; and tables of rows.

The comparisons that probes make are made here once: one case relative to another within each process, the mean of many
such pairs, groups, and the case that differs from a row in named parameters alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from pyperf_suite.findings.data import (
    Cell,
    Claim,
    ClaimVerdict,
    Heading,
    Kind,
    Quantity,
    Remark,
    Series,
    Table,
    quantity,
    remark,
)
from pyperf_suite.measure.estimates import RUN_SPREAD, USUAL, Ratio, ratio_over_processes

if TYPE_CHECKING:
    from pyperf_suite.runner.record import Case, Record

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

# Less is not worth a change of a model.
WORTH = 1.02


@dataclass(frozen=True)
class Reading:
    """One case over all its processes, in seconds a launch.

    `low` and `high` span the processes' medians; with a single process they are that process's interval of the median.
    `by_process` has the median of each process by its number. `error` is the standard error, as a share, of what
    another run would find; 0 where the record's interval does not say that. `is_noisy` says that no slice was clean.
    `within` is half the width of the interval within its processes, as a share; `slices` are the seconds of each slice
    of a single process that counts, by group and round, and `groups` name the cases that took turns. `drift` is how
    much the cores' speed changed meanwhile, which only cases of one group share.
    `clock_hz` is a GPU's clock meanwhile, 0 where it was not seen; seconds are those at the reference clock,
    `elasticity` and `log_of_doubt` as in AtOneClock.
    """

    case: Case
    seconds: float
    low: float
    high: float
    flop: int
    converged: bool
    kernel: dict[str, Any]
    by_process: dict[int, float]
    error: float = 0.0
    is_noisy: bool = False
    within: float = 0.0
    slices: Mapping[tuple[str, int], float] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    drift: float = 0.0
    clock_hz: float = 0.0
    elasticity: float | None = None
    log_of_doubt: float = 0.0

    @property
    def flop_per_s(self) -> float:
        """Useful work a second: padding of tiles is work done but does not count."""
        return self.flop / self.seconds

    @property
    def tflop_per_s(self) -> float:
        return self.flop_per_s / 1e12

    @property
    def details(self) -> Mapping[str, Any]:
        return self.kernel.get("details", {})

    @property
    def time(self) -> Quantity:
        return self._quantity(self.seconds, "ms", self.low, self.high)

    @property
    def throughput(self) -> Quantity:
        """Useful FLOP a second, between those of the slowest and of the fastest process."""
        return self.per_second(self.flop, "TFLOP/s")

    def per_second(self, amount: float, unit: str) -> Quantity:
        """So much a launch, bytes or FLOP, as a rate with its bounds."""
        return self._quantity(amount / self.seconds, unit, amount / self.high, amount / self.low)

    def _quantity(self, value: float, unit: str, low: float, high: float) -> Quantity:
        known = {"noisy": self.is_noisy, "converged": self.converged}
        return Quantity(value, unit, low, high, len(self.by_process), **known)


def readings(records: Iterable[Record]) -> list[Reading]:
    """One reading for each case that was measured; failed and unsupported trials take no part."""
    by_case: dict[str, list[Record]] = {}
    for record in records:
        if record.kind == "timing" and record.outcome == "ok":
            by_case.setdefault(record.case_id, []).append(record)
    return [_reading(trials) for trials in by_case.values()]


def _reading(trials: list[Record]) -> Reading:
    import statistics

    # A resumed run may hold a second trial of the same process; the later one stands.
    latest = list({record.process: record for record in trials}.values())
    times = [record.time for record in latest]
    medians = [time.value for time in times]
    clocks = [record.metrics["sm_clock"].value for record in latest if "sm_clock" in record.metrics]
    converted = [record.at_clock for record in latest if record.at_clock is not None]
    known = [at.elasticity for at in converted if at.elasticity is not None]
    alone = len(times) == 1
    groups = _groups(latest[0]) if alone else ()
    return Reading(
        case=latest[0].parsed_case(),
        seconds=statistics.median(medians),
        low=times[0].low if alone else min(medians),
        high=times[0].high if alone else max(medians),
        flop=latest[0].work["flop"],
        converged=all(record.quality["converged"] for record in latest),
        kernel=dict(latest[0].kernel),
        by_process={record.process: record.time.value for record in latest},
        error=_error_of(latest),
        within=_within(latest) if alone else (max(medians) - min(medians)) / 2 / statistics.median(medians),
        slices=_slices(latest[0]) if groups and "slices" in latest[0].sampling else {},
        groups=groups,
        drift=_drift(latest[0]) if alone else 0.0,
        clock_hz=statistics.median(clocks) if clocks else 0.0,
        elasticity=statistics.median(known) if known else None,
        log_of_doubt=statistics.fmean(at.log_of_doubt for at in converted) if converted else 0.0,
        is_noisy=all(_is_noisy(record) for record in latest),
    )


# Half of a 90 % interval in standard deviations, and of one of 95 %.
_REACH, _WIDER = 1.645, 1.96


def _is_noisy(record: Record) -> bool:
    """Whether it reports what a launch takes undisturbed, of which no slice was seen."""
    is_usual = record.sampling.get("quantile", USUAL) == USUAL
    return not is_usual and record.quality.get("disturbances", {}).get("clean_share", 1) == 0


def _within(trials: list[Record]) -> float:
    time, sampling, at = trials[0].time, trials[0].sampling, trials[0].at_clock
    if at is not None:
        return at.half_width * _WIDER / _REACH
    if sampling.get("quantile", USUAL) == USUAL:
        return (time.high - time.low) / 2 / time.value
    return float(trials[0].quality.get("relative_half_width", 0.0)) * _WIDER / _REACH


def _groups(record: Record) -> tuple[str, ...]:
    """The groups of cases that took turns with this one, one a visit."""
    return tuple(map(str, record.sampling.get("groups") or filter(None, [record.sampling.get("group")])))


def _shared_groups(slow: Reading, fast: Reading) -> set[str]:
    """Groups that both are of; a case that was visited alone is of none."""
    return (set(slow.groups) & set(fast.groups)) - {""}


def _slices(record: Record) -> dict[tuple[str, int], float]:
    """The reported quantile, or mean, of the samples of each slice that was not discarded, by group and round."""
    import numpy as np

    sizes = record.sampling["slices"] if record.at_clock is None else record.at_clock.slices
    visits = record.sampling.get("visits") or [len(sizes)]
    rounds = [(group, n) for group, count in zip(_groups(record), visits, strict=True) for n in range(count)]
    parts = np.split(np.asarray(record.time.samples, dtype=np.float64), np.cumsum(sizes)[:-1])
    share = record.sampling.get("quantile", USUAL)
    left_out = set(record.sampling.get("left_out", ()))
    is_mean = bool(record.quality.get("levels", {}).get("is_figure"))
    return {
        at: float(part.mean() if is_mean else np.quantile(part, share))
        for number, (at, part) in enumerate(zip(rounds, parts, strict=True))
        if part.size and at[0] and number not in left_out
    }


def _drift(record: Record) -> float:
    return float(record.quality.get("disturbances", {}).get("drift", 0.0))


def _error_of(trials: list[Record]) -> float:
    """Relative standard error of a run's figure: of one process by its interval, of several by what they differ by.

    The drift of the machine's speed is not in it: laws are fitted to cases that share most of it.
    """
    import statistics

    if any(record.sampling.get("quantile", USUAL) == USUAL for record in trials):
        return 0.0
    times = [record.time for record in trials]
    if len(times) == 1:
        error = (times[0].high - times[0].low) / 2 / _REACH / times[0].value
        return math.sqrt(max(0.0, error**2 - 2 * max(0.0, _drift(trials[0]) ** 2 - RUN_SPREAD**2)))
    return statistics.stdev(math.log(time.value) for time in times) / math.sqrt(len(times))


def all_observed(records: Iterable[Record]) -> dict[str, Mapping[str, float]]:
    """By case id, the median over processes of every metric but time, in the unit of its record."""
    import statistics

    values: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record.outcome == "ok":
            seen = values.setdefault(record.case_id, {})
            for name, metric in record.metrics.items():
                if name != "time":
                    seen.setdefault(name, []).append(metric.value)
    return {case_id: {name: statistics.median(each) for name, each in seen.items()} for case_id, seen in values.items()}


def wins(ratio: Ratio) -> bool:
    """Whether it is faster beyond its interval, and by enough to act on."""
    return ratio.low > 1 and ratio.value >= WORTH


def is_settled(ratio: Ratio) -> bool:
    """Whether it is distinguished from, or shown to be below, what is worth acting on."""
    return wins(ratio) or ratio.high < WORTH


def speedup(slow: Reading, fast: Reading) -> Ratio | None:
    """Time of `slow` over time of `fast`: above 1 where the second is faster. None where no process measured both."""
    return mean_speedup([(slow, fast)])


def mean_speedup(pairs: Sequence[tuple[Reading, Reading]]) -> Ratio | None:
    """The geometric mean over (slow, fast) pairs, each taken within a process; a process counts once, as its mean.

    None where there is no pair, or no process that measured them all.
    """
    measured = [set(reading.by_process) for pair in pairs for reading in pair]
    processes = sorted(set.intersection(*measured)) if measured else []
    if not processes:
        return None
    ratios = [
        math.exp(math.fsum(math.log(slow.by_process[p] / fast.by_process[p]) for slow, fast in pairs) / len(pairs))
        for p in processes
    ]
    # Errors of pairs are independent: they add as squares, and a mean over pairs has less of them.
    squares = math.fsum(_pair_error(slow, fast) ** 2 for slow, fast in pairs)
    ratio = ratio_over_processes(ratios, math.sqrt(squares) / len(pairs))
    # At one clock the ratio is this one if elasticities are those assumed, else off by what the two do not share.
    doubt = math.exp(math.fsum(fast.log_of_doubt - slow.log_of_doubt for slow, fast in pairs) / len(pairs))
    return replace(ratio, low=ratio.low * min(1, doubt), high=ratio.high * max(1, doubt))


# Slices of the same rounds that make pairs: with fewer, the intervals of both sides say more.
_FEWEST_PAIRS = 6
# Of a ratio to what was never seen undisturbed: two busy processes on two cores made 1.05 times 5, and 17 of others.
_NOT_KNOWN = 100.0


def _pair_error(slow: Reading, fast: Reading) -> float:
    """Half the width of the interval of their ratio: by slices of the same rounds, or by both readings' intervals."""
    if slow.is_noisy or fast.is_noisy:
        return _NOT_KNOWN
    rounds = sorted(slow.slices.keys() & fast.slices.keys())
    if len(rounds) < _FEWEST_PAIRS:
        apart = 0.0 if _shared_groups(slow, fast) else _WIDER
        return math.hypot(slow.within, fast.within, apart * slow.drift, apart * fast.drift)
    import statistics

    logs = [math.log(slow.slices[at] / fast.slices[at]) for at in rounds]
    # Times are what the better slices took: where all slices together say another ratio, neither is sure.
    apart = statistics.fmean(logs) - math.log(slow.seconds / fast.seconds)
    return math.hypot(apart, _WIDER * statistics.stdev(logs) / math.sqrt(len(rounds)))


@dataclass(frozen=True)
class Row:
    """One measured case. Names of its parameters are its own: `row.hidden` is `row.reading.case.parameters.hidden`.

    `seen` has what was observed besides time, by metric; `rows` are all rows of the run, itself among them. So are the
    names of what was observed, where nothing else has them, and of what the rows say is computed.
    """

    reading: Reading
    seen: Mapping[str, float]
    rows: Rows = field(repr=False, compare=False)

    def __getattr__(self, name: str) -> Any:
        """A parameter of the case, its implementation or mode, what is computed, of the reading, or observed."""
        if name.startswith("__"):
            raise AttributeError(name)
        case = self.reading.case
        if hasattr(case.parameters, name):
            return getattr(case.parameters, name)
        if name in ("implementation", "mode", "operator"):
            return getattr(case, name)
        if name in self.rows.computed:
            return self.rows.computed[name](self)
        if name in self.seen and not hasattr(self.reading, name):
            return self.seen[name]
        return getattr(self.reading, name)

    @property
    def parameters(self) -> Any:
        return self.reading.case.parameters

    def key(self, *but: str) -> tuple[Any, ...]:
        """What the case is, apart from the named parameters: equal for rows that differ in those alone."""
        case, parameters = self.reading.case, self.parameters
        what = {"operator": case.operator, "implementation": case.implementation, "mode": case.mode}
        # Fields alone: what parameters keep once computed is no part of what they are.
        what |= {name: getattr(parameters, name) for name in parameters.__dataclass_fields__}
        return tuple((name, value) for name, value in what.items() if name not in but)

    def like(self, **changed: Any) -> Row | None:
        """The row that differs from this one in the named parameters alone, and has these values of them."""
        for row in self.rows.same_except(self, *changed):
            if all(getattr(row, name) == value for name, value in changed.items()):
                return row
        return None

    def against(self, **base: Any) -> Ratio | None:
        """How many times as fast it is as the row that differs in the named parameters alone; None without another."""
        other = self.like(**base)
        return None if other is None or other is self else self.faster_than(other)

    def faster_than(self, other: Row) -> Ratio | None:
        """The other's time over its own, over the processes that measured both."""
        return speedup(other.reading, self.reading)

    def remark(self, template: str, *, kind: Kind = "", effect: str = "", **values: Any) -> Remark:
        """A remark on this row: what the template names and `values` lack is the row's own, as `{dtype}` is."""
        return remark(template, self, kind=kind, effect=effect, **values)

    def judge(self, claim: Claim, template: str, measured: Ratio | Quantity | float, **values: Any) -> ClaimVerdict:
        """The verdict of a claim on this row, whose template is filled as that of a remark."""
        return claim.judge(template, measured, self, **values)


class Rows(list[Row]):
    """The rows of a run, in order; `records` are all that they were made from, those of failed cases too.

    `computed` is what each row has besides its own, by name: `row.model` is `computed["model"](row)`.
    """

    records: Sequence[Record] = ()
    computed: Mapping[str, Callable[[Row], Any]] = {}

    def where(self, is_wanted: Callable[[Row], bool] | None = None, **values: Any) -> Rows:
        """Those that a condition and these values of parameters hold for."""
        return Rows(
            row
            for row in self
            if (is_wanted is None or is_wanted(row)) and all(getattr(row, name) == v for name, v in values.items())
        )

    def same_except(self, row: Row, *but: str) -> list[Row]:
        """Those that differ from a row in the named parameters at most."""
        return self._grouped(but, lambda each: each.key(*but)).get(row.key(*but), [])

    def sharing(self, row: Row, key: Callable[[Row], Hashable]) -> list[Row]:
        """Those that a key function gives the same of as of a row."""
        return self._grouped(key, key).get(key(row), [])

    def _grouped(self, name: Hashable, key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
        """Grouped once for each name: probes request the group of every row."""
        if not hasattr(self, "_groups"):
            self._groups: dict[Hashable, dict[Any, list[Row]]] = {}
        if name not in self._groups:
            self._groups[name] = grouped(self, key)
        return self._groups[name]

    def groups(self, *but: str) -> list[Rows]:
        """Rows that differ in the named parameters alone, group by group."""
        return [Rows(group) for group in grouped(self, lambda row: row.key(*but)).values()]

    def against(self, **base: Any) -> Ratio | None:
        pairs = [(other.reading, row.reading) for row in self if (other := row.like(**base)) and other is not row]
        return mean_speedup(pairs)

    def first(self, **values: Any) -> Row | None:
        return next(iter(self.where(**values)), None)


def rows_of(
    records: Sequence[Record],
    order: Callable[[Row], Any] | None = None,
    computed: Mapping[str, Callable[[Row], Any]] | None = None,
) -> Rows:
    """A row for each case that was timed, or counted as bytes are, in the order of measuring or as `order` sorts."""
    seen, rows = all_observed(records), Rows()
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
    rows += [Row(reading, seen.get(reading.case.case_id, {}), rows) for reading in (*readings(records), *counted)]
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
) -> Series:
    """Points of items: `y` gives a number, or a Ratio or Quantity, whose bounds become bars; None has no point.

    As text, `x` and `y` name attributes. Each point has a bar, of no length where no bounds are known; lines have none.
    """
    place, height = getter(x), getter(y)
    points = [(place(item), quantity(value)) for item in items if (value := height(item)) is not None]
    places, values = [at for at, _ in points], [value for _, value in points]
    barred = values if style == "points" else []
    low = [each.value if math.isnan(each.low) else each.low for each in barred]
    high = [each.value if math.isnan(each.high) else each.high for each in barred]
    return Series(label, places, [value.value for value in values], style, low, high)


def series_by(by: str, rows: Iterable[Row], x: str, y: str, fewest: int = 1) -> tuple[Series, ...]:
    """Points of rows, a series for each value of `by` that has `fewest` places; all three name what a row has."""
    groups = grouped(rows, lambda row: str(getattr(row, by)))
    drawn = (series(label, group, x, y) for label, group in groups.items())
    return tuple(each for each in drawn if len(set(each.x)) >= fewest)


def law_over_sizes(label: str, law: Any, smallest: float, largest: float, points: int, factor: float = 1.0) -> Series:
    """The rate that a law of seconds over bytes promises between two sizes, times a factor."""
    import numpy as np

    sizes = np.geomspace(smallest, largest, points)
    return Series(label, sizes.tolist(), (sizes / law.seconds(sizes) * factor).tolist(), "line")


def getter(what: Callable[[Any], Any] | str) -> Callable[[Any], Any]:
    """A function of an item, where text names an attribute of it, or one of its attribute's; true without text."""
    if callable(what):
        return what
    return attrgetter(what) if what else lambda _: True


def misses(errors: Iterable[float]) -> dict[str, Any]:
    """Of the errors of a law how many there are, the `median` and the `worst`, as values of a remark."""
    import statistics

    known = [*map(float, errors)]
    return {
        "count": len(known),
        "median": Quantity(statistics.median(known), "%"),
        "worst": Quantity(max(known), "%"),
    }


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

    def cell(self, item: Any) -> Cell:
        if callable(self.value):
            value = self.value(item)
        elif isinstance(item, Mapping):
            value = item[self.value or self.name]
        else:
            value = attrgetter(self.value or self.name)(item)
        if value is None or isinstance(value, str | Quantity):
            return value
        # Those of numpy are numbers too.
        is_whole = isinstance(value, Integral)
        if isinstance(value, Real | Ratio) and (self.unit or not is_whole):
            found = quantity(value, self.unit, self.predicted)
            is_own = isinstance(item, Row) and (self.value or self.name) in ("seconds", "flop_per_s")
            return replace(found, converged=item.converged) if is_own else found
        return int(value) if is_whole and not isinstance(value, bool) else str(value)


def table(title: str, columns: Sequence[Column], items: Iterable[Any]) -> Table:
    """One row an item."""
    return Table(
        title,
        tuple(Heading(column.name, column.unit, column.priority) for column in columns),
        tuple(tuple(column.cell(item) for column in columns) for item in items),
    )
