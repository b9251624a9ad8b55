"""The memory probe: what it crosses, and what it says of bytes that were counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.training.memory import activation_bytes
from pyperf_suite.probes.memory import BYTES_A_PARAMETER, EIGHTEEN, FORMULA, PROBE
from pyperf_suite.record.case import Case
from pyperf_suite.record.quantity import Quantity
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
