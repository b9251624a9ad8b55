"""How stable a shared network is: the same cases over minutes, their drift, their sudden changes, their tails."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from pyperf_suite.probes.collectives.curves import Curve, Point, Setting
from pyperf_suite.probes.collectives.sizes import readable
from pyperf_suite.runner.profiles import find_profile
from pyperf_suite.spec.findings import Figure, Panel, Series, Table

# With fewer visits neither a drift nor a change can be told from chance.
FEWEST_VISITS = 8
# A drift or a change is told where chance would do it in fewer soaks than this, of all cases together.
CHANCE = 0.01

# Colours that are told apart in one picture.
MOST_SHOWN = 6

COLUMNS = ("what", "size", "visits", "median us", "spread 10-90 %", "worst visit", "p99 / p50", "drift", "change")


@dataclass(frozen=True)
class Soaked:
    """One case over time: minutes since the soak's first visit, and each visit's median in seconds, in order of time.

    `drift` is the relative change from the first third of the visits to the last, with the probability by Spearman's
    rank correlation that there is none; `change` the relative step at the minute where Pettitt's test sees one, with
    its probability.
    """

    setting: Setting
    point: Point
    minutes: NDArray[np.float64]
    seconds: NDArray[np.float64]
    drift: float
    drift_chance: float
    change: float
    change_minute: float
    change_chance: float

    @property
    def relative(self) -> NDArray[np.float64]:
        """Each visit's time over the median visit's."""
        return np.asarray(self.seconds / np.median(self.seconds))


def soaked_of(curves: Sequence[Curve]) -> list[Soaked]:
    """Every case that was visited more often than its profile does: a second time after all others at the least."""
    points = [(curve, point) for curve in curves for point in curve.points.values()]
    long = [(curve, point) for curve, point in points if len(point.visits) > max(2, _planned_visits(point))]
    if not long:
        return []
    start = min(_time(visit.started_at) for _, point in long for visit in point.visits)
    return [_soaked(curve.setting, point, start) for curve, point in long]


def soak_sentences(found: Sequence[Soaked]) -> list[str]:
    """How far visits lie apart, and which cases drift or change beyond chance."""
    if not found:
        return []
    minutes = max(float(each.minutes[-1]) for each in found) - min(float(each.minutes[0]) for each in found)
    spreads = [_spread(each) for each in found]
    worst = max(found, key=lambda each: float(each.relative.max()))
    sentences = [
        f"Soak of {minutes:.1f} minutes, {sum(len(each.seconds) for each in found)} visits to {len(found)} cases: 80 % "
        f"of a case's visits lie within {np.median(spreads):.1%} (median case; worst {max(spreads):.0%}); the slowest "
        f"visit took {worst.relative.max():.2f} x its case's median, {_named(worst)} at minute "
        f"{worst.minutes[int(worst.relative.argmax())]:.1f}."
    ]
    level = CHANCE / len(found)
    drifting = [each for each in found if each.drift_chance < level]
    changed = [each for each in found if each.change_chance < level]
    if max(len(each.seconds) for each in found) < FEWEST_VISITS:
        return [
            *sentences,
            f"Soak: too short to tell a drift from chance, which takes {FEWEST_VISITS} visits to a case.",
        ]
    if not drifting and not changed:
        return [*sentences, "Soak: no case drifts or changes beyond chance."]
    for each in sorted(changed, key=lambda each: -abs(each.change))[:1]:
        sentences.append(
            f"Soak: {len(changed)} of {len(found)} cases change within it, {_named(each)} most, by {each.change:+.0%} "
            f"at minute {each.change_minute:.1f}: something else began or ended to use the network then."
        )
    for each in sorted(drifting, key=lambda each: -abs(each.drift))[:1]:
        sentences.append(
            f"Soak: {len(drifting)} of {len(found)} cases drift, {_named(each)} most, by {each.drift:+.0%} from begin "
            "to end."
        )
    return sentences


def soak_table(found: Sequence[Soaked]) -> Table:
    """One row a case; drift and change are bracketed where chance does as much."""
    level = CHANCE / max(1, len(found))
    rows = []
    for each in found:
        drift, change = f"{each.drift:+.1%}", f"{each.change:+.1%} at {each.change_minute:.1f} min"
        rows.append(
            (
                str(each.setting),
                readable(each.point.size_bytes),
                str(len(each.seconds)),
                f"{np.median(each.seconds) * 1e6:.1f}",
                f"{_spread(each):.1%}",
                f"{each.relative.max():.2f} x",
                f"{each.point.quantile_s(0.99) / each.point.quantile_s(0.5):.2f}",
                drift if each.drift_chance < level else f"({drift})",
                change if each.change_chance < level else f"({change})",
            )
        )
    return Table("Soak: the same cases over time (in brackets what chance does too)", COLUMNS, tuple(rows))


def soak_figure(found: Sequence[Soaked]) -> Figure:
    """Every visit over time, relative to its case's median; what all have in common is in the title."""
    shown = sorted(found, key=lambda each: -_spread(each))[:MOST_SHOWN]
    shared = {_beside_operation(each.setting) for each in shown}
    common, label = (f": {shared.pop()}", _short) if len(shared) == 1 else ("", _named)
    series = tuple(
        Series(label(each), each.minutes.tolist(), relative, "points", relative, relative)
        for each in shown
        for relative in [each.relative.tolist()]
    )
    most = f"; the {len(shown)} cases that spread most" if len(shown) < len(found) else ""
    panel = Panel("", "minutes", "time / median of the case", series)
    return Figure(
        "collectives_soak",
        f"Collectives over time{common}",
        f"Each point is one visit's median time over the median of its case{most}.",
        ((panel,),),
    )


def _soaked(setting: Setting, point: Point, start: datetime.datetime) -> Soaked:
    in_order = sorted(point.visits, key=lambda visit: _time(visit.started_at))
    minutes = np.array([(_time(visit.started_at) - start).total_seconds() / 60 for visit in in_order])
    seconds = np.array([visit.seconds / point.trips for visit in in_order])
    place, change_chance = pettitt(seconds)
    third = len(seconds) // 3
    return Soaked(
        setting=setting,
        point=point,
        minutes=minutes,
        seconds=seconds,
        drift=float(np.median(seconds[-third:]) / np.median(seconds[:third])) - 1,
        drift_chance=chance_of_no_trend(seconds),
        change=float(np.median(seconds[place:]) / np.median(seconds[:place])) - 1,
        change_minute=float(minutes[place]),
        change_chance=change_chance,
    )


def chance_of_no_trend(values: NDArray[np.float64]) -> float:
    """The probability that values without a trend are ordered as much, by Spearman's rank correlation with time.

    Its statistic r √((n − 2)/(1 − r²)) is Student's t with n − 2 degrees of freedom (Zar 1972).
    """
    count = len(values)
    if count < FEWEST_VISITS or not np.ptp(values):
        return 1.0
    correlation = float(np.corrcoef(np.arange(count), _ranks(values))[0, 1])
    student = abs(correlation) * math.sqrt((count - 2) / max(1e-12, 1 - correlation**2))
    return 2 * float(special.stdtr(count - 2, -student))


def pettitt(values: NDArray[np.float64]) -> tuple[int, float]:
    """The index from which values are of another level, and the probability of such a change in none.

    Pettitt 1979, A non-parametric approach to the change-point problem: K = max |U_t|, p = 2 exp(−6K²/(n³ + n²)).
    """
    count = len(values)
    along = np.arange(1, count)
    statistic = np.abs(2 * np.cumsum(_ranks(values))[:-1] - along * (count + 1))
    place = int(statistic.argmax())
    chance = 2 * math.exp(-6 * float(statistic[place]) ** 2 / (count**3 + count**2))
    return place + 1, min(1.0, chance)


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 for the smallest; equal ones share the mean of their places."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse])


def _planned_visits(point: Point) -> int:
    """How many processes the profile has visit a case, be there a soak or not."""
    return max(find_profile(visit.profile).processes for visit in point.visits)


def _beside_operation(setting: Setting) -> str:
    """All but what is done, as in `float32, 2 ranks, gloo`."""
    return f"{setting.what.partition(' ')[2]}, {setting.how}"


def _short(each: Soaked) -> str:
    return f"{each.setting.parameters.op} {readable(each.point.size_bytes)}"


def _named(each: Soaked) -> str:
    return f"{each.setting}, {readable(each.point.size_bytes)}"


def _spread(each: Soaked) -> float:
    low, high = np.quantile(each.relative, (0.1, 0.9))
    return float(high - low)


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)
