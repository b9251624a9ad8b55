"""Probes of training: laws of made-up machines are found again, and claims hold or do not as the machine was made.

tests/golden holds what they find in real runs, tests/test_probe_contract.py what every probe has to take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pyperf_suite.findings.data import Claim, ClaimVerdict, Findings, Remark
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.training.data_parallel import InputPipelineLaw
from pyperf_suite.laws.training.memory import activation_bytes, kept_bytes
from pyperf_suite.probes import backward, block, input_pipeline, memory, optimizer, overlap, precision, transfer
from pyperf_suite.record.case import Case
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.record import Record
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.training import Checkpointing, requested_flop
from pyperf_suite.workloads.training.input_pipeline import InputPipelineParameters
from pyperf_suite.workloads.training.layers import LAYERS
from pyperf_suite.workloads.training.optimizer import TensorSet
from pyperf_suite.workloads.training.step_memory import TrainingMemory
from pyperf_suite.workloads.training.training_step import PrecisionStep, TrainingStepParameters
from pyperf_suite.workloads.training.transfer import TransferParameters
from pyperf_suite.workloads.workload import ExecutionContext
from tests.records import a_record, cells, judged, lines, records, remarks, verdicts

CPU = Device("cpu")
Seconds = Callable[[Case], float]


def swept(probe: Any, **changed: Any) -> list[Case]:
    """Cases of a probe's standard sweep on a CPU, with other values of some axes."""
    cases = probe.sweep(replace(probe.axes("standard", CPU), **changed))
    return list({case.case_id: case for case in cases}.values())


def by_roofline(case: Case) -> float:
    """A layer's FLOPs at 1e11 a second and its bytes at 1e10, one after the other."""
    work = case.parameters.work
    return float(work.flop / 1e11 + work.bytes / 1e10)


def slower(factor: float, **only: Any) -> Seconds:
    """Passes that match are `factor` times slower than the roofline."""
    return lambda case: by_roofline(case) * (factor if only.items() <= vars(case.parameters).items() else 1)


def of_layers(seconds: Seconds = by_roofline, kept_tensors: float = 1.0, noise: float = 0.0) -> Findings:
    """Findings of the backward probe on every layer; a forward pass keeps that number of tensors."""

    def seen(case: Case) -> dict[str, float]:
        p = case.parameters
        return {"saved": kept_tensors * p.tokens * p.hidden * p.element_bytes} if p.phase == "forward" else {}

    cases = swept(backward.PROBE, layer=LAYERS)
    return backward.PROBE.findings(records(cases, seconds, metrics=seen, noise=noise))


def of_layer(layer: str, claim: Claim, findings: Findings) -> list[ClaimVerdict]:
    return [each for each in verdicts(findings, claim) if str(each.message.values["name"]).startswith(layer)]


def test_twice_the_time_of_forward_is_what_the_guide_claims() -> None:
    findings = of_layers(lambda case: {"forward": 1e-3, "backward": 2e-3}.get(case.parameters.phase, 1.1e-3))
    (verdict,) = of_layer("linear 256 -> 1024", backward.TWICE_THE_TIME, findings)
    assert (verdict.outcome, verdict.measured.value) == ("holds", pytest.approx(2.0))
    assert verdict.message.values["where"] == "4 x 256 tokens, float32"
    row = next(line for line in lines(findings, "Passes") if str(line["layer"]).startswith("linear"))
    assert [row[f"{phase} / forward"].value for phase in ("backward", "dgrad", "wgrad")] == pytest.approx([2, 1.1, 1.1])


def test_products_whose_backward_takes_more_than_its_flops_are_counted() -> None:
    (counted,) = remarks(of_layers(slower(2, layer="conv", phase="backward")), "longer")
    assert (counted.values["longer"], counted.values["all"]) == (1, 2)
    # Differences above and below in turn are not beyond their interval.
    (counted,) = remarks(of_layers(slower(1.1, phase="backward"), noise=0.2), "longer")
    assert counted.values["longer"] == 0


def test_an_activation_is_bound_by_bandwidth_where_it_runs_at_the_rate_of_a_copy() -> None:
    there, back = of_layer("relu", backward.BANDWIDTH_BOUND, of_layers())
    # Three tensors take half as long again as two: the rate is the same.
    assert [each.message.values["moved"].value for each in (there, back)] == [2 << 22, 3 << 22]
    assert [each.measured.value for each in (there, back)] == pytest.approx([1.0, 1.0])
    assert {there.outcome, back.outcome} == {"holds"}
    slow = of_layers(slower(4, layer="gelu", phase="forward"))
    there, back = of_layer("gelu", backward.BANDWIDTH_BOUND, slow)
    assert there.measured.value == pytest.approx(0.25)
    assert (there.outcome, back.outcome) == ("does not hold here", "holds")


@pytest.mark.parametrize(("tensors", "times", "outcome"), [(1, 2.0, "holds"), (0, 1.0, "does not hold here")])
def test_what_backward_reads_is_counted_by_what_forward_kept(tensors: float, times: float, outcome: str) -> None:
    (verdict,) = of_layer("silu", backward.READS_MORE, of_layers(kept_tensors=tensors))
    assert verdict.message.values["tensor"].value == 1 << 22
    assert (verdict.measured.value, verdict.outcome) == (times, outcome)


def test_attention_and_norms_are_told_without_a_claim() -> None:
    message = {str(each.values["name"]).split()[0]: each.values for each in remarks(of_layers(), "name")}
    assert (message["attention"]["flop"].value, message["layer_norm"]["bytes"].value) == pytest.approx(
        (2.5, 1.5), rel=0.01
    )
    assert message["layer_norm"]["of_forward"].value == pytest.approx(1.5, rel=0.01)


def test_the_guides_formula_is_judged_once_for_steps_of_the_same_flops() -> None:
    def at_one_gflop(case: Case) -> float:
        """Compiled steps at two; what computes nothing in a millisecond."""
        p = case.parameters
        flop = requested_flop(p) if case.operator == "training_step" else find_workload(case.operator).work(p).flop
        return (flop or 1e6) / 1e9 / (1 + getattr(p, "compiled", 0))

    cases = block.PROBE.cases("standard", CPU, {"compiled": "no,yes"})
    findings = block.PROBE.findings(records(cases, at_one_gflop, wobble=0.001, details={"parameters": 789_760}))
    assert [each.claim for each in findings.verdicts] == [block.FORMULA] * 3
    assert [each.values["faster"].value for each in remarks(findings, "faster")] == pytest.approx([2.0, 2.0])
    rows = [row for row in lines(findings, "Steps") if "checkpointing" in row["step"] and "compiled" not in row["step"]]
    assert [row["MFU"].value for row in rows] == pytest.approx([1.0], abs=1e-3)
    assert 1.10 < rows[0]["HFU"].value < 1.34


def of_optimizers() -> Findings:
    """Findings where a tensor costs 10 us in a loop, 5 us in foreach and nothing when fused; bytes take the same."""
    tensor_s = {"loop": 10e-6, "foreach": 5e-6, "fused": 0.0}
    state = {"AdamW": 8.0, "SGD": 4.0, "Adafactor": 0.1}

    def held(case: Case) -> dict[str, float]:
        p = case.parameters
        return {"state": state[p.optimizer] * p.tensors.elements, "passing": 0.0}

    cases = swept(optimizer.PROBE, tensors=(TensorSet(4, 640, 640), TensorSet(400, 64, 64)), workers=(1,))
    return optimizer.PROBE.findings(
        records(
            cases,
            lambda case: 1e-3 + tensor_s.get(case.implementation, 1e-3) * case.parameters.tensors.tensors,
            wobble=0.001,
            outcome=lambda case: "ok" if case.implementation in tensor_s else "unsupported",
            metrics=held,
        )
    )


def test_many_small_tensors_are_what_the_claim_is_about() -> None:
    tried = {
        (each.message.values["implementation"], each.message.values["optimizer"]): each
        for each in verdicts(of_optimizers(), optimizer.MANY_SMALL)
    }
    fused = tried["fused", "AdamW"]
    assert (fused.outcome, fused.measured.value) == ("holds", pytest.approx(5, rel=0.02))
    assert {each.message.values["in_words"] for each in tried.values()} == {"400 tensors of 64 x 64"}


def test_every_optimizer_is_asked_for_in_the_ways_that_it_has() -> None:
    ways = {(case.parameters.optimizer, case.implementation) for case in swept(optimizer.PROBE)}
    assert not ways & {("Adafactor", "fused"), ("SGD", "torchao_8bit")}
    assert {("AdamW", "bitsandbytes_8bit"), ("SGD", "fused"), ("Adafactor", "foreach")} <= ways


def test_states_stand_beside_the_claim() -> None:
    found = verdicts(of_optimizers(), optimizer.ADAMW_STATE)
    assert {(each.measured.value, each.measured.base, each.outcome) for each in found} == {(8.0, "B", "holds")}


def test_an_optimizers_state_stands_beside_the_memory_that_it_saved_by_the_guide() -> None:
    asked = {"shape": "bert-large", "implementation": "foreach,bitsandbytes_8bit"}
    cases = optimizer.PROBE.cases("quick", CPU, asked)
    found = optimizer.PROBE.findings(records(cases, lambda case: 1.0, metrics=lambda case: {"state": 1e6}))
    saved = {(row["optimizer"], row["way"]): row["by the guide"].value for row in lines(found, "Optimizers' state")}
    assert saved == {
        ("AdamW", "foreach"): 14949e6,
        ("8-bit Adam", "bitsandbytes_8bit"): 13085e6,
        ("Adafactor", "foreach"): 12295e6,
    }


# The message is half as long as the product and four fifths of it hide.
PARTLY = {
    "product": 20e-3,
    "all_reduce": 10e-3,
    "in_turn": 30e-3,
    "together": 22e-3,
    "product_beside": 26e-3,
    "all_reduce_beside": 20e-3,
}


def of_overlap(seconds: dict[str, float]) -> Findings:
    """Processes are faster and slower as a whole."""
    cases = swept(overlap.PROBE)
    return overlap.PROBE.findings(records(cases, lambda case: seconds[case.parameters.run], wobble=0.2))


def test_what_hides_is_a_share_of_the_shorter_and_each_is_told_how_the_other_slows_it() -> None:
    findings = of_overlap(PARTLY)
    verdict = judged(findings, overlap.OVERLAPS)
    assert (verdict.measured.value, verdict.outcome) == (pytest.approx(30 / 22), "holds")
    ((row,),) = (table.rows for table in findings.tables)
    cell = dict(zip([column.name for column in findings.tables[0].columns], row, strict=True))
    assert [getattr(cell["hidden"], end) for end in ("value", "low", "high")] == pytest.approx([0.8] * 3)
    longer = {each.values["run"]: each.values["longer"] for each in findings.remarks if isinstance(each, Remark)}
    assert longer == {run: cell[f"{run} slowdown"] for run in ("product", "all_reduce")}
    assert [longer[run].value for run in ("product", "all_reduce")] == [pytest.approx(1.3), pytest.approx(2.0)]


@pytest.mark.parametrize(("together", "outcome"), [(22e-3, "does not hold here"), (20.2e-3, "holds")])
def test_a_message_that_is_shorter_than_compute_costs_nothing_or_fails_its_claim(together: float, outcome: str) -> None:
    verdict = judged(of_overlap(PARTLY | {"together": together}), overlap.HIDES)
    assert verdict.message.values["share"].value == pytest.approx(0.5)
    assert (verdict.measured.value, verdict.outcome) == (pytest.approx(together / 20e-3), outcome)


MB = 1_000_000
WEIGHTS = 10 * MB


def three_times_as_fast(case: Case) -> float:
    """A sequence takes 9 ms in float32; casts of all weights take 1 ms."""
    p = case.parameters
    fast = {"float32": 1, "autocast_bfloat16": 3, "bfloat16": 4}[p.precision]
    return p.micro_batches * p.batch * 9e-3 / fast + casts(p) * 1e-3


def casts(p: TrainingStepParameters) -> int:
    if not p.precision.startswith("autocast_"):
        return 0
    return 1 if p.cast_cache == "nested" else p.micro_batches


def of_precisions(seconds: Seconds = three_times_as_fast) -> Findings:
    """Findings where a sequence keeps 2 MB in float32, 0.6 of it in autocast, half in bfloat16."""

    def seen(case: Case) -> dict[str, float]:
        p = case.parameters
        cast = p.precision.startswith("autocast_")
        weights = WEIGHTS // 2 if p.precision == "bfloat16" else WEIGHTS
        return {
            "activations": 2 * MB * p.batch * (0.6 if cast else weights / WEIGHTS),
            "weight_copies": WEIGHTS // 2 if cast else 0,
            "weights": weights,
            "gradients": weights,
            "casts": casts(p),
            "cast": casts(p) * WEIGHTS // 2,
        }

    return precision.PROBE.findings(records(swept(precision.PROBE, process=()), seconds, metrics=seen))


def test_memory_is_saved_by_activations_alone_and_from_a_batch_on() -> None:
    findings = of_precisions()
    share, grows = (verdicts(findings, claim)[0] for claim in (precision.NOT_HALF, precision.GROWS))
    assert (share.measured.value, share.message.values["batch"], share.outcome) == (pytest.approx(0.6), 16, "holds")
    assert (grows.measured.value, grows.outcome) == (pytest.approx(16), "holds")
    assert grows.message.values["smallest_batch"] == 1
    (message,) = remarks(findings, kind="predicted", precision="autocast_bfloat16")
    assert message.values["of_one"].value == pytest.approx(0.8 * MB)
    assert message.values["weight_copies"].value == 5 * MB
    assert (message.values["break_even"].value, message.values["break_even"].predicted) == (6, True)


def test_odd_dimensions_are_compared_with_multiples_of_8_by_their_flops() -> None:
    def odd_is_slow(case: Case) -> float:
        p = case.parameters
        rate = 1e12 if p.precision != "float32" and p.hidden % 8 == 0 else 5e11
        return PrecisionStep().work(p).flop / rate

    findings = of_precisions(odd_is_slow)
    verdict = verdicts(findings, precision.MULTIPLES_OF_8)[0]
    assert (verdict.measured.value, verdict.outcome) == (pytest.approx(2), "holds")
    assert verdict.message.values["even"].startswith("1 x 256 in 4 heads")
    assert verdict.message.values["model"].startswith("1 x 255 in 5 heads")
    steps = [row for row in cells(findings.tables[0]) if row["precision"] != "float32"]
    faster = {row["model"][:7]: row["speed-up over float32"].value for row in steps}
    assert (faster["1 x 256"], faster["1 x 255"]) == (pytest.approx(2), pytest.approx(1))


SMALL = TrainingStepParameters(hidden=32, heads=4, layers=2, seq=16, batch=2, vocab=64)
MIXED = replace(SMALL, precision="autocast_bfloat16")


def counted(**changed: Any) -> dict[str, float]:
    """Bytes of a step's parts as they are counted here."""
    pytest.importorskip("torch")
    exact = TrainingMemory().prepare(replace(SMALL, **changed), "storages", ExecutionContext(CPU)).exact
    return {name: metric["value"] for name, metric in exact.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "of_weights", "of_states"), [("float32", 4, 8), ("bfloat16", 2, 4)])
def test_weights_gradients_and_two_moments_are_counted_to_the_byte(
    precision: str, of_weights: int, of_states: int
) -> None:
    found = counted(precision=precision)
    assert found["weights"] == found["gradients"] == of_weights * found["parameters"]
    # A step's number in float32 stands next to each tensor's moments.
    tensors = (found["optimizer"] - of_states * found["parameters"]) / 4
    assert tensors == 2 * 12 + 2 + 2  # two blocks, two embeddings, the last norm


def test_the_peak_holds_the_state_and_no_more_than_all_four_and_what_is_at_work() -> None:
    found = counted()
    assert found["peak"] > found["weights"] + found["optimizer"] + found["activations"]


def of_memory(parameters: TrainingStepParameters, **changed: float) -> Record:
    parts = {"parameters": 1000, "weights": 4000, "gradients": 4000, "optimizer": 8000, "weight_copies": 2000}
    values = {**parts, "activations": 5000, "peak": 20000, "capacity": 1e9, **changed}
    case = Case("training_memory", parameters, "storages")
    return a_record(case, None, kind="static", metrics=values, kernel={"name": "transformer_step", "path": "cpu"})


@pytest.mark.parametrize(("copies", "bytes_each", "outcome"), [(2000, 18, "holds"), (0, 16, "does not hold here")])
def test_eighteen_bytes_a_parameter_hold_or_do_not_by_what_was_counted(
    copies: float, bytes_each: float, outcome: str
) -> None:
    assert memory.BYTES_A_PARAMETER == 18
    verdict = judged(memory.PROBE.findings([of_memory(MIXED, weight_copies=copies)]), memory.EIGHTEEN)
    assert (verdict.measured, verdict.outcome) == (Quantity(bytes_each, "B", bytes_each, bytes_each), outcome)


def test_the_formula_is_tried_where_scores_are_written_out_with_dropout_in_16_bits() -> None:
    explicit = replace(SMALL, attention="explicit", dropout=0.1, precision="bfloat16")
    formula = float(activation_bytes(explicit.dimensions, explicit.batch, explicit.seq, recompute="nothing"))
    other = of_memory(replace(explicit, attention="sdpa"))
    verdict = judged(memory.PROBE.findings([of_memory(explicit, activations=1.02 * formula), other]), memory.FORMULA)
    assert (verdict.measured.value, verdict.outcome) == (pytest.approx(1.02), "holds")
    assert verdict.message.values["path"] == "cpu"
    (row,) = cells(memory.PROBE.findings([of_memory(explicit, activations=2 * formula)]).tables[0])
    assert row["of the 16-bit formula"].value == pytest.approx(2)


def test_the_laws_error_is_that_of_the_worst_configuration() -> None:
    law = kept_bytes(SMALL.dimensions, 2, 16, SMALL.keeping("cpu")).total
    right, half = (of_memory(replace(SMALL, batch=batch), activations=law) for batch in (2, 4))
    values = memory.PROBE.findings([right, half]).remarks[0].values
    assert (values["error"].value, values["configurations"]) == (pytest.approx(1, rel=0.1), 2)
    assert values["configuration"] == "gpt, sdpa, float32, 4 x 16"


def test_checkpointing_keeps_a_share_of_the_activations_and_one_model_of_each_kind_is_judged() -> None:
    shares = {"none": 5000, "every:1": 1000, "selective": 4000}
    policies = [
        of_memory(replace(SMALL, checkpointing=Checkpointing.parse(each)), activations=kept)
        for each, kept in shares.items()
    ]
    (row,) = cells(memory.PROBE.findings(policies).tables[1])
    assert (row["every:1"].value, row["every:2"], row["selective"].value) == (0.2, None, 0.8)
    models = memory.PROBE.findings([of_memory(replace(MIXED, gated=gated)) for gated in (True, False)])
    names = [each.message.values["configuration"] for each in verdicts(models, memory.EIGHTEEN)]
    assert names == [f"{name}, sdpa, autocast_bfloat16, 2 x 16" for name in ("gpt", "llama")]


def over_loaders(load_s: float, loaders: tuple[int, ...], cores: int = 4) -> Findings:
    """Findings on a machine that keeps to the law of loaders."""
    visits: list[Record] = []
    for parameters in (InputPipelineParameters(loaders=count) for count in loaders):
        step_s = parameters.step_us * 1e-6
        iteration_s = InputPipelineLaw(load_s, step_s, cores).seconds(parameters.loaders)
        metrics = {
            "wait": iteration_s - step_s,
            "model": step_s,
            "starved": (iteration_s - step_s) / iteration_s,
            "first_batch": load_s + 0.06 * (parameters.loaders > 0),
            "next_epoch": load_s + 0.004 * (parameters.loaders > 0),
        }
        case, fields = Case("input_pipeline", parameters, "torch"), {"metrics": metrics, "details": {"cores": cores}}
        visits += records([case], parameters.iterations * iteration_s, wobble=0.01, **fields)
    return input_pipeline.PROBE.findings(visits)


def test_too_few_loaders_bind_and_enough_are_named() -> None:
    findings = over_loaders(0.018, (0, 1, 2))
    (bound,), (waits,) = (remarks(findings, name) for name in ("binds", "starved"))
    assert [bound.values[name] for name in ("how", "binds", "enough")] == ["2 loaders, prefetch 2", "the loaders", 4]
    assert bound.kind == "predicted"
    assert waits.values["starved"].value == pytest.approx(4 / 9)
    rows = lines(findings, "Iterations")
    assert [row["law"].value for row in rows] == pytest.approx([23e-3, 18e-3, 9e-3])
    assert [row["waiting"].value for row in rows] == pytest.approx([18 / 23, 13 / 18, 4 / 9])


def test_too_few_cores_bind_whatever_the_loaders() -> None:
    findings = over_loaders(0.030, (0, 2, 4), cores=2)
    (bound,) = remarks(findings, "binds")
    assert (bound.values.get("enough"), bound.values["cores"]) == (None, 2)
    assert "no number of loaders" in bound.template
    more = judged(findings, input_pipeline.MORE_DO_NOT)
    assert (more.message.values["loaders"], more.message.values["fewer"], more.outcome) == (4, 2, "holds")
    assert more.measured.value == pytest.approx(1.0)


@pytest.mark.parametrize(("cores", "counts"), [(1, {0, 1}), (6, {0, 1, 2, 4, 6}), (192, {0, 1, 2, 4, 8, 16})])
def test_machines_of_any_size_have_cases_that_can_be(
    cores: int, counts: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = replace(cpu.detect(), usable_cores=cores)
    monkeypatch.setattr(cpu, "detect", lambda: machine)
    assert {case.parameters.loaders for case in input_pipeline.PROBE.cases("standard", CPU)} == counts


SIZES = [1 << power for power in range(10, 27, 2)]


def way(name: str, start_s: float, gb_per_s: float, sizes: list[int] = SIZES, **settings: Any) -> list[Record]:
    """Records of a way that keeps to latency and bandwidth exactly, but that processes differ by a percent."""
    cases = [Case("transfer", TransferParameters(size, **settings), name) for size in sizes]
    return records(cases, lambda case: start_s + case.parameters.size_bytes / gb_per_s / 1e9, wobble=0.01)


def test_latency_and_bandwidth_are_found_again() -> None:
    (found,) = cells(transfer.PROBE.findings(way("memcpy", 2e-6, 10.0)).tables[0])
    assert (found["largest"].value, found["half of it from"].value) == (64 << 20, 64 << 10)
    assert found["rate"].value == pytest.approx(10e9, rel=0.02)
    assert found["latency by the law"].value == pytest.approx(2e-6, rel=0.05)
    assert found["law off where left out"].value < 0.02


@pytest.mark.parametrize(("disk", "outcome"), [(2.0, "holds"), (10.0, "does not hold here")])
def test_a_disk_is_set_beside_memory_by_bytes_whatever_the_sizes(disk: float, outcome: str) -> None:
    copies = way("memcpy", 0.0, 10.0) + way("disk_direct", 0.0, disk, sizes=[1 << 20])
    (verdict,) = transfer.PROBE.findings(copies).verdicts
    assert (verdict.claim, verdict.outcome) == (transfer.TRADES_BANDWIDTH, outcome)
    assert verdict.measured.value == pytest.approx(10.0 / disk)


def test_what_offloading_would_take_is_marked_as_a_prediction() -> None:
    findings = transfer.PROBE.findings(way("memcpy", 0.0, 12.0) + way("disk_direct", 0.0, 2.0))
    times = {each.values["way"]: each.values["time"] for each in remarks(findings, kind="predicted")}
    assert all(time.predicted for time in times.values())
    assert [times[name].value for name in ("memcpy", "O_DIRECT")] == pytest.approx([1.0, 6.06], rel=0.02)


def test_pinned_memory_is_judged_in_each_direction_at_the_largest_size_of_both() -> None:
    copies = [
        *way("host_to_device", 5e-6, 50.0, pinned=True),
        *way("host_to_device", 5e-6, 10.0, sizes=SIZES[:-1]),
        *way("device_to_host", 5e-6, 50.0, pinned=True),
        *way("device_to_host", 5e-6, 49.0),
    ]
    there, back = transfer.PROBE.findings(copies).verdicts
    assert {each.claim for each in (there, back)} == {transfer.PINNED_IS_FASTER}
    assert (there.outcome, back.outcome) == ("holds", "does not hold here")
    assert [each.message.values["size"].value for each in (there, back)] == [SIZES[-2], SIZES[-1]]
    assert there.measured.value == pytest.approx(4.9, rel=0.02)
