"""Layers of several kinds: what a window sees, and what experts share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.laws.layer_kinds import attention_calls, expert_block, is_deepseeks_latent
from pyperf_suite.laws.model_flop import model_flop
from pyperf_suite.laws.traffic import TrainingWorkload, data_parallel
from pyperf_suite.laws.training.memory import activation_bytes, training_memory
from pyperf_suite.laws.transformer import ModelDimensions, ModelGrid, Sharding, linears, products

LLAMA = ModelDimensions(12, 1024, 4096, 16, 32000, kv_heads=4, head_dim=64, gated=True)
GEMMA = replace(LLAMA, window=256, windowed_layers=10)
SCOUT = replace(LLAMA, window=256, windowed_layers=9, chunked=True)
SPARSE = ModelDimensions(
    12, 1024, 4096, 16, 32000, kv_heads=4, head_dim=64, gated=True, experts=16, top_k=2, expert_ffn=512, shared_ffn=512,
    dense_layers=2,
)  # fmt: skip
KINDS = {"gemma": GEMMA, "scout": SCOUT, "sparse": SPARSE}
each_kind = pytest.mark.parametrize("model", KINDS.values(), ids=KINDS.keys())


def seen(seq: int, window: int, chunked: bool) -> int:
    """Pairs of query and key, counted one query after the other."""
    return sum(min(i % window + 1 if chunked else i + 1, window) for i in range(seq))


@given(st.integers(1, 300), st.integers(1, 400), st.booleans())
def test_a_query_sees_its_window_or_its_chunk_and_no_key_behind_it(seq: int, window: int, chunked: bool) -> None:
    if chunked:  # the last chunk may be shorter, which is counted as if all were equally long
        seq = window * max(1, seq // window) if seq > window else seq
    model = replace(LLAMA, window=window, windowed_layers=12, chunked=chunked)
    [call] = attention_calls(model, 2, seq)
    assert call.flop() == 4 * 2 * model.heads * model.head_dim * seen(seq, window, chunked) * 12


def test_layers_with_a_window_and_without_are_two_calls() -> None:
    whole, windowed = attention_calls(GEMMA, 2, 4096)
    assert (whole.calls, whole.window, windowed.calls, windowed.window) == (2, 0, 10, 256)
    whole, chunked = attention_calls(SCOUT, 2, 4096)
    assert (whole.calls, chunked.calls, chunked.batch, chunked.seq, chunked.window) == (3, 9, 32, 256, 0)
    [only] = attention_calls(LLAMA, 2, 4096)
    assert (only.calls, only.is_windowed) == (12, False)


def test_a_window_costs_no_parameters_and_saves_attention_alone() -> None:
    assert GEMMA.parameters == LLAMA.parameters
    [whole] = attention_calls(LLAMA, 1, 8192)
    assert model_flop(LLAMA, 1, 8192) - model_flop(GEMMA, 1, 8192) == pytest.approx(
        3 * (10 / 12) * whole.flop() * (1 - seen(8192, 256, False) / seen(8192, 8192, False))
    )
    assert activation_bytes(GEMMA, 1, 8192) == activation_bytes(LLAMA, 1, 8192)


def test_experts_are_one_block_of_the_flop_of_their_products() -> None:
    block = expert_block(SPARSE, 4096, Sharding(2, expert=4))
    assert block is not None
    assert block.sizes == (4 * 4096, 1024, 512, 16, 2, 4, 2)
    assert (block.gated, block.calls) == (True, 10)
    routed = sum(each.flop for each in products(SPARSE, 4096, Sharding(2, expert=4), phases=("fprop",)) if each.routed)
    assert routed == 2 * 3 * (4 * 4096 * 2 / 4) * 1024 * (512 / 2) * 10
    assert expert_block(LLAMA, 4096) is None


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
def test_matrices_are_all_parameters_but_embeddings_and_what_is_small(model: ModelDimensions) -> None:
    matrices = sum(each.outputs * each.inputs * each.calls for each in linears(model, 1))
    assert matrices + model.vocab * model.hidden == pytest.approx(model.parameters, rel=0.002)
    need = training_memory(model, 1, 4096)
    assert need.weights == 2 * model.parameters


@each_kind
def test_tensor_parallel_ranks_share_the_layers_of_each_kind(model: ModelDimensions) -> None:
    whole, cut = (sum(each.flop for each in products(model, 512, Sharding(ranks))) for ranks in (1, 4))
    router = sum(each.flop for each in products(model, 512) if each.part == "router")
    assert 4 * (cut - router) == pytest.approx(whole - router)


@each_kind
def test_a_grid_over_layers_keeps_the_shares_of_each_kind_and_counts_every_model_as_alone(
    model: ModelDimensions,
) -> None:
    layers = np.array([model.layers // 2, model.layers, model.layers + 2, 4 * model.layers])
    grid = ModelGrid.around(model, layers=layers)
    assert grid.valid.all()
    for place, count in enumerate(layers.tolist()):
        alone = model.resized(layers=count)
        assert alone.windowed_layers == pytest.approx(model.windowed_layers * count / model.layers, abs=1)
        assert grid.parameters[place] == alone.parameters
        assert np.broadcast_to(model_flop(grid, 1, 4096), 4)[place] == pytest.approx(model_flop(alone, 1, 4096))
        assert np.broadcast_to(activation_bytes(grid, 1, 4096), 4)[place] == pytest.approx(
            activation_bytes(alone, 1, 4096)
        )
    assert model.resized(layers=model.layers) == model


@each_kind
def test_zero_3_gathers_all_parameters_of_layers_of_all_kinds(model: ModelDimensions) -> None:
    gathered = [t for t in data_parallel(3, model, TrainingWorkload(seq=4096), 8).transfers if "forward" in t.purpose]
    sent = sum(transfer.calls * transfer.size_bytes for transfer in gathered)
    assert sent == pytest.approx(2 * model.parameters, rel=1e-3)


def test_latent_attention_is_deepseeks_by_all_its_widths() -> None:
    deepseek = ModelDimensions(
        4, 2048, 8192, 16, 1000, head_dim=192, query_rank=512, latent_rank=512, rope_head_dim=64, value_head_dim=128
    )
    assert is_deepseeks_latent(deepseek)
    assert is_deepseeks_latent(ModelGrid.around(deepseek, heads=[16, 32]))
    assert not is_deepseeks_latent(replace(deepseek, head_dim=160, rope_head_dim=32))
    assert not is_deepseeks_latent(LLAMA)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"window": 0}, "need its size: give window"),
        ({"windowed_layers": 13}, "13 of 12 layers cannot have a window"),
        ({"dense_layers": 13}, "13 of 12 layers cannot be dense"),
    ],
)
def test_layers_that_cannot_be_of_their_kinds_are_refused(wrong: dict[str, int], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        replace(GEMMA, **wrong)
