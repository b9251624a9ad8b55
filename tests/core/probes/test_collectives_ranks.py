"""Findings of the collectives probe on ranks, links and time: who is late, what is slow, when a network changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy  # whose parts are imported at first use: stats takes two seconds

from pyperf_suite.findings.axes import Sizes
from pyperf_suite.measure.levels import chance_of_no_trend
from pyperf_suite.probes.collectives import PROBE
from pyperf_suite.probes.collectives.ranks import pettitt
from pyperf_suite.record.case import Case
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.record import STOOD_STILL
from pyperf_suite.workloads.collective import CollectiveParameters
from tests.core.probes.test_collectives import cases, remarks, said
from tests.records import lines

ARRIVING = ("all_reduce", "all_gather")


@pytest.mark.parametrize("ranks", [2, 8])
def test_the_straggler_is_who_arrives_last_and_has_the_smallest_own_time(network: Any, ranks: int) -> None:
    machine = network(late={ranks - 1: 300e-6}, noise=0.01)
    found = said(PROBE.findings(machine.records(cases(op=ARRIVING, ranks=(ranks,)))), "is the straggler")
    assert (found["kind"], found["rank"]) == ("caution", ranks - 1)
    assert (found["lag"], found["clocks"]) == pytest.approx((300e-6, 2e-6))
    assert found["chance"] < 0.01
    assert found["wait"] > 0.05


@pytest.mark.parametrize("settings", [{"noise": 0.02}, {"late": {1: 0.5e-6}}], ids=["by chance", "by next to nothing"])
def test_ranks_that_are_late_by_chance_or_next_to_nothing_are_no_stragglers(
    network: Any, settings: dict[str, Any]
) -> None:
    found = said(PROBE.findings(network(**settings).records(cases(op=ARRIVING))), "straggler")
    assert found["kind"] == ""
    assert found["chance"] > 0.01 or found["wait"] < 0.05


def test_a_rank_that_stood_still_is_named_with_the_case(network: Any) -> None:
    records = network().records(cases(op=ARRIVING))
    records[3] = replace(records[3], quality={**records[3].quality, STOOD_STILL: [0.0, 10.1]})
    found = said(PROBE.findings(records), "stood still")
    assert (found["rank"], found["still"], found["label"]) == (1, 10.1, records[3].label)
    assert remarks(PROBE.findings(network().records(cases())), "stood still") == []


def pairs(**changed: Any) -> list[Case]:
    return [case for case in cases(**{"pairs": ("all",), **changed}) if case.parameters.pairs]


def test_a_slow_link_is_named(network: Any) -> None:
    findings = PROBE.findings(network(slow={(1, 3): 0.4}).records(pairs()))
    slow = said(findings, "is slow, {share}")
    assert (slow["one"], slow["other"], slow["share"]) == (1, 3, pytest.approx(0.4, rel=0.01))
    spread = said(findings, "the median {median}")
    assert (spread["pairs"], spread["slow"], spread["limit"]) == (6, 1, 0.8)
    assert spread["lowest"] / spread["median"] == pytest.approx(0.4, rel=0.01)
    assert spread["highest"] == spread["median"]
    (found,) = [each for each in findings.tables if "GB/s between ranks" in each.title]
    assert [column.name for column in found.columns] == ["", "0", "1", "2", "3"]
    matrix = [[cell.value if isinstance(cell, Quantity) else cell for cell in row[1:]] for row in found.rows]
    assert [matrix[rank][rank] for rank in range(4)] == [None] * 4
    assert matrix[1][3] == matrix[3][1] == spread["lowest"] != matrix[0][1]


@pytest.mark.parametrize("ranks", [4, 12])
def test_a_rank_all_of_whose_links_are_slow_is_named_instead(network: Any, ranks: int) -> None:
    slow = {(min(2, other), max(2, other)): 0.5 for other in range(ranks) if other != 2}
    findings = PROBE.findings(network(slow=slow).records(pairs(ranks=(ranks,))))
    slow_rank = said(findings, "every link of rank")
    assert (slow_rank["kind"], slow_rank["rank"]) == ("caution", 2)
    assert not remarks(findings, "is slow, {share}")


def steps(at: int) -> Callable[[CollectiveParameters, int], float]:
    return lambda parameters, process: 1.5 if process >= at else 1.0


def test_a_soak_tells_when_the_network_changed(network: Any) -> None:
    findings = PROBE.findings(network(factor=steps(12), noise=0.01).records(cases(size=ONE_SIZE), processes=30))
    change = said(findings, "cases change")
    assert (change["by"], change["at"]) == (pytest.approx(0.5, abs=0.01), 12 * 60)
    (row,) = lines(findings, "Soak")
    assert (row["trials"], row["change"].value, row["at"].value) == (30, change["by"], change["at"])
    assert row["change by chance"].value < 0.01
    (figure,) = findings.figures
    (panel,) = figure.rows[0]
    assert figure.name == "collectives_soak"
    assert (panel.x_unit, list(panel.series[0].x[:3])) == ("min", [0.0, 60.0, 120.0])  # type: ignore[union-attr]


ONE_SIZE = (Sizes(2**20, 2**20),)


def test_a_soak_tells_a_drift_from_begin_to_end(network: Any) -> None:
    drifting = network(factor=lambda parameters, process: 1 + 0.01 * process, noise=0.005)
    findings = PROBE.findings(drifting.records(cases(size=ONE_SIZE), processes=30))
    assert 0.15 < said(findings, "cases drift, ")["by"] < 0.3


def test_a_soak_that_is_too_short_to_judge_says_so(network: Any) -> None:
    findings = PROBE.findings(network(factor=steps(3), profile="quick").records(cases(size=ONE_SIZE), processes=6))
    assert said(findings, "too short to tell")["fewest"] == 8
    soak = said(findings, "Soak of {length}")
    assert (soak["length"], soak["slowest"]) == (5 * 60, pytest.approx(1.2, abs=0.01))


def test_the_chances_of_a_trend_and_of_a_change_are_those_of_spearman_and_pettitt():
    values = np.array([2.0, 1.0, 3.0, 3.0, 5.0, 8.0, 7.0, 6.0])
    assert chance_of_no_trend(values) == pytest.approx(scipy.stats.spearmanr(np.arange(8), values).pvalue)
    assert chance_of_no_trend(-values) == pytest.approx(chance_of_no_trend(values))
    assert [chance_of_no_trend(quiet) for quiet in (np.arange(7.0), np.ones(40))] == [1.0, 1.0]
    # Sums of ranks 1, 3, 6 less half of what they would be: |2U| is 3, 4 and 3, K = 4, p = 2 exp(-6 K^2 / (64 + 16)).
    assert pettitt(np.array([1.0, 2.0, 3.0, 4.0])) == (2, pytest.approx(2 * math.exp(-1.2)))
    assert pettitt(np.ones(4))[1] == 1.0
