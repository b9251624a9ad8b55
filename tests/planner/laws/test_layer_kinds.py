"""Layers of several kinds on a rank, in memory and in grids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pyperf_suite.laws.training.memory import activation_bytes
from pyperf_suite.laws.transformer import ModelDimensions, Sharding, attention_calls, linears, model_flop, products
from pyperf_suite.planner.laws.training.layer_work import is_deepseeks_latent, kernel_calls
from pyperf_suite.planner.laws.training.memory import training_memory
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.sizing.step import ModelGrid, resized
from tests.models import KINDS, SMALL_LLAMA, SPARSE

each_kind = pytest.mark.parametrize("model", KINDS.values(), ids=KINDS.keys())


def test_experts_of_a_rank_have_the_flop_of_one_grouped_product() -> None:
    routed = sum(each.flop for each in products(SPARSE, 4096, Sharding(2, expert=4), phases=("fprop",)) if each.routed)
    assert routed == 2 * 3 * (4 * 4096 * 2 / 4) * 1024 * (512 / 2) * 10
    plan = ParallelPlan(global_batch=4, micro_batch=1, seq=4096, tensor=2, data=4, expert=4)
    calls = [call for call in kernel_calls(SPARSE, plan) if call.kind == "experts_forward"]
    # Gate and up together, and down: each with the rows of all four experts of the rank.
    assert [call.sizes for call in calls] == [(8192, 512, 1024), (8192, 1024, 256)]
    assert [float(call.calls) for call in calls] == [10, 10]
    assert not [call for call in kernel_calls(SMALL_LLAMA, replace(plan, expert=1)) if call.kind.startswith("experts")]


@each_kind
def test_flop_are_six_of_each_active_parameter_in_a_product_with_attention(model: ModelDimensions) -> None:
    batch, seq = 2, 8192
    multiplied = sum(
        each.outputs * each.inputs * each.calls for each in linears(model, 1) if "expert " not in each.part
    )
    if model.experts > 1:
        multiplied += 3 * model.top_k * model.hidden * model.expert_ffn * model.sparse_layers
    if model.shared_ffn:
        multiplied += 3 * model.hidden * model.shared_ffn * model.sparse_layers
    attention = sum(call.flop() for call in attention_calls(model, batch, seq))
    expected = 6 * multiplied * batch * seq + 3 * attention
    assert model_flop(model, batch, seq) == pytest.approx(expected, rel=1e-9)
    assert multiplied == pytest.approx(model.active_parameters - model.hidden * model.vocab, rel=0.02)


@each_kind
def test_two_bytes_of_each_parameter_are_its_weights(model: ModelDimensions) -> None:
    assert training_memory(model, 1, 4096).weights == 2 * model.parameters


@each_kind
def test_a_grid_over_layers_keeps_the_shares_of_each_kind_and_counts_every_model_as_alone(
    model: ModelDimensions,
) -> None:
    layers = np.array([model.layers // 2, model.layers, model.layers + 2, 4 * model.layers])
    grid = ModelGrid.around(model, layers=layers)
    assert grid.valid.all()
    for place, count in enumerate(layers.tolist()):
        alone = resized(model, layers=count)
        assert alone.windowed_layers == pytest.approx(model.windowed_layers * count / model.layers, abs=1)
        assert grid.parameters[place] == alone.parameters
        assert np.broadcast_to(model_flop(grid, 1, 4096), 4)[place] == pytest.approx(model_flop(alone, 1, 4096))
        assert np.broadcast_to(activation_bytes(grid, 1, 4096), 4)[place] == pytest.approx(
            activation_bytes(alone, 1, 4096)
        )
    assert resized(model, layers=model.layers) == model


def test_latent_attention_is_deepseeks_by_all_its_widths() -> None:
    deepseek = ModelDimensions(
        4, 2048, 8192, 16, 1000, head_dim=192, query_rank=512, latent_rank=512, rope_head_dim=64, value_head_dim=128
    )
    assert is_deepseeks_latent(deepseek)
    assert is_deepseeks_latent(ModelGrid.around(deepseek, heads=[16, 32]))
    assert not is_deepseeks_latent(replace(deepseek, head_dim=160, rope_head_dim=32))
    assert not is_deepseeks_latent(SMALL_LLAMA)
