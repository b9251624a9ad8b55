"""Operations against the published formulas, and utilizations against those that were published with a step's time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.laws.transformer import ModelDimensions, hardware_flop, megatron_flop, model_flop, six_nd, utilization

PALM = ModelDimensions(
    layers=118,
    hidden=18432,
    ffn=73728,
    heads=48,
    kv_heads=1,
    head_dim=256,
    vocab=256000,
    gated=True,
    tied=True,
    norms=1,
)


def gpt(layers: int, hidden: int, heads: int, vocab: int = 51200) -> ModelDimensions:
    return ModelDimensions(layers, hidden, 4 * hidden, heads, vocab, positions=2048, bias=True, tied=True)


@given(st.integers(1, 128), st.integers(1, 64), st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 60_000))
def test_a_gpt_whose_layers_are_recomputed_computes_what_megatrons_formula_says(
    layers: int, heads: int, batch: int, seq: int, vocab: int
) -> None:
    model = gpt(layers, 128 * heads, heads, vocab)
    expected = megatron_flop(layers, 128 * heads, vocab, batch, seq)
    assert hardware_flop(model, batch, seq, "layers", causal_halved=False) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "billions"),
    [(24, 2304, 24, 1.7), (30, 3072, 32, 3.6), (48, 8192, 64, 39.1), (80, 12288, 96, 145.6), (128, 25600, 160, 1008.0)],
)
def test_megatrons_models_have_the_parameters_of_its_table(
    layers: int, hidden: int, heads: int, billions: float
) -> None:
    # Narayanan et al. 2021, table 1.
    assert gpt(layers, hidden, heads).parameters == pytest.approx(billions * 1e9, rel=0.03)


def test_gpt_3_trains_for_as_many_days_as_megatron_estimates() -> None:
    # Narayanan et al. 2021, section 5.1: 300 billion tokens on 1024 A100s at 140 TFLOP/s each take 34 days.
    step_flop = hardware_flop(gpt(96, 12288, 96), 1536, 2048, "layers", causal_halved=False)
    days = step_flop / (1024 * 140e12) * 300e9 / (1536 * 2048) / 86400
    assert days == pytest.approx(34, rel=0.04)


def test_palm_made_the_published_use_of_its_chips() -> None:
    # Chowdhery et al. 2022, appendix B: 238.3 thousand tokens/s on 6144 TPU v4 of 275 TFLOP/s, 46.2 % with attention
    # and 45.7 % without.
    assert PALM.parameters == pytest.approx(540.35e9, rel=1e-4)
    per_token = model_flop(PALM, 1, 2048, causal_halved=False) / 2048
    assert utilization(per_token * 238.3e3, 1.0, 6144, 275e12) == pytest.approx(0.462, abs=5e-4)
    assert utilization(six_nd(PALM.parameters, 238.3e3), 1.0, 6144, 275e12) == pytest.approx(0.457, abs=5e-4)


@given(st.integers(1, 64), st.integers(1, 8192))
def test_more_recomputation_is_more_computation_of_the_same_model(batch: int, seq: int) -> None:
    model = gpt(24, 2304, 24)
    nothing, attention, layers = (hardware_flop(model, batch, seq, kept) for kept in ("nothing", "attention", "layers"))
    assert nothing == model_flop(model, batch, seq)
    assert nothing < attention < layers < 4 / 3 * nothing
    assert model_flop(model, batch, seq) <= model_flop(model, batch, seq, causal_halved=False)


def test_a_token_of_experts_costs_those_it_visits() -> None:
    sparse = ModelDimensions(32, 4096, 14336, 32, 32000, kv_heads=8, gated=True, experts=8, top_k=2)
    seq = 64
    # Attention over so short a sequence is next to nothing, and the lookup of the embedding is no product.
    multiplied = sparse.active_parameters - sparse.vocab * sparse.hidden
    assert model_flop(sparse, 128, seq) == pytest.approx(six_nd(multiplied, 128 * seq), rel=1e-3)


def test_what_cannot_be_is_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match="cannot recompute 'half': choose from nothing, attention, layers"):
        hardware_flop(PALM, 1, 1, "half")  # type: ignore[arg-type]
    for wrong in ((0.0, 1, 1e12), (1.0, 0, 1e12), (1.0, 1, 0.0), (float("nan"), 1, 1e12)):
        with pytest.raises(UserError, match="have to be above 0"):
            utilization(1e12, *wrong)
