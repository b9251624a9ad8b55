"""How stable a shared network is: the same cases over minutes, their drift, their sudden changes, their tails."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.measure.estimates import FEWEST_VALUES, chance_of_no_trend, pettitt
from pyperf_suite.probes.collectives.curves import Curve, Point
from pyperf_suite.runner.profiles import find_profile
from pyperf_suite.spec.axes import size_name
from pyperf_suite.spec.findings import Figure, Panel, Remark, Series, Table, remark
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import Column, table

# A drift or a change is reported where chance would do it in fewer soaks than this, of all cases together.
CHANCE = 0.01
# Colours that are told apart in one picture.
MOST_SHOWN = 6


@dataclass(frozen=True)
class Shift:
    """How much longer later trials take, relatively; since when, and the probability that chance does as much."""

    by: float
    chance: float
    at_s: float = 0.0


@dataclass(frozen=True)
class Soaked:
    """One case over time: when each trial began since the soak's first, and its median, both in seconds, in order."""

    curve: Curve
    point: Point
    begun_s: NDArray[np.float64]
    seconds: NDArray[np.float64]

    def __str__(self) -> str:
        return f"{self.curve}, {size_name(self.point.row.message_bytes)}"

    @property
    def relative(self) -> NDArray[np.float64]:
        """Each trial's time over the median trial's."""
        return np.asarray(self.seconds / np.median(self.seconds))

    @property
    def spread(self) -> float:
        """Within which 80 % of the trials lie, relative to the median."""
        low, high = np.quantile(self.relative, (0.1, 0.9))
        return float(high - low)

    @property
    def drift(self) -> Shift:
        """From the first third of the trials to the last."""
        third = len(self.seconds) // 3
        return Shift(_step(self.seconds[:third], self.seconds[-third:]), chance_of_no_trend(self.seconds))

    @property
    def change(self) -> Shift:
        """Where another level begins, by Pettitt's test."""
        place, chance = pettitt(self.seconds)
        return Shift(_step(self.seconds[:place], self.seconds[place:]), chance, float(self.begun_s[place]))


def _step(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    return float(np.median(after) / np.median(before)) - 1


COLUMNS = (
    Column("what", lambda each: str(each.curve), priority=2),
    Column("size", lambda each: each.point.size, "size", 2),
    Column("trials", lambda each: len(each.seconds), priority=0),
    Column("median", lambda each: float(np.median(each.seconds)), "us"),
    Column("spread 10-90 %", "spread", "%"),
    Column("worst trial", lambda each: max(each.relative), "x"),
    Column("p99 / p50", lambda each: each.point.tail, "x"),
    Column("drift", lambda each: each.drift.by, "+%", 2),
    Column("drift by chance", lambda each: each.drift.chance, "%", 0),
    Column("change", lambda each: each.change.by, "+%", 2),
    Column("at", lambda each: each.change.at_s, "min"),
    Column("change by chance", lambda each: each.change.chance, "%", 0),
)


def soaked_of(curves: Sequence[Curve]) -> list[Soaked]:
    """Every case that was tried more often than its profile does: a second time after all others at the least."""
    long = []
    for curve in curves:
        for point in curve.points.values():
            planned = max(find_profile(trial.profile).processes for trial in point.trials)
            begun = [datetime.datetime.fromisoformat(trial.started_at).timestamp() for trial in point.trials]
            seconds = [trial.seconds / point.trips for trial in point.trials]
            if len(seconds) > max(2, planned):
                long.append(Soaked(curve, point, *np.array(sorted(zip(begun, seconds, strict=True))).T))
    start_s = min((each.begun_s[0] for each in long), default=0.0)
    return [replace(each, begun_s=each.begun_s - start_s) for each in long]


def soak_findings(found: Sequence[Soaked]) -> Iterator[Remark | Table | Figure]:
    """How far trials lie apart, and which cases drift or change beyond chance; each case, and its trials over time."""
    if not found:
        return
    yield table("Soak: the same cases over time", COLUMNS, found)
    yield soak_figure(found)
    spreads = [each.spread for each in found]
    slowest = max(found, key=lambda each: max(each.relative))
    yield remark(
        "Soak of {length}, {trials} trials of {cases} cases: {most} of a case's trials lie within {spread} (median "
        "case; worst {widest}); the slowest trial took {slowest} its case's median, {case} at {at}",
        length=_minutes(max(each.begun_s[-1] for each in found) - min(each.begun_s[0] for each in found)),
        trials=sum(len(each.seconds) for each in found),
        cases=len(found),
        most=Quantity(0.8, "%"),
        spread=Quantity(float(np.median(spreads)), "%"),
        widest=Quantity(max(spreads), "%"),
        slowest=Quantity(float(max(slowest.relative)), "x"),
        case=slowest,
        at=_minutes(slowest.begun_s[int(slowest.relative.argmax())]),
    )
    if max(len(each.seconds) for each in found) < FEWEST_VALUES:
        told = "Soak: too short to tell a drift from chance, which takes {fewest} trials of a case"
        yield remark(told, kind="caution", fewest=FEWEST_VALUES)
        return
    shifts = [
        *_largest("change, {case} most, by {by} at {at}", [(each, each.change) for each in found]),
        *_largest("drift, {case} most, by {by} from begin to end", [(each, each.drift) for each in found]),
    ]
    yield from shifts or [remark("Soak: no case drifts or changes beyond chance")]


def _largest(told: str, shifts: Sequence[tuple[Soaked, Shift]]) -> Iterator[Remark]:
    sure = [(case, shift) for case, shift in shifts if shift.chance < CHANCE / len(shifts)]
    if sure:
        case, shift = max(sure, key=lambda each: abs(each[1].by))
        told = f"Soak: {{sure}} of {{cases}} cases {told}"
        by, at = Quantity(shift.by, "+%"), _minutes(shift.at_s)
        yield remark(told, effect="by", sure=len(sure), cases=len(shifts), case=case, by=by, at=at)


def _minutes(seconds: float) -> Quantity:
    return Quantity(float(seconds), "min")


def soak_figure(found: Sequence[Soaked]) -> Figure:
    """Every trial over time, relative to its case's median; what all have in common is in the title."""
    shown = sorted(found, key=lambda each: -each.spread)[:MOST_SHOWN]
    shared = {f"{each.curve.what.partition(' ')[2]}, {each.curve.how}" for each in shown}
    drawn = []
    for each in shown:
        short = f"{each.curve.op} {size_name(each.point.row.message_bytes)}"
        relative = each.relative.tolist()
        label = short if len(shared) == 1 else str(each)
        drawn.append(Series(label, each.begun_s.tolist(), relative, "points", relative, relative))
    most = "; the cases that spread most" if len(shown) < len(found) else ""
    return Figure(
        "collectives_soak",
        "Collectives over time" + (f": {shared.pop()}" if len(shared) == 1 else ""),
        f"Each point is one trial's median time over the median of its case{most}.",
        ((Panel("", "time", "time / median of the case", tuple(drawn), x_unit="min", y_unit="x"),),),
    )
