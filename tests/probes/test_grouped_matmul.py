"""Experts of a mixture: waves over all experts, the law on cases it has not seen, claims beside a loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.probes.grouped_matmul import (
    ONE_LAUNCH,
    PADDING_WASTES,
    PROBE,
    SKEW_IS_FREE,
)
from pyperf_suite.spec.axes import Shape
from pyperf_suite.spec.findings import Findings
from pyperf_suite.spec.rows import rows_of

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


@pytest.fixture
def records(timed_record):
    def made(axes=AXES, processes=3, **details):
        return [
            timed_record(
                case,
                seconds(case) * (1 + 0.001 * process),
                process=process,
                kernel={"details": {"calls": calls(case), **details}},
            )
            for case in PROBE.sweep(axes)
            for process in range(processes)
        ]

    return made


def test_the_law_finds_start_and_row_and_holds_on_what_it_has_not_seen(records):
    laws = [each for each in PROBE.findings(records()).remarks if getattr(each, "kind", "") == "law"]
    assert {each.values["implementation"] for each in laws} == {"loop", "padded", "grouped_mm"}
    for each in laws:
        assert each.values["start"].value == pytest.approx(START_S, rel=0.02)
        assert each.values["wave"].value == pytest.approx(ROW_S, rel=0.02)
        assert each.values["worst"].value < 0.01


def test_waves_are_rounded_up_for_each_expert_in_a_loop_and_once_in_one_launch(records):
    axes = replace(AXES, implementation=("loop", "padded", "grouped_mm"), experts=(4,), shape=(Shape(256, 64, 32),))
    found = {
        (row.implementation, row.skew): row.waves
        for row in rows_of(records(axes, tile=[32, 32, 16], slots=6), computed=PROBE.computed)
    }
    # 64 rows each are 2 x 2 tiles: a wave an expert, or 16 tiles in 3 waves of 6 slots.
    assert (found["loop", 0.0], found["grouped_mm", 0.0], found["padded", 0.0]) == (4, 3, 3)
    # 123, 61, 41 and 31 rows are 8, 4, 4 and 2 tiles; padded, four times 8.
    assert (found["loop", 1.0], found["grouped_mm", 1.0], found["padded", 1.0]) == (5, 3, 6)


def test_claims_are_tried_where_they_speak(records):
    tried = {}
    for verdict in PROBE.findings(records()).verdicts:
        tried.setdefault(verdict.claim, []).append(verdict)
    assert tried.keys() == {ONE_LAUNCH, PADDING_WASTES, SKEW_IS_FREE}
    assert {each.told.values["implementation"] for each in tried[ONE_LAUNCH]} == {"grouped_mm"}
    assert all(each.told.values["skew"].value > 0 for each in tried[PADDING_WASTES])
    # 8 experts of 512 rows, skew 1: padded computes 8 x 188 rows in one call, the loop 512 in eight.
    padded = [each for each in tried[PADDING_WASTES] if "8 experts of 512" in each.told.values["mixture"]]
    assert min(each.measured.value for each in padded) == pytest.approx(
        (8 * START_S + 512 * ROW_S) / (START_S + 8 * 188 * ROW_S), rel=0.01
    )
    assert {each.outcome for each in tried[SKEW_IS_FREE]} == {"holds"}


def test_without_a_loop_or_a_balanced_case_nothing_is_compared(records):
    found = PROBE.findings(records(replace(AXES, implementation=("grouped_mm",), skew=(0.5, 1.0))))
    assert found.verdicts == []


def test_the_picture_has_throughput_in_flop_a_second_by_skew(records):
    (figure,) = PROBE.findings(records()).figures
    panels = [panel for row in figure.rows for panel in row]
    assert len(panels) == 4
    series = {each.label: each for each in panels[0].series}
    assert list(series["loop"].x) == [0.0, 0.5, 1.0]
    assert series["grouped_mm"].y[0] > series["padded"].y[2]
    assert panels[0].y_unit == "TFLOP/s"


def test_nothing_measured_is_nothing_said():
    assert PROBE.findings([]) == Findings()


@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
def test_cases_of_every_profile_are_valid(profile):
    assert all(case.implementation != "triton" for case in PROBE.cases(profile, CPU))
    on_gpu = PROBE.axes(profile, Device("cuda"))
    assert {case.implementation for case in PROBE.sweep(on_gpu)} == {"loop", "padded", "grouped_mm", "triton"}


@pytest.mark.parametrize(
    ("axis", "value", "sentence"),
    [
        ("implementation", "bmm", "choose from loop"),
        ("experts", "0", "experts lies between 1 and 4096"),
        ("skew", "9", "skew lies between 0 and 8"),
        ("shape", "12", "MxNxK"),
        ("dtype", "int8", "choose from float32"),
    ],
)
def test_an_axis_that_cannot_be_says_so(axis, value, sentence):
    with pytest.raises(UserError, match=sentence):
        PROBE.cases("quick", CPU, {axis: value})
