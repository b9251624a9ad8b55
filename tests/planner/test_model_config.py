"""Configurations as they are published, with the parameters of the weights beside them; and files that are none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.planner.model_config import FAMILIES, NOT_PRICED, model_config, read_model_config


def decoder(family: str, layers: int, hidden: int, ffn: int, heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    """A configuration with the names that most families use."""
    return {
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        **more,
    }


def gpt2(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    sizes = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "n_positions": 1024, "n_inner": None}
    return {"model_type": "gpt2", "vocab_size": 50257, **sizes}


def bloom(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    sizes = {"n_layer": layers, "n_embed": hidden, "num_attention_heads": heads, "seq_length": 2048}
    return {"model_type": "bloom", "vocab_size": 250880, **sizes}


GQA = {"num_key_value_heads": 8}
TIED = {"tie_word_embeddings": True}
LATENT = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    # Without effect in transformers.
    "moe_layer_freq": 2,
}
LLAMA_3 = decoder("llama", 32, 4096, 14336, 32, 128256, **GQA, max_position_embeddings=8192)
PYTHIA = {"tie_word_embeddings": False}
V2 = {"n_shared_experts": 2, "moe_intermediate_size": 1536, "num_experts_per_tok": 6, "first_k_dense_replace": 1}
V3 = {"n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8, "first_k_dense_replace": 3}
QWEN3_MOE = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "mlp_only_layers": []}
QWEN2_MOE = {
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "decoder_sparse_step": 1,
}
GPT_OSS = {"head_dim": 64, "num_local_experts": 128, "num_experts_per_tok": 4, "attention_bias": True}

GEMMA_3 = {"head_dim": 128, "num_key_value_heads": 16, "sliding_window": 1024}
LLAMA_4 = {
    **GQA,
    "head_dim": 128,
    "intermediate_size_mlp": 16384,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "attention_chunk_size": 8192,
}
GLM_4 = {**GQA, "head_dim": 128, "num_experts_per_tok": 8, "n_shared_experts": 1, "attention_bias": True}

# Parameters: those of the published weights, as Hugging Face counts them; biases and norms included. Of the newer
# families `test_a_model_has_the_size_that_its_publisher_says` holds them to what the publishers say.
PUBLISHED = {
    "gpt2": (gpt2(12, 768, 12), 124_439_808),
    "Meta-Llama-3-8B": (LLAMA_3, 8_030_261_248),
    "Llama-3.2-1B": (decoder("llama", 16, 2048, 8192, 32, 128256, **GQA, **TIED, head_dim=64), 1_235_814_400),
    "Mistral-7B-v0.1": (decoder("mistral", 32, 4096, 14336, 32, 32000, **GQA), 7_241_732_096),
    "Mixtral-8x7B-v0.1": (
        decoder("mixtral", 32, 4096, 14336, 32, 32000, **GQA, num_local_experts=8, num_experts_per_tok=2),
        46_702_792_704,
    ),
    "Qwen2.5-0.5B": (decoder("qwen2", 24, 896, 4864, 14, 151936, num_key_value_heads=2, **TIED), 494_032_768),
    "Qwen2-7B": (decoder("qwen2", 28, 3584, 18944, 28, 152064, num_key_value_heads=4), 7_615_616_512),
    "Qwen3-8B": (decoder("qwen3", 36, 4096, 12288, 32, 151936, **GQA, head_dim=128), 8_190_735_360),
    "Qwen1.5-MoE-A2.7B": (
        decoder("qwen2_moe", 24, 2048, 5632, 16, 151936, num_key_value_heads=16, **QWEN2_MOE),
        14_315_784_192,
    ),
    "Qwen3-30B-A3B": (
        decoder("qwen3_moe", 48, 2048, 6144, 32, 151936, num_key_value_heads=4, head_dim=128, **QWEN3_MOE),
        30_532_122_624,
    ),
    "bloom": (bloom(70, 14336, 112), 176_247_271_424),
    "pythia-6.9b": (decoder("gpt_neox", 32, 4096, 16384, 32, 50432, **PYTHIA), 6_857_302_016),
    "gemma-2b": (decoder("gemma", 18, 2048, 16384, 8, 256000, num_key_value_heads=1, head_dim=256), 2_506_172_416),
    "gemma-2-9b": (decoder("gemma2", 42, 3584, 14336, 16, 256000, **GQA, head_dim=256), 9_241_705_984),
    "gemma-3-1b-pt": (
        decoder("gemma3_text", 26, 1152, 6912, 4, 262144, num_key_value_heads=1, head_dim=256),
        999_885_952,
    ),
    "Phi-3-mini-4k-instruct": (decoder("phi3", 32, 3072, 8192, 32, 32064, num_key_value_heads=32), 3_821_079_552),
    "DeepSeek-V2-Lite": (
        decoder("deepseek_v2", 27, 2048, 10944, 16, 102400, **LATENT, **V2 | {"moe_intermediate_size": 1408})
        | {"n_routed_experts": 64, "q_lora_rank": None},
        15_706_484_224,
    ),
    "DeepSeek-V2": (
        decoder("deepseek_v2", 60, 5120, 12288, 128, 102400, **LATENT, **V2, n_routed_experts=160, q_lora_rank=1536),
        235_741_434_880,
    ),
    # Without its layer that predicts one more token.
    "DeepSeek-V3": (
        decoder("deepseek_v3", 61, 7168, 18432, 128, 129280, **LATENT, **V3, n_routed_experts=256, q_lora_rank=1536),
        671_026_419_200,
    ),
    "gemma-3-27b, text": (decoder("gemma3_text", 62, 5376, 21504, 32, 262208, **GEMMA_3), 27_009_346_304),
    "gpt-oss-120b": (
        decoder("gpt_oss", 36, 2880, 2880, 64, 201088, **GQA, **GPT_OSS),
        116_829_156_672,
    ),
    # With the encoder of images 109 and 402 billion.
    "Llama-4-Scout-17B-16E, text": (
        decoder("llama4_text", 48, 5120, 8192, 40, 202048, **LLAMA_4, num_local_experts=16),
        107_769_861_120,
    ),
    "Llama-4-Maverick-17B-128E, text": (
        decoder("llama4_text", 48, 5120, 8192, 40, 202048, **LLAMA_4 | {"interleave_moe_layer_step": 2})
        | {"num_local_experts": 128},
        400_711_848_960,
    ),
    "GLM-4.5": (
        decoder("glm4_moe", 92, 5120, 12288, 96, 151552, **GLM_4, use_qk_norm=True, first_k_dense_replace=3)
        | {"n_routed_experts": 160, "moe_intermediate_size": 1536},
        352_797_829_024,
    ),
    "GLM-4.5-Air": (
        decoder("glm4_moe", 46, 4096, 10944, 96, 151552, **GLM_4, use_qk_norm=False, first_k_dense_replace=1)
        | {"n_routed_experts": 128, "moe_intermediate_size": 1408},
        106_852_251_264,
    ),
    "Kimi-K2-Base": (
        decoder("kimi_k2", 61, 7168, 18432, 64, 163840, **LATENT, **V3 | {"first_k_dense_replace": 1})
        | {"n_routed_experts": 384, "q_lora_rank": 1536},
        1_026_408_232_448,
    ),
    "DeepSeek-V3.2": (
        decoder("deepseek_v32", 61, 7168, 18432, 128, 129280, **LATENT, **V3, n_routed_experts=256, q_lora_rank=1536)
        | {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048},
        671_877_944_064,
    ),
    "granite-3.1-8b-base": (decoder("granite", 40, 4096, 12800, 32, 49155, **GQA, **TIED), 8_170_848_256),
    "OLMo-7B-hf": (decoder("olmo", 32, 4096, 11008, 32, 50304, attention_bias=False), 6_888_095_744),
    "OLMo-2-1124-7B": (decoder("olmo2", 32, 4096, 11008, 32, 100352, attention_bias=False), 7_298_617_344),
    "OLMoE-1B-7B-0924": (
        decoder("olmoe", 16, 2048, 1024, 16, 50304, num_experts=64, num_experts_per_tok=8),
        6_919_161_856,
    ),
    "SmolLM3-3B": (decoder("smollm3", 36, 2048, 11008, 16, 128256, num_key_value_heads=4), 3_075_098_624),
    "bert-base-uncased": (
        decoder("bert", 12, 768, 3072, 12, 30522, max_position_embeddings=512, type_vocab_size=2),
        109_514_298,
    ),
    "roberta-base": (
        decoder("roberta", 12, 768, 3072, 12, 50265, max_position_embeddings=514, type_vocab_size=1),
        124_697_433,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_has_as_many_parameters_as_the_published_weights(name: str) -> None:
    config, parameters = PUBLISHED[name]
    assert model_config(config, name).dimensions.parameters == parameters


# Billions of all parameters, and of those that a token meets, as publishers round them: without the embedding in the
# second half; GLM's with its layer that predicts one more token.
SIZES = {
    "Mixtral-8x7B-v0.1": (46.7, 12.9),
    "Qwen3-30B-A3B": (30.5, 3.3),
    "DeepSeek-V2": (236, 21),
    "DeepSeek-V3": (671, 37),
    "OLMoE-1B-7B-0924": (6.9, 1.28),
    "Kimi-K2-Base": (1040, 32.5),
    "Llama-4-Scout-17B-16E, text": (109, 17),
    "Llama-4-Maverick-17B-128E, text": (400, 17),
    "gemma-3-27b, text": (27.0, 27.0),
}
WITHOUT_EMBEDDING = {"gpt-oss-120b": (116.8, 5.13), "GLM-4.5": (355, 32), "GLM-4.5-Air": (106, 12)}


@pytest.mark.parametrize("name", [*SIZES, *WITHOUT_EMBEDDING])
def test_a_model_has_the_sizes_that_its_publisher_says(name: str) -> None:
    model = model_config(PUBLISHED[name][0], name).dimensions
    everything, active = (SIZES | WITHOUT_EMBEDDING)[name]
    embedding = model.hidden * model.vocab if name in WITHOUT_EMBEDDING else 0
    assert model.parameters == pytest.approx(everything * 1e9, rel=0.015)
    # Publishers round, and differ in whether the embedding counts.
    assert model.active_parameters - embedding == pytest.approx(active * 1e9, rel=0.08 if embedding else 0.03)


@pytest.mark.parametrize(
    ("name", "more", "windowed"),
    [
        ("gemma-3-27b, text", {}, 52),
        ("gemma-2-9b", {}, 21),
        ("gpt-oss-120b", {}, 18),
        ("Llama-4-Scout-17B-16E, text", {}, 36),
        ("Mistral-7B-v0.1", {"sliding_window": 4096}, 32),
        ("Qwen2-7B", {"sliding_window": 4096}, 0),
        ("Qwen2-7B", {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 20}, 8),
        ("Qwen3-8B", {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 5}, 5),
        ("gemma-3-27b, text", {"sliding_window_pattern": 2}, 31),
        ("gemma-2-9b", {"layer_types": ["full_attention"] * 42}, 0),
        ("Llama-4-Scout-17B-16E, text", {"layer_types": ["chunked_attention"] * 7}, 7),
    ],
)
def test_a_configuration_says_which_layers_have_a_window(name: str, more: dict[str, Any], windowed: int) -> None:
    assert model_config({**PUBLISHED[name][0], **more}, name).dimensions.windowed_layers == windowed


def test_a_configuration_is_read_from_its_file_or_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA_3 | {"time_step_limit": [0.0, float("inf")]}).encode())
    read = read_model_config(path)
    assert read == read_model_config(tmp_path)
    assert (read.longest_seq, read.notes) == (8192, ())
    assert read.dimensions.kv_heads == 8


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({"sliding_window": 4096}, "see a window"),
        ({"num_nextn_predict_layers": 1}, "several tokens at once"),
        ({"index_topk": 2048}, "chooses 2048 tokens"),
    ],
)
def test_what_the_dimensions_leave_out_is_noted(more: dict[str, int], note: str) -> None:
    [message] = model_config({**LLAMA_3, **more}, "config.json").notes
    assert note in message
    assert model_config({**LLAMA_3, "sliding_window": 4096, "use_sliding_window": False}, "c").notes == ()
    assert model_config({**LLAMA_3, "model_type": "qwen2"}, "c").notes == ()


QWEN = decoder("qwen3_moe", 6, 2048, 6144, 32, 1000, **QWEN3_MOE)
LLAMA_4_OF_6 = decoder("llama4_text", 6, 512, 1024, 8, 1000, **LLAMA_4)
V32 = decoder("deepseek_v32", 6, 512, 1024, 8, 1000, **LATENT, **V3, n_routed_experts=16, q_lora_rank=64)


@pytest.mark.parametrize(
    ("config", "more", "dense"),
    [
        (QWEN, {"mlp_only_layers": [0, 1, 9]}, 2),
        (QWEN, {"decoder_sparse_step": 2}, 3),
        (LLAMA_4_OF_6, {"interleave_moe_layer_step": 2}, 3),
        (LLAMA_4_OF_6, {"moe_layers": [1]}, 5),
        (LLAMA_4_OF_6, {"moe_layers": []}, 6),
        (LLAMA_4_OF_6, {"interleave_moe_layer_step": 0}, 6),
        (V32, {}, 3),
        (V32, {"mlp_layer_types": ["dense", *["sparse"] * 5]}, 1),
        (V32, {"model_type": "deepseek_v3", "moe_layer_freq": 2}, 3),
        (V32, {"model_type": "deepseek_v2", "moe_layer_freq": 2, "first_k_dense_replace": 0}, 0),
    ],
)
def test_layers_without_experts_are_counted_as_their_family_places_them(
    config: dict[str, Any], more: dict[str, Any], dense: int
) -> None:
    assert model_config({**config, **more}, "config.json").dimensions.dense_layers == dense


def test_a_field_may_have_the_name_that_transformers_saves_it_by() -> None:
    saved = {**QWEN, "num_local_experts": QWEN["num_experts"]}
    del saved["num_experts"]
    assert model_config(saved, "config.json") == model_config(QWEN, "config.json")
    del saved["num_local_experts"]
    with pytest.raises(UserError, match="lacks the field num_experts"):
        model_config(saved, "config.json")


def test_a_field_left_out_is_the_family_s_and_null_is_none() -> None:
    def of(family: str, **more: Any) -> Any:
        return model_config(decoder(family, 4, 512, 1024, 8, 1000, **more), "config.json").dimensions

    assert of("qwen3", **GQA).head_dim == 128
    # These have the width of hidden over heads.
    assert of("qwen3", **GQA, head_dim=None).head_dim == of("glm4_moe", **GLM_WITHOUT_HEADS).head_dim == 64
    assert (of("mistral").kv_heads, of("mistral").window) == (8, 4096)
    assert (of("mistral", num_key_value_heads=None).kv_heads, of("mistral", sliding_window=None).window) == (8, 0)
    assert not of("gemma3_text", use_bidirectional_attention=True, num_key_value_heads=4).causal


GLM_WITHOUT_HEADS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}


@pytest.mark.parametrize(
    ("family", "flags"),
    [
        ("gemma", {"attention_bias"}),
        ("gemma3_text", {"attention_bias"}),
        ("olmo2", {"attention_bias"}),
        ("olmoe", {"attention_bias"}),
        ("smollm3", {"attention_bias", "mlp_bias"}),
        ("mistral", set()),
    ],
)
def test_biases_count_where_the_family_has_them(family: str, flags: set[str]) -> None:
    config = decoder(family, 4, 512, 1024, 8, 1000, **GQA, num_experts=8, num_experts_per_tok=2)
    plain = model_config(config, family).dimensions.parameters
    for flag in ("attention_bias", "mlp_bias"):
        assert (model_config({**config, flag: True}, family).dimensions.parameters > plain) == (flag in flags)


def test_a_flag_whose_effect_is_not_counted_is_refused() -> None:
    config = decoder("deepseek_v2", 6, 512, 1024, 8, 1000, **LATENT, **V2, n_routed_experts=16)
    with pytest.raises(UserError, match="a deepseek_v2 model, has mlp_bias = True, where false is expected"):
        model_config({**config, "mlp_bias": True}, "config.json")


SMALL = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4}
SMALL |= {"intermediate_size": 1024, "vocab_size": 1000, "head_dim": 64}


@pytest.mark.parametrize(
    ("outer", "text", "family"),
    [
        ("qwen2_5_vl", "qwen2_5_vl_text", "qwen2"),
        ("qwen3_vl", "qwen3_vl_text", "qwen3"),
        ("mistral3", "mistral", "mistral"),
        ("internvl", "qwen2", "qwen2"),
        ("of_nobody_s", "llama", "llama"),
        ("glm4v", "glm4v_text", "glm4"),
    ],
)
def test_the_text_of_a_model_of_any_family_is_taken_where_its_own_is_known(outer: str, text: str, family: str) -> None:
    inside = {**SMALL, "model_type": text, "tie_word_embeddings": True}
    alone = model_config({**SMALL, "model_type": family, "tie_word_embeddings": True}, "config.json").dimensions
    for name in ("text_config", "llm_config", "language_config"):
        assert model_config({"model_type": outer, name: inside}, "config.json").dimensions == alone
    deeper = {"model_type": outer, "thinker_config": {"model_type": outer, "text_config": inside}}
    assert model_config(deeper, "config.json").dimensions == alone
    with pytest.raises(UserError, match="is of the unknown family 'nobody_s'"):
        model_config({"model_type": outer, "text_config": {**inside, "model_type": "nobody_s"}}, "config.json")


def test_the_outer_flag_ties_embedding_and_logits_but_in_llama_4() -> None:
    inside = {**SMALL, "model_type": "qwen2", "tie_word_embeddings": False}
    tied = {"tie_word_embeddings": True}
    assert model_config({"model_type": "internvl", "text_config": inside, **tied}, "c").dimensions.tied
    assert not model_config({"model_type": "internvl", "text_config": inside}, "c").dimensions.tied
    inside = {**LLAMA_4_OF_6, **tied, "num_local_experts": 4}
    outer = {"model_type": "llama4", "text_config": inside, "tie_word_embeddings": False}
    assert model_config(outer, "c").dimensions.tied


def test_the_documentation_lists_every_family(pytestconfig: pytest.Config) -> None:
    listed = set(re.findall(r"[\w-]+", (pytestconfig.rootpath / "docs/size.md").read_text()))
    assert {name.removesuffix("_text") for name in FAMILIES} <= listed
    assert {name.removesuffix("_text") for name in NOT_PRICED} <= {name.lower() for name in listed}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_type": "dory"}, "unknown family 'dory'.*--family llama, or give --layers"),
        ({"model_type": "rwkv"}, "is a rwkv model, with layers of RWKV"),
        ({"model_type": "mamba2"}, "is a mamba2 model, with layers of Mamba, which are not priced"),
        ({"model_type": "gemma2", "layer_types": "full_attention"}, "layer_types = 'full_attention', where a list"),
        ({"model_type": None}, "does not say its model_type"),
        ({"num_hidden_layers": None}, "a llama model, lacks the field num_hidden_layers"),
        ({"hidden_size": "4096"}, "has hidden_size = '4096', where a whole number"),
        ({"hidden_size": "x" * 9999}, "has hidden_size = 'x{39}, where"),
        ({"hidden_size": 10**400}, "hidden_size that is not within"),
        ({"num_hidden_layers": 0}, "config.json: A model needs layers of at least 1"),
        ({"vocab_size": 1 << 30}, "vocab = 1073741824 is beyond"),
        ({"num_key_value_heads": 5}, "share 5 key-value heads"),
        ({"tie_word_embeddings": "no"}, "has tie_word_embeddings = 'no', where true or false"),
        ({"model_type": "qwen3_moe", **QWEN3_MOE, "mlp_only_layers": 3}, "mlp_only_layers = 3, where a list"),
        ({"model_type": "qwen3_moe", **QWEN3_MOE, "num_experts_per_tok": 999}, "cannot visit 999 of 128 experts"),
    ],
)
def test_a_configuration_that_cannot_be_counted_says_why_in_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as message:
        model_config({**LLAMA_3, **change}, "config.json")
    assert str(message.value).startswith("config.json")
    assert len(str(message.value)) < 600


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (json.dumps(LLAMA_3)[:60].encode(), "is not JSON .*: name a whole config.json"),
        (b"[" * 500_000, "nested too deeply"),
        (b" " * ((1 << 20) + 1), "larger than 1 MiB"),
        (b"[1, 2]", "holds no JSON object"),
        (b'{"hidden_size": 4096, "model_type": "llama", "hidden_size": 8192}', "has the key 'hidden_size' twice"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_in_one_sentence(
    content: bytes, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        read_model_config(path)
