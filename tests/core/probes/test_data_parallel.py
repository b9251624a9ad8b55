"""Cases of the data_parallel probe, and its findings on made-up steps whose truth is known."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pyperf_suite.findings.axes import Sizes
from pyperf_suite.findings.data import ClaimVerdict, Findings
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.training.data_parallel import DataParallelLaw, GradientExchange
from pyperf_suite.probes.data_parallel import (
    BUCKETS,
    NO_SYNC,
    PROBE,
    DataParallelAxes,
)
from pyperf_suite.probes.overlap import OVERLAPS
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from tests.records import a_record, remarks

CPU = Device("cpu")
AXES = PROBE.axes("standard", CPU)
PROCESSES = 3
COMPUTE_S_A_LAYER = 8e-3


def all_reduce_s(size_bytes: float) -> float:
    return 1e-3 + size_bytes / 1e9


LAW = DataParallelLaw(all_reduce_s, slowdown=1.5, hidden=0.8)


def buckets_of(parameters: Any) -> list[int]:
    total = parameters.gradient_bytes
    count = max(1, total // parameters.bucket_bytes) if parameters.exchange == "ddp" else 1
    return [total // count] * (count - 1) + [total - total // count * (count - 1)]


def seconds_of(case: Case) -> float:
    """By the law; DataParallel takes 1.2 times as long as DDP, and without direct copies all takes 1.3 times."""
    p = case.parameters
    factor = 1.0 if p.peer_to_peer else 1.3
    if case.operator == "collective":
        return factor * all_reduce_s(p.bytes)
    compute_s = COMPUTE_S_A_LAYER * p.layers
    if p.exchange == "none":
        return compute_s
    shape = p if p.exchange != "dp" else replace(p, exchange="ddp")
    exchange = GradientExchange(
        p.accumulate * compute_s,
        tuple(buckets_of(shape)),
        p.exchange != "after",
        p.accumulate,
        not p.no_sync,
    )
    return (1.2 if p.exchange == "dp" else factor) * LAW.seconds(exchange)


def records_of(cases: list[Case], noise: float = 0.0, skew: float = 1.0) -> list[Record]:
    """Every case in each process; the ranks are `skew` apart in steps without exchange."""
    random, records = np.random.default_rng(0), []
    for process, case in itertools.product(range(PROCESSES), cases):
        seconds = seconds_of(case) * float(np.exp(noise * random.standard_normal()))
        p, details = case.parameters, {}
        if case.operator == "data_parallel" and p.exchange in ("ddp", "after"):
            details = {"buckets": buckets_of(p), "wire_bytes": p.exchanges * p.gradient_bytes}
        own = [seconds / skew, seconds] if getattr(p, "exchange", "") == "none" else [seconds] * 2
        sampling = {"rank_samples_s": [[each] * 3 for each in own]}
        records.append(a_record(case, float(np.mean(own)), process=process, details=details, sampling=sampling))
    return records


def swept(axes: DataParallelAxes) -> list[Case]:
    return list(PROBE.sweep(axes))


def verdicts(findings: Findings) -> dict[str, ClaimVerdict]:
    return {each.claim.text: each for each in findings.verdicts}


def test_steps_stand_beside_one_without_exchange_and_options_beside_the_usual():
    cases = PROBE.cases("full", CPU)
    steps = [case.parameters for case in cases if case.operator == "data_parallel"]
    for p in steps:
        assert any(q.exchange == "none" and (q.layers, q.ranks) == (p.layers, p.ranks) for q in steps)
        if not p.no_sync:
            assert replace(p, no_sync=True) in steps
    assert {p.ranks for p in steps} == {2, 4}
    assert len({case.case_id for case in cases}) == len(cases)


@pytest.mark.slow
def test_the_law_is_found_in_steps_that_follow_it():
    axes = replace(AXES, layers=(4, 8), all_reduce=(Sizes(2**16, 2**25, 2),))
    findings = PROBE.findings(records_of(swept(axes), noise=0.02))
    (law,) = remarks(findings, "law_hidden")
    assert law.kind == "law"
    assert law.values["law_hidden"].value == pytest.approx(LAW.hidden, abs=0.1)
    assert law.values["law_slowdown"].value == pytest.approx(LAW.slowdown, rel=0.1)
    assert law.values["median"].value <= law.values["wanted"].value
    (table,) = findings.tables
    place = [column.name for column in table.columns].index("law")
    assert [row[place] is None for row in table.rows] == [row[1] == "none" for row in table.rows]
    assert all(row[place].predicted for row in table.rows if row[place])
    (figure,) = findings.figures
    assert [len(panel.series) for panel in figure.rows[0]] == [3, 3]


@pytest.mark.slow
def test_ranks_wait_for_the_last_so_its_time_is_what_the_law_begins_with():
    axes = replace(AXES, layers=(4, 8), all_reduce=(Sizes(2**16, 2**25, 2),))
    (law,) = remarks(PROBE.findings(records_of(swept(axes), skew=1.5)), "law_hidden")
    # The time of a step is the mean over ranks, which would leave a fifth of compute unexplained.
    assert law.values["median"].value < 0.0005


def test_each_claim_of_the_guides_gets_its_verdict():
    findings = PROBE.findings(records_of(swept(AXES)))
    judged = verdicts(findings)
    assert {claim.text: "holds" for claim in (OVERLAPS, BUCKETS, NO_SYNC)} == {
        text: each.outcome for text, each in judged.items()
    }
    assert judged[NO_SYNC.text].message.values["accumulate"] == 2
    every = [case.parameters for case in swept(AXES) if case.operator == "data_parallel"]
    (correct,) = remarks(findings, "trials")
    assert correct.values["trials"] == PROCESSES * len(every)
