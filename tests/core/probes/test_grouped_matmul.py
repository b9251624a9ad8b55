"""Experts of a mixture: waves over all experts, the law on cases it has not seen, claims compared with a loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.findings.axes import Shape
from pyperf_suite.findings.rows import rows_of
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.probes.grouped_matmul import (
    ONE_LAUNCH,
    PADDING_WASTES,
    PROBE,
    SKEW_IS_FREE,
)
from tests.records import records

CPU = resolve("cpu")
AXES = replace(
    PROBE.axes("quick", CPU),
    experts=(4, 8),
    shape=(Shape(512, 64, 32), Shape(256, 64, 32)),
    skew=(0.0, 0.5, 1.0),
    workers=(1,),
)
START_S, ROW_S = 5e-6, 1e-7


def computed_rows(case) -> int:
    p = case.parameters
    return p.experts * max(p.rows_of_experts) if case.implementation == "padded" else p.rows


def seconds(case) -> float:
    """5 us a call and 0.1 us a row that is computed, padding included."""
    return calls(case) * START_S + computed_rows(case) * ROW_S


def calls(case) -> int:
    return sum(map(bool, case.parameters.rows_of_experts)) if case.implementation == "loop" else 1


def made(axes=AXES, **details):
    return records(PROBE.sweep(axes), seconds, wobble=0.001, details=lambda case: {"calls": calls(case), **details})


def test_the_law_finds_start_and_row_and_holds_on_what_it_has_not_seen():
    laws = [each for each in PROBE.findings(made()).remarks if getattr(each, "kind", "") == "law"]
    assert {each.values["implementation"] for each in laws} == {"loop", "padded", "grouped_mm"}
    for each in laws:
        assert each.values["start"].value == pytest.approx(START_S, rel=0.02)
        assert each.values["wave"].value == pytest.approx(ROW_S, rel=0.02)
        assert each.values["worst"].value < 0.01


def test_waves_are_rounded_up_for_each_expert_in_a_loop_and_once_in_one_launch():
    axes = replace(AXES, implementation=("loop", "padded", "grouped_mm"), experts=(4,), shape=(Shape(256, 64, 32),))
    waves_of = {
        (row.implementation, row.p.skew): row.by_name("waves")
        for row in rows_of(made(axes, tile=[32, 32, 16], slots=6), computed=PROBE.computed)
    }
    # 64 rows each are 2 x 2 tiles: a wave an expert, or 16 tiles in 3 waves of 6 slots.
    assert (waves_of["loop", 0.0], waves_of["grouped_mm", 0.0], waves_of["padded", 0.0]) == (4, 3, 3)
    # 123, 61, 41 and 31 rows are 8, 4, 4 and 2 tiles; padded, four times 8.
    assert (waves_of["loop", 1.0], waves_of["grouped_mm", 1.0], waves_of["padded", 1.0]) == (5, 3, 6)


def test_claims_are_tried_where_they_speak():
    tried = {}
    for verdict in PROBE.findings(made()).verdicts:
        tried.setdefault(verdict.claim, []).append(verdict)
    assert tried.keys() == {ONE_LAUNCH, PADDING_WASTES, SKEW_IS_FREE}
    assert {each.message.values["implementation"] for each in tried[ONE_LAUNCH]} == {"grouped_mm"}
    assert all(each.message.values["skew"].value > 0 for each in tried[PADDING_WASTES])
    # 8 experts of 512 rows, skew 1: padded computes 8 x 188 rows in one call, the loop 512 in eight.
    padded = [each for each in tried[PADDING_WASTES] if "8 experts of 512" in each.message.values["mixture"]]
    assert min(each.measured.value for each in padded) == pytest.approx(
        (8 * START_S + 512 * ROW_S) / (START_S + 8 * 188 * ROW_S), rel=0.01
    )
    assert {each.outcome for each in tried[SKEW_IS_FREE]} == {"holds"}
