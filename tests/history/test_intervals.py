from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pyperf_suite.history.verdict import (
    EXACT_UP_TO,
    RESAMPLES,
    Proportion,
    bca_bootstrap,
    critical_sum,
    hodges_lehmann,
    signed_rank_interval,
    signed_rank_p,
    student_t,
)

SAMPLES = st.lists(st.floats(-1, 1), min_size=5, max_size=40, unique=True)


def drawn(count: int, seed: int = 0) -> list[float]:
    return list(np.random.default_rng(seed).standard_t(2, count) * 0.02)


@pytest.mark.parametrize("count", [5, 12, 25, 50])
def test_the_signed_rank_p_value_is_that_of_scipys_exact_test(count):
    values = drawn(count)
    expected = stats.wilcoxon(np.asarray(values) - 0.01, alternative="greater", method="exact").pvalue
    assert signed_rank_p(values, 0.01) == pytest.approx(expected, rel=1e-9)


def test_where_the_exact_distribution_ends_an_approximation_goes_on_that_is_rather_too_cautious():
    count = EXACT_UP_TO + 1
    positive = count * 56 // 100
    values = [*np.linspace(0.1, 1, positive), *np.linspace(-1.0003, -0.1001, count - positive)]
    expected = stats.wilcoxon(values, alternative="greater", method="exact").pvalue
    assert 1e-4 < expected < 0.02  # where decisions are made
    assert expected <= signed_rank_p(values, 0.0) <= 1.05 * expected


@given(SAMPLES, st.sampled_from([0.05, 0.025, 0.2]), st.floats(-1, 1))
def test_the_interval_ends_where_the_test_begins_to_reject(values, tail, location):
    low, high = signed_rank_interval(values, tail)
    assert (low > location) == (signed_rank_p(values, location) <= tail)
    assert (high < location) == (signed_rank_p([-value for value in values], -location) <= tail)


@given(SAMPLES)
def test_the_location_lies_within_its_interval_and_turns_with_the_values(values):
    low, high = signed_rank_interval(values, 0.1)
    assert low <= hodges_lehmann(values) <= high
    assert hodges_lehmann([-value for value in values]) == pytest.approx(-hodges_lehmann(values), abs=1e-12)


def test_an_end_that_so_few_values_cannot_bound_is_infinite():
    assert signed_rank_interval([0.1, 0.2, 0.3], 0.1) == (-math.inf, math.inf)
    assert signed_rank_interval([0.1, 0.2, 0.3], 0.125) == (0.1, 0.3)


def test_equal_values_are_their_own_interval():
    assert signed_rank_interval([0.02] * 10, 0.01) == (0.02, 0.02)
    assert bca_bootstrap([0.02] * 10) == (0.02, 0.02, 0.02)
    assert signed_rank_p([0.02] * 10, 0.02) == 1.0


def test_the_critical_sum_is_the_least_that_is_rare_enough():
    # Ten values on one side: one chance in 1024; all but the smallest: two more than that.
    assert critical_sum(10, 1 / 1024) == 55
    assert critical_sum(10, 2 / 1024) == 54
    assert critical_sum(10, 0.5 / 1024) == 56


def test_the_t_interval_is_scipys():
    values = drawn(14)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert student_t(values) == pytest.approx((np.mean(values), expected.low, expected.high))


@pytest.mark.parametrize("seed", range(5))
def test_the_bca_interval_is_scipys_up_to_the_resampling(seed):
    values = list(np.random.default_rng(seed).exponential(0.02, 30))  # skewed: where BCa differs from a percentile
    expected = stats.bootstrap((values,), np.mean, method="BCa", n_resamples=RESAMPLES, rng=1).confidence_interval
    _, low, high = bca_bootstrap(values)
    width = expected.high - expected.low
    assert abs(low - expected.low) < 0.04 * width
    assert abs(high - expected.high) < 0.04 * width


def test_the_same_values_give_the_same_bca_interval():
    assert bca_bootstrap(drawn(20)) == bca_bootstrap(drawn(20))


def test_one_value_is_its_own_t_and_bca_interval():
    assert student_t([0.03]) == bca_bootstrap([0.03]) == (0.03, 0.03, 0.03)


@pytest.mark.parametrize("values", [[], [0.1, math.nan], [0.1, math.inf]])
@pytest.mark.parametrize("interval", [student_t, bca_bootstrap, hodges_lehmann])
def test_no_values_or_values_that_are_no_numbers_are_refused(interval, values):
    with pytest.raises(ValueError, match="an interval needs"):
        interval(values)


@settings(max_examples=30)
@given(st.integers(1, 400).flatmap(lambda tries: st.tuples(st.integers(0, tries), st.just(tries))))
def test_the_interval_of_a_rate_is_that_of_clopper_and_pearson(counts):
    hits, tries = counts
    exact = stats.binomtest(hits, tries).proportion_ci(0.95, "exact")
    found = Proportion(hits, tries)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_no_alarm_in_200_still_allows_a_rate_of_1_8_percent_and_of_no_tries_nothing_is_known():
    assert str(Proportion(0, 200)) == "0.0 % [0.0, 1.8]"
    none = Proportion(0, 0)
    assert (none.low, none.high, str(none)) == (0.0, 1.0, "none tried")


@pytest.mark.parametrize(("hits", "tries"), [(1, 0), (-1, 3), (4, 3)])
def test_more_hits_than_tries_are_no_proportion(hits, tries):
    with pytest.raises(ValueError, match="no proportion"):
        Proportion(hits, tries)
