"""What a training step takes in memory is known before it is tried, so that too much is refused and not killed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import memory
from pyperf_suite.hardware.devices import Device
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.spec.discovery import find_probe
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.training.block_part import BlockPartParameters
from pyperf_suite.workloads.training.layers import LayerPassParameters
from pyperf_suite.workloads.training.optimizer_update import OptimizerUpdateParameters, TensorSet
from pyperf_suite.workloads.training.step_memory import TrainingMemory, TrainingMemoryParameters
from pyperf_suite.workloads.training.training_step import TrainingStepParameters
from pyperf_suite.workloads.workload import Place

CPU = Device("cpu")


def plan(name, **overrides):
    cases = tuple(PlannedCase(name, case) for case in find_probe(name).cases("quick", CPU, overrides))
    return Plan(cases, PROFILES["quick"], CPU)


@pytest.mark.parametrize(
    ("probe", "overrides"),
    [
        ("memory", {"batch": "100000000"}),
        ("block", {"hidden": "200000", "heads": "100"}),
        ("block", {"batch": "10000000"}),
        ("backward", {"hidden": "99999999999"}),
        ("precision", {"hidden": "200000", "heads": "100"}),
        ("checkpointing", {"hidden": "200000", "heads": "100"}),
        ("optimizer", {"tensors": "1x90000x90000"}),
    ],
)
def test_what_no_memory_holds_is_refused_before_it_is_tried(monkeypatch, probe, overrides):
    monkeypatch.setattr(memory, "available_bytes", lambda: 64_000_000_000)
    with pytest.raises(UserError, match=r"needs .* GB .* ask for smaller dimensions"):
        plan(probe, **overrides).validate()


@pytest.mark.parametrize("probe", ["memory", "block", "backward", "precision", "checkpointing", "optimizer"])
def test_quick_looks_need_less_than_a_gigabyte(monkeypatch, probe):
    monkeypatch.setattr(memory, "available_bytes", lambda: 1_000_000_000)
    plan(probe).validate()


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast_bfloat16"])
def test_a_steps_need_is_what_is_counted_when_it_is_taken(precision):
    pytest.importorskip("torch")
    p = TrainingMemoryParameters(hidden=64, heads=4, layers=2, seq=32, batch=2, vocab=128, precision=precision)
    metrics = TrainingMemory().prepare(p, "storages", Place(CPU)).exact
    counted = sum(metrics[name]["value"] for name in ("weights", "gradients", "optimizer", "activations"))
    assert p.step_bytes(updated=True) == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize(
    ("operator", "parameters"),
    [
        ("training_step", TrainingStepParameters(hidden=32, heads=2, layers=1, seq=16)),
        ("block_part", BlockPartParameters(hidden=32, heads=2, layers=1, seq=16, part="scores")),
    ],
)
def test_without_room_for_the_reference_a_case_is_unsupported(monkeypatch, operator, parameters):
    pytest.importorskip("torch")
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    answer = measure_case(Case(operator, parameters, "torch"), PROFILES["quick"].effort, CPU)
    assert answer["outcome"] == "unsupported"
    assert "in float64, takes" in answer["reason"]


def test_gradients_count_where_a_pass_makes_them():
    forward = LayerPassParameters(layer="linear", hidden=64, out=128)
    layer_pass = find_workload("layer_pass")
    alone, both = (layer_pass.footprint_bytes(replace(forward, phase=phase)) for phase in ("forward", "backward"))
    assert both == 2 * alone == 2 * layer_pass.work(forward).bytes


def test_adamw_needs_two_moments_a_weight_and_its_gradient_and_a_copy_of_all_to_be_checked():
    p = OptimizerUpdateParameters(TensorSet(2, 8, 8))
    assert find_workload("optimizer_update").footprint_bytes(p) == 2 * 4 * 4 * 128
