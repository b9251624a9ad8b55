"""The measured figures as tables: what nccl-tests shows, tails and skew beside it, and one path beside another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.laws.network.communication import nvls_wire_rate
from pyperf_suite.probes.collectives.curves import Curve, Point, Setting
from pyperf_suite.probes.collectives.peaks import may_reduce_in_switch, peak_for
from pyperf_suite.spec.findings import Table
from pyperf_suite.spec.rows import speedup

NO_ROOT = -1
ABSENT = "-"

PLACE_COLUMNS = ("p50 us", "algbw GB/s", "busbw GB/s", "#wrong")
SPREAD_COLUMNS = ("p95 us", "p99 us", "transfer us", "skew us")


@dataclass(frozen=True)
class Both:
    """A setting out of place and in place; either may not have been measured."""

    setting: Setting
    out_of_place: Curve | None
    in_place: Curve | None

    @property
    def measured(self) -> tuple[Curve, ...]:
        """Those of the two that there are."""
        return tuple(curve for curve in (self.out_of_place, self.in_place) if curve is not None)

    @property
    def sizes(self) -> list[int]:
        """Every size of either, measured or found wrong, ascending."""
        return sorted({size for curve in self.measured for size in (*curve.points, *curve.wrong)})

    @property
    def reduction_and_root(self) -> tuple[str, str]:
        """As nccl-tests has them: none and -1 where the operation takes none."""
        p = self.setting.parameters
        return p.reduction if p.operation.reduces else "none", str(p.root if p.operation.has_root else NO_ROOT)


def both_of(curves: Sequence[Curve]) -> list[Both]:
    """Curves in order, those that differ by place alone side by side."""
    by_setting = {curve.setting: curve for curve in curves}
    out_of_place = dict.fromkeys(_placed(setting, in_place=False) for setting in by_setting)
    return [Both(s, by_setting.get(s), by_setting.get(_placed(s, in_place=True))) for s in out_of_place]


def tables_of(curves: Sequence[Curve]) -> list[Table]:
    """One table for each setting, with its spread; then every path that has others beside it."""
    return [*(_table(both) for both in both_of(curves)), *_beside(curves)]


def _table(both: Both) -> Table:
    """Of one setting; in place has its columns where it was measured."""
    points = [point for curve in both.measured for point in curve.points.values()]
    extra = _extra_columns(both, points)
    places = ["", "in place "] if both.in_place else [""]
    columns = ["size B", "count", "type", "redop", "root"]
    columns += [name for place in places for name in (place + PLACE_COLUMNS[0], *PLACE_COLUMNS[1:])]
    columns += [*SPREAD_COLUMNS, *(name for name, _ in extra)]
    rows = []
    for size in both.sizes:
        p = both.setting.at(size)
        cells = [str(size), str(p.count), p.dtype, *both.reduction_and_root]
        for curve in (both.out_of_place, both.in_place)[: len(places)]:
            cells += _place_cells(curve, size)
        shown = next((curve.points[size] for curve in both.measured if size in curve.points), None)
        cells += _spread_cells(shown) + [cell(shown) if shown else ABSENT for _, cell in extra]
        rows.append(tuple(cells))
    return Table(str(both.setting), tuple(columns), tuple(rows))


def _extra_columns(both: Both, points: Sequence[Point]) -> list[tuple[str, Callable[[Point], str]]]:
    """Columns that say something for these points, and what each says of one."""
    extra: list[tuple[str, Callable[[Point], str]]] = []
    peak = peak_for(points[0].visits[0]) if points else None
    if peak is not None:
        extra.append((f"% of {peak.gb_per_s:g} GB/s", lambda point: f"{point.busbw() / peak.gb_per_s:.1%}"))
    if both.setting.parameters.op == "all_reduce" and any(may_reduce_in_switch(p.visits[0]) for p in points):
        extra.append(("NVLS wire GB/s", _wire_rate))
    if any(point.counted_rate is not None for point in points):
        extra.append(("NVLink counters GB/s", lambda point: _told(point.counted_rate, _rate)))
    if any("algorithm" in point.details for point in points):
        extra.append(("algorithm", lambda point: str(point.details.get("algorithm", ABSENT))))
    return extra


def _told(figure: float | None, written: Callable[[float], str]) -> str:
    return ABSENT if figure is None else written(figure)


def _place_cells(curve: Curve | None, size: int) -> list[str]:
    point = curve.points.get(size) if curve else None
    wrong = str(curve.wrong.get(size, 0)) if curve and (point or size in curve.wrong) else ABSENT
    if point is None:
        return [ABSENT, ABSENT, ABSENT, wrong]
    return [_us(point.seconds), _rate(point.algbw), _rate(point.busbw()), wrong]


def _spread_cells(point: Point | None) -> list[str]:
    """How long slow iterations take; transfer after the last rank arrived, and how far apart the ranks arrived."""
    if point is None:
        return [ABSENT] * len(SPREAD_COLUMNS)
    apart = [point.median_of(metric) for metric in ("transfer", "skew")]
    cells = [_us(point.quantile_s(share)) for share in (0.95, 0.99)]
    return cells + [_told(seconds, _us) for seconds in apart]


def _wire_rate(point: Point) -> str:
    """Where the switch reduced; where a record does not tell the algorithm, as if it did."""
    if not may_reduce_in_switch(point.visits[0]):
        return ABSENT
    return _rate(float(nvls_wire_rate(point.algbw, point.parameters.ranks)))


def _beside(curves: Sequence[Curve]) -> list[Table]:
    """Of each operation the times of all paths and variants, as ratios to the first: ours, or the plain one."""
    by_what: dict[str, list[Curve]] = {}
    for curve in curves:
        if curve.points:
            by_what.setdefault(curve.setting.what, []).append(curve)
    tables = []
    for what, together in by_what.items():
        first, *others = together
        if not others:
            continue
        columns = ["size B", f"{first.setting.how} us"]
        columns += [name for curve in others for name in (f"{curve.setting.how} us", f"x {first.setting.how}")]
        rows = []
        for size in sorted({size for curve in together for size in curve.points}):
            cells = [str(size), *_time_cell(first, size)]
            for curve in others:
                cells += [*_time_cell(curve, size), _ratio_cell(first, curve, size)]
            rows.append(tuple(cells))
        tables.append(Table(f"{what}: times side by side", tuple(columns), tuple(rows)))
    return tables


def _time_cell(curve: Curve, size: int) -> list[str]:
    return [_us(curve.points[size].seconds) if size in curve.points else ABSENT]


def _ratio_cell(first: Curve, other: Curve, size: int) -> str:
    """The other's time over the first's, with its interval over processes."""
    if size not in first.points or size not in other.points:
        return ABSENT
    ratio = speedup(other.points[size].reading, first.points[size].reading)
    return ABSENT if ratio is None else str(ratio)


def _placed(setting: Setting, in_place: bool) -> Setting:
    return replace(setting, parameters=replace(setting.parameters, in_place=in_place))


def _us(seconds: float) -> str:
    """Microseconds with three figures or more."""
    us = seconds * 1e6
    return f"{us:.0f}" if us >= 1000 else f"{us:.1f}" if us >= 100 else f"{us:.2f}"


def _rate(gb_per_s: float) -> str:
    """GB/s with three figures where it is fast, and at most four decimals."""
    return f"{gb_per_s:.1f}" if gb_per_s >= 100 else f"{gb_per_s:.2f}" if gb_per_s >= 1 else f"{gb_per_s:.4f}"
