"""The backward probe asks for each pass that a layer has, and judges a made-up machine by what it was made with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes.backward import BANDWIDTH_BOUND, PROBE, READS_MORE, TWICE_THE_TIME, BackwardAxes
from pyperf_suite.render.picture import draw
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.runner.record import Case, Metric, Record
from pyperf_suite.spec.findings import Claim, Findings, Remark, Verdict
from pyperf_suite.workloads.training.layers import ACTIVATIONS, LAYERS, LayerPassParameters, passes_of, work

CPU = Device("cpu")
# Passes take their FLOPs at 1e11 a second and their bytes at 1e10, one after the other.
FLOP_PER_S, BYTES_PER_S = 1e11, 1e10


def by_roofline(p: LayerPassParameters, process: int) -> float:
    return work(p).flop / FLOP_PER_S + work(p).bytes / BYTES_PER_S


@dataclass(frozen=True)
class Machine:
    seconds: Callable[[LayerPassParameters, int], float] = by_roofline
    kept_tensors: float = 1.0

    def records(self, cases: list[Case], processes: int = 3) -> list[Record]:
        return [self.record(case, process) for process in range(processes) for case in cases]

    def record(self, case: Case, process: int) -> Record:
        p = case.parameters
        metrics = {"time": exactly("s", self.seconds(p, process))}
        if p.phase == "forward":
            metrics["saved"] = exactly("B", self.kept_tensors * p.tokens * p.hidden * p.element_bytes)
        return Record(
            run_id="made-up",
            kind="timing",
            case=case.to_json(),
            case_id=case.case_id,
            process=process,
            position=0,
            started_at="",
            outcome="ok",
            probe="backward",
            metrics=metrics,
            work={"flop": work(p).flop, "bytes": work(p).bytes},
            quality={"converged": True},
        )


def exactly(unit: str, value: float) -> Metric:
    return Metric(unit, value, value, value, value, value, [value])


def axes(**changed: Any) -> BackwardAxes:
    return replace(PROBE.axes("standard", CPU), layer=LAYERS, **changed)


def findings(machine: Machine, **changed: Any) -> Findings:
    return PROBE.findings(machine.records(list(PROBE.sweep(axes(**changed)))))


def judged(layer: str, claim: Claim, machine: Machine | None = None, **changed: Any) -> list[Verdict]:
    found = findings(machine or Machine(), **changed).verdicts
    return [each for each in found if each.claim == claim and str(each.told.values["name"]).startswith(layer)]


def remarks(machine: Machine | None = None) -> list[Remark]:
    return [each for each in findings(machine or Machine()).remarks if isinstance(each, Remark)]


def table_of(found: Findings) -> dict[str, dict[str, Any]]:
    (table,) = found.tables
    names = [column.name for column in table.columns]
    return {str(row[0]).split()[0]: dict(zip(names, row, strict=True)) for row in table.rows}


def slower(factor: float, **only: Any) -> Machine:
    """Passes that match are so many times slower than the roofline says."""

    def seconds(p: LayerPassParameters, process: int) -> float:
        matches = all(getattr(p, name) == value for name, value in only.items())
        return by_roofline(p, process) * (factor if matches else 1)

    return Machine(seconds)


@pytest.mark.parametrize("device", [CPU, Device("cuda")])
@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_has_cases_that_can_be(profile: str, device: Device) -> None:
    for case in PROBE.sweep(PROBE.axes(profile, device)):
        case.parameters.validate()
        assert case.parameters.phase in passes_of(case.parameters.layer)


def test_a_quick_look_takes_few_cases() -> None:
    assert len(PROBE.cases("quick", CPU)) == 4


def test_each_layer_has_the_width_that_it_has_in_a_transformer() -> None:
    cases = PROBE.sweep(axes(hidden=(64,), ffn=(256,), channels=(16,)))
    widths = {case.parameters.layer: (case.parameters.hidden, case.parameters.features) for case in cases}
    assert widths["linear"] == (64, 256)
    assert widths["conv"] == (16, 16)
    assert {widths[each] for each in (*ACTIVATIONS, "copy")} == {(256, 256)}
    assert {widths[each] for each in ("layer_norm", "rms_norm", "attention")} == {(64, 64)}


@pytest.mark.parametrize(
    ("axis", "value", "sentence"),
    [
        ("layer", "lstm", "layer=lstm was asked for: choose from linear"),
        ("phase", "sideways", "choose from forward, backward, dgrad, wgrad"),
        ("dtype", "int8", "choose from float32"),
        ("batch", "0", "batch=0 was asked for, but batch is at least 1"),
        ("seq", "250", "conv takes square images, but seq = 250 is no square: take 225 or 256"),
    ],
)
def test_what_no_layer_has_is_refused_in_one_sentence(axis: str, value: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        PROBE.cases("standard", CPU, {axis: value})


def test_twice_the_time_of_forward_is_what_the_guide_claims() -> None:
    machine = Machine(lambda p, process: {"forward": 1.0, "backward": 2.0}.get(p.phase, 1.1) * 1e-3)
    (verdict,) = judged("linear 256 -> 1024", TWICE_THE_TIME, machine)
    assert verdict.outcome == "holds"
    assert verdict.measured.value == pytest.approx(2.0)
    assert verdict.told.values["where"] == "4 x 256 tokens, float32"
    row = table_of(findings(machine))["linear"]
    assert [row[f"{phase} / forward"].value for phase in ("backward", "dgrad", "wgrad")] == pytest.approx([2, 1.1, 1.1])


def test_a_backward_as_fast_as_forward_contradicts_the_guide() -> None:
    (verdict,) = judged("conv", TWICE_THE_TIME, Machine(lambda p, process: 1e-3))
    assert (verdict.outcome, verdict.measured.value) == ("does not hold here", 1.0)


def test_processes_that_disagree_leave_it_undecided() -> None:
    noisy = Machine(lambda p, process: 1e-3 * (1 + (p.phase == "backward") * (0.5 + 0.5 * process)))
    assert judged("linear", TWICE_THE_TIME, noisy)[0].outcome == "undecided"


def test_products_whose_backward_takes_more_than_its_flops_are_counted() -> None:
    (counted,) = (each for each in remarks(slower(2, layer="conv", phase="backward")) if "longer" in each.values)
    assert (counted.values["longer"], counted.values["all"]) == (1, 2)
    # What lies above and below in turn is not beyond its interval.
    unsure = Machine(lambda p, process: by_roofline(p, process) * (1 + (p.phase == "backward") * 0.1 * process))
    (counted,) = (each for each in remarks(unsure) if "longer" in each.values)
    assert counted.values["longer"] == 0


def test_an_activation_at_the_rate_of_a_copy_is_bound_by_bandwidth() -> None:
    forward, backward = judged("relu", BANDWIDTH_BOUND)
    # Three tensors take half as long again as two: the rate is the same.
    assert [each.told.values["bytes"].value for each in (forward, backward)] == [2 << 22, 3 << 22]
    assert [each.measured.value for each in (forward, backward)] == pytest.approx([1.0, 1.0])
    assert {forward.outcome, backward.outcome} == {"holds"}


def test_an_activation_that_computes_is_not_bound_by_bandwidth() -> None:
    forward, backward = judged("gelu", BANDWIDTH_BOUND, slower(4, layer="gelu", phase="forward"))
    assert forward.measured.value == pytest.approx(0.25)
    assert (forward.outcome, backward.outcome) == ("does not hold here", "holds")


def test_without_a_copy_beside_it_no_bandwidth_is_judged() -> None:
    records = Machine().records(list(PROBE.sweep(replace(axes(), layer=("relu",)))))
    assert {each.claim for each in PROBE.findings(records).verdicts} == {READS_MORE}


@pytest.mark.parametrize(("tensors", "times", "outcome"), [(1, 2.0, "holds"), (0, 1.0, "does not hold here")])
def test_what_backward_reads_is_counted_by_what_forward_kept(tensors: float, times: float, outcome: str) -> None:
    (verdict,) = judged("silu", READS_MORE, Machine(kept_tensors=tensors))
    assert verdict.told.values["bytes"].value == 1 << 22
    assert (verdict.measured.value, verdict.outcome) == (times, outcome)


def test_attention_and_norms_are_told_without_a_claim() -> None:
    told = {str(each.values["name"]).split()[0]: each.values for each in remarks() if "name" in each.values}
    assert set(told) == {"attention", "layer_norm", "rms_norm"}
    assert (told["attention"]["flop"].value, told["layer_norm"]["bytes"].value) == pytest.approx((2.5, 1.5), rel=0.01)
    assert "flop" not in told["layer_norm"]
    assert told["layer_norm"]["of_forward"].value == pytest.approx(1.5, rel=0.01)
    assert not judged("attention", TWICE_THE_TIME) + judged("layer_norm", TWICE_THE_TIME)


def test_the_table_has_a_row_a_layer_with_all_its_passes() -> None:
    rows = table_of(findings(Machine()))
    assert list(rows) == list(LAYERS)
    assert None not in rows["linear"].values()
    assert rows["copy"]["backward time"] is None
    assert rows["relu"]["forward bandwidth"].value == pytest.approx(BYTES_PER_S)
    assert rows["relu"]["forward rate"] is None
    assert rows["relu"]["kept"].value == 1 << 22


def test_enough_batches_are_drawn_and_two_are_not(tmp_path) -> None:
    assert findings(Machine(), batch=(1, 4)).figures == ()
    (figure,) = findings(Machine(), batch=(1, 4, 16)).figures
    assert {len(series.x) for series in figure.rows[0][0].series} == {3}
    assert draw(figure, tmp_path).is_file()


def test_findings_do_not_depend_on_the_order_of_visits() -> None:
    records = Machine().records(list(PROBE.sweep(axes())))
    assert PROBE.findings(records[::-1]) == PROBE.findings(records)


def test_no_records_say_nothing() -> None:
    assert PROBE.findings([]) == Findings()
