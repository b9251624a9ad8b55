"""The map of pairs: how fast each rank reaches each other, and which link or rank is slow.

Every pair of ranks has its own time in a record, so a map is read from pairs measured one by one or many at once.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from pyperf_suite.laws.network.communication import algbw
from pyperf_suite.probes.collectives.curves import Curve, Point
from pyperf_suite.probes.collectives.sizes import readable
from pyperf_suite.spec.findings import Figure, HeatMap, Table

# A link that carries less than this share of what the median link of its kind does is slow.
SLOW = 0.8
MOST_NAMED = 5

Pair = tuple[int, int]


@dataclass(frozen=True)
class PairMap:
    """GB/s (1e9), one direction, between pairs of ranks, lower rank first, at one size.

    `paths` says how a pair is wired where the machine told, as in NV18 or PIX.
    """

    how: str
    size_bytes: int
    ranks: int
    rates: Mapping[Pair, float]
    paths: Mapping[Pair, str] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Of all pairs measured."""
        return statistics.median(self.rates.values())

    def share(self, pair: Pair) -> float:
        """Of what the median pair that is wired alike carries."""
        alike = [rate for other, rate in self.rates.items() if self.paths.get(other) == self.paths.get(pair)]
        return self.rates[pair] / statistics.median(alike)

    def slow_pairs(self) -> list[Pair]:
        """Those far below the median of their kind, slowest first."""
        return sorted((pair for pair in self.rates if self.share(pair) < SLOW), key=self.share)

    def slow_ranks(self) -> list[int]:
        """Ranks all of whose links are slow, where each has two or more and the others' are not: their fault alone."""
        links = {rank: [pair for pair in self.rates if rank in pair] for rank in range(self.ranks)}
        slow = set(self.slow_pairs())
        return [rank for rank, own in links.items() if len(own) > 1 and slow.issuperset(own)]


def tournament(ranks: int) -> list[tuple[Pair, ...]]:
    """Rounds in which every rank meets each other once, as many pairs at once as there can be: the circle method."""
    players = list(range(ranks)) + ([-1] if ranks % 2 else [])
    rounds = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        met = zip(players[:half], reversed(players[half:]), strict=True)
        rounds.append(tuple(sorted((min(pair), max(pair)) for pair in met if -1 not in pair)))
        players = [players[0], players[-1], *players[1:-1]]
    return rounds


def pair_maps(curves: Sequence[Curve]) -> list[PairMap]:
    """One for each way of measuring and size."""
    found: dict[tuple[str, int, int], dict[Pair, float]] = {}
    paths: dict[tuple[str, int, int], dict[Pair, str]] = {}
    for curve in curves:
        p = curve.setting.parameters
        for size, point in curve.points.items():
            if p.pairs:
                how = f"{p.op} {p.dtype}, {curve.setting.how}"
                found.setdefault((how, size, p.ranks), {}).update(_rates(point))
                paths.setdefault((how, size, p.ranks), {}).update(_paths(point))
    return [PairMap(*key, dict(sorted(rates.items())), paths[key]) for key, rates in found.items()]


def pair_sentence(found: PairMap) -> str:
    """The slow rank or the slow links, or that there are none."""
    head = f"Pair map ({found.how}, {readable(found.size_bytes)}): "
    rates = found.rates.values()
    if len(rates) == 1:
        ((one, other),) = found.rates
        return head + f"ranks {one} and {other} reach each other at {found.median:.3g} GB/s."
    spread = f"{len(rates)} pairs carry {min(rates):.3g} to {max(rates):.3g} GB/s, the median {found.median:.3g}"
    ranks = found.slow_ranks()
    if ranks:
        named = " and ".join(f"rank {rank}" for rank in ranks[:MOST_NAMED])
        return head + f"{spread}; every link of {named} is slow, so look there and not at a single cable."
    slow = found.slow_pairs()
    if slow:
        named = ", ".join(f"{a}-{b} ({_beside(found, (a, b))})" for a, b in slow[:MOST_NAMED])
        more = f" and {len(slow) - MOST_NAMED} more" if len(slow) > MOST_NAMED else ""
        unknown = "" if found.paths else " Where the machine has links of several kinds, that is why."
        return head + f"{spread}; slow links: {named}{more}.{unknown}"
    return head + f"{spread}; no link is slower than {SLOW:.0%} of the median{' of its kind' if found.paths else ''}."


def _beside(found: PairMap, pair: Pair) -> str:
    """`34% of the median`, or of the median of the links that are wired alike."""
    path = found.paths.get(pair)
    return f"{found.share(pair):.0%} of the median" + (f" of those by {path}" if path else "")


def pair_table(found: PairMap) -> Table:
    """A matrix, GB/s; a pair that was not measured has a dash."""
    met = sorted({rank for pair in found.rates for rank in pair})
    rows = []
    for row in met:
        pairs = [(min(row, column), max(row, column)) for column in met]
        rates = [found.rates.get(pair) for pair in pairs]
        rows.append((f"rank {row}", *("-" if rate is None else f"{rate:.3g}" for rate in rates)))
    title = f"GB/s between ranks: {found.how}, {readable(found.size_bytes)}"
    return Table(title, ("", *(str(rank) for rank in met)), tuple(rows))


def pair_figure(found: PairMap) -> Figure:
    """The map in colours: each pair over the median of those wired alike; white is as fast as that."""
    met = sorted({rank for pair in found.rates for rank in pair})
    shares = {pair: found.share(pair) for pair in found.rates}
    values = tuple(tuple(shares.get((min(row, column), max(row, column)), math.nan) for column in met) for row in met)
    size = readable(found.size_bytes)
    stem = re.sub(r"[^a-z0-9]+", "_", f"{found.how} {size}".lower())
    heat_map = HeatMap(
        f"{found.how}, {size}",
        "rank",
        "rank",
        "rate over the median pair's",
        tuple(met),
        tuple(met),
        values,
    )
    alike = " wired alike" if found.paths else ""
    caption = (
        f"Measured, in one direction; 1 is the median of the pairs{alike}, of all pairs {found.median:.3g} GB/s. "
        "Grey: not measured."
    )
    return Figure(f"pair_map_{stem}", f"Map of pairs: {found.ranks} ranks", caption, ((heat_map,),))


def all_pairs(ranks: int) -> list[Pair]:
    """Every two ranks, the lower one first."""
    return list(combinations(range(ranks), 2))


def _paths(point: Point) -> dict[Pair, str]:
    """How the pairs are wired, where all ranks are GPUs of one machine; ranks there have CUDA's numbers."""
    visit = point.visits[0]
    links = (visit.state.get("gpu") or {}).get("links", {}) if visit.sampling.get("nodes", 1) == 1 else {}
    pairs = ((min(pair), max(pair)) for pair in point.parameters.pairs)
    return {pair: links[name]["path"] for pair in pairs if (name := f"{pair[0]}-{pair[1]}") in links}


def _rates(point: Point) -> dict[Pair, float]:
    """Of each pair in a point, by the slower of its two ranks' own times; the other ranks are idle."""
    seconds = point.rank_seconds()
    return {
        (min(a, b), max(a, b)): float(algbw(point.size_bytes, max(seconds[a], seconds[b]) / point.trips))
        for a, b in point.parameters.pairs
    }
