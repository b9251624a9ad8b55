"""The block probe: its cases, and what made-up times say of rates, shares and parts."""

from __future__ import annotations

import pytest

from pyperf_suite.findings.data import Findings
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes.block import FORMULA, PROBE
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.training import requested_flop
from tests.records import lines, records, remarks

CPU = Device("cpu")


def at_one_gflop(case):
    """Everything at 1 GFLOP/s, and what computes nothing in a millisecond."""
    p = case.parameters
    flop = requested_flop(p) if case.operator == "training_step" else find_workload(case.operator).work(p).flop
    return (flop or 1e6) / 1e9


def found(seconds_of=at_one_gflop, **overrides) -> Findings:
    """Findings on every case in three processes, whose time is `seconds_of(case)`."""
    cases = PROBE.cases("standard", CPU, overrides)
    return PROBE.findings(records(cases, seconds_of, wobble=0.001, details={"parameters": 789_760}))


def test_steps_as_fast_as_the_product_use_all_of_it_and_the_hardwares_share_has_what_is_computed_again():
    rows = lines(found(), "Steps")
    plain = [row for row in rows if "checkpointing" not in row["step"]]
    assert len(plain) == 2
    assert [row["MFU"].value for row in plain] == pytest.approx([1.0, 1.0])
    assert {row["MFU by data sheet"] for row in plain} == {None}
    (row,) = (row for row in rows if "checkpointing" in row["step"])
    assert row["MFU"].value == pytest.approx(1.0, abs=1e-3)
    assert 1.10 < row["HFU"].value < 1.34


def test_the_guides_formula_is_judged_once_for_steps_of_the_same_flops():
    findings = found(lambda case: at_one_gflop(case) / (1 + getattr(case.parameters, "compiled", 0)), compiled="no,yes")
    assert [each.claim for each in findings.verdicts] == [FORMULA] * 3
    assert [each.values["faster"].value for each in remarks(findings, "faster")] == pytest.approx([2.0, 2.0])
