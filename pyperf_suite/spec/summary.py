"""What of all findings a reader is told first: the largest effects, claims that fail here, and what is undecided."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pyperf_suite.spec.findings import Claim, Findings, Remark, Verdict, remark
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import grouped

MOST_POINTS = 7
_MOST_FAILING, _MOST_UNDECIDED = 2, 2


@dataclass(frozen=True)
class Point:
    """One line of a summary: the probe that it is of, empty where several are, and the finding."""

    kind: Literal["effect", "fails", "undecided"]
    told: Remark | Verdict
    probe: str = ""


def summary_of(findings: Mapping[str, Findings]) -> list[Point]:
    """At most seven points: effects by what of them is certain, then claims that do not hold, then open ones."""
    verdicts = [(name, each) for name, found in findings.items() for each in found.verdicts]
    others = [*_failing(verdicts), *_undecided(verdicts)]
    return [*_effects(findings)][: MOST_POINTS - len(others)] + others


def certain_weight(found: Quantity) -> float:
    """The logarithm of the ratio, at that end of its interval that lies nearest to no effect; 0 for what is noise."""
    if found.unit not in ("x", "+%"):
        return 0.0
    added = 1.0 if found.unit == "+%" else 0.0
    ends = [end + added for end in (found.value, found.low, found.high) if not math.isnan(end)]
    if not ends or not all(0 < end < math.inf for end in ends) or min(ends) <= 1 <= max(ends):
        return 0.0
    return min(abs(math.log(end)) for end in ends)


def _effects(findings: Mapping[str, Findings]) -> Iterator[Point]:
    """The largest of each kind of remark: what several processes timed first, then what one did."""
    found: dict[tuple[str, str], tuple[tuple[int, float], Point]] = {}
    for name, each in ((name, each) for name, held in findings.items() for each in held.remarks):
        if isinstance(each, Verdict):
            quantity, template = each.measured, each.claim.text
        elif isinstance(each, Remark) and not each.kind:
            named, template = each.values.get(each.effect), each.template
            quantity = named if isinstance(named, Quantity) else Quantity(math.nan)
        else:
            continue
        weight = certain_weight(quantity)
        fails = isinstance(each, Verdict) and each.outcome == "does not hold here"
        if not weight or quantity.predicted or fails:
            continue
        # What is counted is certain, but is less news than what took time.
        rank = ((0, 1, 2)[min(quantity.processes, 2)], weight)
        key = (name, template)
        if key not in found or rank > found[key][0]:
            found[key] = rank, Point("effect", each, name)
    ranked = sorted(found.values(), key=lambda item: item[0], reverse=True)
    yield from (point for _, point in ranked)


def _failing(verdicts: list[tuple[str, Verdict]]) -> list[Point]:
    """Of each claim the verdict that lies furthest outside; those beyond the second as a number."""
    failing = [(name, each) for name, each in verdicts if each.outcome == "does not hold here"]
    by_claim = grouped(failing, lambda item: (item[0], item[1].claim))
    points = [
        Point("fails", max((each for _, each in held), key=_outside), name) for (name, _), held in by_claim.items()
    ]
    points.sort(key=lambda point: _outside(point.told), reverse=True)  # type: ignore[arg-type]
    more = len(points) - _MOST_FAILING
    if more == 1:
        return points
    told = remark("{count} more claims do not hold here", count=more)
    return [*points[:_MOST_FAILING], Point("fails", told)] if more > 0 else points


def _outside(verdict: Verdict) -> float:
    """How far the measured value lies from the nearer bound, as the logarithm of their ratio."""
    value, claim = verdict.measured.value, verdict.claim
    bound = claim.low if value < claim.low else claim.high
    return abs(math.log(value / bound)) if value > 0 and 0 < bound < math.inf else math.inf


def _undecided(verdicts: list[tuple[str, Verdict]]) -> list[Point]:
    """How many claims are open for which reason, and what would decide them."""
    open_ones = [each for _, each in verdicts if each.outcome == "undecided"]
    by_reason = grouped(open_ones, lambda each: (each.why, each.remedy))
    points = []
    for (why, remedy), held in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        claims: list[Claim] = list(dict.fromkeys(each.claim for each in held))
        one = len(claims) == 1
        template = f"{{count}} {'claim is' if one else 'claims are'} undecided: {{why}}; {{remedy}}"
        points.append(Point("undecided", remark(template, count=len(claims), why=why, remedy=remedy)))
    return points[:_MOST_UNDECIDED]
