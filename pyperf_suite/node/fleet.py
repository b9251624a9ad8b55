"""Runs of `accept` on machines of one identity next to each other: against an earlier one, and who is slow of many.

Outliers are found by median and median absolute deviation. Of a fleet without a slow node none is named with the
stated confidence, over all its nodes and checks together, where the noise between nodes is normal.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.findings.data import Findings, findings, remark
from pyperf_suite.findings.rows import Column, rows_of, table
from pyperf_suite.node.check import CAUTION, FAILED, Check, named, sentences
from pyperf_suite.node.probes.accept import PROBE, RateKey, checks_of
from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.record import Record

RECORDS = "records.jsonl"
FEWEST_NODES = 3
# One fleet in a thousand without a slow node has one named; nearer to the median nothing is worth a technician.
CHANCE, MIN_LOW = 0.001, 0.02
ALL_RATES = "all rates together"
# Ratio of the root mean square of rounds of a node to the median deviation, as of normal noise; and the limit, in
# those, to the weight of one check among all.
ROUNDS_SHARE, MAX_SIGMA = 0.2, 8.0
# A node that is measured twice differs by less.
BETWEEN_RUNS = 0.05


@dataclass(frozen=True)
class FleetNode:
    """One node, by the name of its folder, the machine's identity, and its checks."""

    name: str
    slug: str
    checks: Sequence[Check]

    @property
    def rates(self) -> dict[RateKey, Quantity]:
        """By part and check; rates alone, for counts are judged by themselves."""
        found = ((each, each.found) for each in self.checks)
        return {
            (each.part, each.what): rate
            for each, rate in found
            if isinstance(rate, Quantity) and rate.base.endswith("/s")
        }


def _accepted(journal: Path) -> list[Record]:
    try:
        # Looked for before it is parsed: results may hold hundreds of other runs.
        if f'"probe":"{PROBE.name}"'.encode() not in journal.read_bytes():
            return []
    except OSError as error:
        raise UserError(f"{journal} cannot be read: {error.strerror}.") from None
    return [record for record in read_journal(journal) if record.probe == PROBE.name]


def read_node(journal: Path, name: str) -> FleetNode:
    """The acceptance of a run. Raises UserError where its records hold none."""
    records = _accepted(journal) if journal.is_file() else []
    if not records:
        raise UserError(f"{journal.parent} holds no run of `pyperf-suite accept`: name the folder of one.")
    return FleetNode(name, str(records[0].identity.get("slug")), checks_of(rows_of(records)))


def baseline(name: str, results: Path, slug: str) -> dict[RateKey, Quantity]:
    """Return the expected rates of this machine by an earlier run: its folder, its name in `results`, or latest.

    Raises UserError where there is none, or it is another machine's.
    """
    pattern = f"{slug}/*/{RECORDS}" if name == "latest" else f"*/{Path(name).name}/{RECORDS}"
    there = [] if Path(name).is_dir() else [path for path in sorted(results.glob(pattern)) if _accepted(path)]
    node = read_node(there[-1] if there else Path(name) / RECORDS, name)
    if node.slug != slug:
        raise UserError(f"The baseline {name} is of {node.slug}, but this machine is {slug}: take a run of this one.")
    return {
        key: Quantity(rate.value, rate.unit, _ends(rate)[0] * (1 - BETWEEN_RUNS), math.inf)
        for key, rate in node.rates.items()
    }


def read_fleet(folder: Path) -> list[FleetNode]:
    """The newest acceptance of each node, which the first folder below `folder` names in which paths differ.

    Raises UserError for fewer than three nodes, and for machines of several identities.
    """
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: name the one that holds the results of every node.")
    records = {path.relative_to(folder).parts: path for path in folder.rglob(RECORDS) if _accepted(path)}
    if not records:
        raise UserError(
            f"{folder} holds no run of `pyperf-suite accept`: collect one of each node in it, a folder a node."
        )
    depth = next((n for n, parts in enumerate(zip(*records, strict=False)) if len(set(parts)) > 1), 0)
    # Runs are named by when they began: the last of a node is the newest.
    newest = {parts[depth]: path for parts, path in sorted(records.items(), key=lambda item: item[0][-2:])}
    nodes = [read_node(path, name) for name, path in sorted(newest.items())]
    slugs = sorted({node.slug for node in nodes})
    if len(slugs) > 1:
        raise UserError(
            f"{folder} holds machines of {len(slugs)} kinds ({', '.join(slugs[:3])}): compare each kind alone."
        )
    if len(nodes) < FEWEST_NODES:
        raise UserError(f"{folder} holds results of {len(nodes)}: it takes {FEWEST_NODES} nodes to say who is slow.")
    return nodes


@dataclass(frozen=True)
class RateComparison:
    """One check over a fleet: by node and part how far its rate is off the median, and who is too far.

    `share` is of the median, -0.05 is 5 % below; `deviation` in median absolute deviations; below `cutoff` chance
    hardly goes. `sure` are those whose best round is low as well.
    """

    what: str
    share: Mapping[RateKey, float]
    deviation: Mapping[RateKey, float]
    cutoff: float
    sure: Set[RateKey]

    @property
    def slow(self) -> list[RateKey]:
        """Parts named as slow, slowest first."""
        found = [who for who in self.sure if self.deviation[who] < self.cutoff and self.share[who] < -MIN_LOW]
        return sorted(found, key=self.share.__getitem__)

    @property
    def seen_from(self) -> float:
        """How far below the median somebody has to be to be named, here."""
        apart = [self.share[who] / far for who, far in self.deviation.items() if far]
        return min(-MIN_LOW, self.cutoff * statistics.median(apart)) if apart else -MIN_LOW


def _ends(rate: Quantity) -> tuple[float, float]:
    """The worst and the best round; the value twice of a rate that one round gave."""
    return (rate.value, rate.value) if math.isnan(rate.low) else (rate.low, rate.high)


def compared(rates: Mapping[RateKey, Mapping[str, Quantity]]) -> list[RateComparison]:
    """Each check over all nodes and parts that have it, and all checks together; `rates` by (node, part), then check.

    Each has an equal part of the chance of a false alarm (Bonferroni). A rate that comes and goes between the rounds of
    nodes spreads more than its medians show, and nobody is named whose best round is half as far off only.
    """
    whats = list(dict.fromkeys(what for held in rates.values() for what in held))
    off: dict[str, dict[RateKey, float]] = {what: {} for what in (*whats, ALL_RATES)}
    sigmas, sure = {what: dict(held) for what, held in off.items()}, {what: dict(held) for what, held in off.items()}
    cutoffs = dict.fromkeys(off, 0.0)
    for rate_name in whats:
        found = {who: held[rate_name] for who, held in rates.items() if rate_name in held}
        logs = np.log([[rate.value, *_ends(rate)] for rate in found.values()])
        apart = logs[:, 0] - np.median(logs[:, 0])
        scale = max(np.median(np.abs(apart)), ROUNDS_SHARE * math.sqrt(np.mean((logs[:, 2] - logs[:, 1]) ** 2)))
        cutoffs[rate_name] = low_cutoff(len(found), CHANCE / len(off))
        for who, each, best in zip(found, apart, logs[:, 2] - np.median(logs[:, 0]), strict=True):
            off[rate_name][who], sigmas[rate_name][who] = float(each), float(each / scale) if scale else 0.0
            sure[rate_name][who] = bool(best < 0.5 * cutoffs[rate_name] * scale)
    many = [who for who, held in rates.items() if len(held) > 1]
    # Each check counts by its own noise, and none for so much that it speaks for all.
    means = [np.mean([np.clip(sigmas[what][who], -MAX_SIGMA, MAX_SIGMA) for what in rates[who]]) for who in many]
    sigmas[ALL_RATES] = dict(zip(many, deviations(means).tolist() if many else [], strict=True))
    off[ALL_RATES] = {who: statistics.median(off[what][who] for what in rates[who]) for who in many}
    sure[ALL_RATES], cutoffs[ALL_RATES] = dict.fromkeys(many, True), low_cutoff(len(many), CHANCE / len(off))
    shares = {what: {who: math.expm1(each) for who, each in held.items()} for what, held in off.items()}
    return [
        RateComparison(
            what, shares[what], sigmas[what], cutoffs[what], {who for who, is_sure in sure[what].items() if is_sure}
        )
        for what in (*whats, *([ALL_RATES] if many else []))
    ]


def fleet_findings(nodes: Sequence[FleetNode]) -> tuple[Findings, bool]:
    """Return findings on slow parts, faults and the limits of being named; and whether there is any."""
    rates: dict[RateKey, dict[str, Quantity]] = {}
    for node in nodes:
        for (part, what), rate in node.rates.items():
            rates.setdefault((node.name, part), {})[what] = rate
    comparisons = compared(rates)
    slow = []
    for each in comparisons:
        for who in each.slow:
            far, cutoff = -each.deviation[who], -each.cutoff
            why = f"relative to the median; {far:.1f} median absolute deviations below it, {cutoff:.1f} by chance"
            share = Quantity(each.share[who], "+%")
            slow.append(Check(" ".join(who), each.what, share, verdict=CAUTION, why=why, source="the other nodes"))
    bad = [
        named(each, f"{node.name} {each.part}", each.what)
        for node in nodes
        for each in node.checks
        if each.verdict == FAILED
    ]
    message = (
        "{slow} of {nodes} nodes are slower than the others; were none, one would be named with a chance of {chance}"
    )
    columns = (
        Column("check", "what", priority=2),
        Column("compared", lambda each: len(each.share)),
        Column("slowest", lambda each: ", ".join(min(each.share, key=each.share.__getitem__))),
        Column("off the median", lambda each: min(each.share.values()), "+%", 2),
        Column("named from", "seen_from", "+%"),
    )
    names = len({name for each in comparisons for name, _ in each.slow})
    found = findings(
        remark(message, kind="caution" if slow else "", slow=names, nodes=len(nodes), chance=Quantity(CHANCE, "%")),
        sentences([*slow, *bad]),
        table("Checks over the fleet", columns, comparisons),
    )
    return found, bool(slow or bad)


# Fleets drawn to learn how far chance takes the lowest of `count`, and values drawn at most.
FLEETS, DRAWN = 40_000, 20_000_000


def deviations(values: ArrayLike) -> NDArray[np.float64]:
    """How many times the median absolute deviation each value lies above the median; 0 where most are equal."""
    data = np.asarray(values, dtype=np.float64)
    off = data - np.median(data, axis=-1, keepdims=True)
    scale = np.median(np.abs(off), axis=-1, keepdims=True)
    return np.divide(off, scale, out=np.zeros_like(off), where=scale > 0)


@functools.cache
def low_cutoff(count: int, chance: float) -> float:
    """The deviation that the lowest of `count` values of one normal distribution falls to with at most this chance.

    Whatever its mean and spread: both are taken from the values. The k-th lowest of m simulated fleets, with k/(m + 1)
    at most `chance`, is undercut by another fleet with just that probability, drawn seed included (Barnard 1963), so
    that the bound holds exactly and not in the limit. Infinite for fewer than three values, which nothing can tell.
    """
    if count < 3:
        return -math.inf
    random = np.random.default_rng(0)
    fleets = max(math.ceil(2 / chance), min(FLEETS, DRAWN // count))
    rows = max(1, DRAWN // (10 * count))
    sizes = [min(rows, fleets - start) for start in range(0, fleets, rows)]
    lowest = np.concatenate([deviations(random.standard_normal((size, count))).min(axis=1) for size in sizes])
    return float(np.sort(lowest)[math.floor(chance * (fleets + 1)) - 1])
