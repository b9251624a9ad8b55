"""Our own step detector: noise that remembers itself is no step, outliers are none, places are exact."""

from __future__ import annotations

import time

import numpy as np
import pytest

from pyperf_suite.history.changepoints import FEWEST_POINTS, detect_steps, draw_in_outliers, levels, variance_of_mean


def correlated(seed: int, points: int, correlation: float, deviation: float) -> np.ndarray:
    """AR(1) noise of that standard deviation."""
    shocks = np.random.default_rng(seed).standard_normal(points + 50) * deviation * np.sqrt(1 - correlation**2)
    values = np.zeros_like(shocks)
    for index in range(1, len(shocks)):
        values[index] = correlation * values[index - 1] + shocks[index]
    return values[50:]


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_noise_without_a_step_has_none_however_it_remembers_itself(correlation):
    found = [detect_steps(correlated(seed, 100, correlation, 0.03)).starts for seed in range(50)]
    assert sum(map(bool, found)) <= 1


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_the_noise_and_its_memory_are_found_beside_steps(correlation):
    values = correlated(7, 1200, correlation, 0.01) + 0.1 * (np.arange(1200) // 200 % 2)
    steps = detect_steps(values)
    assert len(steps.starts) == 5
    assert steps.noise == pytest.approx(0.01, rel=0.1)
    assert steps.correlation == pytest.approx(correlation, abs=0.1)


def test_steps_are_placed_at_the_first_point_of_the_new_level():
    values = correlated(3, 300, 0.3, 0.01)
    values[120:] += 0.08
    values[200:] -= 0.12
    assert detect_steps(values).starts == (120, 200)


def test_values_without_any_noise_have_their_steps():
    values = np.repeat([1.0, 1.05, 1.0], [4, 3, 9])
    assert detect_steps(values).starts == (4, 7)


def test_values_that_are_all_alike_have_no_step():
    assert detect_steps(np.zeros(40)).starts == ()


@pytest.mark.parametrize("count", range(2 * FEWEST_POINTS))
def test_too_few_values_for_two_levels_have_no_step(count):
    assert detect_steps(np.arange(count, dtype=float)).starts == ()


@pytest.mark.parametrize("index", [0, 1, 30, 58, 59])
@pytest.mark.parametrize("size", [-2.0, 0.3])
def test_an_outlier_is_drawn_in_and_is_no_step(index, size):
    values = correlated(5, 60, 0.0, 0.01)
    values[index] += size
    assert detect_steps(values).starts == ()
    assert abs(draw_in_outliers(values)[index]) < 0.1


def test_drawing_in_outliers_leaves_a_step_where_it_is():
    values = np.where(np.arange(40) < 37, 0.0, 0.2) + correlated(1, 40, 0.0, 0.01)
    assert draw_in_outliers(values) == pytest.approx(values, abs=0.03)


def test_levels_are_the_means_between_starts():
    assert levels(np.array([1.0, 2.0, 3.0, 10.0, 12.0]), (3,)).tolist() == [2, 2, 2, 11, 11]
    assert levels(np.array([1.0, 2.0, 3.0]), ()).tolist() == [2, 2, 2]


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_the_variance_of_a_mean_is_that_of_simulated_means(correlation):
    means = [correlated(seed, 10, correlation, 1.0).mean() for seed in range(2000)]
    assert variance_of_mean(10, correlation) == pytest.approx(np.var(means), rel=0.1)


def test_a_thousand_points_with_many_steps_take_no_time_to_speak_of():
    values = correlated(2, 3000, 0.5, 0.01) + 0.05 * (np.arange(3000) // 100 % 2)
    began = time.process_time()
    assert len(detect_steps(values).starts) == 29
    assert time.process_time() - began < 2
