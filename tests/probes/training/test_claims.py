"""A claim beside a measured ratio: it holds, it does not, or the interval leaves it open."""

from __future__ import annotations

import pytest

from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.probes.training.claims import BEKMAN, Claim

COSTS_A_FIFTH = Claim("costs 20-25 % of throughput", BEKMAN, 0.75, 0.80)


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (Ratio(0.77, 0.76, 0.79), "claim holds"),
        (Ratio(0.78, 0.75, 0.80), "claim holds"),
        (Ratio(0.90, 0.85, 0.95), "claim does not hold here"),
        (Ratio(0.60, 0.55, 0.65), "claim does not hold here"),
        (Ratio(0.80, 0.78, 0.82), "undecided"),
        (Ratio(0.77, 0.60, 0.95), "undecided"),
    ],
)
def test_the_whole_interval_decides(measured, verdict):
    assert COSTS_A_FIFTH.verdict(measured) == verdict
    assert f"; {verdict} (costs 20-25 % of throughput: {BEKMAN})." in COSTS_A_FIFTH.sentence("Throughput is", measured)


def test_a_claim_of_more_than_something_has_no_upper_end():
    assert Claim("is faster", BEKMAN, low=1.0).verdict(Ratio(50, 40, 60)) == "claim holds"


def test_the_ratio_stands_where_the_subject_leaves_a_gap():
    told = COSTS_A_FIFTH.sentence("every block dropped runs at {} of the rate", Ratio(0.77, 0.76, 0.79), "on 8 blocks")
    assert told.startswith("every block dropped runs at 0.77 [0.76, 0.79] of the rate on 8 blocks; claim holds")


def test_what_is_counted_is_judged_without_an_interval():
    assert COSTS_A_FIFTH.counted("Keeps 0.77", 0.77) == f"Keeps 0.77; claim holds ({COSTS_A_FIFTH.text}: {BEKMAN})."
    assert "claim does not hold here" in COSTS_A_FIFTH.counted("Keeps 0.9", 0.9)


def test_what_one_process_timed_is_undecided_however_narrow_its_interval():
    told = COSTS_A_FIFTH.sentence("Throughput is", Ratio(0.77, 0.76, 0.78, processes=1))
    assert "undecided by one process, --profile standard has three (" in told
    assert COSTS_A_FIFTH.verdict(Ratio(0.77, 0.76, 0.78, processes=3)) == "claim holds"
