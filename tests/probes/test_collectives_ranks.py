"""What the collectives probe tells of ranks, links and time: who is late, what is slow, when a network changed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pyperf_suite.operators.collective import CollectiveParameters
from pyperf_suite.probes.collectives.findings import explain
from pyperf_suite.probes.collectives.probe import Collectives, CollectivesAxes
from pyperf_suite.probes.collectives.soak import chance_of_no_trend, pettitt
from pyperf_suite.runner.case import Case
from pyperf_suite.spec.axes import Sizes
from pyperf_suite.spec.findings import Findings, Table

PROBE = Collectives()
LADDER = Sizes(64, 64 * 2**20, 16)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


def cases(**changed: object) -> list[Case]:
    usual = CollectivesAxes(
        op=("all_reduce",), size=(LADDER,), dtype=("float32",), ranks=(4,), implementation=("gloo",)
    )
    return PROBE.sweep(replace(usual, **changed))  # type: ignore[arg-type]


def said(findings: Findings, words: str) -> str:
    """The one sentence that has these words."""
    (sentence,) = [sentence for sentence in findings.sentences if words in sentence]
    return sentence


def table(findings: Findings, words: str) -> Table:
    (found,) = [table for table in findings.tables if words in table.title]
    return found


def column(found: Table, name: str) -> list[str]:
    place = found.columns.index(name)
    return [row[place] for row in found.rows]


@pytest.mark.parametrize("ranks", [2, 8])
def test_the_straggler_is_who_arrives_last_and_has_the_smallest_own_time(network: Any, ranks: int) -> None:
    machine = network(late={ranks - 1: 300e-6}, noise=0.01)
    sentence = said(explain(machine.records(cases(op=("all_reduce", "all_gather"), ranks=(ranks,)))), "straggler")
    assert f"rank {ranks - 1} is the straggler" in sentence
    assert "300 us after the first (clocks agree within 2 us)" in sentence


def test_ranks_that_are_late_by_chance_are_no_stragglers(network: Any) -> None:
    findings = explain(network(noise=0.02).records(cases(op=("all_reduce", "all_gather"))))
    assert "no straggler" in said(findings, "straggler")


def test_a_rank_that_is_last_by_next_to_nothing_is_not_blamed(network: Any) -> None:
    findings = explain(network(late={1: 0.5e-6}).records(cases(op=("all_reduce", "all_gather"))))
    assert "no straggler" in said(findings, "straggler")


def test_operations_that_a_rank_can_leave_early_say_nothing_of_stragglers(network: Any) -> None:
    findings = explain(network(late={1: 1e-3}).records(cases(op=("broadcast", "send_receive"))))
    assert not [sentence for sentence in findings.sentences if "straggler" in sentence]


def test_transfer_is_told_apart_from_waiting_for_the_last(network: Any) -> None:
    findings = explain(network(late={2: 100e-6}).records(cases()))
    found = table(findings, "all_reduce float32")
    assert column(found, "transfer us")[0] == "20.01"
    assert column(found, "skew us")[0] == "100.0"
    assert "20.0 us are transfer after the last rank arrived, and the ranks arrive 100.0 us apart" in said(
        findings, "transfer after"
    )


def pairs(**changed: Any) -> list[Case]:
    return [case for case in cases(pairs=("all",), **changed) if case.parameters.pairs]


def test_a_slow_link_is_named(network: Any) -> None:
    machine = network(slow={(1, 3): 0.4})
    findings = explain(machine.records(pairs()))
    assert "slow links: 1-3 (40% of the median)" in said(findings, "Pair map")
    found = table(findings, "GB/s between ranks")
    assert found.columns == ("", "0", "1", "2", "3")
    matrix = [row[1:] for row in found.rows]
    assert [matrix[rank][rank] for rank in range(4)] == ["-"] * 4
    assert matrix[1][3] == matrix[3][1] != matrix[0][1]


def test_links_are_compared_with_those_that_are_wired_alike(network: Any) -> None:
    # Ranks 0-1 and 2-3 are bridged by NVLink, all others go through the host; of the bridges one is slow.
    bridged = {(0, 1), (2, 3)}
    others = {pair: 0.1 for pair in itertools.combinations(range(4), 2) if pair not in bridged}
    records = network(slow={**others, (2, 3): 0.5}).records(pairs())
    told = {
        f"{a}-{b}": {"path": "NV4" if (a, b) in bridged else "NODE", "gb_per_s": None}
        for a, b in itertools.combinations(range(4), 2)
    }
    wired = [replace(record, state={"gpu": {"links": told}}) for record in records]
    assert "slow links: 2-3 (67% of the median of those by NV4)." in said(explain(wired), "Pair map")


@pytest.mark.parametrize("ranks", [4, 12])
def test_a_rank_all_of_whose_links_are_slow_is_named_instead(network: Any, ranks: int) -> None:
    slow = {(min(2, other), max(2, other)): 0.5 for other in range(ranks) if other != 2}
    sentence = said(explain(network(slow=slow).records(pairs(ranks=(ranks,)))), "Pair map")
    assert "every link of rank 2 is slow" in sentence


def test_links_that_are_alike_are_said_to_be(network: Any) -> None:
    assert "no link is slower" in said(explain(network().records(pairs())), "Pair map")


def test_halves_of_the_machine_make_a_map_too(network: Any) -> None:
    asked = [case for case in cases(pairs=("bisection",), ranks=(8,)) if case.parameters.pairs]
    sentence = said(explain(network(slow={(1, 5): 0.5}).records(asked)), "Pair map")
    assert "4 pairs carry" in sentence
    assert "slow links: 1-5 (50% of the median)" in sentence


def test_a_single_pair_is_told_with_its_rate(network: Any) -> None:
    asked = [case for case in cases(pairs=("0-2",)) if case.parameters.pairs]
    assert "ranks 0 and 2 reach each other at 9.54 GB/s" in said(explain(network().records(asked)), "Pair map")


def steps(at: int) -> Callable[[CollectiveParameters, int], float]:
    return lambda parameters, process: 1.5 if process >= at else 1.0


def test_a_soak_tells_when_the_network_changed(network: Any) -> None:
    asked = cases(size=(Sizes(2**20, 2**20),))
    findings = explain(network(factor=steps(12), noise=0.01).records(asked, processes=30))
    assert "by +50% at minute 12.0" in said(findings, "change within")
    assert column(table(findings, "Soak"), "visits") == ["30"]
    assert [figure.name for figure in findings.figures] == ["collectives_soak"]


def test_a_soak_tells_a_drift_from_begin_to_end(network: Any) -> None:
    asked = cases(size=(Sizes(2**20, 2**20),))
    drifting = network(factor=lambda parameters, process: 1 + 0.01 * process, noise=0.005)
    assert re.search(r"by \+2\d% from begin to end", said(explain(drifting.records(asked, processes=30)), "drift,"))


def test_a_steady_soak_is_said_to_be_one_and_a_profiles_processes_are_none(network: Any) -> None:
    steady = network(noise=0.01)
    assert "no case drifts or changes" in said(explain(steady.records(cases(), processes=20)), "Soak: ")
    assert not [s for s in explain(steady.records(cases(), processes=5)).sentences if s.startswith("Soak")]


def test_a_soak_that_is_too_short_to_judge_says_so(network: Any) -> None:
    findings = explain(network(factor=steps(3), profile="quick").records(cases(), processes=6))
    assert "too short to tell a drift from chance" in said(findings, "Soak: ")
    assert "the slowest visit took 1.20 x" in said(findings, "Soak of 5.0 minutes")


def test_the_tests_of_a_soak_rarely_see_what_is_not_there_and_see_what_is() -> None:
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
