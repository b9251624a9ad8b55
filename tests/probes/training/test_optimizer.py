"""Ways of updating stand beside the loop over the same tensors, and memory beside what it should be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.operators.training.optimizer_update import TensorSet
from pyperf_suite.probes.training.optimizer import OptimizerProbe
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Metric, Record

CPU = resolve("cpu")
PROBE = OptimizerProbe()
SMALL, LARGE = TensorSet(400, 64, 64), TensorSet(4, 640, 640)
AXES = replace(PROBE.axes("standard", CPU), tensors=(LARGE, SMALL), workers=(1,))
STATE = {"AdamW": 8.0, "SGD": 4.0, "Adafactor": 0.1}
PASSING = {"loop": 0.01, "foreach": 4.0, "fused": 0.0}


def metric(unit: str, value: float) -> Metric:
    return Metric(unit, value, value, value, value, value, [value])


def seconds(case: Case) -> float:
    """A tensor costs 10 us in a loop, 5 us in foreach and nothing when fused; bytes take the same."""
    p = case.parameters
    each = {"loop": 10e-6, "foreach": 5e-6, "fused": 0.0}.get(case.implementation, 1e-3)
    return 1e-3 + each * p.tensors.tensors


def records(cases: list[Case], wobble: float = 0.001) -> list[Record]:
    made = []
    for case in cases:
        way, p = case.implementation, case.parameters
        installed = way in PASSING
        for process in range(3):
            time_s = seconds(case) * (1 + wobble * process * len(way))
            metrics = {
                "time": metric("s", time_s),
                "state": metric("B", STATE[p.optimizer] * p.tensors.elements),
                "passing": metric("B", PASSING.get(way, 0.0) * p.tensors.elements),
            }
            made.append(
                Record(
                    run_id="made-up",
                    kind="timing",
                    case=case.to_json(),
                    case_id=case.case_id,
                    process=process,
                    position=0,
                    started_at="",
                    outcome="ok" if installed else "unsupported",
                    reason="" if installed else "not installed",
                    metrics=metrics if installed else {},
                    work={"flop": 0, "bytes": 1},
                    quality={"converged": True},
                )
            )
    return made


def test_every_way_there_is_takes_the_same_tensors():
    ways = {(case.parameters.optimizer, case.implementation) for case in PROBE.sweep(AXES)}
    assert ("Adafactor", "fused") not in ways
    assert ("SGD", "torchao_8bit") not in ways
    assert {("AdamW", "bitsandbytes_8bit"), ("SGD", "fused"), ("Adafactor", "foreach")} <= ways
    for case in PROBE.sweep(AXES):
        case.validate()


def test_many_small_tensors_are_what_the_claim_is_about():
    said = PROBE.findings(records(PROBE.sweep(AXES))).sentences
    fused = next(each for each in said if each.startswith("fused AdamW") and "400 tensors" in each)
    assert "5.0" in fused or "4.9" in fused
    assert "x as fast as the loop on 400 tensors of 64 x 64 in float32; claim holds (multi-tensor" in fused
    few = next(each for each in said if each.startswith("fused AdamW") and "4 tensors" in each)
    assert "claim" not in few


def test_a_gain_below_what_counts_as_significant_is_not_one():
    cases = PROBE.sweep(replace(AXES, tensors=(TensorSet(20, 64, 64),), optimizer=("SGD",)))
    said = PROBE.findings(records(cases)).sentences
    assert any("foreach SGD is 1.0" in each and "claim does not hold here" in each for each in said)


def test_without_a_loop_nothing_is_compared():
    cases = PROBE.sweep(replace(AXES, implementation=("foreach", "fused")))
    assert not any("as fast as" in each for each in PROBE.findings(records(cases)).sentences)


def test_states_stand_beside_the_claim_and_passing_beside_the_way():
    said = " ".join(PROBE.findings(records(PROBE.sweep(AXES))).sentences)
    assert "AdamW 8, SGD 4, Adafactor 0.1; claim holds (AdamW's moments take 8" in said
    assert "the loop 0.01, foreach 4, fused 0." in said


def test_the_table_has_every_case_that_was_measured():
    cases = PROBE.sweep(AXES)
    (table,) = PROBE.findings(records(cases)).tables
    assert len(table.rows) == sum(case.implementation in PASSING for case in cases)
    # AdamW touches 7 x 4 bytes of each of 400 x 64 x 64 elements; fused takes 1 ms.
    row = next(row for row in table.rows if row[:3] == ("AdamW", "fused", str(SMALL)))
    assert float(row[5]) == pytest.approx(28 * SMALL.elements / 1e-3 / 1e9, rel=0.02)


def test_what_processes_do_not_agree_on_is_not_told_apart():
    cases = PROBE.sweep(replace(AXES, tensors=(LARGE,), optimizer=("AdamW",)))
    assert any(each.endswith("not told apart.") for each in PROBE.findings(records(cases, wobble=0.2)).sentences)


def test_nothing_measured_is_nothing_said():
    assert PROBE.findings([]) == type(PROBE.findings([]))()


@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
@pytest.mark.parametrize("device", [CPU, Device("cuda")])
def test_sets_of_a_profile_have_the_same_total(profile, device):
    totals = {case.parameters.tensors.elements for case in PROBE.sweep(PROBE.axes(profile, device))}
    assert len(totals) == 1


@pytest.mark.parametrize(
    ("axis", "value", "sentence"),
    [
        ("optimizer", "Lion", "choose from AdamW"),
        ("implementation", "jit", "choose from loop"),
        ("tensors", "12", "TENSORSxROWSxCOLUMNS"),
        ("workers", "0", "workers is at least 1"),
        ("dtype", "int8", "choose from float32"),
    ],
)
def test_an_axis_that_cannot_be_says_so(axis, value, sentence):
    with pytest.raises(UserError, match=sentence):
        PROBE.cases("quick", CPU, {axis: value})
