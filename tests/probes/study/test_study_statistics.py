"""Throughput is counted over experiments, and an order by its ranks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pyperf_suite.probes.study.statistics import rank_correlation, throughput


def test_mean_and_standard_error_are_those_of_the_experiments_and_not_of_their_steps() -> None:
    # Samples over time: 8 samples a step, 2 steps in 0.4 s, in 0.5 s and in 0.8 s.
    found = throughput(8, [[0.1, 0.3], [0.25, 0.25], [0.4, 0.4]])
    assert found.experiments == pytest.approx((40.0, 32.0, 20.0))
    assert found.mean == pytest.approx(92 / 3)
    assert found.standard_error == pytest.approx(
        math.sqrt(((40 - 92 / 3) ** 2 + (32 - 92 / 3) ** 2 + (20 - 92 / 3) ** 2) / 2 / 3)
    )


def test_the_median_is_of_each_experiments_usual_step_and_its_interval_says_how_sure_it_is() -> None:
    found = throughput(10, [[0.1, 0.1, 9.0], [0.2, 0.2, 0.2], [0.5, 0.5, 0.5]])
    assert (found.low, found.median, found.high) == pytest.approx((20.0, 50.0, 100.0))
    assert found.confidence == pytest.approx(0.75)


def test_six_experiments_reach_95_per_cent() -> None:
    found = throughput(1, [[0.1 + 0.01 * number] for number in range(6)])
    assert found.confidence >= 0.95


def test_a_single_experiment_has_no_standard_error() -> None:
    found = throughput(8, [[0.1, 0.1]])
    assert math.isnan(found.standard_error)
    assert found.mean == pytest.approx(80.0)


@pytest.mark.parametrize("experiments", [[], [[]], [[0.1], []], [[0.0]], [[-1.0]], [[math.nan]]])
def test_what_took_no_time_has_no_throughput(experiments: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="a throughput needs"):
        throughput(8, experiments)


@given(st.lists(st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=6), min_size=1, max_size=8), st.integers(1, 512))
def test_the_mean_lies_between_the_experiments_and_the_median_within_its_interval(experiments, samples) -> None:
    found = throughput(samples, experiments)
    assert min(found.experiments) * (1 - 1e-9) <= found.mean <= max(found.experiments) * (1 + 1e-9)
    assert found.low <= found.median <= found.high
    assert len(found.experiments) == len(experiments)


def test_the_opposite_order_correlates_by_minus_one() -> None:
    assert rank_correlation([3.0, 2.0, 1.0], [1.0, 2.0, 30.0]) == pytest.approx(-1.0)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=3, max_size=12))
def test_the_rank_correlation_is_spearmans_with_ties_too(pairs) -> None:
    predicted, measured = ([float(each) for each in side] for side in zip(*pairs, strict=True))
    found = rank_correlation(predicted, measured)
    if len(set(predicted)) > 1 and len(set(measured)) > 1:
        assert found == pytest.approx(stats.spearmanr(predicted, measured).statistic, abs=1e-12)
    else:
        assert math.isnan(found)


def test_values_of_something_else_have_no_order_in_common() -> None:
    with pytest.raises(ValueError, match="1 values have no order in common with 2"):
        rank_correlation([1.0], [1.0, 2.0])
