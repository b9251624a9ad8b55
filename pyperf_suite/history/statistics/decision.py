"""What a sequence of paired measurements says so far: a verdict, its ratio and intervals, and what more would cost."""

from __future__ import annotations

from dataclasses import dataclass

from pyperf_suite.history.finding import Verdict
from pyperf_suite.measure.estimates import Ratio


@dataclass(frozen=True)
class Decision:
    """The state of a sequential comparison after some pairs.

    `ratio` is time of the new over time of the old, by Hodges and Lehmann, with the signed-rank interval that decides:
    it covers the truth at every look together with a probability of at least `confidence` (less than asked for
    where there are too few pairs; 0 for a single one). `t` and `bca` are ordinary 95 % intervals of the mean over the
    same pairs, for show. `p_value` is for "no slower and no faster than the margin"; it stays valid however often one
    looks, so values of several benchmarks can go into one procedure. `further_pairs` estimates how many more pairs
    would decide; 0 where it is decided, None where no feasible number would.
    """

    verdict: Verdict
    ratio: Ratio
    t: Ratio
    bca: Ratio
    p_value: float
    pairs: int
    further_pairs: int | None
    confidence: float

    @property
    def is_decided(self) -> bool:
        """Whether measuring can stop."""
        return self.verdict != "undecided"
