"""When to stop measuring pairs: a rule that looks several times and still errs no more often than stated.

The error rate is split over the looks beforehand (a weighted Bonferroni split), and each look is an exact signed-rank
test at its share. So the rate holds at every look together, under any tails of the noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyperf_suite.history.finding import Verdict
from pyperf_suite.history.statistics.decision import Decision
from pyperf_suite.history.statistics.intervals import (
    bca_bootstrap,
    hodges_lehmann,
    signed_rank_interval,
    signed_rank_p,
    student_t,
)
from pyperf_suite.history.statistics.multiple import FALSE_DISCOVERY_RATE
from pyperf_suite.measure.estimates import Ratio

# What the first look may spend of the alarms' error rate; the other looks split the rest evenly. Simulated against
# even, falling and rising splits over five to eleven looks (tools/simulate_decisions.py): the fewest pairs for +5 %.
FIRST_SHARE = 0.2
# Each look at half as many pairs again: closer ones take more from each other's share than they save in pairs.
GROWTH = 1.5
# Nobody measures more pairs than this for one benchmark: a day, at a second a pair.
FEASIBLE_PAIRS = 86_400


def fewest_pairs(alpha: float) -> int:
    """The pairs that a first look can raise an alarm from: all on one side is rarer than its share of `alpha`."""
    return math.ceil(math.log2(2 / (FIRST_SHARE * alpha)))


def looks_up_to(max_pairs: int, alpha: float) -> tuple[int, ...]:
    """The numbers of pairs after which to look: from the fewest that can raise an alarm, to `max_pairs`."""
    looks = []
    pairs = float(fewest_pairs(alpha))
    while round(pairs) * (1 + GROWTH) / 2 <= max_pairs:
        looks.append(round(pairs))
        pairs *= GROWTH
    return (*looks, max_pairs)


@dataclass(frozen=True)
class SequentialRule:
    """How pairs are judged, stated before the first is measured.

    `margin` is what is tolerated, as a share (0.01 is 1 %): slower means beyond 1 + margin, faster below its inverse.
    `alpha` is the probability of calling slower or faster what lies just within the margin, `alpha_equivalent` of
    calling equivalent what lies just beyond it; both over all `looks` together. `looks` left empty are chosen up to
    `max_pairs`.

    Raises ValueError for a negative margin, levels outside 0 … 1, or looks that do not rise.
    """

    margin: float = 0.01
    alpha: float = 0.01
    alpha_equivalent: float = 0.05
    looks: tuple[int, ...] = ()
    max_pairs: int = 60

    def __post_init__(self) -> None:
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise ValueError(f"a margin is a share of at least 0, not {self.margin!r}")
        if not (0 < self.alpha < 1 and 0 < self.alpha_equivalent < 1):
            raise ValueError("an error rate lies between 0 and 1")
        if self.max_pairs < 1:
            raise ValueError("a comparison needs at least one pair")
        looks = self.looks or looks_up_to(self.max_pairs, self.alpha)
        if looks[0] < 1 or any(later <= earlier for earlier, later in itertools.pairwise(looks)):
            raise ValueError(f"looks rise from at least one pair, not {looks}")
        object.__setattr__(self, "looks", tuple(looks))
        object.__setattr__(self, "max_pairs", looks[-1])

    def for_suite(self, comparisons: int) -> SequentialRule:
        """The rule for one of so many benchmarks: its alarms are rare enough to stand among all the others.

        An alarm by this rule always survives `multiple.suite_verdicts`; ten pairs that all agree, which are no rarer
        than 1 in 500, might not. Up to five comparisons it is the same rule. Raises ValueError for no comparisons.
        """
        if comparisons < 1:
            raise ValueError("a suite has at least one comparison")
        alpha = min(self.alpha, FALSE_DISCOVERY_RATE / comparisons)
        given = self.looks != looks_up_to(self.max_pairs, self.alpha)
        return replace(self, alpha=alpha, looks=self.looks if given else ())

    def is_look(self, pairs: int) -> bool:
        """Whether to ask for a decision after so many pairs."""
        return pairs in self.looks

    def shares(self, pairs: int, final: bool = False) -> tuple[float, float]:
        """What a look after so many pairs may spend of `alpha` and `alpha_equivalent`; over the looks each sums to 1.

        Alarms are wanted early, so their looks spend nearly alike; being equivalent takes many pairs where it is
        noisy and few where it is not, so its looks spend in proportion to their pairs. A final look spends all that is
        left: its time was set by a budget, not by what was seen. Beyond the last look its share is what there is.
        """
        here = min(sum(look < pairs for look in self.looks), len(self.looks) - 1)
        spent = slice(here, None if final else here + 1)
        rest = len(self.looks) - 1
        alarms = [FIRST_SHARE, *[(1 - FIRST_SHARE) / rest] * rest] if rest else [1.0]
        return sum(alarms[spent]), sum(self.looks[spent]) / sum(self.looks)

    def decide(self, log_ratios: Sequence[float], final: bool = False) -> Decision:
        """The verdict after the pairs so far; `log_ratios` are log(new time / old time), one a pair, in any order.

        Between looks the verdict is undecided, whatever the pairs show, unless `final` says that no more will follow.
        Raises ValueError for no pairs or ratios that are not finite.
        """
        pairs = len(log_ratios)
        share, share_equivalent = self.shares(pairs, final)
        bound = math.log1p(self.margin)
        higher = signed_rank_p(log_ratios, bound)
        lower = signed_rank_p([-log_ratio for log_ratio in log_ratios], bound)
        p_value = min(1.0, 2 * min(higher, lower) / share)
        low, high, confidence = _interval(log_ratios, self.alpha, share)
        verdict: Verdict = "undecided"
        if final or self.is_look(pairs):
            if p_value <= self.alpha:
                verdict = "slower" if higher < lower else "faster"
            else:
                # Two one-sided tests: each may err by the whole rate, for the truth lies beyond one end at most.
                narrow = _interval(log_ratios, 2 * self.alpha_equivalent, share_equivalent)
                if -bound < narrow.low and narrow.high < bound and narrow.confidence >= 1 - 2 * self.alpha_equivalent:
                    verdict = "equivalent"
                    low, high, confidence = narrow
        centre = hodges_lehmann(log_ratios)
        return Decision(
            verdict=verdict,
            ratio=_ratio(centre, low, high),
            t=_ratio(*student_t(log_ratios)),
            bca=_ratio(*bca_bootstrap(log_ratios)),
            p_value=p_value,
            pairs=pairs,
            further_pairs=self._further_pairs(log_ratios, centre) if verdict == "undecided" else 0,
            confidence=confidence,
        )

    def _further_pairs(self, log_ratios: Sequence[float], centre: float) -> int | None:
        """How many more pairs decide every second time, if the truth lies at `centre` and the spread stays."""
        from scipy import special

        pairs = len(log_ratios)
        fewest = max(fewest_pairs(self.alpha), pairs + 1)
        if pairs < 3:
            return fewest - pairs
        beyond = abs(centre) - math.log1p(self.margin)
        share, share_equivalent = self.shares(self.max_pairs)
        tail = self.alpha / 2 * share if beyond > 0 else self.alpha_equivalent * share_equivalent
        # The interval of one standard error to either side, whatever the tails, gives the spread that counts here.
        low, high, _ = _interval(log_ratios, 2 * float(special.ndtr(-1)), 1.0)
        standard_error = (high - low) / 2
        if beyond == 0:
            return None
        needed = pairs * (float(special.ndtri(tail)) * standard_error / beyond) ** 2
        if needed > FEASIBLE_PAIRS:
            return None
        return max(math.ceil(needed), fewest) - pairs


class _Interval(NamedTuple):
    low: float
    high: float
    confidence: float


def _interval(log_ratios: Sequence[float], alpha: float, share: float) -> _Interval:
    """The interval at one look's share of `alpha`, and its confidence over all looks.

    Too few pairs to bound the location so surely give their range, with the confidence that this has.
    """
    low, high = signed_rank_interval(log_ratios, alpha / 2 * share)
    if math.isfinite(low):
        return _Interval(low, high, 1 - alpha)
    return _Interval(min(log_ratios), max(log_ratios), max(0.0, 1 - 2 * 0.5 ** len(log_ratios) / share))


def _ratio(centre: float, low: float, high: float) -> Ratio:
    return Ratio(math.exp(centre), math.exp(low), math.exp(high))
