from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import signal

from pyperf_suite.measure.estimates import median_interval
from pyperf_suite.measure.sampling import StopRule

QUIET = np.random.default_rng(0).normal(1.0, 0.01, 2000).tolist()
NOISY = np.random.default_rng(0).normal(1.0, 0.2, 2000).tolist()


def test_quiet_samples_stop_by_their_interval():
    assert StopRule().decide(QUIET[:60], 60, 1.0) == "interval"


def test_noisy_samples_go_on():
    assert StopRule().decide(NOISY[:60], 60, 1.0) is None


def test_few_samples_go_on_however_equal():
    assert StopRule().decide([1.0] * 10, 10, 1.0) is None


def test_an_interval_below_the_confidence_asked_for_does_not_stop():
    rule = StopRule(min_samples=4, min_effective_samples=0)
    assert median_interval([1.0] * 5, rule.confidence).confidence < rule.confidence
    assert rule.decide([1.0] * 5, 5, 1.0) is None


def test_slowly_wandering_samples_do_not_count_as_many():
    steps = np.repeat([1.0, 1.004, 0.997, 1.002], 25).tolist()
    assert StopRule().decide(steps, 100, 1.0) is None


def test_nothing_stops_by_its_interval_before_the_shortest_time():
    assert StopRule(min_time_s=0.5).decide(QUIET[:60], 60, 0.4) is None


@pytest.mark.parametrize(
    ("taken", "elapsed_s", "expected"),
    [(2000, 1.0, "max_samples"), (3, 5.0, "time_cap"), (2, 60.0, None), (100, 4.9, None)],
)
def test_limits_stop_noisy_samples_but_not_before_the_least_number(taken, elapsed_s, expected):
    assert StopRule().decide(NOISY[:taken], taken, elapsed_s) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("rho", "at_least"), [(0.0, 0.93), (0.5, 0.92), (0.9, 0.85)])
def test_stopping_when_the_interval_is_narrow_does_not_rob_it_of_its_coverage(rho, at_least):
    rule, hits = StopRule(), 0
    noise = np.random.default_rng(5).standard_normal((400, 2200))
    for row in signal.lfilter([np.sqrt(1 - rho**2)], [1, -rho], noise, axis=1)[:, 200:]:
        samples = 1 + 0.02 * row
        count = rule.next_checkpoint(0)
        while rule.decide(samples[:count].tolist(), count, 1.0) is None:
            count = rule.next_checkpoint(count)
        interval = median_interval(samples[:count], rule.confidence)
        hits += interval.low <= 1 <= interval.high
    assert hits / 400 >= at_least


@given(st.lists(st.floats(0.5, 2), min_size=1, max_size=100), st.floats(0, 10))
def test_the_same_samples_and_time_lead_to_the_same_decision(samples, elapsed_s):
    rule = StopRule(relative_half_width=0.1)
    first, again = (rule.decide(list(samples), len(samples), elapsed_s) for _ in range(2))
    assert first == again


@given(st.integers(0, 1999))
def test_checkpoints_advance_geometrically_and_end_at_the_maximum(samples):
    rule = StopRule()
    following = rule.next_checkpoint(samples)
    assert samples < following <= rule.max_samples
    assert following >= min(rule.max_samples, int(samples * rule.checkpoint_growth))


@given(st.integers(0, 1999), st.floats(0, 5), st.floats(1e-7, 20))
def test_a_block_leaves_the_time_cap_and_the_next_checkpoint_standing(samples, elapsed_s, sample_s):
    rule = StopRule()
    block = rule.next_block(samples, elapsed_s, sample_s)
    assert 1 <= block <= rule.next_checkpoint(samples) - samples
    assert block == 1 or elapsed_s + block * sample_s <= rule.time_cap_s
    assert block == 1 or block * sample_s <= rule.block_s


@pytest.mark.parametrize(
    "wrong",
    [
        {"relative_half_width": 0.0},
        {"confidence": 95},
        {"min_samples": 0},
        {"max_samples": 5},
        {"least_samples": 50},
        {"min_effective_samples": -1},
        {"time_cap_s": -1.0},
        {"checkpoint_growth": 1.0},
    ],
)
def test_rules_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must|cannot"):
        StopRule(**wrong)


@pytest.mark.parametrize("samples", [QUIET, NOISY])
def test_exactly_so_many_samples_are_taken_however_they_come_out_and_count_as_what_was_asked(samples):
    rule = StopRule.exactly(7, block_s=1.0)
    assert rule.decide(samples[:6], 6, 1e6) is None
    assert rule.decide(samples[:7], 7, 0.0) == "max_samples"
    assert rule.is_precise(samples[:7], median_interval(samples[:7], rule.confidence))
    assert not rule.is_precise(samples[:6], median_interval(samples[:6], rule.confidence))


def test_exactly_so_many_are_taken_in_one_block_where_they_fit_into_it():
    rule = StopRule.exactly(20, block_s=1.0)
    assert rule.next_block(0, 0.0, 0.01) == 20
    assert rule.next_block(0, 0.0, 0.25) == 4
    assert rule.next_block(0, 0.0, 30.0) == 1
