"""Quantities: values in the base of a unit, with bounds where these are known."""

from __future__ import annotations

import math

import pytest

from pyperf_suite.measure.estimates import Ratio, exactly
from pyperf_suite.spec.findings import Quantity, quantity


def test_a_unit_that_nothing_is_shown_in_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"'furlong' is no unit: .*GB/s"):
        Quantity(1.0, "furlong")


@pytest.mark.parametrize(
    ("low", "high", "has_interval", "excludes_one"),
    [
        (1.1, 1.3, True, True),
        (0.7, 0.9, True, True),
        (0.9, 1.1, True, False),
        (1.0, 1.1, True, False),
        (1.2, 1.2, False, True),
        (-math.inf, math.inf, True, False),
        (1.2, math.inf, True, True),
        (math.nan, math.nan, False, False),
    ],
)
def test_an_interval_excludes_what_lies_outside_of_it(low, high, has_interval, excludes_one):
    found = Quantity(1.0, "x", low, high, 3)
    assert (found.has_interval, found.excludes(1.0)) == (has_interval, excludes_one)


def test_a_ratio_keeps_its_bounds_and_processes():
    assert quantity(Ratio(2, 1.5, 2.5, 3)) == Quantity(2, "x", 1.5, 2.5, 3)
    assert quantity(Ratio(2, 1.5, 2.5, 3), "%", predicted=True) == Quantity(2, "%", 1.5, 2.5, 3, predicted=True)
    assert quantity(exactly(2)) == Quantity(2, "x", 2, 2)
