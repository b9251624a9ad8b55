from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiled_attention import attention_flop, visible_pairs
from pyperf_suite.laws.transformer import (
    ModelDimensions,
    Sharding,
    attention_call,
    attention_calls,
    hardware_flop,
    linears,
    model_flop,
    products,
)
from tests.models import DEEPSEEK, KINDS, LLAMA, MIXTRAL, MODELS, SMALL_LLAMA, sizes

tokens_of_a_batch = st.integers(1, 1 << 16)


def matrices(model: ModelDimensions) -> float:
    """Parameters of all matrices that are multiplied with, every expert's among them."""
    return sum(part.outputs * part.inputs * part.calls for part in linears(model, 1))


@pytest.mark.parametrize("model", (MODELS | KINDS).values(), ids=(MODELS | KINDS).keys())
def test_matrices_of_the_products_are_all_parameters_but_norms_biases_and_embeddings(model):
    embeddings = model.hidden * (model.positions + (0 if model.tied else model.vocab))
    rest = model.parameters - embeddings - matrices(model)
    # Norms and biases: a few times hidden and ffn for each layer, where matrices have hidden times ffn.
    assert 0 < rest <= model.layers * (8 * model.hidden + 2 * model.ffn + model.experts) + 2 * model.hidden


def test_a_layer_multiplies_what_its_weights_say_and_ranks_cut_columns_in_and_rows_out():
    assert sizes(LLAMA, 8192) == {
        "qkv": (8192, 6144, 4096),
        "attention output": (8192, 4096, 4096),
        "mlp in": (8192, 28672, 4096),
        "mlp out": (8192, 4096, 14336),
        "logits": (8192, 128256, 4096),
    }
    assert sizes(LLAMA, 8192, Sharding(8)) == {
        "qkv": (8192, 768, 4096),
        "attention output": (8192, 4096, 512),
        "mlp in": (8192, 3584, 4096),
        "mlp out": (8192, 4096, 1792),
        "logits": (8192, 16032, 4096),
    }
    assert sizes(MODELS["gpt2"], 8, Sharding(2))["logits"] == (8, 25129, 768)  # padded to an even vocabulary
    assert sizes(LLAMA, 8, Sharding(16))["qkv"] == (8, 128 * (2 + 2), 4096)
    assert attention_call(LLAMA, 1, 8, Sharding(16)).kv_heads == 1


def test_latent_attention_goes_down_to_ranks_that_are_not_cut_and_up_to_heads_that_are():
    uncut, cut = (sizes(DEEPSEEK, 4096, Sharding(8, sequence_parallel)) for sequence_parallel in (False, True))
    assert uncut["query down"] == (4096, 1536, 7168)
    assert uncut["latent down"] == (4096, 576, 7168)
    assert uncut["query up"] == (4096, 16 * 192, 1536)
    assert uncut["latent up"] == (4096, 16 * (128 + 128), 512)
    assert uncut["attention output"] == (4096, 7168, 16 * 128)
    # The sequence is cut where heads are not.
    assert cut["query down"] == (512, 1536, 7168)
    assert cut["router"] == (512, 256, 7168)
    assert cut["query up"] == uncut["query up"]
    assert sizes(MODELS["deepseek-v2-lite"], 8)["query"] == (8, 16 * 192, 2048)


def test_experts_share_the_tokens_and_ranks_share_the_experts():
    alone = {part.part: part for part in linears(MIXTRAL, 4096)}
    assert (alone["expert in"].tokens, alone["expert in"].calls) == (4096 * 2 // 8, 32 * 8)
    shared = {part.part: part for part in linears(MIXTRAL, 4096, Sharding(expert=4))}
    assert (shared["expert in"].tokens, shared["expert in"].calls) == (4096 * 2 * 4 // 8, 32 * 2)
    assert alone["router"].outputs == 8
    calls = {part.part: part.calls for part in linears(DEEPSEEK, 4096)}
    assert (calls["dense mlp in"], calls["shared expert in"], calls["expert in"]) == (3, 58, 58 * 256)


@given(st.sampled_from(["llama-3-8b", "gpt2", "bert", *KINDS]), st.sampled_from([1, 2, 4]), tokens_of_a_batch)
def test_ranks_together_compute_what_one_computes_alone(name, ranks, tokens):
    model = (MODELS | KINDS)[name]
    parts = zip(products(model, tokens), products(model, tokens, Sharding(ranks)), strict=True)
    for whole, cut in parts:
        padded = -(-model.vocab // ranks) * ranks / model.vocab if whole.part == "logits" else 1
        assert (1 if whole.part == "router" else ranks) * cut.flop == pytest.approx(whole.flop * padded)


def test_attention_is_that_of_the_heads_of_a_rank():
    call = attention_call(LLAMA, 2, 8192, Sharding(4))
    assert (call.heads, call.kv_heads, call.calls) == (8, 2, 32)
    assert call.flop() == 32 * attention_flop(2, 8, 128, visible_pairs(8192, 8192, True))
    assert replace(call, causal=False).flop() == pytest.approx(2 * call.flop(), rel=1e-3)
    assert not attention_call(MODELS["bert"], 1, 512).causal
    latent = attention_call(DEEPSEEK, 1, 4096)
    assert (latent.kv_heads, latent.head_dim, latent.value_head_dim) == (128, 192, 128)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: linears(LLAMA, 8, Sharding(3)), "TP over 3 ranks cannot divide heads = 32"),
        (lambda: linears(replace(LLAMA, kv_heads=4, heads=24, head_dim=128), 8, Sharding(6)), "divide kv_heads = 4"),
        (lambda: linears(replace(LLAMA, ffn=14340, expert_ffn=14340), 8, Sharding(8)), "divide ffn = 14340"),
        (lambda: linears(replace(DEEPSEEK, expert_ffn=2044), 8, Sharding(8)), "divide expert_ffn = 2044"),
        (lambda: linears(MIXTRAL, 8, Sharding(expert=3)), "EP over 3 ranks cannot divide experts = 8"),
        (lambda: linears(LLAMA, 0), "at least 1 token, but 0"),
        (lambda: Sharding(0), "at least 1 rank, but tensor = 0"),
        (lambda: Sharding(expert=-1), "at least 1 rank, but expert = -1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(ask, sentence):
    with pytest.raises(UserError, match=sentence):
        ask()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"hidden": 1 << 30}, "hidden = 1073741824 is beyond"),
        ({"layers": 2049}, "layers = 2049 is beyond"),
        ({"expert_ffn": 100}, "expert_ffn = 100 is of one of several experts"),
        ({"dense_layers": 3}, "3 of 2 layers cannot be dense"),
        ({"latent_rank": 8}, "needs a value_head_dim"),
        ({"value_head_dim": 8}, "is of latent attention"),
        ({"shared_ffn": -1}, "shared_ffn cannot be negative"),
        ({"layers": 0}, "layers of at least 1"),
        ({"heads": 7}, "divided into 7 heads"),
        ({"kv_heads": 5}, "share 5 key-value heads"),
        ({"top_k": 2}, "2 of 1 experts"),
    ],
)
def test_dimensions_that_contradict_each_other_are_refused(wrong, sentence):
    with pytest.raises(UserError, match=sentence):
        ModelDimensions(**{"layers": 2, "hidden": 64, "ffn": 256, "heads": 4, "vocab": 100, **wrong})


def gpt(layers: int, hidden: int, heads: int, vocab: int = 51200) -> ModelDimensions:
    return ModelDimensions(layers, hidden, 4 * hidden, heads, vocab, positions=2048, bias=True, tied=True)


def megatron_flop(layers: int, hidden: int, vocab: int, batch: int, seq: int) -> float:
    """Equation 3 of Narayanan et al. 2021: layers are recomputed, ffn = 4h, nothing masked."""
    share_of_attention, share_of_logits = seq / (6 * hidden), vocab / (16 * layers * hidden)
    return 96.0 * batch * seq * layers * hidden**2 * (1 + share_of_attention + share_of_logits)


@given(st.integers(1, 128), st.integers(1, 64), st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 60_000))
def test_a_gpt_whose_layers_are_recomputed_computes_what_megatrons_formula_says(layers, heads, batch, seq, vocab):
    model = gpt(layers, 128 * heads, heads, vocab)
    expected = megatron_flop(layers, 128 * heads, vocab, batch, seq)
    assert hardware_flop(replace(model, causal=False), batch, seq, "layers") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "billions"),
    [(24, 2304, 24, 1.7), (30, 3072, 32, 3.6), (48, 8192, 64, 39.1), (80, 12288, 96, 145.6), (128, 25600, 160, 1008.0)],
)
def test_megatrons_models_have_the_parameters_of_its_table(layers, hidden, heads, billions):
    # Narayanan et al. 2021, table 1.
    assert gpt(layers, hidden, heads).parameters == pytest.approx(billions * 1e9, rel=0.03)


def test_a_token_of_experts_costs_those_it_visits():
    seq = 64
    # Attention over so short a sequence is next to nothing, and the lookup of the embedding is no product.
    multiplied = MIXTRAL.active_parameters - MIXTRAL.vocab * MIXTRAL.hidden
    assert model_flop(MIXTRAL, 128, seq) == pytest.approx(6 * multiplied * 128 * seq, rel=1e-3)


def seen(seq: int, window: int, chunked: bool) -> int:
    """Pairs of query and key, counted one query after the other."""
    return sum(min(i % window + 1 if chunked else i + 1, window) for i in range(seq))


@given(st.integers(1, 300), st.integers(1, 400), st.booleans())
def test_a_query_sees_its_window_or_its_chunk_and_no_key_behind_it(seq, window, chunked):
    if chunked:  # the last chunk may be shorter, which is counted as if all were equally long
        seq = window * max(1, seq // window) if seq > window else seq
    model = replace(SMALL_LLAMA, window=window, windowed_layers=12, chunked=chunked)
    [call] = attention_calls(model, 2, seq)
    assert call.flop() == 4 * 2 * model.heads * model.head_dim * seen(seq, window, chunked) * 12
