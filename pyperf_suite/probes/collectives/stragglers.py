"""Which rank the others wait for: the one that arrives last, and so has the smallest time of its own.

Those who come early to a collective that all must enter wait longest in it. Two signs are asked, arrival by aligned
clocks and own time, which needs no clock but the rank's own; chance is told by how often they point to one rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from pyperf_suite.probes.collectives.curves import Curve, Point
from pyperf_suite.probes.collectives.sizes import readable
from pyperf_suite.runner.record import Record

# No rank can leave these before all have entered.
SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

# A rank is named where chance would do as much in fewer runs than this, and others wait for so much of their time.
CHANCE, WORTH_NAMING = 0.01, 0.05


@dataclass(frozen=True)
class Straggler:
    """The rank that both signs name most often, in `named` of `visits`.

    `chance` is the probability that ranks that take turns at random name any one so often; `lag_s` its median arrival
    after the first, `wait` the share of the others' time that they spend more in the collective than it.
    """

    rank: int
    named: int
    visits: int
    chance: float
    lag_s: float
    wait: float
    clock_uncertainty_s: float

    @property
    def is_sure(self) -> bool:
        """Whether it is more than chance, and worth naming."""
        return self.chance < CHANCE and self.wait > WORTH_NAMING


def straggler_sentences(curves: Sequence[Curve]) -> list[str]:
    """For each number of ranks the straggler or that there is none, and how long small messages wait for arrivals."""
    by_ranks: dict[int, list[Point]] = {}
    for curve in curves:
        if curve.operation in SYNCHRONISING:
            by_ranks.setdefault(curve.setting.parameters.ranks, []).extend(curve.points.values())
    sentences = []
    for ranks, points in sorted(by_ranks.items()):
        found = straggler([visit for point in points for visit in point.visits])
        if ranks > 1 and found is not None:
            sentences += [_sentence(ranks, found), *_skew_sentence(ranks, points)]
    return sentences


def straggler(visits: Sequence[Record]) -> Straggler | None:
    """Who is named most often among visits of synchronising collectives of equally many ranks; None without visits."""
    told = [visit.sampling for visit in visits]
    if not told:
        return None
    named = Counter[int]()
    for sampling in told:
        last, smallest = int(np.argmax(sampling["rank_lag_s"])), int(np.argmin(sampling["rank_median_s"]))
        named.update([last] if last == smallest else [])
    ranks = len(told[0]["rank_median_s"])
    rank, count = named.most_common(1)[0] if named else (0, 0)
    # Binomial tail, times the ranks that could have been named.
    tail = float(special.bdtrc(count - 1, len(told), 1 / ranks)) if count else 1.0
    waits = []
    for sampling in told:
        own = np.array(sampling["rank_median_s"])
        others = float(np.median(np.delete(own, rank))) if ranks > 1 else float(own[0])
        waits.append(1 - own[rank] / others if others else 0.0)
    return Straggler(
        rank=rank,
        named=count,
        visits=len(told),
        chance=min(1.0, ranks * tail),
        lag_s=float(np.median([sampling["rank_lag_s"][rank] for sampling in told])),
        wait=float(np.median(waits)),
        clock_uncertainty_s=max(float(sampling["clock_uncertainty_s"]) for sampling in told),
    )


def _sentence(ranks: int, found: Straggler) -> str:
    counted = f"in {found.named} of {found.visits} visits"
    if not found.named:
        return f"{ranks} ranks: no straggler; in none of {found.visits} visits does the last to arrive wait least."
    if not found.is_sure:
        chance = "no more than chance would" if found.chance > CHANCE else "more than chance would"
        return (
            f"{ranks} ranks: no straggler. Rank {found.rank} is most often the last to arrive with the smallest own "
            f"time, {counted}, {chance}, and {max(found.wait, 0):.0%} of the others' time is waiting for it."
        )
    return (
        f"{ranks} ranks: rank {found.rank} is the straggler. It arrives last and has the smallest own time {counted} "
        f"(by chance with probability {found.chance:.1g}), {found.lag_s * 1e6:.0f} us after the first (clocks agree "
        f"within {found.clock_uncertainty_s * 1e6:.0f} us); {found.wait:.0%} of the others' time is waiting for it."
    )


def _skew_sentence(ranks: int, points: Sequence[Point]) -> list[str]:
    """Of the smallest message, where waiting for arrivals weighs most."""
    apart = [(p, p.median_of("transfer"), p.median_of("skew")) for p in points]
    told = [(p, transfer, skew) for p, transfer, skew in apart if transfer is not None and skew is not None]
    if not told:
        return []
    point, transfer, skew = min(told, key=lambda each: each[0].size_bytes)
    return [
        f"{ranks} ranks: of {point.parameters.op} of {readable(point.size_bytes)}, {transfer * 1e6:.1f} us are "
        f"transfer after the last rank arrived, and the ranks arrive {skew * 1e6:.1f} us apart (medians)."
    ]
