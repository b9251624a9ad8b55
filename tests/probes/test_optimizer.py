"""Ways of updating stand beside the loop over the same tensors, and memory beside what it should be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.probes.optimizer import ADAMW_STATE, MANY_SMALL, PROBE
from pyperf_suite.runner.record import Case, Metric, Record
from pyperf_suite.spec.findings import Findings, Remark
from pyperf_suite.workloads.training.optimizer_update import TensorSet

CPU = resolve("cpu")
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


def found(wobble: float = 0.001, **axes: object) -> Findings:
    return PROBE.findings(records(list(PROBE.sweep(replace(AXES, **axes))), wobble))


def test_many_small_tensors_are_what_the_claim_is_about():
    tried = {
        (each.told.values["implementation"], each.told.values["optimizer"]): each
        for each in found().verdicts
        if each.claim == MANY_SMALL
    }
    fused = tried["fused", "AdamW"]
    assert fused.outcome == "holds"
    assert fused.measured.value == pytest.approx(5, rel=0.02)
    assert {each.told.values["in_words"] for each in tried.values()} == {"400 tensors of 64 x 64"}


def test_a_gain_below_what_counts_as_significant_is_not_one():
    tried = found(tensors=(TensorSet(20, 64, 64),), optimizer=("SGD",)).verdicts
    assert {each.outcome for each in tried if each.told.values["implementation"] == "foreach"} == {"does not hold here"}


def test_without_a_loop_nothing_is_compared():
    assert {each.claim for each in found(implementation=("foreach", "fused")).verdicts} == {ADAMW_STATE}


def test_states_stand_beside_the_claim():
    states = [each for each in found().verdicts if each.claim == ADAMW_STATE]
    assert {(each.measured.value, each.measured.base, each.outcome) for each in states} == {(8.0, "B", "holds")}


def test_the_table_has_every_case_that_was_measured():
    (table,) = found().tables
    assert len(table.rows) == sum(case.implementation in PASSING for case in PROBE.sweep(AXES))
    names = [column.name for column in table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    row = next(row for row in rows if (row["optimizer"], row["way"], row["tensors"]) == ("AdamW", "fused", str(SMALL)))
    # AdamW touches 7 x 4 bytes of each of 400 x 64 x 64 elements; fused takes 1 ms.
    assert row["rate"].value == pytest.approx(28 * SMALL.elements / 1e-3, rel=0.02)
    assert (row["state a parameter"].value, row["passing a parameter"].value) == (8.0, 0.0)


def test_what_processes_do_not_agree_on_is_noise():
    told = found(wobble=0.2, tensors=(LARGE,), optimizer=("AdamW",)).remarks
    few = [each for each in told if isinstance(each, Remark)]
    assert len(few) == 2
    assert all(each.is_noise for each in few)


def test_nothing_measured_is_nothing_said():
    assert PROBE.findings([]) == Findings()


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
