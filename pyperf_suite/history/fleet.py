"""Runs of `accept` on machines of one identity beside each other: an earlier one as the baseline, and who is slow of many.

Outliers are found by median and median absolute deviation. Of a fleet without a slow node none is named with the
stated confidence, over all its nodes and checks together, where the noise between nodes is normal.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyperf_suite.errors import UserError
from pyperf_suite.measure.estimates import deviations, low_cutoff
from pyperf_suite.probes.accept import BAD, PROBE, AcceptCheck, checks_of
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.results import read_journal
from pyperf_suite.spec.findings import Findings, Quantity, findings, remark
from pyperf_suite.spec.rows import Column, rows_of, table

RECORDS = "records.jsonl"
FEWEST_NODES = 3
# One fleet in a thousand without a slow node has one named.
CHANCE = 0.001
# Nearer to the median nothing is worth a technician.
WORTH = 0.02
ALL = "all rates together"
# A node twice measured on one machine differs by less.
BETWEEN_RUNS = 0.05

Key = tuple[str, str]


@dataclass(frozen=True)
class FleetNode:
    """One node of a fleet, by the name of its folder, and its checks."""

    name: str
    slug: str
    checks: Sequence[AcceptCheck]

    @property
    def rates(self) -> dict[Key, Quantity]:
        """By part and check; rates alone, for counts are judged by themselves."""
        return {(each.part, each.what): each.found for each in self.checks if each.found and each.found.base.endswith("/s")}


def read_node(path: Path, name: str = "") -> FleetNode:
    """The acceptance that a run's folder or its records hold. Raises UserError where they hold none."""
    journal = path / RECORDS if path.is_dir() else path
    if not journal.is_file():
        raise UserError(f"{path} is no run: name the folder of a run of `pyperf-suite accept`.")
    records = _accepted(journal)
    if not records:
        raise UserError(f"{path} holds no acceptance: make one with `pyperf-suite accept`.")
    return FleetNode(name or path.name, str(records[0].identity.get("slug")), checks_of(rows_of(records)))


def find_accepted(name: str, results: Path, slug: str) -> FleetNode:
    """The run that a person names: its folder, its name in `results`, or latest, of this machine.

    Raises UserError where there is none.
    """
    if Path(name).exists():
        return read_node(Path(name))
    pattern = f"{slug}/*/{RECORDS}" if name == "latest" else f"*/{Path(name).name}/{RECORDS}"
    for journal in sorted(results.glob(pattern), reverse=True):
        if name != "latest" or _accepted(journal):
            return read_node(journal.parent)
    raise UserError(f"There is no run {name[:80]!r} of `pyperf-suite accept` in {results}: name its folder.")


def _accepted(journal: Path) -> list[Record]:
    return [record for record in read_journal(journal) if record.probe == PROBE.name]


def baseline(node: FleetNode, slug: str) -> dict[Key, Quantity]:
    """What each rate of this machine should be by an earlier run. Raises UserError for another machine's."""
    if node.slug != slug:
        raise UserError(f"The baseline {node.name} is of {node.slug}, but this machine is {slug}: take a run from here.")
    return {
        key: Quantity(rate.value, rate.unit, min(rate.low, rate.value) * (1 - BETWEEN_RUNS), rate.high, 0, True)
        for key, rate in node.rates.items()
    }


def read_fleet(folder: Path) -> list[FleetNode]:
    """The newest acceptance of each node: below `folder` the first folder in which paths differ names it.

    Raises UserError where there are fewer than three nodes, or machines of several identities.
    """
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: name one that holds the results of each node.")
    found = {path.relative_to(folder).parts: path for path in sorted(folder.rglob(RECORDS)) if _accepted(path)}
    if not found:
        raise UserError(f"{folder} holds no acceptance: collect results of `pyperf-suite accept` in it, a folder a node.")
    depth = next((n for n, parts in enumerate(zip(*found, strict=False)) if len(set(parts)) > 1), 0)
    # Runs are named by when they began: the last of a node is the newest.
    newest = {parts[depth]: path for parts, path in sorted(found.items(), key=lambda item: item[0][-2])}
    nodes = [read_node(path, name) for name, path in sorted(newest.items())]
    slugs = sorted({node.slug for node in nodes})
    if len(slugs) > 1:
        raise UserError(f"{folder} holds machines of {len(slugs)} kinds, {', '.join(slugs[:3])}: compare each kind alone.")
    if len(nodes) < FEWEST_NODES:
        raise UserError(f"{folder} holds {len(nodes)} node{'s' * (len(nodes) > 1)}: an outlier takes {FEWEST_NODES} or more.")
    return nodes


@dataclass(frozen=True)
class FleetCheck:
    """One check over a fleet: by node and part how far its rate is off the median, and who is too far.

    `share` is of the median, -0.05 is 5 % below; `deviation` in median absolute deviations; below `cutoff` chance
    hardly goes.
    """

    what: str
    share: Mapping[Key, float]
    deviation: Mapping[Key, float]
    cutoff: float

    @property
    def slow(self) -> list[Key]:
        """Those named, slowest first."""
        found = [who for who, far in self.deviation.items() if far < self.cutoff and self.share[who] < -WORTH]
        return sorted(found, key=self.share.__getitem__)

    @property
    def seen_from(self) -> float:
        """How far below the median somebody has to be to be named, here."""
        apart = [self.share[who] / far for who, far in self.deviation.items() if far]
        return min(-WORTH, self.cutoff * statistics.median(apart)) if apart else -WORTH


def compared(rates: Mapping[Key, Mapping[str, float]]) -> list[FleetCheck]:
    """Each check over all nodes and parts that have it, and all checks together; `rates` by (node, part), then check.

    Each has an equal part of the chance of a false alarm (Bonferroni).
    """
    logs: dict[str, dict[Key, float]] = {}
    for who, theirs in rates.items():
        for what, rate in theirs.items():
            logs.setdefault(what, {})[who] = math.log(rate)
    far = {what: dict(zip(held, deviations([*held.values()]).tolist(), strict=True)) for what, held in logs.items()}
    middle = {what: statistics.median(held.values()) for what, held in logs.items()}
    off = {what: {who: log - middle[what] for who, log in held.items()} for what, held in logs.items()}
    many = [who for who, theirs in rates.items() if len(theirs) > 1]
    if many:
        # Each check counts by its own noise; what a slow part loses in all of them stands out of that sooner.
        together = deviations([statistics.fmean(far[what][who] for what in rates[who]) for who in many])
        far[ALL] = dict(zip(many, together.tolist(), strict=True))
        off[ALL] = {who: statistics.fmean(off[what][who] for what in rates[who]) for who in many}
    shares = {what: {who: math.expm1(each) for who, each in held.items()} for what, held in off.items()}
    return [FleetCheck(what, shares[what], far[what], low_cutoff(len(far[what]), CHANCE / len(far))) for what in far]


def fleet_findings(nodes: Sequence[FleetNode]) -> tuple[Findings, bool]:
    """Who is slow in what, what is not ok on its own, and from where on a slow node is seen; whether anything is."""
    rates: dict[Key, dict[str, Quantity]] = {}
    for node in nodes:
        for (part, what), rate in node.rates.items():
            rates.setdefault((node.name, part), {})[what] = rate
    checks = compared({who: {what: rate.value for what, rate in held.items()} for who, held in rates.items()})
    slow = [(check, who) for check in checks for who in check.slow]
    bad = [(node, each) for node in nodes for each in node.checks if each.verdict == BAD]
    told = [
        remark(
            "{slow} of {nodes} nodes are slower than the others; of a fleet without a slow one this names any with a "
            "chance of {chance} at most",
            kind="caution" if slow else "",
            slow=len({name for _, (name, _) in slow}),
            nodes=len(nodes),
            chance=Quantity(CHANCE, "%"),
        )
    ]
    told += [
        remark(
            "{node}, {part}: {what} {share} off the median, {far:x} median absolute deviations, where {cutoff:x} are needed",
            kind="caution",
            **{"node": who[0], "part": who[1], "what": check.what, "share": Quantity(check.share[who], "+%")},
            **{"far": -check.deviation[who], "cutoff": -check.cutoff},
        )
        for check, who in slow
    ]
    told += [
        remark("{node}, {part}: {what}: {why}", each, kind="caution", node=node.name) for node, each in bad
    ]
    columns = (
        Column("check", "what", priority=2),
        Column("parts compared", lambda check: len(check.share)),
        Column("slowest", lambda check: ", ".join(min(check.share, key=check.share.__getitem__))),
        Column("off the median", lambda check: min(check.share.values()), "+%", 2),
        Column("named from", "seen_from", "+%"),
    )
    return findings(told, table("Checks over the fleet", columns, checks)), bool(slow or bad)
