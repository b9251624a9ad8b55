"""What every comparison ends in: one benchmark, one verdict, one ratio with its interval, one sentence.

Tables, JSON, markdown, JUnit XML and exit codes are all made from findings, whichever command came to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pyperf_suite.measure.estimates import Ratio

Verdict = Literal["slower", "faster", "equivalent", "undecided", "failed"]
VERDICTS: tuple[Verdict, ...] = ("slower", "faster", "equivalent", "undecided", "failed")


@dataclass(frozen=True)
class Finding:
    """The answer for one benchmark.

    `ratio` is time of the new over time of the old, so 1.05 is 5 % slower; None where it could not be measured.
    `margin` is what was tolerated beforehand, as a share (0.01 is 1 %). `details` is plain JSON for machines: pairs,
    seconds spent, further pairs that would decide, commits, p-value, clocks; each producer says what it puts there.
    """

    benchmark: str
    probe: str
    case_id: str
    verdict: Verdict
    ratio: Ratio | None
    margin: float
    sentence: str
    details: Mapping[str, Any] = field(default_factory=dict)
