"""Layers of several kinds: what a window sees, and what experts share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.laws.traffic import TrainingWorkload, data_parallel
from pyperf_suite.laws.training.memory import activation_bytes
from pyperf_suite.laws.transformer import ModelDimensions, Sharding, attention_calls, linears, model_flop, products
from tests.models import GEMMA, KINDS, SCOUT, SMALL_LLAMA

each_kind = pytest.mark.parametrize("model", KINDS.values(), ids=KINDS.keys())


def seen(seq: int, window: int, chunked: bool) -> int:
    """Pairs of query and key, counted one query after the other."""
    return sum(min(i % window + 1 if chunked else i + 1, window) for i in range(seq))


@given(st.integers(1, 300), st.integers(1, 400), st.booleans())
def test_a_query_sees_its_window_or_its_chunk_and_no_key_behind_it(seq: int, window: int, chunked: bool) -> None:
    if chunked:  # the last chunk may be shorter, which is counted as if all were equally long
        seq = window * max(1, seq // window) if seq > window else seq
    model = replace(SMALL_LLAMA, window=window, windowed_layers=12, chunked=chunked)
    [call] = attention_calls(model, 2, seq)
    assert call.flop() == 4 * 2 * model.heads * model.head_dim * seen(seq, window, chunked) * 12


def test_layers_with_a_window_and_without_are_two_calls() -> None:
    whole, windowed = attention_calls(GEMMA, 2, 4096)
    assert (whole.calls, whole.window, windowed.calls, windowed.window) == (2, 0, 10, 256)
    whole, chunked = attention_calls(SCOUT, 2, 4096)
    assert (whole.calls, chunked.calls, chunked.batch, chunked.seq, chunked.window) == (3, 9, 32, 256, 0)
    [only] = attention_calls(SMALL_LLAMA, 2, 4096)
    assert (only.calls, only.is_windowed) == (12, False)


def test_a_window_costs_no_parameters_and_saves_attention_alone() -> None:
    assert GEMMA.parameters == SMALL_LLAMA.parameters
    [whole] = attention_calls(SMALL_LLAMA, 1, 8192)
    assert model_flop(SMALL_LLAMA, 1, 8192) - model_flop(GEMMA, 1, 8192) == pytest.approx(
        3 * (10 / 12) * whole.flop() * (1 - seen(8192, 256, False) / seen(8192, 8192, False))
    )
    assert activation_bytes(GEMMA, 1, 8192) == activation_bytes(SMALL_LLAMA, 1, 8192)


@each_kind
def test_matrices_are_all_parameters_but_embeddings_and_what_is_small(model: ModelDimensions) -> None:
    matrices = sum(each.outputs * each.inputs * each.calls for each in linears(model, 1))
    assert matrices + model.vocab * model.hidden == pytest.approx(model.parameters, rel=0.002)


@each_kind
def test_tensor_parallel_ranks_share_the_layers_of_each_kind(model: ModelDimensions) -> None:
    whole, cut = (sum(each.flop for each in products(model, 512, Sharding(ranks))) for ranks in (1, 4))
    router = sum(each.flop for each in products(model, 512) if each.part == "router")
    assert 4 * (cut - router) == pytest.approx(whole - router)


@each_kind
def test_zero_3_gathers_all_parameters_of_layers_of_all_kinds(model: ModelDimensions) -> None:
    gathered = [t for t in data_parallel(3, model, TrainingWorkload(seq=4096), 8).transfers if "forward" in t.purpose]
    sent = sum(transfer.calls * transfer.size_bytes for transfer in gathered)
    assert sent == pytest.approx(2 * model.parameters, rel=1e-3)


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
