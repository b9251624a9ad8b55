"""A guide's claim as a constant with its source, and the one sentence that sets a measured ratio beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pyperf_suite.measure.ratio import Ratio, exactly

Verdict = Literal["claim holds", "claim does not hold here", "undecided"]

# Where the guides' sentences come from; the probes name one of these, or a paper.
BEKMAN = "Bekman, Machine Learning Engineering"
TRANSFORMERS = "Hugging Face Transformers, Performance and Scalability"
BIGSCIENCE = "BigScience, tflops_optimization.md"


@dataclass(frozen=True)
class Claim:
    """What is said of a ratio: that it lies from `low` to `high`, both included; never mixed into measurements."""

    text: str
    source: str
    low: float = 0.0
    high: float = math.inf

    def verdict(self, measured: Ratio) -> Verdict:
        """Holds where the whole interval lies inside the claim, does not where it lies outside, else undecided.

        So is whatever a single process timed: runs of one process minutes apart were seen to contradict each other.
        """
        if measured.processes == 1:
            return "undecided"
        if self.low <= measured.low and measured.high <= self.high:
            return "claim holds"
        if measured.high < self.low or measured.low > self.high:
            return "claim does not hold here"
        return "undecided"

    def sentence(
        self, subject: str, measured: Ratio, where: str = "", several: str = "--profile standard has three"
    ) -> str:
        """Subject, ratio and verdict, as in `fused AdamW is 3.10 [2.90, 3.30] x faster than ...; claim holds (...)`.

        `subject` has a gap `{}` for the ratio, or ends before it; `where` follows the ratio; `several` says how to have
        more processes than one.
        """
        told = subject.format(measured) if "{}" in subject else f"{subject} {measured} x"
        place = f" {where}" if where else ""
        alone = f" by one process, {several}" if measured.processes == 1 else ""
        return f"{told}{place}; {self.verdict(measured)}{alone} ({self.text}: {self.source})."

    def counted(self, told: str, value: float) -> str:
        """What was told of a value that is counted and not timed, as bytes are, and the verdict: it has no interval."""
        return f"{told}; {self.verdict(exactly(value))} ({self.text}: {self.source})."
