"""Memory of training on a GPU, by stage of ZeRO, pipeline and experts, alone and in grids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.laws.transformer import ModelDimensions, Sharding
from pyperf_suite.planner.laws.training.memory import MemoryNeed, need_of, rank_parameters, verdict_of
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.sizing.step import ModelGrid, resized
from tests.models import GPT_3 as GPT
from tests.models import LLAMA, MIXTRAL


def training_memory(
    model: ModelDimensions, micro_batch: int, seq: int, sharding: Sharding | None = None, *, data: Any = 1,
    micro_batches: Any = 64, **changes: Any,
) -> MemoryNeed:  # fmt: skip
    """The need of a plan of `micro_batches` micro-batches, by default of more than there are stages."""
    cut = sharding or Sharding()
    plan = ParallelPlan(
        global_batch=micro_batch * data * micro_batches, micro_batch=micro_batch, seq=seq, data=data, tensor=cut.tensor,
        expert=cut.expert, sequence_parallel=cut.sequence_parallel, **changes,
    )  # fmt: skip
    return need_of(model, plan)


def test_stages_of_zero_share_one_thing_more_each() -> None:
    stages = [training_memory(LLAMA, 1, 8192, data=8, zero_stage=stage) for stage in range(4)]
    p = LLAMA.parameters
    states = [need.weights + need.gradients + need.optimizer for need in stages]
    assert states == pytest.approx([18 * p, (2 + 4 + 12 / 8) * p, (2 + 16 / 8) * p, 18 / 8 * p])
    assert {need.activations for need in stages} == {stages[0].activations}
    assert stages[0].total == 18 * p + stages[0].activations + stages[0].buffers


@pytest.mark.parametrize("model", [GPT, LLAMA, MIXTRAL], ids=["gpt", "llama", "mixtral"])
def test_ranks_together_hold_every_parameter_and_little_twice(model: ModelDimensions) -> None:
    assert rank_parameters(model, Sharding()) == model.parameters
    assert model.parameters <= 8 * rank_parameters(model, Sharding(8)) < 1.01 * model.parameters
    halves = rank_parameters(model, Sharding(), stages=2)
    assert model.parameters / 2 <= halves < model.parameters
    # Embedding and output matrix are as large as each other, and of a tied model the last stage has both.
    assert model.tied or halves == model.parameters / 2


@pytest.mark.parametrize("of_models", [True, False], ids=["models", "schedules"])
def test_a_grid_needs_what_each_of_it_needs_alone(of_models: bool) -> None:
    if of_models:
        hidden, sharding = [2048, 4096, 8192], Sharding(np.array([1, 2, 8]))
        grid, varied = ModelGrid.around(LLAMA, hidden=hidden), {"zero_stage": [3] * 3}
        alone = [(resized(LLAMA, hidden=size), Sharding(t)) for size, t in zip(hidden, (1, 2, 8), strict=True)]
    else:
        grid, sharding, alone = GPT, Sharding(8, True), [(GPT, Sharding(8, True))] * 3
        varied = {"zero_stage": [3, 1, 2], "pipeline": [1, 2, 8], "chunks": [1, 4, 3], "micro_batches": [4, 16, 8]}
    varied["data"] = [4] * 3
    together = training_memory(grid, 2, 2048, sharding, **{name: np.array(each) for name, each in varied.items()})
    needs = [
        training_memory(model, 2, 2048, own, **{name: each[place] for name, each in varied.items()})
        for place, (model, own) in enumerate(alone)
    ]
    assert together.total.tolist() == pytest.approx([float(need.total) for need in needs])


def kept(model: ModelDimensions, **changes: Any) -> float:
    """Activations of the fullest stage."""
    return float(training_memory(model, 1, 8192, **changes).activations)


def test_the_first_stage_of_a_pipeline_holds_as_many_micro_batches_as_there_are_stages() -> None:
    # Each in its share of the layers, so that only what stands outside of them changes.
    alone, piped = (kept(LLAMA, pipeline=stages) for stages in (1, 4))
    assert alone - piped == 8192 * (5 * 4096 + 4 * 128256 - 4 * 4096)
    uneven = kept(resized(LLAMA, layers=33), pipeline=32)
    assert uneven > 1.8 * kept(LLAMA, pipeline=32)


def test_the_last_stage_is_the_fullest_where_logits_are_most_of_it() -> None:
    wide = resized(LLAMA, vocab=1 << 22)
    logits = 4 * (1 << 22) * 8192
    assert kept(wide, pipeline=32, recompute="layers") > logits


def test_interleaved_stages_hold_more_and_few_micro_batches_less() -> None:
    def held(**schedule: int) -> float:
        need = training_memory(GPT, 1, 2048, Sharding(8, True), pipeline=8, **schedule)
        return float(need.activations)

    by_stage = held()
    # L·(1 + (p − 1)/(p·v)): Korthikanti et al. 2022, section 4.2.3.
    assert held(chunks=3) == pytest.approx(by_stage * (1 + 7 / (8 * 3)), rel=1e-2)
    assert held(micro_batches=2) == pytest.approx(by_stage / 4, rel=0.1)
    assert held(chunks=3, micro_batches=8) == pytest.approx(by_stage, rel=1e-3)


def test_experts_are_shared_by_the_ranks_that_have_the_same_ones() -> None:
    spread = training_memory(MIXTRAL, 1, 4096, Sharding(expert=8), data=8, zero_stage=1)
    experts = MIXTRAL.layers * MIXTRAL.experts * MIXTRAL.expert_parameters
    shared = MIXTRAL.parameters - experts
    assert rank_parameters(MIXTRAL, Sharding(expert=8)) == MIXTRAL.parameters - experts * 7 / 8
    assert spread.weights == pytest.approx(2 * (shared + experts / 8))
    # Each expert is on one rank of the eight, so that none shares its moments.
    assert spread.optimizer == pytest.approx(12 * (shared / 8 + experts / 8))
    twice = training_memory(MIXTRAL, 1, 4096, Sharding(expert=8), data=16, zero_stage=1)
    assert twice.optimizer == pytest.approx(12 * (shared / 16 + experts / 16))


def test_a_layer_that_is_gathered_has_to_fit_beside_its_gradient_and_the_next_one() -> None:
    shared = training_memory(GPT, 1, 2048, data=1024, zero_stage=3)
    assert shared.gathered == pytest.approx(6 * 12 * 12288**2, rel=1e-3)
    assert training_memory(GPT, 1, 2048, data=1024, zero_stage=2).gathered == 0
    assert training_memory(GPT, 1, 2048, data=1, zero_stage=3).gathered == 0


def test_a_verdict_is_by_the_range_that_nine_of_ten_runs_reserve() -> None:
    need = MemoryNeed(weights=2.0, gradients=4.0, optimizer=12.0, activations=10.0, gathered=6.0, buffers=66.0)
    assert need.least < need.total == 100 < need.most
    words = [verdict_of(need.least, need.most, room) for room in (128, 100, 79)]
    assert words == ["fits", "may not fit", "does not fit"]
    # 5 % stay free.
    assert verdict_of(90, 95, 100) == "fits"
    assert verdict_of(96, 99, 100) == "does not fit"


def test_pure_bfloat16_keeps_8_bytes_a_parameter_and_deepspeed_gradients_of_32_bits_at_its_step() -> None:
    plan = ParallelPlan(global_batch=1, micro_batch=1, seq=4096)

    def states(framework: str, state_dtype: str) -> float:
        need = need_of(LLAMA, replace(plan, framework=framework, state_dtype=state_dtype))
        return float((need.weights + need.gradients + need.optimizer) / LLAMA.parameters)

    assert states("fsdp2", "fp32") == 18
    assert states("fsdp2", "bf16") == 8
    assert states("deepspeed", "fp32") == 20
    with pytest.raises(UserError, match="No states of 'fp8' are planned: choose from fp32, bf16"):
        replace(plan, state_dtype="fp8")


def test_where_layers_are_computed_again_inputs_are_kept_and_one_layer_is_at_work() -> None:
    layer = (kept(LLAMA) - kept(resized(LLAMA, layers=16))) / 16
    assert kept(LLAMA, recompute="layers") - kept(LLAMA) == pytest.approx(32 * (2 * 4096 * 8192 - layer))
    half = kept(LLAMA, recompute="layers", recompute_share=0.5)
    assert kept(LLAMA, recompute="layers") < half < kept(LLAMA)
    assert training_memory(LLAMA, 2, 8192).activations == 2 * kept(LLAMA)
