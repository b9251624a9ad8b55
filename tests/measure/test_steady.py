from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.measure.sampling import SteadyRule, is_steady, warm_up


def ignore(index: int) -> None:
    return None


def test_times_that_keep_falling_are_not_steady():
    assert not is_steady([1.1**-index for index in range(200)], 0.02)


def test_a_slow_start_is_forgotten():
    assert is_steady([5.0, 3.0, 2.0, 1.5] + [1.0] * 12, 0.02)


def test_noise_without_a_trend_is_steady():
    noise = np.random.default_rng(0).lognormal(0, 0.3, 100)
    assert is_steady(noise.tolist(), 0.001)


@given(st.lists(st.floats(0.1, 10), max_size=3))
def test_fewer_than_four_samples_are_never_steady(samples):
    assert not is_steady(samples, 0.5)


@given(st.floats(1e-7, 10), st.integers(4, 100))
def test_equal_times_are_steady(seconds, count):
    assert is_steady([seconds] * count, 0.02)


def test_warm_up_ends_after_the_clock_has_risen(replay):
    # Ten milliseconds a launch, falling to one within 100 launches: a processor that wakes up.
    stopwatch = replay(lambda index: 0.001 + 0.009 * 0.95**index)
    warm = warm_up(ignore, stopwatch, SteadyRule(0.02, 0.05, 10.0), clock=stopwatch.clock)
    assert warm.steady
    assert warm.launch_s == pytest.approx(0.001, rel=0.05)
    assert warm.launches_per_sample == 1
    assert warm.seconds == pytest.approx(stopwatch.now)


def test_warm_up_that_never_ends_is_cut_at_the_cap_and_says_so(replay):
    stopwatch = replay(lambda index: 0.001 * 1.01**index)
    warm = warm_up(ignore, stopwatch, SteadyRule(0.001, 0.05, 1.0), clock=stopwatch.clock)
    assert not warm.steady
    assert 0.9 <= warm.seconds <= 1.1


def test_a_launch_longer_than_the_cap_is_made_once_and_is_not_called_steady(replay):
    stopwatch = replay(lambda index: 10.0)
    warm = warm_up(ignore, stopwatch, SteadyRule(), clock=stopwatch.clock)
    assert (warm.launches, warm.steady, warm.launch_s) == (1, False, 10.0)


def test_short_launches_are_batched_until_the_resolution_is_one_percent(replay):
    stopwatch = replay(lambda index: 1e-6, resolution_s=1e-7)
    warm = warm_up(ignore, stopwatch, SteadyRule(), clock=stopwatch.clock)
    assert stopwatch.resolution_s <= 0.011 * warm.launches_per_sample * 1e-6
    assert warm.launches_per_sample <= 12
    assert warm.steady


def test_batching_is_not_deceived_by_a_slow_first_launch(replay):
    stopwatch = replay(lambda index: 1.0 if index == 0 else 1e-6, resolution_s=1e-7)
    warm = warm_up(ignore, stopwatch, SteadyRule(time_cap_s=3.0), clock=stopwatch.clock)
    assert warm.launches_per_sample >= 9


def test_a_stopwatch_that_costs_more_than_it_tells_does_not_break_the_cap(replay):
    class Costly(replay):
        def time(self, *call) -> list[float]:
            return [told / 1000 for told in super().time(*call)]

    stopwatch = Costly(lambda index: 1e-3 * 1.01**index)
    warm = warm_up(ignore, stopwatch, SteadyRule(0.001, 0.05, 1.0), clock=stopwatch.clock)
    assert 0.9 <= warm.seconds <= 1.1


def test_indices_go_on_without_gap_or_repetition(replay):
    indices: list[int] = []
    stopwatch = replay(lambda index: 2e-5, resolution_s=1e-6)
    warm = warm_up(indices.append, stopwatch, SteadyRule(), clock=stopwatch.clock)
    assert indices == list(range(warm.launches))


@pytest.mark.parametrize("wrong", [{"tolerance": 0.0}, {"min_time_s": 2.0}, {"min_time_s": -1.0}])
def test_rules_that_cannot_be_met_are_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        SteadyRule(**wrong)


def test_a_counted_warm_up_is_exactly_so_many_launches_of_one_sample_each(replay):
    stopwatch = replay(lambda index: 10.0**-index, resolution_s=0.0)
    warm = warm_up(ignore, stopwatch, SteadyRule(launches=3), shortest_sample_s=5.0, clock=stopwatch.clock)
    assert stopwatch.calls == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
    assert (warm.launches, warm.launches_per_sample, warm.steady) == (3, 1, False)
    assert warm.launch_s == pytest.approx(0.1)


def test_a_negative_number_of_launches_is_refused():
    with pytest.raises(ValueError, match="launches cannot be negative"):
        SteadyRule(launches=-1)
