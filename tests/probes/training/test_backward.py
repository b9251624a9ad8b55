"""The backward probe asks for each pass that a layer has, and judges a made-up machine by what it was made with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.training.layers import ACTIVATIONS, LAYERS, LayerPassParameters, passes_of, work
from pyperf_suite.probes.training.backward import Backward, BackwardAxes
from pyperf_suite.render.picture import draw
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.runner.record import Metric, Record
from pyperf_suite.spec.findings import Findings

PROBE = Backward()
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
    return PROBE.findings(machine.records(PROBE.sweep(axes(**changed))))


def said_of(layer: str, machine: Machine | None = None, **changed: Any) -> list[str]:
    return [said for said in findings(machine or Machine(), **changed).sentences if said.startswith(layer)]


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
    ("changed", "sentence"),
    [
        ({"layer": ("lstm",)}, "layer=lstm was asked for: choose from linear"),
        ({"phase": ("sideways",)}, "choose from forward, backward, dgrad, wgrad"),
        ({"dtype": ("int8",)}, "choose from float32"),
        ({"batch": (0,)}, "batch=0 was asked for, but batch is at least 1"),
    ],
)
def test_what_no_layer_has_is_refused_in_one_sentence(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        replace(axes(), **changed)


def test_images_that_are_not_square_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="conv takes square images, but seq = 250 is no square: take 225 or 256"):
        PROBE.cases("standard", CPU, {"seq": "250"})


def test_twice_the_time_of_forward_is_what_the_guide_claims() -> None:
    (said,) = said_of("linear", Machine(lambda p, process: {"forward": 1.0, "backward": 2.0}.get(p.phase, 1.1) * 1e-3))
    assert said.startswith("linear 256 -> 1024 (4 x 256 tokens, float32): backward takes 2.00 [2.00, 2.00] x the time")
    assert "(the input's gradient 1.10 [1.10, 1.10] x, the weights' gradient 1.10 [1.10, 1.10] x); claim holds" in said


def test_a_backward_as_fast_as_forward_contradicts_the_guide() -> None:
    (said,) = said_of("conv", Machine(lambda p, process: 1e-3))
    assert "1.00 [1.00, 1.00] x the time of forward" in said
    assert "claim does not hold here" in said


def test_processes_that_disagree_leave_it_undecided() -> None:
    noisy = Machine(lambda p, process: 1e-3 * (1 + (p.phase == "backward") * (0.5 + 0.5 * process)))
    assert "undecided" in said_of("linear", noisy)[0]


def test_products_whose_backward_takes_more_than_its_flops_are_counted() -> None:
    (said,) = said_of("Backward takes", slower(2, layer="conv", phase="backward"))
    assert said.endswith("beyond the interval, in 1 of 2 products.")


def test_an_activation_at_the_rate_of_a_copy_is_bound_by_bandwidth() -> None:
    forward, backward, _ = said_of("relu")
    assert "relu 1024 (4 x 256 tokens, float32), forward: moves 8.39 MB at 10.0 GB/s, 1.00 [1.00, 1.00] x" in forward
    # Three tensors take half as long again as two: the rate is the same.
    assert "backward: moves 12.6 MB at 10.0 GB/s, 1.00 [1.00, 1.00] x" in backward
    assert "claim holds" in forward
    assert "claim holds" in backward


def test_an_activation_that_computes_is_not_bound_by_bandwidth() -> None:
    forward, backward, _ = said_of("gelu", slower(4, layer="gelu", phase="forward"))
    assert "0.25 [0.25, 0.25] x the rate of a copy; claim does not hold here" in forward
    assert "claim holds" in backward


def test_without_a_copy_beside_it_no_bandwidth_is_judged() -> None:
    records = Machine().records(PROBE.sweep(replace(axes(), layer=("relu",))))
    assert not [said for said in PROBE.findings(records).sentences if "copy" in said]


@pytest.mark.parametrize(
    ("tensors", "times", "verdict"), [(1, "2.00", "claim holds"), (0, "1.00", "claim does not hold here")]
)
def test_what_backward_reads_is_counted_by_what_forward_kept(tensors: float, times: str, verdict: str) -> None:
    *_, reads = said_of("silu", Machine(kept_tensors=tensors))
    assert "reads 4.19 MB in forward and in backward" in reads
    assert f"{times} x as much (and takes 1.50 [1.50, 1.50] x the time); {verdict}" in reads


def test_attention_and_norms_are_told_without_a_claim() -> None:
    (attention,) = said_of("attention")
    assert "2.5 x the FLOPs" in attention
    (norm,) = said_of("layer_norm")
    assert "for 1.5 x the bytes (the input's gradient" in norm
    assert "claim" not in attention + norm


def test_the_table_has_a_row_a_layer_with_all_its_passes() -> None:
    (table,) = findings(Machine()).tables
    rows = {row[0].split()[0]: row for row in table.rows}
    assert list(rows) == list(LAYERS)
    assert "-" not in rows["linear"]
    assert rows["copy"][table.columns.index("backward us")] == "-"
    assert rows["relu"][table.columns.index("GB/s forward")] == "10.0"


def test_enough_batches_are_drawn_and_two_are_not(tmp_path) -> None:
    assert findings(Machine(), batch=(1, 4)).figures == ()
    (figure,) = findings(Machine(), batch=(1, 4, 16)).figures
    assert {len(series.x) for series in figure.rows[0][0].series} == {3}
    assert draw(figure, tmp_path).is_file()


def test_findings_do_not_depend_on_the_order_of_visits() -> None:
    records = Machine().records(PROBE.sweep(axes()))
    assert PROBE.findings(records[::-1]) == PROBE.findings(records)


def test_no_records_say_nothing() -> None:
    assert PROBE.findings([]) == Findings()
