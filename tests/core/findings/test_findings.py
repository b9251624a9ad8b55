"""A claim and what was measured: it holds, it does not, or the interval leaves it open; and effects that are noise.

Quantities: values in the base of a unit, with bounds where these are known.
"""

from __future__ import annotations

import math

import pytest

from pyperf_suite.findings.data import (
    NOT_A_NUMBER,
    ONE_PROCESS,
    OPEN_INTERVAL,
    Claim,
    remark,
)
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import UNITS, Quantity, quantity

COSTS_A_FIFTH = Claim("costs 20-25 % of throughput", "a guide", 0.75, 0.80)


@pytest.mark.parametrize(
    ("measured", "outcome", "why"),
    [
        (Ratio(0.77, 0.76, 0.79), "holds", ""),
        (Ratio(0.78, 0.75, 0.80), "holds", ""),
        (Ratio(0.90, 0.85, 0.95), "does not hold here", ""),
        (Ratio(0.80, 0.78, 0.82), "undecided", OPEN_INTERVAL),
        (Ratio(0.77, 0.60, 0.95), "undecided", OPEN_INTERVAL),
        (Ratio(0.77, 0.76, 0.78, processes=1), "undecided", ONE_PROCESS),
        (0.77, "holds", ""),
        (0.9, "does not hold here", ""),
        (math.inf, "does not hold here", ""),
        (Quantity(0.77), "holds", ""),
        (Quantity(0.77, processes=3), "undecided", OPEN_INTERVAL),
        (math.nan, "undecided", NOT_A_NUMBER),
        (Quantity(math.nan, processes=1), "undecided", NOT_A_NUMBER),
    ],
)
def test_the_whole_interval_decides(measured, outcome, why):
    verdict = COSTS_A_FIFTH.judge("Throughput is {measured}", measured)
    assert (verdict.outcome, verdict.why) == (outcome, why)
    remedy = {ONE_PROCESS: "--profile standard has three", OPEN_INTERVAL: "more processes narrow it"}.get(why, "")
    assert verdict.remedy == remedy


@pytest.mark.parametrize(
    ("effect", "is_noise"),
    [
        (Ratio(2.0, 1.9, 2.1, 3), False),
        (Ratio(0.5, 0.4, 0.6, 3), False),
        (Ratio(1.1, 0.9, 1.3, 3), True),
        (Ratio(1.1, 1.0, 1.3, 3), True),
        (Quantity(0.25, "+%", 0.2, 0.3, 3), False),
        (Quantity(-0.2, "+%", -0.3, -0.1, 3), False),
        (Quantity(0.05, "+%", -0.1, 0.2, 3), True),
        (Quantity(0.0, "+%"), True),
        (Quantity(1.0, "x"), True),
        (Quantity(math.nan, "x"), True),
        (None, True),
        ("unknown", True),
        # All of it is gone, or there was none of it.
        (Quantity(-1.0, "+%", -1.0, -0.9, 3), False),
        (Quantity(0.0, "x"), False),
        (Quantity(math.inf, "x"), False),
    ],
)
def test_an_effect_is_noise_where_none_is_possible(effect, is_noise):
    message = remark("{faster} as fast", effect="faster", faster=effect)
    assert message.is_noise is is_noise


# By SI, IEC 80000-13 for GiB, and bits of a network's Gbps.
BASES = {
    "": ("", 1),
    "s": ("s", 1),
    "ms": ("s", 1e-3),
    "us": ("s", 1e-6),
    "ns": ("s", 1e-9),
    "min": ("s", 60),
    "B": ("B", 1),
    "MB": ("B", 1e6),
    "GB": ("B", 1e9),
    "GiB": ("B", 1 << 30),
    "GB/s": ("B/s", 1e9),
    "Gbps": ("B/s", 1.25e8),
    "TFLOP": ("FLOP", 1e12),
    "GFLOP/s": ("FLOP/s", 1e9),
    "TFLOP/s": ("FLOP/s", 1e12),
    "/s": ("/s", 1),
    "samples/s": ("/s", 1),
    "tokens/s": ("/s", 1),
    "W": ("W", 1),
    "joules": ("J", 1),
    "billion": ("count", 1e9),
    "count": ("count", 1),
    "x": ("ratio", 1),
    "%": ("ratio", 1),
    "+%": ("change", 1),
    "duration": ("s", 1),
    "size": ("B", 1),
}


def test_each_unit_is_so_many_of_its_base():
    assert UNITS == BASES
    assert {unit: Quantity(0.0, unit).base for unit in BASES} == {unit: name for unit, (name, _) in BASES.items()}


def test_bounds_of_a_quantity_exclude_what_lies_outside_them_and_not_what_they_are():
    ratio = Quantity(2.0, "x", 1.5, 2.5)
    assert [ratio.excludes(value) for value in (1.4, 1.5, 2.0, 2.5, 2.6)] == [True, False, False, False, True]
    assert [Quantity(1.0, "x", 1.0, high).has_interval for high in (1.0, 1.1, math.nan)] == [False, True, False]
    # From half to the whole is twice; from as long to a quarter longer 1.25 times; from nothing it is no factor.
    ends = (("x", 0.5, 1.0), ("+%", 0.0, 0.25), ("x", 0.0, 2.0), ("x", 1.0, math.inf), ("%", 0.1, 0.2))
    assert [Quantity(0.1, *each).span for each in ends] == [2.0, 1.25, 1.0, 1.0, 1.0]
    assert quantity(Ratio(2.0, 1.5, 2.5, 3)) == Quantity(2.0, "x", 1.5, 2.5, 3)
    assert quantity(Ratio(2.0, 1.5, 2.5, 3), "+%", predicted=True) == Quantity(2.0, "+%", 1.5, 2.5, 3, True)
    assert quantity(2, "B", predicted=True) == Quantity(2.0, "B", predicted=True)
    assert quantity(ratio, "ms") is ratio
