"""Ways of updating are compared with the loop over the same tensors, and memory with what it should be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.findings.data import Findings
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.probes.optimizer import ADAMW_STATE, MANY_SMALL, PROBE
from pyperf_suite.record.case import Case
from pyperf_suite.workloads.training.optimizer import TensorSet
from tests.records import records, verdicts

CPU = resolve("cpu")
SMALL, LARGE = TensorSet(400, 64, 64), TensorSet(4, 640, 640)
AXES = replace(PROBE.axes("standard", CPU), tensors=(LARGE, SMALL), workers=(1,))
STATE = {"AdamW": 8.0, "SGD": 4.0, "Adafactor": 0.1}
PASSING = {"loop": 0.01, "foreach": 4.0, "fused": 0.0}


def seconds(case: Case) -> float:
    """A tensor costs 10 us in a loop, 5 us in foreach and nothing when fused; bytes take the same."""
    p = case.parameters
    each = {"loop": 10e-6, "foreach": 5e-6, "fused": 0.0}.get(case.implementation, 1e-3)
    return 1e-3 + each * p.tensors.tensors


def found() -> Findings:
    def held(case: Case) -> dict[str, float]:
        p = case.parameters
        each = {"state": STATE[p.optimizer], "passing": PASSING.get(case.implementation, 0.0)}
        return {name: value * p.tensors.elements for name, value in each.items()}

    def outcome(case: Case) -> str:
        return "ok" if case.implementation in PASSING else "unsupported"

    return PROBE.findings(records(PROBE.sweep(AXES), seconds, wobble=0.001, outcome=outcome, metrics=held))


def test_many_small_tensors_are_what_the_claim_is_about():
    tried = {
        (each.message.values["implementation"], each.message.values["optimizer"]): each
        for each in verdicts(found(), MANY_SMALL)
    }
    fused = tried["fused", "AdamW"]
    assert fused.outcome == "holds"
    assert fused.measured.value == pytest.approx(5, rel=0.02)
    assert {each.message.values["in_words"] for each in tried.values()} == {"400 tensors of 64 x 64"}


def test_states_stand_beside_the_claim():
    states = {(each.measured.value, each.measured.base, each.outcome) for each in verdicts(found(), ADAMW_STATE)}
    assert states == {(8.0, "B", "holds")}
