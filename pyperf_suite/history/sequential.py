"""When to stop measuring pairs: a rule that looks several times and still errs no more often than stated.

The error rate is split over the looks beforehand (a weighted Bonferroni split), and each look is an exact signed-rank
test at its share. So the rate holds at every look together, under any tails of the noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from pyperf_suite.history.decision import Decision
from pyperf_suite.history.finding import Verdict
from pyperf_suite.history.intervals import (
    bca_bootstrap,
    hodges_lehmann,
    signed_rank_interval,
    signed_rank_p,
    student_t,
)
from pyperf_suite.measure.ratio import Ratio

FIRST_LOOK = 10
GROWTH = 1.25
# Nobody measures more pairs than this for one benchmark: a day, at a second a pair.
FEASIBLE_PAIRS = 86_400


def looks_up_to(max_pairs: int) -> tuple[int, ...]:
    """The numbers of pairs after which to look: from the first that can decide, each a quarter more, to `max_pairs`."""
    looks = []
    pairs = float(FIRST_LOOK)
    while round(pairs) < max_pairs:
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
        looks = self.looks or looks_up_to(self.max_pairs)
        if looks[0] < 1 or any(later <= earlier for earlier, later in itertools.pairwise(looks)):
            raise ValueError(f"looks rise from at least one pair, not {looks}")
        object.__setattr__(self, "looks", tuple(looks))
        object.__setattr__(self, "max_pairs", looks[-1])

    def is_look(self, pairs: int) -> bool:
        """Whether to ask for a decision after so many pairs."""
        return pairs in self.looks

    def share(self, pairs: int, final: bool = False) -> float:
        """The share of the error rates that a look after so many pairs may spend; all shares sum to 1.

        A final look spends all that is left: its time was set by a budget, not by what was seen. Beyond the last look,
        as where a budget allowed more pairs than stated, the last look's share is what there is.
        """
        left = [look for look in self.looks if look >= pairs] or [self.looks[-1]]
        return len(left) / len(self.looks) if final else 1 / len(self.looks)

    def decide(self, log_ratios: Sequence[float], final: bool = False) -> Decision:
        """The verdict after the pairs so far; `log_ratios` are log(new time / old time), one a pair, in any order.

        Between looks the verdict is undecided, whatever the pairs show, unless `final` says that no more will follow.
        Raises ValueError for no pairs or ratios that are not finite.
        """
        pairs = len(log_ratios)
        share = self.share(pairs, final)
        bound = math.log1p(self.margin)
        higher = signed_rank_p(log_ratios, bound)
        lower = signed_rank_p([-log_ratio for log_ratio in log_ratios], bound)
        p_value = min(1.0, 2 * min(higher, lower) / share)
        verdict: Verdict = "undecided"
        low, high, confidence = self._interval(log_ratios, self.alpha, share)
        if final or self.is_look(pairs):
            if p_value <= self.alpha:
                verdict = "slower" if higher < lower else "faster"
            else:
                narrow = self._interval(log_ratios, 2 * self.alpha_equivalent, share)
                if -bound < narrow[0] and narrow[1] < bound and narrow[2] >= 1 - 2 * self.alpha_equivalent:
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
            further_pairs=self._further_pairs(log_ratios, centre, share) if verdict == "undecided" else 0,
            confidence=confidence,
        )

    def _interval(self, log_ratios: Sequence[float], alpha: float, share: float) -> tuple[float, float, float]:
        """The interval at one look's share of `alpha`, and its confidence over all looks.

        Too few pairs to bound the location so surely give their range, with the confidence that this has.
        """
        low, high = signed_rank_interval(log_ratios, alpha / 2 * share)
        if math.isfinite(low):
            return low, high, 1 - alpha
        return min(log_ratios), max(log_ratios), max(0.0, 1 - 2 * 0.5 ** len(log_ratios) / share)

    def _further_pairs(self, log_ratios: Sequence[float], centre: float, share: float) -> int | None:
        """Pairs that would decide if the truth lay at `centre` and the spread stayed: chance may need more or fewer."""
        pairs = len(log_ratios)
        bound = math.log1p(self.margin)
        distance = abs(abs(centre) - bound)
        tail = (self.alpha / 2 if abs(centre) > bound else self.alpha_equivalent) / len(self.looks)
        low, high, _ = self._interval(log_ratios, 0.32, 1.0)
        spread = (high - low) / 2 * math.sqrt(pairs)
        fewest = self.looks[0]
        if pairs < 3:
            return max(fewest - pairs, 1)
        if distance == 0:
            return None
        needed = (float(special.ndtri(tail)) * spread / distance) ** 2
        if needed > FEASIBLE_PAIRS:
            return None
        # At a distance that was needed on average only, every second comparison would still miss.
        return max(math.ceil(needed), fewest, pairs + 1) - pairs


def _ratio(centre: float, low: float, high: float) -> Ratio:
    return Ratio(math.exp(centre), math.exp(low), math.exp(high))
