from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pyperf_suite.history.intervals import Proportion

COUNTS = st.integers(1, 400).flatmap(lambda tries: st.tuples(st.integers(0, tries), st.just(tries)))


@given(COUNTS)
def test_the_interval_is_that_of_clopper_and_pearson(counts):
    hits, tries = counts
    exact = stats.binomtest(hits, tries).proportion_ci(0.95, "exact")
    found = Proportion(hits, tries)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_no_alarm_in_200_still_allows_a_rate_of_1_8_percent():
    assert str(Proportion(0, 200)) == "0.0 % [0.0, 1.8]"


def test_of_no_tries_nothing_is_known():
    none = Proportion(0, 0)
    assert (none.low, none.high, str(none)) == (0.0, 1.0, "none tried")


@pytest.mark.parametrize(("hits", "tries"), [(1, 0), (-1, 3), (4, 3)])
def test_more_hits_than_tries_are_no_proportion(hits, tries):
    with pytest.raises(ValueError, match="no proportion"):
        Proportion(hits, tries)
