"""The memory probe: what it crosses, and what it says of bytes that were counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.training.memory import activation_bytes, kept_bytes
from pyperf_suite.probes.memory import ANATOMY, BYTES_A_PARAMETER, EIGHTEEN, FORMULA, PARTS, PROBE, RULE
from pyperf_suite.record.case import Case
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.workloads.training import Checkpointing
from pyperf_suite.workloads.training.step_memory import TrainingMemory
from pyperf_suite.workloads.training.training_step import TrainingStepParameters
from pyperf_suite.workloads.workload import ExecutionContext
from tests.records import a_record, cells, judged

torch = pytest.importorskip("torch")

CPU = Device("cpu")
SMALL = TrainingStepParameters(hidden=32, heads=4, layers=2, seq=16, batch=2, vocab=64)


def read(**change):
    p = TrainingStepParameters(**{**vars(SMALL), **change})
    return {
        name: metric["value"]
        for name, metric in TrainingMemory().prepare(p, "storages", ExecutionContext(CPU)).exact.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "of_weights", "of_states"), [("float32", 4, 8), ("bfloat16", 2, 4)])
def test_weights_gradients_and_two_moments_are_counted_to_the_byte(precision, of_weights, of_states):
    found = read(precision=precision)
    assert found["weights"] == found["gradients"] == of_weights * found["parameters"]
    # A step's number in float32 stands next to each tensor's moments.
    tensors = (found["optimizer"] - of_states * found["parameters"]) / 4
    assert tensors == 2 * 12 + 2 + 2  # two blocks, two embeddings, the last norm


def test_the_peak_holds_the_state_and_no_more_than_all_four_and_what_is_at_work():
    found = read()
    assert found["peak"] > found["weights"] + found["optimizer"] + found["activations"]


def test_a_case_without_a_gpu_is_unsupported_with_the_reason():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    answer = measure_case(Case("training_memory", SMALL, "allocator"), None, CPU)
    assert answer["outcome"] == "unsupported"
    assert "cannot use the GPU" in answer["reason"]


def record(parameters, **changed):
    parts = {"parameters": 1000, "weights": 4000, "gradients": 4000, "optimizer": 8000, "weight_copies": 2000}
    values = {**parts, "activations": 5000, "peak": 20000, "capacity": 1e9, **changed}
    case = Case("training_memory", parameters, "storages")
    return a_record(case, None, kind="static", metrics=values, kernel={"name": "transformer_step", "path": "cpu"})


MIXED = replace(SMALL, precision="autocast_bfloat16")


@pytest.mark.parametrize(("copies", "bytes_each", "outcome"), [(2000, 18, "holds"), (0, 16, "does not hold here")])
def test_eighteen_bytes_a_parameter_hold_or_do_not_by_what_was_counted(copies, bytes_each, outcome):
    assert BYTES_A_PARAMETER == 18
    found = judged(PROBE.findings([record(MIXED, weight_copies=copies)]), EIGHTEEN)
    assert (found.measured, found.outcome) == (Quantity(bytes_each, "B", bytes_each, bytes_each), outcome)


def test_the_peak_is_compared_with_the_sum_of_the_parts_and_their_shares_are_told():
    found = judged(PROBE.findings([record(MIXED)]), ANATOMY)
    assert (found.measured.value, found.outcome) == (pytest.approx(20 / 23), "holds")
    shares = {name: found.message.values[f"share_of_{name}"].value for name in PARTS[:4]}
    assert shares == pytest.approx({"weights": 6 / 23, "gradients": 4 / 23, "optimizer": 8 / 23, "activations": 5 / 23})


def test_the_rule_of_the_share_is_what_activations_take_of_the_rest():
    # With 1000 parameters 18000 bytes are 75 %, so 6000 are left.
    found = judged(PROBE.findings([record(SMALL, activations=7500)]), RULE)
    assert (found.measured.value, found.message.values["tokens"], found.outcome) == (1.25, 32, "does not hold here")


def test_the_formula_is_tried_where_scores_are_written_out_with_dropout_in_16_bits():
    explicit = replace(SMALL, attention="explicit", dropout=0.1, precision="bfloat16")
    formula = float(activation_bytes(explicit.dimensions, explicit.batch, explicit.seq, recompute="nothing"))
    found = judged(
        PROBE.findings([record(explicit, activations=1.02 * formula), record(replace(explicit, attention="sdpa"))]),
        FORMULA,
    )
    assert (found.measured.value, found.message.values["path"], found.outcome) == (pytest.approx(1.02), "cpu", "holds")
    (row,) = (row for row in cells(PROBE.findings([record(explicit, activations=2 * formula)]).tables[0]))
    assert row["of the 16-bit formula"].value == pytest.approx(2)


def test_the_first_gpt_and_the_first_llama_are_judged():
    llama = replace(MIXED, gated=True)
    verdicts = PROBE.findings([record(llama), record(MIXED), record(replace(MIXED, batch=4))]).verdicts
    message = [each.message.values["configuration"] for each in verdicts if each.claim == EIGHTEEN]
    assert message == ["gpt, sdpa, autocast_bfloat16, 2 x 16", "llama, sdpa, autocast_bfloat16, 2 x 16"]


def test_the_laws_error_is_that_of_the_worst_configuration():
    law = kept_bytes(SMALL.dimensions, 2, 16, SMALL.keeping("cpu")).total
    right, half = record(replace(SMALL, batch=2), activations=law), record(replace(SMALL, batch=4), activations=law)
    message = PROBE.findings([right, half]).remarks[0]
    assert message.kind == "law"
    assert (message.values["error"].value, message.values["configurations"]) == (pytest.approx(1, rel=0.1), 2)
    assert message.values["configuration"] == "gpt, sdpa, float32, 4 x 16"


def test_checkpointing_keeps_a_share_of_the_activations():
    policies = {"none": 5000, "every:1": 1000, "selective": 4000}
    report = PROBE.findings(
        [
            record(replace(SMALL, checkpointing=Checkpointing.parse(each)), activations=kept)
            for each, kept in policies.items()
        ]
    )
    (row,) = cells(report.tables[1])
    assert row["configuration"] == "gpt, sdpa, float32, 2 x 16"
    assert (row["every:1"].value, row["every:2"], row["selective"].value) == (0.2, None, 0.8)
