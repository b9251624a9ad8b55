"""Layers of several kinds on a rank, in memory and in grids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pyperf_suite.laws.training.memory import activation_bytes
from pyperf_suite.laws.transformer import ModelDimensions, Sharding, attention_calls, linears, model_flop, products
from pyperf_suite.planner.laws.training.layer_work import expert_block, is_deepseeks_latent
from pyperf_suite.planner.laws.training.memory import training_memory
from pyperf_suite.planner.sizing.step import ModelGrid, resized
from tests.models import KINDS, SMALL_LLAMA, SPARSE

each_kind = pytest.mark.parametrize("model", KINDS.values(), ids=KINDS.keys())


def test_experts_are_one_block_of_the_flop_of_their_products() -> None:
    block = expert_block(SPARSE, 4096, Sharding(2, expert=4))
    assert block is not None
    assert block.sizes == (4 * 4096, 1024, 512, 16, 2, 4, 2)
    assert (block.gated, block.calls) == (True, 10)
    routed = sum(each.flop for each in products(SPARSE, 4096, Sharding(2, expert=4), phases=("fprop",)) if each.routed)
    assert routed == 2 * 3 * (4 * 4096 * 2 / 4) * 1024 * (512 / 2) * 10
    assert expert_block(SMALL_LLAMA, 4096) is None


@each_kind
def test_flop_are_six_of_each_active_parameter_in_a_product_with_attention(model: ModelDimensions) -> None:
    batch, seq = 2, 8192
    multiplied = sum(
        each.outputs * each.inputs * each.calls for each in linears(model, 1) if "expert " not in each.part
    )
    if block := expert_block(model, 1):
        multiplied += 3 * block.top_k * block.hidden * block.width * block.calls
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
