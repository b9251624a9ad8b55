"""Constants of frameworks: which of them a plan takes, what each does, the interval that goes with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.laws.calibration import Calibration, CalibrationBlock
from pyperf_suite.planner.laws.training.framework import (
    NAMES,
    StepConstants,
    found_constants,
    generation_of,
    on_gpu,
    usual_framework,
)
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.laws.training.step import prices_of, step_time
from tests.models import LLAMA

PLAN = ParallelPlan(global_batch=64, micro_batch=1, seq=4096, data=16, overlap_gradients=True)
SHARDED = replace(PLAN, zero_stage=3)
ALONE = ParallelPlan(global_batch=64, micro_batch=1, seq=4096)
EXPERTS = replace(LLAMA, experts=64, top_k=4, expert_ffn=1024)


def seconds(plan: ParallelPlan, gpu: str = "H100", model: ModelDimensions = LLAMA) -> float:
    return float(step_time(gpu, model, plan).seconds)


def part(
    name: str,
    plan: ParallelPlan,
    constants: StepConstants | None = None,
    model: ModelDimensions = LLAMA,
    gpu: str = "H100",
) -> float:
    return float(step_time(gpu, model, plan, constants).parts[name])


def test_a_plan_that_names_no_framework_takes_megatrons_and_fsdp2s_where_parameters_are_sharded():
    assert [usual_framework(stage) for stage in range(4)] == ["megatron", "megatron", "torchtitan", "torchtitan"]
    assert seconds(PLAN) == seconds(replace(PLAN, framework="megatron"))
    first, second = (seconds(replace(SHARDED, framework=name)) for name in ("fsdp1", "fsdp2"))
    assert first != second == seconds(SHARDED)


def test_where_no_run_was_published_the_interval_is_wider_and_no_error_is_stated():
    known, unknown = (step_time(gpu, LLAMA, replace(PLAN, framework="megatron")) for gpu in ("A100", "L40S"))
    assert (known.error_percent is None, bool(known.extrapolated)) == (False, False)
    assert (unknown.error_percent is None, bool(unknown.extrapolated)) == (True, True)
    # By the errors of runs whose engine or generation of GPUs was left out.
    assert np.log(unknown.high / unknown.low) > np.log(known.high / known.low)


def test_generations_are_known_by_the_compute_capability_and_of_other_makers_by_their_units():
    names = {"V100 SXM": "Ampere", "L40S": "Ampere", "H200": "Hopper", "B300": "Blackwell", "RTX 5090": "Blackwell"}
    names |= {"MI250X": "Ampere", "MI300X": "Hopper", "MI355X": "Blackwell"}
    assert {name: generation_of(find_gpu(name)) for name in names} == names


def test_constants_of_ones_own_go_before_published_ones():
    block = CalibrationBlock({name: np.array(getattr(StepConstants(2.0), name)) for name in NAMES}, {"mape": 5.0})
    of_ddp = replace(block, arrays=block.arrays | {"seen": np.array(["ddp H100 SXM"])})
    own = Calibration("H100 SXM", {"step.fsdp1": block, "step.ddp": of_ddp})
    assert found_constants(own, "fsdp1").constants.slowdown == 2.0
    assert found_constants(own, "megatron").constants.slowdown < 1.5
    # No run of DDP was published; runs of one's own are of it.
    assert not found_constants(own, "ddp").is_transferred
    assert found_constants("H100", "ddp").is_transferred


def test_a_token_goes_to_a_node_once_however_many_of_its_experts_are_there():
    plan = replace(ALONE, data=16, expert=16)
    once, eightfold = (part("experts", plan, StepConstants(1.0), replace(EXPERTS, top_k=chosen)) for chosen in (1, 8))
    # One expert is in the other node with 1/2, some of eight with 1 - 2^-8; within a node each copy is sent and sorted.
    assert 1.3 < eightfold / once < 4


def test_torchs_grouped_products_are_slower_than_one_product_on_blackwell_alone():
    constants = StepConstants(1.0, experts=1.1)
    factors = {
        (gpu, framework): on_gpu(constants, find_gpu(gpu), framework).experts
        for gpu in ("H100", "B200")
        for framework in ("megatron", "torchtitan")
    }
    assert factors.pop(("B200", "torchtitan")) == pytest.approx(1.7 * 1.1)
    assert set(factors.values()) == {1.1}


def test_products_of_fewer_bits_are_faster_and_what_a_gpu_lacks_is_refused():
    times = [seconds(replace(PLAN, dtype=dtype), "B200") for dtype in ("nvfp4", "mxfp8", "bf16")]
    assert times == sorted(times)
    for gpu, dtype, sentence in (("A100", "fp8", "no units"), ("H100", "mxfp8", "came with Blackwell")):
        with pytest.raises(UserError, match=sentence):
            prices_of(gpu, dtype)
    with pytest.raises(UserError, match="Nothing trains in 'int3'"):
        replace(PLAN, dtype="int3")
    with pytest.raises(UserError, match="Nothing is known of the framework 'jax'"):
        replace(PLAN, framework="jax")
