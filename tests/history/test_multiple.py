from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pyperf_suite.history.statistics.decision import Decision
from pyperf_suite.history.statistics.multiple import adjusted_p_values, suite_verdicts, survivors
from pyperf_suite.measure.estimates import Ratio

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=30)


def decision(verdict: str, ratio: float, p_value: float) -> Decision:
    interval = Ratio(ratio, ratio * 0.99, ratio * 1.01)
    return Decision(verdict, interval, interval, interval, p_value, pairs=20, further_pairs=0, confidence=0.99)


@given(P_VALUES)
def test_adjusted_p_values_are_scipys(p_values):
    assert adjusted_p_values(p_values) == pytest.approx(list(stats.false_discovery_control(p_values)))


@given(P_VALUES, st.sampled_from([0.01, 0.05, 0.2]))
def test_the_smallest_p_values_survive_and_a_single_one_is_judged_as_alone(p_values, rate):
    kept = survivors(p_values, rate)
    assert all(kept[index] for index in range(len(kept)) if p_values[index] <= max([-1.0, *np.extract(kept, p_values)]))
    assert survivors(p_values[:1], rate) == [p_values[0] <= rate]


def test_one_small_p_value_survives_alone_but_not_among_many():
    assert survivors([0.01], 0.05) == [True]
    assert survivors([0.01, *[0.9] * 19], 0.05) == [False] * 20


def test_no_p_values_have_no_survivors():
    assert survivors([]) == []


@pytest.mark.parametrize("p_value", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(p_value):
    with pytest.raises(ValueError, match="between 0 and 1"):
        survivors([0.5, p_value])


def test_a_suites_verdicts_are_those_that_stand_beside_each_other():
    alone = [decision("slower", 1.05, 0.009), *[decision("equivalent", 1.0, 1.0)] * 10]
    assert suite_verdicts(alone) == ["undecided", *["equivalent"] * 10]
    together = [decision("slower", 1.05, 0.001), decision("faster", 0.9, 0.001), decision("undecided", 1.04, 0.02)]
    assert suite_verdicts(together) == ["slower", "faster", "slower"]


def test_the_share_of_mistaken_alarms_among_real_changes_is_as_stated():
    random = np.random.default_rng(0)
    shares = []
    for _ in range(2000):
        kept = survivors([*random.random(15), *random.random(5) * 1e-3], 0.2)
        assert sum(kept[15:]) == 5
        shares.append(sum(kept[:15]) / sum(kept))
    # 15 of 20 hypotheses are true: the procedure's share is 0.2 times that, exactly.
    assert np.mean(shares) == pytest.approx(0.15, abs=0.01)
