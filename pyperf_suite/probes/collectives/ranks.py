"""Find the rank that the others wait for, slow links and ranks, and how stable a shared network is over minutes."""

from __future__ import annotations

import datetime
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.findings.axes import size_name
from pyperf_suite.findings.data import Figure, HeatMap, Panel, Remark, Series, Table, remark
from pyperf_suite.findings.rows import Column, grouped, table
from pyperf_suite.measure.levels import FEWEST_VALUES, chance_of_no_trend, ranks_of
from pyperf_suite.probes.collectives.curves import Curve, CurvePoint
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.record import STOOD_STILL
from pyperf_suite.runner.profiles import find_profile

# No rank can leave these before all have entered.
SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# A rank is named where chance would do as much in fewer runs than this, and others wait for so much of their time.
CHANCE, WORTH_NAMING = 0.01, 0.05

# A link that carries less than this share of what the median link of its kind does is slow.
SLOW_SHARE = 0.8
MOST_NAMED = 5

Pair = tuple[int, int]


def stragglers(curves: Sequence[Curve]) -> Iterator[Remark]:
    """For each number of ranks who arrives last and has the smallest time of its own in most trials, if beyond chance.

    Those who come early to a collective that all must enter wait longest in it. Arrival is by aligned clocks; a rank's
    own time needs no clock but its own. `chance` is the probability that ranks that take turns at random name any one
    so often, `lag` its median arrival after the first, `wait` the share of the others' time that is waiting for it.
    """
    from scipy import special

    synchronising = [curve for curve in curves if curve.counted_as in SYNCHRONISING and curve.p.ranks > 1]
    points = [point for curve in synchronising for point in curve.points.values()]
    for ranks, together in sorted(grouped(points, lambda point: int(point.row.p.ranks)).items()):
        trials = [trial.sampling for point in together for trial in point.trials]
        signs = [(int(np.argmax(each["rank_lag_s"])), int(np.argmin(each["rank_median_s"]))) for each in trials]
        ((rank, named),) = Counter(last for last, least in signs if last == least).most_common(1) or ((0, 0),)
        # Binomial tail, times the ranks that could have been named.
        chance = min(1.0, ranks * float(special.bdtrc(named - 1, len(trials), 1 / ranks))) if named else 1.0
        own = np.array([each["rank_median_s"] for each in trials])
        others = np.median(np.delete(own, rank, axis=1), axis=1)
        wait = max(0.0, float(np.median(1 - own[:, rank] / others)))
        is_sure = chance < CHANCE and wait > WORTH_NAMING
        reported = "{ranks} ranks: no straggler. Rank {rank} arrives last and waits least in {named} of {trials} trials"
        if is_sure:
            reported = (
                "{ranks} ranks: rank {rank} is the straggler. It arrives last and waits least in {named} of {trials} "
                "trials, {lag} after the first (clocks agree within {clocks})"
            )
        yield remark(
            f"{reported} (chance: {{chance}}); {{wait}} of the others' time is waiting for it",
            kind="caution" if is_sure else "",
            ranks=ranks,
            rank=rank,
            named=named,
            trials=len(trials),
            chance=Quantity(chance, "%"),
            lag=Quantity(float(np.median([each["rank_lag_s"][rank] for each in trials])), "us"),
            clocks=Quantity(max(float(each["clock_uncertainty_s"]) for each in trials), "us"),
            wait=Quantity(wait, "%"),
        )


def stood_still(curves: Sequence[Curve]) -> Iterator[Remark]:
    """Ranks that did not run for seconds while a case was measured, the longest pause first."""
    trials = [trial for curve in curves for point in curve.points.values() for trial in point.trials]
    pauses = [
        (still_s, int(trial.case["parameters"]["ranks"]), rank, trial.label)
        for trial in trials
        for rank, still_s in enumerate(trial.quality.get(STOOD_STILL, ()))
        if still_s
    ]
    for still_s, ranks, rank, label in sorted(pauses, reverse=True)[:MOST_NAMED]:
        message = "{ranks} ranks: rank {rank} stood still for {still} in {label}: it was stopped, or had no CPU"
        yield remark(message, ranks=ranks, rank=rank, still=Quantity(still_s, "s"), label=label)


@dataclass(frozen=True)
class PairMap:
    """Bytes a second, one direction, between pairs, lower rank first, at one size; `paths` as in NV18 or PIX."""

    how: str
    size_bytes: int
    ranks: int
    rates: Mapping[Pair, float]
    paths: Mapping[Pair, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.how}, {size_name(self.size_bytes)}"

    @property
    def met(self) -> tuple[int, ...]:
        return tuple(sorted({rank for pair in self.rates for rank in pair}))

    @cached_property
    def shares(self) -> dict[Pair, float]:
        """Rate of each pair over that of the median pair with the same wiring."""
        medians = {
            path: statistics.median(self.rates[pair] for pair in similar)
            for path, similar in grouped(self.rates, self.paths.get).items()
        }
        return {pair: rate / medians[self.paths.get(pair)] for pair, rate in self.rates.items()}

    @property
    def slow_pairs(self) -> list[Pair]:
        """Pairs far below the median of their kind, slowest first."""
        return sorted((pair for pair, share in self.shares.items() if share < SLOW_SHARE), key=self.shares.__getitem__)


def pair_maps(curves: Sequence[Curve]) -> list[PairMap]:
    """One for each way of measuring and size."""
    points = [
        ((f"{curve.p.op} {curve.p.dtype}, {curve.how}", size, curve.p.ranks), point)
        for curve in curves
        for size, point in curve.points.items()
        if curve.p.pairs
    ]
    found = []
    for key, similar in grouped(points, lambda each: each[0]).items():
        rates = {pair: rate for _, point in similar for pair, rate in _rates(point)}
        paths = {pair: path for _, point in similar for pair, path in _paths(point)}
        found.append(PairMap(*key, dict(sorted(rates.items())), paths))
    return found


def _rates(point: CurvePoint) -> Iterator[tuple[Pair, float]]:
    """Yield the rate of each pair of a point by the slower of its ranks' own median times; the other ranks are idle."""
    own = np.array([trial.sampling["rank_median_s"] for trial in point.trials], dtype=np.float64)
    seconds = np.median(own, axis=0)
    for a, b in point.row.p.pairs:
        yield (min(a, b), max(a, b)), point.algbw(float(max(seconds[a], seconds[b])) / point.trips)


def _paths(point: CurvePoint) -> Iterator[tuple[Pair, str]]:
    """How the pairs are wired, where all ranks are GPUs of one machine; ranks there have CUDA's numbers."""
    links = (point.trials[0].state.get("gpu") or {}).get("links", {}) if point.nodes == 1 else {}
    for pair in point.row.p.pairs:
        a, b = sorted(pair)
        if f"{a}-{b}" in links:
            yield (a, b), links[f"{a}-{b}"]["path"]


def pair_findings(pair_map: PairMap) -> Iterator[Remark | Table | Figure]:
    """How fast the pairs are, the slow ranks, or else the slow links, and the map."""
    rates = pair_map.rates
    links = {rank: [pair for pair in rates if rank in pair] for rank in range(pair_map.ranks)}
    # Ranks all of whose links are slow, where each has two or more and the others' are not: their fault alone.
    ranks = [rank for rank, own in links.items() if len(own) > 1 and set(pair_map.slow_pairs).issuperset(own)]
    yield remark(
        "{map}: pairs carry {lowest} to {highest}, the median {median}; {slow} of {pairs} carry less than {limit} of "
        "the median of their kind",
        map=pair_map.name,
        lowest=Quantity(min(rates.values()), "GB/s"),
        highest=Quantity(max(rates.values()), "GB/s"),
        median=Quantity(statistics.median(rates.values()), "GB/s"),
        slow=len(pair_map.slow_pairs),
        pairs=len(rates),
        limit=Quantity(SLOW_SHARE, "%"),
    )
    for rank in ranks[:MOST_NAMED]:
        reported = "{map}: every link of rank {rank} is slow, so look there and not at a single cable"
        yield remark(reported, kind="caution", map=pair_map.name, rank=rank)
    for pair in pair_map.slow_pairs[:MOST_NAMED] if not ranks else ():
        wired, share = pair_map.paths.get(pair), Quantity(pair_map.shares[pair], "%")
        reported = "{map}: link {one}-{other} is slow, {share} of the median" + (" of those by {path}" if wired else "")
        yield remark(reported, effect="share", map=pair_map.name, one=pair[0], other=pair[1], share=share, path=wired)

    def to(peer: int) -> Column:
        return Column(str(peer), lambda one: rates.get((min(one, peer), max(one, peer))), "GB/s")

    columns = (Column("", "rank {}".format, priority=2), *map(to, pair_map.met))
    yield table(f"GB/s between ranks: {pair_map.name}", columns, pair_map.met)
    values = tuple(
        tuple(pair_map.shares.get((min(a, b), max(a, b)), math.nan) for b in pair_map.met) for a in pair_map.met
    )
    heat_map = HeatMap(pair_map.name, "rank", "rank", "rate over the median pair's", pair_map.met, pair_map.met, values)
    similar = " with the same wiring" if pair_map.paths else ""
    yield Figure(
        f"pair_map_{re.sub(r'[^a-z0-9]+', '_', pair_map.name.lower())}",
        f"Map of pairs: {pair_map.ranks} ranks",
        f"Measured, in one direction; 1 is the median of the pairs{similar}. Grey: not measured.",
        ((heat_map,),),
    )


# A drift or a change is reported where chance would do it in fewer soaks than this, of all cases together.
SOAK_CHANCE = 0.01
MOST_SHOWN = 6  # colours that can be distinguished in one picture


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
    point: CurvePoint
    begun_s: NDArray[np.float64]
    seconds: NDArray[np.float64]

    def __str__(self) -> str:
        return f"{self.curve}, {size_name(self.point.row.p.message_bytes)}"

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
        third = len(self.seconds) // 3
        return Shift(_step(self.seconds[:third], self.seconds[-third:]), chance_of_no_trend(self.seconds))

    @property
    def change(self) -> Shift:
        """Return the place where another level begins, by Pettitt's test."""
        place, chance = pettitt(self.seconds)
        return Shift(_step(self.seconds[:place], self.seconds[place:]), chance, float(self.begun_s[place]))


def _step(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    return float(np.median(after) / np.median(before)) - 1


SOAKED = (
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


def soak_findings(soaks: Sequence[Soaked]) -> Iterator[Remark | Table | Figure]:
    """How far trials lie apart, and which cases drift or change beyond chance; each case, and its trials over time."""
    if not soaks:
        return
    yield table("Soak: the same cases over time", SOAKED, soaks)
    yield soak_figure(soaks)
    spreads = [each.spread for each in soaks]
    slowest = max(soaks, key=lambda each: max(each.relative))
    yield remark(
        "Soak of {length}, {trials} trials of {cases} cases: {most} of a case's trials lie within {spread} (median "
        "case; worst {widest}); the slowest trial took {slowest} its case's median, {case} at {at}",
        length=_minutes(max(each.begun_s[-1] for each in soaks) - min(each.begun_s[0] for each in soaks)),
        trials=sum(len(each.seconds) for each in soaks),
        cases=len(soaks),
        most=Quantity(0.8, "%"),
        spread=Quantity(float(np.median(spreads)), "%"),
        widest=Quantity(max(spreads), "%"),
        slowest=Quantity(float(max(slowest.relative)), "x"),
        case=slowest,
        at=_minutes(slowest.begun_s[int(slowest.relative.argmax())]),
    )
    if max(len(each.seconds) for each in soaks) < FEWEST_VALUES:
        reported = "Soak: too short to tell a drift from chance, which takes {fewest} trials of a case"
        yield remark(reported, kind="caution", fewest=FEWEST_VALUES)
        return
    shifts = [
        *_largest("change, {case} most, by {by} at {at}", [(each, each.change) for each in soaks]),
        *_largest("drift, {case} most, by {by} from begin to end", [(each, each.drift) for each in soaks]),
    ]
    yield from shifts or [remark("Soak: no case drifts or changes beyond chance")]


def _largest(reported: str, shifts: Sequence[tuple[Soaked, Shift]]) -> Iterator[Remark]:
    sure = [(case, shift) for case, shift in shifts if shift.chance < SOAK_CHANCE / len(shifts)]
    if sure:
        case, shift = max(sure, key=lambda each: abs(each[1].by))
        reported = f"Soak: {{sure}} of {{cases}} cases {reported}"
        by, at = Quantity(shift.by, "+%"), _minutes(shift.at_s)
        yield remark(reported, effect="by", sure=len(sure), cases=len(shifts), case=case, by=by, at=at)


def _minutes(seconds: float) -> Quantity:
    return Quantity(float(seconds), "min")


def soak_figure(soaks: Sequence[Soaked]) -> Figure:
    """Every trial over time, relative to its case's median; what all have in common is in the title."""
    shown = sorted(soaks, key=lambda each: -each.spread)[:MOST_SHOWN]
    shared = {f"{each.curve.what.partition(' ')[2]}, {each.curve.how}" for each in shown}
    drawn = []
    for each in shown:
        short = f"{each.curve.p.op} {size_name(each.point.row.p.message_bytes)}"
        relative = each.relative.tolist()
        label = short if len(shared) == 1 else str(each)
        drawn.append(Series(label, each.begun_s.tolist(), relative, "points", relative, relative))
    most = "; the cases that spread most" if len(shown) < len(soaks) else ""
    return Figure(
        "collectives_soak",
        "Collectives over time" + (f": {shared.pop()}" if len(shared) == 1 else ""),
        f"Each point is one trial's median time over the median of its case{most}.",
        ((Panel("", "time", "time / median of the case", tuple(drawn), x_unit="min", y_unit="x"),),),
    )


def pettitt(values: NDArray[np.float64]) -> tuple[int, float]:
    """The index from which values are of another level, and the probability of such a change in none.

    Pettitt 1979, A non-parametric approach to the change-point problem: K = max |U_t|, p = 2 exp(−6K²/(n³ + n²)).
    """
    count = len(values)
    along = np.arange(1, count)
    statistic = np.abs(2 * np.cumsum(ranks_of(values))[:-1] - along * (count + 1))
    place = int(statistic.argmax())
    chance = 2 * math.exp(-6 * float(statistic[place]) ** 2 / (count**3 + count**2))
    return place + 1, min(1.0, chance)
