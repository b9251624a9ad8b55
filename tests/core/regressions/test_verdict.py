import math

import numpy as np
import pytest
import scipy  # whose parts are imported at first use: stats takes two seconds
from hypothesis import given, settings
from hypothesis import strategies as st

from pyperf_suite.record.interval import Ratio
from pyperf_suite.regressions.verdict import (
    LogDifference,
    Pairs,
    Proportion,
    SequentialRule,
    Verdict,
    adjusted_p_values,
    clump_p,
    critical_sum,
    hodges_lehmann,
    judge,
    judge_figures,
    looks_up_to,
    range_text,
    signed_rank_interval,
    signed_rank_p,
    suite_words,
)


def shared_machine(random: np.random.Generator, trials: int, pairs: int) -> np.ndarray:
    """Log-ratios like those measured on a shared 2-core machine: sd 3.1 %, MAD-sd 2.1 %, every tenth pair far out."""
    spread = np.where(random.random((trials, pairs)) < 0.1, 0.08, 0.019)
    return spread * random.normal(0, 1, (trials, pairs))


def message(rule: SequentialRule, shift: float) -> dict[str, float]:
    """Shares of comparisons on a noisy machine that ended in each verdict, and the median of their pairs."""
    words, pairs = [], []
    for log_ratios in shared_machine(np.random.default_rng(1), 300, rule.max_pairs) + math.log1p(shift):
        for look in rule.looks:
            decision = rule.decide(log_ratios[:look])
            if decision.word != "undecided":
                break
        words.append(decision.word)
        pairs.append(look)
    shares = {word: words.count(word) / len(words) for word in ("slower", "faster", "equivalent")}
    return shares | {"pairs": float(np.median(pairs))}


@pytest.mark.slow
def test_identical_code_raises_no_alarm_in_more_than_one_of_a_hundred_comparisons():
    found = message(SequentialRule(), 0.0)
    assert found["slower"] + found["faster"] <= 0.01
    assert found["equivalent"] >= 0.75


@pytest.mark.slow
def test_slowdowns_are_found_on_a_noisy_machine():
    found = message(SequentialRule(), 0.05)
    assert found["slower"] >= 0.95
    assert found["pairs"] <= 12
    assert message(SequentialRule(), 0.03)["slower"] >= 0.80


@pytest.mark.slow
def test_what_lies_just_at_the_margin_is_called_slower_no_more_often_than_stated():
    rule = SequentialRule(alpha=0.05)
    found = message(rule, rule.margin)
    assert 0.005 < found["slower"] <= 0.04
    assert found["equivalent"] <= rule.alpha_equivalent


def quiet(shift: float, pairs: int) -> list[float]:
    return list(np.random.default_rng(5).normal(math.log1p(shift), 0.002, pairs))


@pytest.mark.parametrize(("shift", "verdict"), [(0.05, "slower"), (-0.05, "faster"), (0.0, "equivalent")])
def test_on_a_quiet_machine_the_first_look_or_the_next_decides(shift, verdict):
    rule = SequentialRule()
    decision = rule.decide(quiet(shift, rule.looks[1]))
    assert decision.word == verdict
    assert decision.further_pairs == 0
    assert decision.ratio.low < decision.ratio.value < decision.ratio.high
    assert decision.ratio.value == pytest.approx(1 + shift, abs=0.003)


def test_between_looks_nothing_is_decided_unless_no_more_will_follow():
    rule = SequentialRule()
    pairs = rule.looks[0] + 1
    assert pairs not in rule.looks
    assert rule.decide(quiet(0.05, pairs)).word == "undecided"
    assert rule.decide(quiet(0.05, pairs), final=True).word == "slower"


def test_a_final_look_spends_what_the_looks_that_will_not_come_would_have():
    rule = SequentialRule()
    assert [sum(rule.shares(look)[kind] for look in rule.looks) for kind in (0, 1)] == pytest.approx([1, 1])
    for pairs in (3, 7, 8, 39, 60, 80):
        for kind in (0, 1):
            to_come = [rule.shares(look)[kind] for look in rule.looks if look >= pairs] or [rule.shares(pairs)[kind]]
            assert rule.shares(pairs, final=True)[kind] == pytest.approx(sum(to_come))


@pytest.mark.parametrize(
    ("max_pairs", "alpha", "looks"),
    [
        # Seven pairs in a clump are rarer than a fifth of 1 %, 28 / 4^7; each look is at half as many again.
        (60, 0.01, (7, 11, 17, 26, 39, 60)),
        (100, 0.05, (6, 9, 14, 21, 32, 48, 72, 100)),
        *((most, 0.01, (most,)) for most in (1, 6, 7, 8)),
        (9, 0.01, (7, 9)),
    ],
)
def test_looks_are_from_the_first_that_could_raise_an_alarm_to_the_most_pairs(max_pairs, alpha, looks):
    assert looks_up_to(max_pairs, alpha) == looks


def test_a_rule_is_that_of_the_documents_and_spends_a_fifth_on_the_first_look_or_by_its_pairs():
    rule = SequentialRule()
    assert (rule.margin, rule.alpha, rule.alpha_equivalent, rule.max_pairs) == (0.01, 0.01, 0.05, 60)
    assert [rule.shares(pairs) for pairs in (7, 11, 60, 80)] == [
        pytest.approx((share, pairs / 160)) for share, pairs in ((0.2, 7), (0.16, 11), (0.16, 60), (0.16, 60))
    ]
    assert SequentialRule(looks=(20,)).shares(20) == (1.0, 1.0)
    assert SequentialRule(margin=0.0).decide([0.001] * 11).word == "slower"
    # Four of one side are as rare as 2 / 2^4, five as 2 / 2^5: only these bound what lies within the margin at 90 %.
    assert [judge(Pairs([0.0, 0.001, -0.001, 0.002, 0.0005][:n])).word for n in (4, 5)] == ["undecided", "equivalent"]
    assert Pairs([0.3] * 5).interval(0.01) == (0.3, 0.3, 1 - 2 / 32)
    assert Pairs([0.3] * 5, share=0.5).interval(0.01).confidence == 1 - 4 / 32
    assert Pairs([0.3] * 5, share=0.5).p_value(0.01) == pytest.approx(2 * 4 * 5 / 4**5)
    assert Pairs([0.3] * 4 + [0.6], share=0.5).p_value(0.01) == pytest.approx(2 * 2 / 32)


OFFSETS = np.array([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.5, 5.0]) * 0.01


@pytest.mark.parametrize(("centre", "offsets"), [(0.03, OFFSETS), (-0.003, OFFSETS), (0.03, OFFSETS[::3])])
def test_the_further_pairs_are_those_that_shrink_the_standard_error_to_the_distance_from_the_margin(centre, offsets):
    rule, values = SequentialRule(), centre + offsets
    decision = rule.decide(values)
    low, high = signed_rank_interval(values, scipy.stats.norm.sf(1))
    beyond = abs(decision_centre := hodges_lehmann(values)) - math.log1p(0.01)
    tail = 0.01 / 2 * 0.16 if beyond > 0 else 0.05 * 60 / 160
    needed = len(values) * (scipy.stats.norm.ppf(tail) * (high - low) / 2 / beyond) ** 2
    assert (decision.word, decision.further_pairs) == ("undecided", math.ceil(needed) - len(values))
    assert decision.ratio.value == pytest.approx(math.exp(decision_centre))


def test_too_few_pairs_decide_nothing_and_say_how_little_their_interval_means():
    rule = SequentialRule()
    one, five = (rule.decide([0.3] * pairs, final=True) for pairs in (1, 5))
    assert (one.word, five.word) == ("undecided", "undecided")
    assert one.confidence == 0.0
    assert math.isnan(one.ratio.low)
    assert math.isnan(one.ratio.high)
    assert range_text(one.ratio) == "no interval from one value"
    assert range_text(five.ratio) == "+35.0 % to +35.0 %"
    assert 0.9 < five.confidence < 0.99
    assert math.isfinite(five.ratio.low)
    assert five.further_pairs == rule.looks[0] - 5
    assert SequentialRule(max_pairs=5).decide([0.3] * 5).further_pairs == five.further_pairs


def test_what_lies_exactly_at_the_margin_is_never_decided_and_no_number_of_pairs_is_promised():
    distances = np.arange(1, 31) * 1e-3
    decision = SequentialRule().decide([*(math.log1p(0.01) + distances), *(math.log1p(0.01) - distances)], final=True)
    assert decision.word == "undecided"
    assert decision.further_pairs is None


def test_an_alarm_of_one_benchmark_of_a_suite_is_rare_enough_to_stand_among_the_others():
    alone = SequentialRule()
    among = alone.for_suite(40)
    assert alone.for_suite(5) == alone
    assert among.alpha == pytest.approx(0.05 / 40)
    assert among.looks[0] > alone.looks[0]
    assert SequentialRule(looks=(20, 40)).for_suite(40).looks == (20, 40)


@pytest.mark.parametrize(
    ("centre", "error", "word"),
    [
        (0.05, 0.01, "slower"),
        (-0.05, 0.01, "faster"),
        (0.0, 0.004, "equivalent"),
        (0.0, 0.008, "undecided"),
        (0.02, 0.01, "undecided"),
        (0.05, 0.0, "slower"),
        (0.005, 0.0, "equivalent"),
    ],
)
def test_a_difference_of_finished_runs_is_judged_by_the_same_margin(centre, error, word):
    found = judge(LogDifference(centre, error, math.inf), 0.01)
    assert found.word == word
    assert found.ratio.low <= math.exp(centre) <= found.ratio.high
    assert judge(LogDifference(-centre, error, 9.0), 0.01).p_value == judge(LogDifference(centre, error, 9.0)).p_value
    assert judge(LogDifference(centre, error, math.inf), may_decide=False).word == "undecided"
    assert error or found.p_value == (0.0 if word == "slower" else 1.0)


FIGURES = {"registers": 64.0, "local_memory": 0.0, "resident_warps": 32.0}


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({}, "equivalent"),
        ({"local_memory": 16.0}, "slower"),
        ({"resident_warps": 16.0}, "slower"),
        ({"resident_warps": 64.0}, "faster"),
        ({"local_memory": 16.0, "resident_warps": 64.0}, "undecided"),
        ({"registers": 70.0}, "undecided"),
    ],
)
def test_exact_figures_are_worse_by_rule_or_show_that_the_code_changed(changed, word):
    found, sentence, listed = judge_figures(FIGURES, FIGURES | changed)
    assert (found, listed) == (word, {name: [FIGURES[name], value] for name, value in changed.items()})
    assert all(f"{name} {FIGURES[name]:g} -> {value:g}" in sentence for name, value in changed.items())
    assert changed or sentence == "All 3 exact figures are the same."
    assert judge_figures({}, {"stack": 0.0})[0] == judge_figures({"stack": 0.0}, {})[0] == "undecided"


P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@given(P_VALUES)
def test_adjusted_p_values_are_scipys(p_values):
    assert adjusted_p_values(p_values) == pytest.approx(list(scipy.stats.false_discovery_control(p_values)))


def alone(word: str, ratio: float, p_value: float) -> Verdict:
    return Verdict(word, Ratio(ratio, ratio * 0.99, ratio * 1.01), p_value, confidence=0.99)


def test_a_suites_verdicts_are_those_that_stand_beside_each_other():
    one_of_many = [alone("slower", 1.05, 0.009), *[alone("equivalent", 1.0, 1.0)] * 10]
    assert suite_words(one_of_many) == ["undecided", *["equivalent"] * 10]
    together = [alone("slower", 1.05, 0.001), alone("faster", 0.9, 0.001), alone("undecided", 1.04, 0.006)]
    assert suite_words(together) == ["slower", "faster", "slower"]
    assert suite_words([*together[:2], alone("undecided", 1.04, 0.02)]) == ["slower", "faster", "undecided"]
    assert suite_words([alone("undecided", 1.04, 0.02)]) == ["undecided"]


@pytest.mark.parametrize(
    ("values", "p_value"),
    [
        # All of two equal modes lie at the upper end in one of 4^count comparisons of identical code; 2 count bound it.
        ([0.2, 0.3, 0.39], 6 / 4**3),
        ([0.2, 0.3, 0.4], 1),  # the furthest is twice as far as the nearest
        ([0.2, 0.3, -0.1], 1),
        ([0.0, 0.0], 1),
    ],
)
def test_few_values_in_a_clump_beyond_a_location_are_rare(values, p_value):
    assert clump_p(values, 0.0) == clump_p([value + 0.1 for value in values], 0.1 + 1e-12) == pytest.approx(p_value)


def differences(draw):
    """Log ratios of 400 comparisons of identical code: of two processes that differ as `draw` has it."""
    return lambda chance: draw(chance, (400, 60)) - draw(chance, (400, 60))


def state(chance):
    """The noise of a pair is that of the machine's state, which goes on from pair to pair."""
    return differences(lambda chance, shape: chance.normal(0, 0.01, shape))(chance) * np.exp(
        np.cumsum(chance.normal(0, 0.5, (400, 60)), axis=1)
    )


NOISES = {
    "normal": differences(lambda chance, shape: chance.normal(0, 0.014, shape)),
    "heavy tails": differences(lambda chance, shape: chance.standard_t(1.5, shape) * 0.01),
    "Cauchy": differences(lambda chance, shape: chance.standard_cauchy(shape) * 0.01),
    "two levels": differences(lambda chance, shape: 0.1 * (chance.random(shape) < 0.3) + chance.normal(0, 2e-3, shape)),
    "two times": differences(lambda chance, shape: 0.1 * (chance.random(shape) < 0.5)),
    "three levels": differences(lambda chance, shape: 0.1 * chance.choice(3, shape, p=(0.25, 0.5, 0.25))),
    "octaves": differences(lambda chance, shape: 0.02 * 2.0 ** chance.choice(6, shape)),
    "one side": differences(lambda chance, shape: chance.lognormal(-3, 1.5, shape)),
    # Trials of a process share what it is: only their median counts, and it errs as the process does.
    "processes": differences(
        lambda chance, shape: chance.normal(0, 0.05, shape) + np.median(chance.normal(0, 0.02, (*shape, 4)), axis=-1)
    ),
    "state": state,
}


@pytest.mark.slow
@pytest.mark.parametrize("noise", list(NOISES))
def test_at_most_one_in_a_hundred_comparisons_of_identical_code_is_slower_or_faster_whatever_the_noise(noise):
    rule = SequentialRule()
    log_ratios = NOISES[noise](np.random.default_rng(11))

    def ended(row, budget):
        """The word at the first look that decides, or where the budget ends after `budget` pairs."""
        looks = [look for look in rule.looks if look < budget] + [budget]
        decisions = (rule.decide(row[:look], final=look == budget) for look in looks)
        return next((found.word for found in decisions if found.word != "undecided"), "undecided")

    for budget in (6, 8, 60):
        words = [ended(row, budget) for row in log_ratios]
        assert words.count("slower") + words.count("faster") <= 4, budget
    shifted = [ended(row + math.log(1.5), 60) for row in log_ratios[:50]]
    assert shifted.count("slower") >= 48


SAMPLES = st.lists(st.floats(-1, 1), min_size=5, max_size=40, unique=True)


def drawn(count: int, seed: int = 0) -> list[float]:
    return list(np.random.default_rng(seed).standard_t(2, count) * 0.02)


@pytest.mark.parametrize("count", [5, 12, 25, 50])
def test_the_signed_rank_p_value_is_that_of_scipys_exact_test(count):
    values = drawn(count)
    expected = scipy.stats.wilcoxon(np.asarray(values) - 0.01, alternative="greater", method="exact").pvalue
    assert signed_rank_p(values, 0.01) == pytest.approx(expected, rel=1e-9)


@given(SAMPLES, st.sampled_from([0.05, 0.025, 0.2]), st.floats(-1, 1))
def test_the_interval_ends_where_the_test_begins_to_reject(values, tail, location):
    low, high = signed_rank_interval(values, tail)
    assert (low > location) == (signed_rank_p(values, location) <= tail)
    assert (high < location) == (signed_rank_p([-value for value in values], -location) <= tail)


def test_an_end_that_so_few_values_cannot_bound_is_infinite_and_equal_values_are_their_own_interval():
    assert signed_rank_interval([0.1, 0.2, 0.3], 0.1) == (-math.inf, math.inf)
    assert signed_rank_interval([0.1, 0.2, 0.3], 0.125) == (0.1, 0.3)
    assert signed_rank_interval([0.02] * 10, 0.01) == (0.02, 0.02)
    assert signed_rank_p([0.02] * 10, 0.02) == 1.0


def test_the_critical_sum_is_the_least_that_is_rare_enough():
    # Ten values on one side: one chance in 1024; all but the smallest: two more than that.
    assert critical_sum(10, 1 / 1024) == 55
    assert critical_sum(10, 2 / 1024) == 54
    assert critical_sum(10, 0.5 / 1024) == 56


@settings(max_examples=30)
@given(st.integers(1, 400).flatmap(lambda tries: st.tuples(st.integers(0, tries), st.just(tries))))
def test_the_interval_of_a_rate_is_that_of_clopper_and_pearson(counts):
    hits, tries = counts
    exact = scipy.stats.binomtest(hits, tries).proportion_ci(0.95, "exact")
    found = Proportion(hits, tries)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_no_alarm_in_200_still_allows_a_rate_of_1_8_percent_and_of_no_tries_nothing_is_known():
    assert str(Proportion(0, 200)) == "0.0 % [0.0, 1.8]"
    none = Proportion(0, 0)
    assert (none.low, none.high, str(none)) == (0.0, 1.0, "none tried")
