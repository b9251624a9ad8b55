"""A step within a budget: the batch fits or says by how much not, and drops what it says without changing gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.workloads.training import Checkpointing, step_memory
from pyperf_suite.workloads.training.step_memory import CheckpointedStep
from pyperf_suite.workloads.training.training_step import TrainingStepParameters
from pyperf_suite.workloads.workload import ExecutionContext

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

CPU = Device("cpu")
SMALL = TrainingStepParameters(hidden=32, heads=2, layers=4, seq=16, batch=3, part="train")
EVERY = replace(SMALL, checkpointing=Checkpointing("every", 1))
TENSOR = 16 * 32 * 4  # bytes of a sequence's hidden states


def prepared(parameters: TrainingStepParameters):
    return CheckpointedStep().implementation("torch").prepare(parameters, ExecutionContext(CPU))


def seen(parameters: TrainingStepParameters) -> dict[str, float]:
    return {name: each.samples[0] for name, each in prepared(parameters).observed().items()}


def test_a_case_tells_of_time_and_of_bytes():
    case = Case("checkpointed_step", replace(EVERY, budget_bytes=10_000_000), "torch")
    assert Case.from_json(case.to_json()) == case
    answer = measure_case(case, QUICK.effort, CPU)
    assert answer["outcome"] == "ok", answer
    assert answer["metrics"].keys() == {"time", "kept", "fixed", "peak", "peak_of_one", "budget"}
    assert answer["metrics"]["kept"]["value"] == 4 * 3 * TENSOR
    assert answer["metrics"]["budget"]["value"] == 10_000_000


@pytest.mark.parametrize("text", ["none", "selective", "every:1", "every:2"])
def test_at_the_peak_a_step_holds_what_it_keeps_and_what_stays(text):
    held = seen(replace(SMALL, checkpointing=Checkpointing.parse(text)))
    assert held["peak"] >= held["kept"] + held["fixed"]
    assert held["fixed"] < held["peak_of_one"] < held["peak"]


def test_a_batch_that_just_fits_fits_and_a_byte_less_is_too_little():
    peak = int(seen(EVERY)["peak"])
    assert seen(replace(EVERY, budget_bytes=peak))["peak"] == peak
    with pytest.raises(Unsupported, match="Batch 3 does not fit: a step holds up to"):
        prepared(replace(EVERY, budget_bytes=peak - 1))


@pytest.mark.parametrize(("batch", "why"), [(300, "holds at least"), (10**9, "input alone is too large")])
def test_a_batch_far_too_large_is_told_without_being_tried(batch, why):
    with pytest.raises(Unsupported, match=f"Batch {batch} does not fit: .*{why}"):
        prepared(replace(SMALL, batch=batch, budget_bytes=2_000_000))


@pytest.mark.parametrize("float64_flop", [step_memory.FLOAT64_FLOP, 0])
@pytest.mark.parametrize("text", ["none", "selective", "every:2"])
def test_both_ways_to_check_pass_what_is_right(text, float64_flop, monkeypatch):
    monkeypatch.setattr(step_memory, "FLOAT64_FLOP", float64_flop)
    steps = prepared(replace(SMALL, checkpointing=Checkpointing.parse(text)))
    checked = steps.check()
    assert (checked.wrong, checked.first) == (0, "")
    assert checked.compared >= 4 * 12
    assert all(len(each) == 3 for each in steps.inputs)
    assert all(stack.checkpointing == Checkpointing.parse(text) for stack in [steps.model])


@pytest.mark.parametrize("float64_flop", [step_memory.FLOAT64_FLOP, 0])
def test_what_is_computed_otherwise_the_second_time_is_found(float64_flop, monkeypatch):
    monkeypatch.setattr(step_memory, "FLOAT64_FLOP", float64_flop)
    steps = prepared(EVERY)
    block, calls = steps.model.blocks[1], []
    right = block.mlp.forward

    def other_in_backward(x):
        calls.append(0)
        return right(x * (1 if steps.model.checkpointing.kind == "none" or len(calls) % 2 else 1.5))

    monkeypatch.setattr(block.mlp, "forward", other_in_backward)
    assert steps.check().wrong > 0
