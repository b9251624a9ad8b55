"""How findings are put into words and into an order, the same in every form: what needs a reader first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyperf_suite.history.finding import Finding, Verdict
from pyperf_suite.measure.ratio import Ratio

# What needs a reader comes first; within a verdict, what moved most.
URGENCY: tuple[Verdict, ...] = ("slower", "failed", "undecided", "faster", "equivalent")

# Beyond this a percentage is harder to read than a factor.
_AS_FACTOR = 10.0


def by_urgency(findings: Sequence[Finding]) -> list[Finding]:
    """Slower first, equivalent last; within a verdict by how much the time changed."""

    def rank(finding: Finding) -> tuple[int, float, str]:
        moved = abs(math.log(finding.ratio.value)) if finding.ratio is not None and finding.ratio.value > 0 else 0.0
        return URGENCY.index(finding.verdict), -moved if math.isfinite(moved) else -math.inf, finding.benchmark

    return sorted(findings, key=rank)


def change(ratio: Ratio | None) -> str:
    """A ratio of times as what a person reads: `+5.1 % [+4.2, +6.0]`, or `x12.3 [11.9, 12.8]`; empty for none.

    >>> change(Ratio(1.051, 1.042, 1.06))
    '+5.1 % [+4.2, +6.0]'
    """
    if ratio is None or math.isnan(ratio.value):
        return ""
    if ratio.value >= _AS_FACTOR:
        return f"x{ratio.value:.3g} [{ratio.low:.3g}, {ratio.high:.3g}]"
    value, low, high = (100 * (end - 1) for end in (ratio.value, ratio.low, ratio.high))
    return f"{value:+.1f} % [{low:+.1f}, {high:+.1f}]"


def percent(share: float) -> str:
    """A share as a percentage without needless digits: `1 %`, `0.5 %`.

    >>> percent(0.015)
    '1.5 %'
    """
    return f"{100 * share:.3g} %"


def counted(findings: Sequence[Finding]) -> str:
    """`1 slower, 2 undecided, 5 equivalent of 8 benchmarks`."""
    if not findings:
        return "no benchmark to tell of"
    counts = [(sum(finding.verdict == verdict for finding in findings), verdict) for verdict in URGENCY]
    told = ", ".join(f"{count} {verdict}" for count, verdict in counts if count)
    return f"{told} of {len(findings)} benchmark{'s' if len(findings) > 1 else ''}"


def outcome_sentence(findings: Sequence[Finding], code: int, fail_on: str) -> str:
    """The last line of every command: how many of what, and which exit code that makes."""
    meaning = {0: "fine", 1: "regression", 3: "undecided or failed"}[code]
    return f"{counted(findings)}; exit code {code}, {meaning} (--fail-on {fail_on})"
