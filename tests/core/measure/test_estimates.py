from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal, stats

from pyperf_suite.measure.estimates import (
    Ratio,
    chance_of_no_trend,
    effective_samples,
    median_and_quantiles,
    median_interval,
    pettitt,
    ratio_over_processes,
)

finite = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))
series = st.lists(finite, min_size=1, max_size=200)


def autoregressive(rho: float, length: int, trials: int, seed: int) -> np.ndarray:
    """`trials` stationary Gaussian AR(1) series of unit variance and median 0, one a row."""
    noise = np.random.default_rng(seed).standard_normal((trials, length + 200))
    filtered = signal.lfilter([math.sqrt(1 - rho**2)], [1, -rho], noise, axis=1)
    return filtered[:, 200:]


def heavy_tailed(gaussian: np.ndarray) -> np.ndarray:
    """The same series with each value mapped to a Cauchy distribution: no mean, no variance, median 0."""
    return np.tan(np.pi * (stats.norm.cdf(gaussian) - 0.5))


def skewed(gaussian: np.ndarray) -> np.ndarray:
    """The same series mapped to an exponential distribution less its median: times with a hard lower end."""
    return -np.log(stats.norm.sf(gaussian)) - math.log(2)


def coverage(samples: np.ndarray) -> float:
    """The share of rows whose 95 % interval holds the true median, 0."""
    intervals = [median_interval(row, 0.95) for row in samples]
    return sum(interval.low <= 0 <= interval.high for interval in intervals) / len(samples)


@pytest.mark.parametrize("shape", [lambda gaussian: gaussian, heavy_tailed, skewed])
@pytest.mark.parametrize(("rho", "length"), [(0.0, 30), (0.0, 300), (0.5, 100), (0.9, 300), (0.9, 1000)])
def test_the_interval_covers_the_median_as_often_as_it_says(shape, rho, length):
    samples = shape(autoregressive(rho, length, trials=400, seed=1))
    # Three standard errors of a proportion of 400 lie below 95 % at 91.7 %.
    assert coverage(samples) >= 0.917


def test_short_correlated_series_mostly_admit_that_they_cannot_tell():
    intervals = [median_interval(row, 0.95) for row in autoregressive(0.9, 50, trials=200, seed=2)]
    assert sum(interval.confidence < 0.95 for interval in intervals) > 100


def test_the_interval_of_independent_samples_is_that_of_the_binomial_tables():
    # n = 20, 95 %: from the 6th to the 15th of the ordered samples, with confidence 0.9586.
    interval = median_interval(np.arange(1.0, 21.0), 0.95, effective=20)
    assert (interval.low, interval.high) == (6.0, 15.0)
    assert interval.confidence == pytest.approx(0.9586, abs=1e-4)


def test_few_samples_get_their_whole_range_and_equal_ones_an_interval_of_no_width():
    interval = median_interval([3.0, 1.0, 2.0], 0.95, effective=3)
    assert (interval.low, interval.high, interval.confidence) == (1.0, 3.0, 0.75)
    interval = median_interval([2.0] * 50, 0.95)
    assert interval.low == interval.high == 2.0
    assert interval.confidence >= 0.95


@pytest.mark.parametrize(("rho", "expected"), [(0.0, 1.0), (0.5, 0.43), (0.9, 0.07)])
def test_effective_samples_approach_the_known_share_in_long_series(rho, expected):
    # Signs of a Gaussian AR(1) have autocorrelation (2/π)·asin(ρ^k), summed here as the exact answer.
    lags = rho ** np.arange(1, 400) if rho else np.zeros(1)
    exact = 1 / (1 + 2 * np.sum(2 / np.pi * np.arcsin(lags)))
    share = np.median([effective_samples(row) / 4000 for row in autoregressive(rho, 4000, 40, seed=3)])
    assert exact == pytest.approx(expected, abs=0.03)
    assert share == pytest.approx(exact, rel=0.15)


def test_a_drift_leaves_next_to_no_effective_samples():
    assert effective_samples(np.linspace(1.0, 2.0, 500)) < 6


@given(series)
def test_the_interval_holds_the_middle_and_lies_within_the_samples(samples):
    interval = median_interval(samples, 0.95)
    middle = np.sort(samples)[[(len(samples) - 1) // 2, len(samples) // 2]]
    assert min(samples) <= interval.low <= middle[0] <= middle[1] <= interval.high <= max(samples)
    assert 0 <= interval.confidence <= 1
    assert 0 < interval.effective_samples <= len(samples)


@given(st.integers(1, 3000), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
@settings(max_examples=50)
def test_no_narrower_pair_of_order_statistics_would_do(n, confidence):
    interval = median_interval(np.arange(1.0, n + 1), confidence, effective=n)
    rank = int(interval.low)
    assert interval.high == n + 1 - rank
    if interval.confidence >= confidence:
        assert interval.confidence == pytest.approx(1 - 2 * stats.binom.cdf(rank - 1, n, 0.5))
        assert rank == (n + 1) // 2 or 1 - 2 * stats.binom.cdf(rank, n, 0.5) < confidence
    else:
        assert rank == 1
        assert interval.confidence == pytest.approx(1 - 2.0 ** (1 - n))


def test_quantiles_are_those_of_linear_interpolation():
    assert median_and_quantiles([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == (3.5, 2.0, 5.0)
    assert all(math.isnan(value) for value in median_and_quantiles([]))


def test_what_is_not_there_is_rarely_seen_and_what_is_there_is() -> None:
    random = np.random.default_rng(0)
    quiet = [random.standard_normal(40) for _ in range(400)]
    assert np.mean([pettitt(values)[1] < 0.05 for values in quiet]) < 0.07
    assert np.mean([chance_of_no_trend(values) < 0.05 for values in quiet]) < 0.08
    step = np.r_[np.zeros(25), np.ones(15)] + 0.1 * random.standard_normal(40)
    place, chance = pettitt(step)
    assert place == 25
    assert chance < 1e-3
    assert chance_of_no_trend(np.arange(40.0)) < 1e-9
    assert chance_of_no_trend(np.ones(40)) == 1.0


def test_the_interval_is_students_on_the_logarithms() -> None:
    ratio = ratio_over_processes([1.0, 2.0, 4.0])
    # Logarithms to base 2: mean 1, standard error 1/sqrt(3), and Student's t of 2 degrees of freedom is 4.3027.
    half_width = 4.3027 / math.sqrt(3)
    assert ratio.value == pytest.approx(2)
    assert ratio.low == pytest.approx(2 ** (1 - half_width), rel=1e-4)
    assert ratio.high == pytest.approx(2 ** (1 + half_width), rel=1e-4)


def test_the_true_ratio_lies_within_in_19_of_20_cases() -> None:
    random = np.random.default_rng(0)
    drawn = np.exp(math.log(1.3) + 0.1 * random.standard_normal((2000, 3)))
    within = [ratio.low <= 1.3 <= ratio.high for ratio in map(ratio_over_processes, drawn.tolist())]
    assert 0.935 < np.mean(within) < 0.965


def test_a_single_process_tells_by_its_own_samples() -> None:
    assert ratio_over_processes([3.0], within=0.25) == Ratio(
        pytest.approx(3.0), pytest.approx(3.0 / 1.25), pytest.approx(3.0 * 1.25), processes=1
    )


def test_the_inverse_has_its_ends_turned_round() -> None:
    ratio = Ratio(2.0, 1.0, 4.0)
    assert ratio.inverse == Ratio(0.5, 0.25, 1.0)
    assert ratio * 3 == Ratio(6.0, 3.0, 12.0)
    assert str(ratio) == "2.00 [1.00, 4.00]"


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (lambda: median_interval([1.0, 2.0], 0.0), "between 0 and 1"),
        (lambda: median_interval([1.0, 2.0], 1.0), "between 0 and 1"),
        (lambda: median_interval([1.0, 2.0], -1.0), "between 0 and 1"),
        (lambda: median_interval([1.0, 2.0], 95.0), "between 0 and 1"),
        (lambda: median_interval([], 0.95), "at least one sample"),
        (lambda: ratio_over_processes([]), "at least one process"),
    ],
)
def test_an_estimate_of_nothing_or_of_no_confidence_is_refused(estimate, words):
    with pytest.raises(ValueError, match=words):
        estimate()
