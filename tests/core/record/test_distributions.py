"""Quantiles and tails against scipy's."""

import math

import pytest
from scipy import special

from pyperf_suite.record.interval import (
    binomial_tail,
    incomplete_beta,
    normal_quantile,
    student_quantile,
    student_tail,
)


@pytest.mark.parametrize("a", [0.5, 1, 7, 300.5, 5000])
@pytest.mark.parametrize("b", [0.5, 3, 4000])
@pytest.mark.parametrize("x", [0, 1e-9, 0.1, 0.5, 0.7, 0.999, 1])
def test_incomplete_beta(a, b, x):
    assert incomplete_beta(a, b, x) == pytest.approx(special.betainc(a, b, x), rel=1e-10, abs=1e-280)


@pytest.mark.parametrize("probability", [0.5, 0.6, 0.9, 0.95, 0.975, 0.9995])
def test_quantiles(probability):
    assert normal_quantile(probability) == pytest.approx(special.ndtri(probability), rel=1e-12, abs=1e-15)
    for freedom in (1, 1.5, 2, 4.7, 20, 1000, 1e5):
        found = student_quantile(freedom, probability)
        assert found == pytest.approx(special.stdtrit(freedom, probability), rel=1e-9, abs=1e-12)
        assert student_tail(freedom, found) == pytest.approx(1 - probability, rel=1e-9)


@pytest.mark.parametrize("tries", [1, 2, 5, 100, 20_000])
def test_binomial_tail(tries):
    for count in {0, 1, tries // 3, tries // 2, tries - 1, tries}:
        expected = special.bdtr(count, tries, 0.5)
        assert binomial_tail(count, tries) == pytest.approx(expected, rel=1e-10, abs=1e-280)
        assert not math.isnan(binomial_tail(count, tries))
