"""The backward probe asks for each pass that a layer has, and judges a made-up machine by what it was made with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pyperf_suite.findings.data import Claim, ClaimVerdict, Findings, Remark
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes.backward import BANDWIDTH_BOUND, PROBE, READS_MORE, TWICE_THE_TIME
from pyperf_suite.record.case import Case
from pyperf_suite.workloads.training.layers import LAYERS, LayerPassParameters
from tests.records import lines, records, verdicts

CPU = Device("cpu")
# Passes take their FLOPs at 1e11 a second and their bytes at 1e10, one after the other.
FLOP_PER_S, BYTES_PER_S = 1e11, 1e10


def by_roofline(p: LayerPassParameters) -> float:
    return p.work.flop / FLOP_PER_S + p.work.bytes / BYTES_PER_S


Seconds = Callable[[LayerPassParameters], float]


def findings(seconds: Seconds = by_roofline, kept_tensors: float = 1.0, **how: Any) -> Findings:
    def seen(case: Case) -> dict[str, float]:
        p = case.parameters
        return {"saved": kept_tensors * p.tokens * p.hidden * p.element_bytes} if p.phase == "forward" else {}

    cases = PROBE.sweep(replace(PROBE.axes("standard", CPU), layer=LAYERS))
    return PROBE.findings(records(cases, lambda case: seconds(case.parameters), metrics=seen, **how))


def judged(layer: str, claim: Claim, *machine: Any) -> list[ClaimVerdict]:
    found = verdicts(findings(*machine), claim)
    return [each for each in found if str(each.message.values["name"]).startswith(layer)]


def remarks(seconds: Seconds = by_roofline, **how: Any) -> list[Remark]:
    return [each for each in findings(seconds, **how).remarks if isinstance(each, Remark)]


def slower(factor: float, **only: Any) -> Seconds:
    """Passes that match are `factor` times slower than the roofline."""
    return lambda p: by_roofline(p) * (factor if only.items() <= vars(p).items() else 1)


def test_twice_the_time_of_forward_is_what_the_guide_claims() -> None:
    def seconds(p: LayerPassParameters) -> float:
        return {"forward": 1.0, "backward": 2.0}.get(p.phase, 1.1) * 1e-3

    (verdict,) = judged("linear 256 -> 1024", TWICE_THE_TIME, seconds)
    assert verdict.outcome == "holds"
    assert verdict.measured.value == pytest.approx(2.0)
    assert verdict.message.values["where"] == "4 x 256 tokens, float32"
    row = next(line for line in lines(findings(seconds), "Passes") if str(line["layer"]).startswith("linear"))
    assert [row[f"{phase} / forward"].value for phase in ("backward", "dgrad", "wgrad")] == pytest.approx([2, 1.1, 1.1])


def test_products_whose_backward_takes_more_than_its_flops_are_counted() -> None:
    (counted,) = (each for each in remarks(slower(2, layer="conv", phase="backward")) if "longer" in each.values)
    assert (counted.values["longer"], counted.values["all"]) == (1, 2)
    # Differences above and below in turn are not beyond their interval.
    unsure = remarks(slower(1.1, phase="backward"), noise=0.2)
    (counted,) = (each for each in unsure if "longer" in each.values)
    assert counted.values["longer"] == 0


def test_an_activation_is_bound_by_bandwidth_where_it_runs_at_the_rate_of_a_copy() -> None:
    forward, backward = judged("relu", BANDWIDTH_BOUND)
    # Three tensors take half as long again as two: the rate is the same.
    assert [each.message.values["moved"].value for each in (forward, backward)] == [2 << 22, 3 << 22]
    assert [each.measured.value for each in (forward, backward)] == pytest.approx([1.0, 1.0])
    assert {forward.outcome, backward.outcome} == {"holds"}
    forward, backward = judged("gelu", BANDWIDTH_BOUND, slower(4, layer="gelu", phase="forward"))
    assert forward.measured.value == pytest.approx(0.25)
    assert (forward.outcome, backward.outcome) == ("does not hold here", "holds")


@pytest.mark.parametrize(("tensors", "times", "outcome"), [(1, 2.0, "holds"), (0, 1.0, "does not hold here")])
def test_what_backward_reads_is_counted_by_what_forward_kept(tensors: float, times: float, outcome: str) -> None:
    (verdict,) = judged("silu", READS_MORE, by_roofline, tensors)
    assert verdict.message.values["tensor"].value == 1 << 22
    assert (verdict.measured.value, verdict.outcome) == (times, outcome)
