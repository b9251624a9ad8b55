from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.laws.training.memory import activation_bytes, gpt_weights
from pyperf_suite.laws.transformer import Sharding
from pyperf_suite.workloads.training import TransformerShape
from tests.models import GPT_3, LLAMA, MIXTRAL


def layer_activations(ranks: int, sequence_parallel: bool, recompute: str, seq: int = 2048) -> float:
    """Activations of one layer of GPT_3 over s·b·h: of a model and the same without half of its layers."""
    sharding = Sharding(ranks, sequence_parallel)
    whole, half = (
        activation_bytes(replace(GPT_3, layers=layers), 1, seq, sharding, recompute=recompute) for layers in (96, 48)
    )
    return (whole - half) / 48 / (seq * 12288)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_layer_keeps_what_table_2_of_korthikanti_says(ranks):
    scores = 5 * 96 * 2048 / 12288
    assert layer_activations(1, False, "nothing") == pytest.approx(34 + scores)
    assert layer_activations(ranks, False, "nothing") == pytest.approx(10 + (24 + scores) / ranks)
    assert layer_activations(ranks, True, "nothing") == pytest.approx((34 + scores) / ranks)
    assert layer_activations(ranks, True, "attention") == pytest.approx(34 / ranks)
    assert layer_activations(ranks, False, "layers") == pytest.approx(2)


def test_experts_keep_the_copies_of_their_tokens_too():
    dense = replace(MIXTRAL, experts=1, top_k=1)
    kept = activation_bytes(MIXTRAL, 1, 1) - activation_bytes(dense, 1, 1)
    assert kept == 32 * (6 * 14336 + 2 * 2 * 2 * 4096)


@given(st.integers(1, 8), st.integers(1, 32768), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_each_more_recomputation_and_each_more_rank_keeps_less(micro_batch, seq, ranks, sequence_parallel):
    for model in (GPT_3, LLAMA, MIXTRAL):
        sharding = Sharding(ranks, sequence_parallel)
        kept = [
            activation_bytes(model, micro_batch, seq, sharding, recompute=recompute)
            for recompute in ("layers", "attention", "nothing")
        ]
        assert sorted(kept) == kept
        assert activation_bytes(model, micro_batch, seq, Sharding(1)) >= kept[1]


SMALL = {"hidden": 32, "heads": 4, "layers": 3, "seq": 7, "vocab": 101}


@pytest.mark.parametrize(
    "shape",
    [
        TransformerShape(**SMALL),
        TransformerShape(**SMALL, tied=False),
        TransformerShape(**SMALL, gated=True, kv_heads=2),
        TransformerShape(**SMALL, gated=True, kv_heads=1, tied=False, ffn=24),
    ],
    ids=str,
)
def test_weights_are_those_of_the_modules_in_their_order(shape):
    pytest.importorskip("torch")
    from pyperf_suite.workloads.training import gpt

    built = [(name, tuple(weight.shape)) for name, weight in gpt.build(shape).named_parameters()]
    assert [(weight.name, weight.shape) for weight in gpt_weights(shape.dimensions)] == built
