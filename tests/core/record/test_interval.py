import itertools
import math

import numpy as np
import pytest
import scipy  # whose parts are imported at first use: stats takes two seconds
from hypothesis import given, settings
from hypothesis import strategies as st

from pyperf_suite.record.interval import (
    Ratio,
    effective_samples,
    exactly,
    median_and_quantiles,
    median_interval,
    ratio_over_processes,
)
from tests.core.series import correlated


def autoregressive(rho: float, length: int, trials: int, seed: int) -> np.ndarray:
    """`trials` stationary Gaussian AR(1) series of unit variance and median 0, one a row."""
    noise = np.random.default_rng(seed).standard_normal((trials, length + 200))
    return correlated(noise.T, rho).T[:, 200:]


def heavy_tailed(gaussian: np.ndarray) -> np.ndarray:
    """The same series with each value mapped to a Cauchy distribution: no mean, no variance, median 0."""
    return np.tan(np.pi * (scipy.stats.norm.cdf(gaussian) - 0.5))


def skewed(gaussian: np.ndarray) -> np.ndarray:
    """The same series mapped to an exponential distribution less its median: times with a hard lower end."""
    return -np.log(scipy.stats.norm.sf(gaussian)) - math.log(2)


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


@pytest.mark.parametrize(
    ("samples", "effective", "low", "high", "confidence"),
    [
        (20, 20, 6, 15, 0.9586),  # from the 6th to the 15th of the ordered samples: the binomial tables, n = 20
        (6, 6, 1, 6, 1 - 2 / 64),
        (5, 5, 1, 5, 1 - 2 / 32),  # too few: the whole range, and what it is worth
        (3, 3, 1, 3, 0.75),
        (1, 1, 1, 1, 0.0),
        (40, 20.9, 12, 29, 0.9586),  # worth twenty: the ranks of those, scaled
        (40, 0.5, 1, 40, 0.0),
        (50, 5, 1, 50, 1 - 2 / 32),
    ],
)
def test_the_interval_of_independent_samples_is_that_of_the_binomial_tables(samples, effective, low, high, confidence):
    interval = median_interval(np.arange(samples, 0.0, -1.0), 0.95, effective=effective)
    assert (interval.low, interval.high, interval.effective_samples) == (low, high, effective)
    assert interval.confidence == pytest.approx(confidence, abs=1e-4)
    assert interval.half_width == (high - low) / 2


@pytest.mark.parametrize(("rho", "expected"), [(0.0, 1.0), (0.5, 0.43), (0.9, 0.07)])
def test_effective_samples_approach_the_known_share_in_long_series(rho, expected):
    # Signs of a Gaussian AR(1) have autocorrelation (2/π)·asin(ρ^k), summed here as the exact answer.
    lags = rho ** np.arange(1, 400) if rho else np.zeros(1)
    exact = 1 / (1 + 2 * np.sum(2 / np.pi * np.arcsin(lags)))
    share = np.median([effective_samples(row) / 4000 for row in autoregressive(rho, 4000, 40, seed=3)])
    assert exact == pytest.approx(expected, abs=0.03)
    assert share == pytest.approx(exact, rel=0.15)


def effective_by_the_formula(samples) -> float:
    """Geyer's sum over sign(x - median) term by term, and the two corrections, as the docstring has them."""
    n, signs = len(samples), np.sign(np.asarray(samples) - np.median(samples))
    correlation = [float(signs[: n - lag] @ signs[lag:]) / float(signs @ signs) for lag in range(n)]
    pairs = [correlation[lag] + correlation[lag + 1] for lag in range(0, n - 1, 2)]
    kept = []
    for pair in itertools.takewhile(lambda pair: pair > 0, pairs):
        kept.append(min([*kept[-1:], pair]))
    tau, window = (2 * sum(kept) - 1, 2 * len(kept) - 1) if kept else (1.0, 1)
    seen = (2 * window + 1) / n
    tau = max(1.0, tau / max(1 - seen, 0.1))
    ratio = scipy.stats.norm.ppf(0.975) / scipy.stats.t.ppf(0.975, max(1.0, 2 / seen - 1))
    return min(n, max(1.0, n / tau * ratio**2))


@pytest.mark.parametrize("rho", [-0.6, 0.0, 0.6, 0.9])
@pytest.mark.parametrize("length", [5, 40, 41, 200])
def test_effective_samples_are_those_of_the_formula(rho, length):
    for row in autoregressive(rho, length, trials=10, seed=length):
        assert effective_samples(row) == pytest.approx(effective_by_the_formula(row))
    # A pair of lags that sums to exactly nothing ends the window.
    assert effective_samples([0.0] * 6 + [1.0] * 2) == pytest.approx(1.32304, abs=1e-5)


def test_fewer_than_four_samples_are_worth_half_as_many_and_equal_ones_all():
    assert [effective_samples(np.arange(n)) for n in (1, 2, 3)] == [0.5, 1.0, 1.5]
    # Within the window of one lag 3 of 1000 are seen, and Student's t has 665 degrees of freedom.
    assert effective_samples(np.ones(1000)) == pytest.approx(1000 * 0.997 * (1.95996 / 1.96354) ** 2, rel=1e-4)


@given(st.integers(1, 3000), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
@settings(max_examples=50)
def test_no_narrower_pair_of_order_statistics_would_do(n, confidence):
    interval = median_interval(np.arange(1.0, n + 1), confidence, effective=n)
    rank = int(interval.low)
    assert interval.high == n + 1 - rank
    if interval.confidence >= confidence:
        assert interval.confidence == pytest.approx(1 - 2 * scipy.stats.binom.cdf(rank - 1, n, 0.5))
        assert rank == (n + 1) // 2 or 1 - 2 * scipy.stats.binom.cdf(rank, n, 0.5) < confidence
    else:
        assert rank == 1
        assert interval.confidence == pytest.approx(1 - 2.0 ** (1 - n))


def test_quantiles_are_those_of_linear_interpolation():
    assert median_and_quantiles([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == (3.5, 2.0, 5.0)
    assert all(math.isnan(value) for value in median_and_quantiles([]))


def test_the_interval_is_students_on_the_logarithms():
    ratio = ratio_over_processes([1.0, 2.0, 4.0])
    # Logarithms to base 2: mean 1, standard error 1/sqrt(3), and Student's t of 2 degrees of freedom is 4.3027.
    half_width = 4.3027 / math.sqrt(3)
    assert ratio.value == pytest.approx(2)
    assert ratio.low == pytest.approx(2 ** (1 - half_width), rel=1e-4)
    assert ratio.high == pytest.approx(2 ** (1 + half_width), rel=1e-4)


def test_the_inverse_has_its_ends_turned_round():
    ratio = Ratio(2.0, 1.0, 4.0, 3)
    assert ratio.inverse == Ratio(0.5, 0.25, 1.0, 3)
    assert ratio * 3 == Ratio(6.0, 3.0, 12.0, 3)
    assert exactly(2.0) == Ratio(2.0, 2.0, 2.0, 0)
    assert str(ratio) == "2.00 [1.00, 4.00]"
