"""Tests for a trend: they rarely see what is not there, and see what is."""

from __future__ import annotations

import numpy as np

from pyperf_suite.measure.estimates import chance_of_no_trend, pettitt


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
