"""The one place that decides whether something got slower: evidence and a margin in, a verdict out.

Evidence is of three kinds: log ratios of live pairs (`Pairs`, exact signed ranks), the difference of two finished runs
or of two levels of a series (`LogDifference`, Student's t), and exact figures of machine code (`judge_figures`).
The signed-rank interval decides. It needs no more than independent pairs that are as likely to err upwards as
downwards, which exchanging the arms at random gives, so it holds its level under any tails. Few pairs that lie close
together beyond the margin decide sooner, under one assumption more (`clump_p`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from pyperf_suite.errors import ExitCode
from pyperf_suite.record.interval import Ratio, normal_quantile, student_quantile, student_tail
from pyperf_suite.regressions.thresholds import DEFAULT_FAIL_ON, FAIL_ON, MARGIN

CONFIDENCE = 0.95


def hodges_lehmann(values: Sequence[float]) -> float:
    """The median of the means of all pairs of values (each with itself too): the signed ranks' location.

    After Hodges and Lehmann (1963), doi:10.1214/aoms/1177704172. Raises ValueError for no values.
    """
    return float(np.median(walsh_averages(_sample(values))))


def signed_rank_interval(values: Sequence[float], tail: float) -> tuple[float, float]:
    """The interval that misses the location on either side with a probability of at most `tail`.

    An end that so few values cannot bound is infinite. Raises ValueError for no values.
    """
    averages = np.sort(walsh_averages(_sample(values)))
    wanted = critical_sum(len(values), tail)
    if wanted > len(averages):
        return -math.inf, math.inf
    return float(averages[len(averages) - wanted]), float(averages[wanted - 1])


def signed_rank_p(values: Sequence[float], location: float) -> float:
    """The p-value of "the values lie no higher than `location`", one-sided.

    Ties count against a difference, so the p-value is never too small for them. Raises ValueError for no values.
    """
    averages = walsh_averages(_sample(values))
    return float(_upper_tails(len(values))[np.count_nonzero(averages > location)])


def clump_p(values: Sequence[float], location: float) -> float:
    """The same for values that all lie above, the furthest less than twice as far as the nearest; else 1.

    Assumes that each value is a difference of two draws from one distribution, as of the two processes of a pair,
    independent from value to value; the distributions may differ, have any tails and any number of modes. Of draws
    that differ by `d` to `2 d` no three are apart from each other by so much, so that by Motzkin and Straus (1965),
    doi:10.4153/CJM-1965-053-6, a difference lies there in at most one of four; and in one of two above its location.
    """
    beyond = _sample(values) - location
    count = len(beyond)
    return 2 * count * 0.25**count if 0 < beyond.max() < 2 * beyond.min() else 1.0


def walsh_averages(sample: np.ndarray) -> np.ndarray:
    """The means of all n(n + 1)/2 pairs of values, each with itself too, in no order."""
    first, second = np.triu_indices(len(sample))
    return (sample[first] + sample[second]) / 2


@functools.cache
def critical_sum(count: int, tail: float) -> int:
    """The least signed-rank sum of `count` values that is reached by chance with a probability of at most `tail`.

    One more than the greatest possible sum where that is itself likelier than `tail`.
    """
    return int(np.count_nonzero(_upper_tails(count) > tail))


@functools.cache
def _upper_tails(count: int) -> np.ndarray:
    """The probability of each signed-rank sum 0 … n(n + 1)/2, or a greater one, of values symmetric about 0."""
    chances = np.zeros(count * (count + 1) // 2 + 1)
    chances[0] = 1.0
    for rank in range(1, count + 1):
        with_rank = np.zeros_like(chances)
        with_rank[rank:] = chances[:-rank]
        chances = (chances + with_rank) / 2
    # Summed from the far end, so that the smallest tails are not lost in rounding.
    return np.cumsum(chances[::-1])[::-1]


def _sample(values: Sequence[float]) -> np.ndarray:
    sample = np.asarray(values, dtype=float)
    if sample.size == 0:
        raise ValueError("an interval needs at least one value")
    if not np.isfinite(sample).all():
        raise ValueError("an interval needs finite values")
    return sample


@dataclass(frozen=True)
class Proportion:
    """`hits` of `tries`, and where the rate lies with a confidence of at least 95 %.

    The interval is Clopper and Pearson's (*Biometrika* 26, 1934): exact, so never too narrow, also for 0 of 200.
    """

    hits: int
    tries: int

    def __post_init__(self) -> None:
        if not 0 <= self.hits <= self.tries:
            raise ValueError(f"{self.hits} of {self.tries} is no proportion")

    @property
    def value(self) -> float:
        return self.hits / self.tries if self.tries else float("nan")

    @property
    def low(self) -> float:
        """The lowest rate that would give as many hits or more in one of forty series."""
        if not self.hits:
            return 0.0
        from scipy import special

        return float(special.betaincinv(self.hits, self.tries - self.hits + 1, (1 - CONFIDENCE) / 2))

    @property
    def high(self) -> float:
        """The highest rate that would give so few hits or fewer in one of forty series."""
        return 1.0 - Proportion(self.tries - self.hits, self.tries).low

    def __str__(self) -> str:
        if not self.tries:
            return "none tried"
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


Word = Literal["slower", "faster", "equivalent", "undecided", "failed"]
WORDS: tuple[Word, ...] = ("slower", "faster", "equivalent", "undecided", "failed")
# How often slower or faster may be said of what lies just within the margin, equivalent of what lies just beyond it.
ALPHA, ALPHA_EQUIVALENT = 0.01, 0.05
# At most this share of the changes that a suite calls slower or faster beyond the margin is expected to be mistaken,
# even if all the others lay just within the margin; for identical code it is far less.
FALSE_DISCOVERY_RATE = 0.05
# Probably slower is what stayed undecided with the whole interval beyond the margin, at this confidence at least.
PROBABLE_CONFIDENCE = 0.95
# Share of the alarms' error rate for the first look; the other looks split the rest evenly. Simulated against even,
# falling and rising splits over five to eleven looks: the fewest pairs for +5 %.
FIRST_SHARE = 0.2
# Each look at half as many pairs again: closer ones take more from each other's share than they save in pairs.
LOOK_GROWTH = 1.5
# Nobody measures more pairs than this for one benchmark: a day, at a second a pair.
FEASIBLE_PAIRS = 86_400


# Registers that did not fit go to local memory, which is device memory; resident warps hide its latency.
MORE_IS_WORSE = {"local_memory", "stack"}
LESS_IS_WORSE = {"resident_warps", "resident_blocks"}


@dataclass(frozen=True)
class Verdict:
    """Decision on the evidence.

    `ratio` is time of the new over time of the old, with the interval that decided: it covers the truth with a
    probability of at least `confidence`. `p_value` is for "no slower and no faster than the margin". `further_pairs`
    estimates how many more pairs would decide; 0 if it is decided, None if no feasible number would.
    """

    word: Word
    ratio: Ratio
    p_value: float
    confidence: float
    pairs: int = 0
    further_pairs: int | None = 0


@dataclass(frozen=True)
class Judgement:
    """The answer for one benchmark: tables, JSON, Markdown, JUnit XML and exit codes are made from these.

    `ratio` is time of the new over time of the old, so 1.05 is 5 % slower; None if it could not be measured. `margin`
    is what was tolerated beforehand, as a share (0.01 is 1 %). `details` is plain JSON for machines: pairs, seconds
    spent, further pairs that would decide, commits, p-value, clocks; each producer says what it puts there.
    """

    benchmark: str
    probe: str
    case_id: str
    verdict: Word
    ratio: Ratio | None
    margin: float
    sentence: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def severity(self) -> str:
        """The level of `FAIL_ON` that minds this, else the verdict."""
        confidence = self.details.get("confidence", 0.0)
        if self.verdict == "undecided" and self.ratio and is_probable(self.ratio, self.margin, confidence):
            return "probably-slower"
        return self.verdict


def is_probable(ratio: Ratio, margin: float, confidence: float) -> bool:
    """True if the whole interval lies beyond the margin, with a confidence of `PROBABLE_CONFIDENCE` at least.

    Of identical code that is so once in forty times where six pairs have to do, else less often.
    """
    return ratio.low > 1 + margin and confidence >= PROBABLE_CONFIDENCE


class Interval(NamedTuple):
    """Interval of a logarithm, and its confidence."""

    low: float
    high: float
    confidence: float


# One value of each side tells nothing of how far the next would lie.
NO_INTERVAL = Interval(math.nan, math.nan, 0.0)


def judge(
    evidence: LogDifference | Pairs,
    margin: float = MARGIN,
    alpha: float = ALPHA,
    alpha_equivalent: float = ALPHA_EQUIVALENT,
    may_decide: bool = True,
) -> Verdict:
    """Slower or faster beyond the margin, equivalent within it, else undecided.

    `alpha` bounds how often slower or faster is wrong, `alpha_equivalent` how often equivalent is. Without
    `may_decide`, as between the looks of a sequential rule, it is undecided whatever the evidence shows.
    """
    bound = math.log1p(margin)
    p_value, interval = evidence.p_value(bound), evidence.interval(alpha)
    word: Word = "undecided"
    if may_decide and p_value <= alpha:
        word = "slower" if evidence.centre > 0 else "faster"
    elif may_decide:
        # Two one-sided tests: each may err by the whole rate, for the truth lies beyond one end at most.
        narrow = evidence.interval(2 * alpha_equivalent, equivalence=True)
        if -bound < narrow.low and narrow.high < bound and narrow.confidence >= 1 - 2 * alpha_equivalent:
            word, interval = "equivalent", narrow
    return Verdict(word, ratio_of(evidence.centre, interval.low, interval.high), p_value, interval.confidence)


@dataclass(frozen=True)
class LogDifference:
    """A difference of two means of logarithms: the estimate, its standard error (NaN: unknown), its degrees of freedom.

    It is evidence of a change of time as the logarithm of new over old, as `Pairs` are. `p_value(bound)` is that of "no
    further from 0 than the bound", two-sided.
    """

    centre: float
    error: float
    freedom: float

    def p_value(self, bound: float) -> float:
        beyond = abs(self.centre) - bound
        if self.error == 0:
            return 0.0 if beyond > 0 else 1.0
        return min(1.0, 2 * self._tail(beyond / self.error))

    def _tail(self, t: float) -> float:
        """The probability that Student's t, or without an end of freedom a normal value, is above `t`."""
        if not math.isfinite(self.freedom):
            return math.erfc(t / math.sqrt(2)) / 2
        return student_tail(self.freedom, t) if t >= 0 else 1 - student_tail(self.freedom, -t)

    def interval(self, alpha: float, equivalence: bool = False) -> Interval:
        if math.isnan(self.error):
            return NO_INTERVAL
        end = 1 - alpha / 2
        reach = student_quantile(self.freedom, end) if math.isfinite(self.freedom) else normal_quantile(end)
        half_width = self.error * reach
        return Interval(self.centre - half_width, self.centre + half_width, 1 - alpha)


@dataclass(frozen=True)
class Pairs:
    """Log ratios of live pairs at one of several looks, which may spend these shares of the error rates."""

    log_ratios: Sequence[float]
    share: float = 1.0
    share_equivalent: float = 1.0

    @property
    def centre(self) -> float:
        """By Hodges and Lehmann."""
        return hodges_lehmann(self.log_ratios)

    def p_value(self, bound: float) -> float:
        """Valid however often one looks."""
        mirrored = [-log_ratio for log_ratio in self.log_ratios]
        # A clump is among the rarest signed ranks there are, so that the lesser of both is no more often small.
        tests = [test(values, bound) for values in (self.log_ratios, mirrored) for test in (signed_rank_p, clump_p)]
        return min(1.0, 2 * min(tests) / self.share)

    def interval(self, alpha: float, equivalence: bool = False) -> Interval:
        """At 1 - `alpha`, two-sided, over all looks; with `equivalence` at the share that a test of it may spend.

        Too few pairs give their range, with the confidence that this has; a single one has none.
        """
        if len(self.log_ratios) == 1:
            return NO_INTERVAL
        share = self.share_equivalent if equivalence else self.share
        low, high = signed_rank_interval(self.log_ratios, alpha / 2 * share)
        if math.isfinite(low):
            return Interval(low, high, 1 - alpha)
        chance = 2 * 0.5 ** len(self.log_ratios) / share
        return Interval(min(self.log_ratios), max(self.log_ratios), max(0.0, 1 - chance))


def judge_figures(
    old: Mapping[str, float], new: Mapping[str, float]
) -> tuple[Word, str, dict[str, list[float | None]]]:
    """Verdict, sentence, and the figures that changed as [old, new], from exact figures of machine code by name.

    Slower if a kernel spills more or fewer of its warps are resident, faster for the opposite, undecided if it is
    both, or other figures changed; equivalent if every figure is the same.
    """
    sides = {name: [old.get(name), new.get(name)] for name in dict.fromkeys([*old, *new])}
    changed = {name: pair for name, pair in sides.items() if pair[0] != pair[1]}
    if not changed:
        return "equivalent", f"All {len(old)} exact figures are the same.", changed
    texts = {name: ["none" if each is None else f"{each:g}" for each in pair] for name, pair in changed.items()}
    listed = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in texts.items())
    rises = {name for name, (before, after) in changed.items() if (after or 0) > (before or 0)}
    falls = {name for name, (before, after) in changed.items() if (after or 0) < (before or 0)}
    worse, better = rises & MORE_IS_WORSE | falls & LESS_IS_WORSE, rises & LESS_IS_WORSE | falls & MORE_IS_WORSE
    if worse and not better:
        return "slower", f"Worse by its exact figures ({', '.join(sorted(worse))}): {listed}.", changed
    if better and not worse:
        return "faster", f"Better by its exact figures ({', '.join(sorted(better))}): {listed}.", changed
    return "undecided", f"The machine code changed: {listed}; only a timing tells what that costs.", changed


def fewest_pairs(alpha: float) -> int:
    """Return the fewest pairs that can raise an alarm: a clump of that size is rarer than a first look's share."""
    return next(count for count in itertools.count(2) if 4 * count * 0.25**count <= FIRST_SHARE * alpha)


def looks_up_to(max_pairs: int, alpha: float) -> tuple[int, ...]:
    """The numbers of pairs after which to look: from the fewest that can raise an alarm, to `max_pairs`."""
    looks = []
    pairs = fewest_pairs(alpha)
    while pairs * (1 + LOOK_GROWTH) / 2 <= max_pairs:
        looks.append(pairs)
        pairs = math.ceil(pairs * LOOK_GROWTH)
    return (*looks, max_pairs)


@dataclass(frozen=True)
class SequentialRule:
    """How pairs are judged, stated before the first is measured: it looks several times and errs no more than stated.

    The error rates are split over the looks beforehand (a weighted Bonferroni split), and each look is an exact
    test at its share (`Pairs`), so the rate holds at every look together, under any tails of the noise. `margin` is
    what is tolerated, as a share (0.01 is 1 %): slower means beyond 1 + margin, faster below its inverse. `alpha` is
    the probability of calling slower or faster what lies just within the margin, `alpha_equivalent` of calling
    equivalent what lies just beyond it. `looks` left empty are chosen up to `max_pairs`.

    Raises ValueError for a negative margin, levels outside 0 … 1, or looks that do not rise.
    """

    margin: float = MARGIN
    alpha: float = ALPHA
    alpha_equivalent: float = ALPHA_EQUIVALENT
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
        """Return the rule for one of `comparisons` benchmarks: its alarms are rare enough to stand beside the others.

        An alarm by this rule always survives `suite_words`; seven pairs that all agree, which are no rarer than 1 in
        500, might not. Up to five comparisons it is the same rule. Raises ValueError for no comparisons.
        """
        if comparisons < 1:
            raise ValueError("a suite has at least one comparison")
        alpha = min(self.alpha, FALSE_DISCOVERY_RATE / comparisons)
        given = self.looks != looks_up_to(self.max_pairs, self.alpha)
        return replace(self, alpha=alpha, looks=self.looks if given else ())

    def shares(self, pairs: int, final: bool = False) -> tuple[float, float]:
        """Return the alpha spending of a look at `pairs` pairs, of `alpha` and `alpha_equivalent`; each sums to 1.

        Alarms are wanted early, so their looks spend nearly equal shares; being equivalent takes many pairs if it is
        noisy and few if it is not, so its looks spend in proportion to their pairs. A final look spends all that is
        left: its time was set by a budget, not by what was seen. Beyond the last look its share is left.
        """
        here = min(sum(look < pairs for look in self.looks), len(self.looks) - 1)
        spent = slice(here, None if final else here + 1)
        rest = len(self.looks) - 1
        alarms = [FIRST_SHARE, *[(1 - FIRST_SHARE) / rest] * rest] if rest else [1.0]
        return sum(alarms[spent]), sum(self.looks[spent]) / sum(self.looks)

    def decide(self, log_ratios: Sequence[float], final: bool = False) -> Verdict:
        """The verdict after these log(new time / old time), one a pair; between looks undecided unless `final`.

        Raises ValueError for no pairs or ratios that are not finite.
        """
        pairs = len(log_ratios)
        evidence = Pairs(log_ratios, *self.shares(pairs, final))
        found = judge(evidence, self.margin, self.alpha, self.alpha_equivalent, final or pairs in self.looks)
        further = 0 if found.word != "undecided" else self._further_pairs(log_ratios, evidence.centre)
        return replace(found, pairs=pairs, further_pairs=further)

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
        low, high, _ = Pairs(log_ratios).interval(2 * float(special.ndtr(-1)))
        standard_error = (high - low) / 2
        if beyond == 0:
            return None
        needed = pairs * (float(special.ndtri(tail)) * standard_error / beyond) ** 2
        return None if needed > FEASIBLE_PAIRS else max(math.ceil(needed), fewest) - pairs


def adjusted_p_values(p_values: Sequence[float]) -> list[float]:
    """For each p-value, the least false discovery rate at which its hypothesis is rejected, in the same order.

    After Benjamini and Hochberg (1995), doi:10.1111/j.2517-6161.1995.tb02031.x. Holds for independent p-values and for
    positively dependent ones. Raises ValueError for a p-value outside 0 … 1.
    """
    # scipy.stats has it too, but takes seconds to import.
    values = np.asarray(p_values, dtype=float)
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError("a p-value lies between 0 and 1")
    order = np.argsort(values, kind="stable")[::-1]
    ranks = np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum.accumulate(np.minimum(1.0, values[order] * len(values) / ranks))
    return [float(value) for value in adjusted]


def suite_words(verdicts: Sequence[Verdict]) -> list[Word]:
    """The verdicts of all benchmarks of a suite together: slower and faster are those whose p-value survives.

    Among twenty comparisons of identical code at 1 % each, every fifth suite would hold an alarm. A difference that
    does not survive is undecided after all. One that was not clear enough by itself is so among others only where it
    survives at `ALPHA`: a single benchmark is never judged more boldly than by its own rule.
    """
    words: list[Word] = []
    for verdict, adjusted in zip(verdicts, adjusted_p_values([each.p_value for each in verdicts]), strict=True):
        limit = FALSE_DISCOVERY_RATE if verdict.word in ("slower", "faster") else ALPHA
        if adjusted <= limit:
            words.append("slower" if verdict.ratio.value > 1 else "faster")
        else:
            words.append("equivalent" if verdict.word == "equivalent" else "undecided")
    return words


def is_minded(judgement: Judgement, fail_on: str = DEFAULT_FAIL_ON) -> bool:
    """True if a judgement makes the exit code other than 0 at that level. Raises ValueError for another level.

    `slower` counts what got slower; `probably-slower` also what stayed open with the whole interval beyond the margin;
    `failed` also what could not be measured; `undecided` also all others that stayed open.
    """
    return judgement.severity in FAIL_ON[1 : FAIL_ON.index(fail_on) + 1]


def exit_code(judgements: Sequence[Judgement], fail_on: str = DEFAULT_FAIL_ON, unchanged: int = 0) -> ExitCode:
    """Failures if they count or are alone, else a regression, an undecided one, or fine; `unchanged` were searched."""
    minded = {judgement.severity for judgement in judgements if is_minded(judgement, fail_on)}
    nothing = fail_on != "never" and not unchanged and {judgement.verdict for judgement in judgements} <= {"failed"}
    if nothing or "failed" in minded:
        return ExitCode.FAILED
    is_slower = minded & {"slower", "probably-slower"}
    return ExitCode.VERDICT if is_slower else ExitCode.FAILED if minded else ExitCode.FINE


def ratio_of(centre: float, low: float, high: float) -> Ratio:
    """A ratio with its interval from their logarithms."""
    return Ratio(math.exp(centre), math.exp(low), math.exp(high))


def percent(share: float) -> str:
    """As in `+2.3 %`."""
    return f"{100 * share:+.1f} %"


def range_text(ratio: Ratio) -> str:
    """Changes at the ends of an interval, as in `+1.2 % to +3.4 %`."""
    if math.isnan(ratio.low):
        return "no interval from one value"
    return f"{percent(ratio.low - 1)} to {percent(ratio.high - 1)}"
