"""How each family of models names its dimensions in a Hugging Face `config.json`, and what it leaves unsaid.

Sources: each family's configuration and modelling code in huggingface/transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyperf_suite.advise.model.config_fields import ConfigFields
from pyperf_suite.laws.transformer import LARGEST, ModelDimensions


def _llama_like(fields: ConfigFields, **more: Any) -> ModelDimensions:
    """What Llama's descendants have in common: gated MLPs, RMSNorm, no learned positions; `more` is what differs."""
    common: dict[str, Any] = {
        "layers": fields.count("num_hidden_layers"),
        "hidden": fields.count("hidden_size"),
        "ffn": fields.count("intermediate_size"),
        "kv_heads": _count_or_follows(fields, "num_key_value_heads"),
        "head_dim": _count_or_follows(fields, "head_dim"),
        "gated": True,
        "tied": fields.flag("tie_word_embeddings"),
    }
    # Asked for only where a family has no default of its own.
    if "heads" not in more:
        common["heads"] = fields.count("num_attention_heads")
    if "vocab" not in more:
        common["vocab"] = fields.count("vocab_size")
    return ModelDimensions(**common | more)


def _count_or_follows(fields: ConfigFields, *names: str) -> int:
    """A size of at least 1; where there is none 0, which has it follow from others."""
    return fields.count(*names, default=0, at_least=0 if fields.lacks(*names) else 1)


def _llama(fields: ConfigFields) -> ModelDimensions:
    attention_bias = fields.flag("attention_bias")
    return _llama_like(fields, qkv_bias=attention_bias, output_bias=attention_bias, mlp_bias=fields.flag("mlp_bias"))


def _mixtral(fields: ConfigFields) -> ModelDimensions:
    return _llama_like(
        fields, experts=fields.count("num_local_experts"), top_k=fields.count("num_experts_per_tok", default=2)
    )


def _qwen2(fields: ConfigFields) -> ModelDimensions:
    return _llama_like(fields, qkv_bias=True)


def _qwen3(fields: ConfigFields) -> ModelDimensions:
    bias = fields.flag("attention_bias")
    return _llama_like(
        fields,
        head_dim=fields.count("head_dim", default=128, at_least=1),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )


def _qwen2_moe(fields: ConfigFields) -> ModelDimensions:
    return _llama_like(
        fields,
        **_qwen_experts(fields),
        qkv_bias=fields.flag("qkv_bias", True),
        shared_ffn=fields.count("shared_expert_intermediate_size"),
        shared_gate=True,
    )


def _qwen3_moe(fields: ConfigFields) -> ModelDimensions:
    bias = fields.flag("attention_bias")
    return _llama_like(fields, **_qwen_experts(fields), qkv_bias=bias, output_bias=bias, qk_norm=True)


def _qwen_experts(fields: ConfigFields) -> dict[str, int]:
    step = fields.count("decoder_sparse_step", default=1, at_least=1)
    dense = fields.counts("mlp_only_layers")
    return {
        "experts": fields.count("num_experts"),
        "top_k": fields.count("num_experts_per_tok"),
        "expert_ffn": fields.count("moe_intermediate_size", at_least=1),
        "dense_layers": _layers_where(fields, lambda layer: layer in dense or (layer + 1) % step != 0),
    }


def _gemma(fields: ConfigFields) -> ModelDimensions:
    return _llama_like(
        fields,
        head_dim=fields.count("head_dim", default=256, at_least=1),
        tied=fields.flag("tie_word_embeddings", True),
    )


def _gemma2(fields: ConfigFields) -> ModelDimensions:
    return _llama_like(
        fields,
        head_dim=fields.count("head_dim", default=256, at_least=1),
        tied=fields.flag("tie_word_embeddings", True),
        norms=4,
    )


def _gemma3(fields: ConfigFields) -> ModelDimensions:
    # Published configurations leave out what is Gemma3TextConfig's default.
    return _llama_like(
        fields,
        heads=fields.count("num_attention_heads", default=8),
        kv_heads=fields.count("num_key_value_heads", default=4, at_least=1),
        vocab=fields.count("vocab_size", default=262_208),
        head_dim=fields.count("head_dim", default=256, at_least=1),
        tied=fields.flag("tie_word_embeddings", True),
        norms=4,
        qk_norm=True,
    )


def _smollm3(fields: ConfigFields) -> ModelDimensions:
    return _llama_like(fields, tied=fields.flag("tie_word_embeddings", True))


def _olmo(fields: ConfigFields) -> ModelDimensions:
    bias = fields.flag("attention_bias")
    return _llama_like(fields, qkv_bias=bias, output_bias=bias, norm_weight=False)


def _olmo2(fields: ConfigFields) -> ModelDimensions:
    return _llama_like(fields, other_parameters=_norms_over_all_heads(fields))


def _olmoe(fields: ConfigFields) -> ModelDimensions:
    return _llama_like(
        fields,
        experts=fields.count("num_experts", default=64),
        top_k=fields.count("num_experts_per_tok", default=8),
        other_parameters=_norms_over_all_heads(fields),
    )


def _cohere(fields: ConfigFields) -> ModelDimensions:
    # One norm serves attention and MLP, which stand side by side.
    return _llama_like(
        fields,
        norms=1,
        tied=fields.flag("tie_word_embeddings", True),
        other_parameters=_norms_over_all_heads(fields) if fields.flag("use_qk_norm") else 0,
    )


def _starcoder2(fields: ConfigFields) -> ModelDimensions:
    bias = fields.flag("use_bias", True)
    return _llama_like(
        fields,
        gated=False,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        norm_bias=True,
        tied=fields.flag("tie_word_embeddings", True),
    )


def _gpt_oss(fields: ConfigFields) -> ModelDimensions:
    bias = fields.flag("attention_bias", True)
    return _llama_like(
        fields,
        experts=fields.count("num_local_experts"),
        top_k=fields.count("num_experts_per_tok", "experts_per_token", default=4),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        router_bias=True,
        # A learned sink for each head's softmax.
        other_parameters=fields.count("num_hidden_layers") * fields.count("num_attention_heads"),
    )


def _norms_over_all_heads(fields: ConfigFields) -> int:
    """Of norms with a weight for each element of all queries and of all keys, where `qk_norm` has one head's."""
    layers, heads = fields.count("num_hidden_layers"), fields.count("num_attention_heads", at_least=1)
    head_dim = fields.count("head_dim", default=fields.count("hidden_size") // heads)
    return layers * head_dim * (heads + fields.count("num_key_value_heads", default=heads))


def _phi(fields: ConfigFields) -> ModelDimensions:
    fields.refuse_unless(not fields.flag("qk_layernorm"), "norms queries and keys with a bias, which is not counted")
    vocab = fields.count("vocab_size")
    # One norm serves attention and MLP, which stand side by side; the output matrix has a bias.
    return _llama_like(fields, gated=False, bias=True, norms=1, other_parameters=vocab)


def _gpt2(fields: ConfigFields) -> ModelDimensions:
    hidden = fields.count("n_embd")
    return ModelDimensions(
        layers=fields.count("n_layer"),
        hidden=hidden,
        ffn=fields.count("n_inner", default=4 * hidden, at_least=1),
        heads=fields.count("n_head"),
        vocab=fields.count("vocab_size"),
        positions=fields.count("n_positions", "n_ctx"),
        bias=True,
        tied=fields.flag("tie_word_embeddings", True),
    )


def _gpt_neox(fields: ConfigFields) -> ModelDimensions:
    attention_bias = fields.flag("attention_bias", True)
    return ModelDimensions(
        layers=fields.count("num_hidden_layers"),
        hidden=fields.count("hidden_size"),
        ffn=fields.count("intermediate_size"),
        heads=fields.count("num_attention_heads"),
        vocab=fields.count("vocab_size"),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=True,
        norm_bias=True,
        tied=fields.flag("tie_word_embeddings"),
    )


def _bloom(fields: ConfigFields) -> ModelDimensions:
    hidden = fields.count("hidden_size", "n_embed")
    return ModelDimensions(
        layers=fields.count("n_layer", "num_hidden_layers"),
        hidden=hidden,
        ffn=4 * hidden,
        heads=fields.count("n_head", "num_attention_heads"),
        vocab=fields.count("vocab_size"),
        bias=True,
        tied=fields.flag("tie_word_embeddings", True),
        other_parameters=2 * hidden,  # the norm of the embeddings
    )


def _falcon(fields: ConfigFields) -> ModelDimensions:
    hidden = fields.count("hidden_size", "n_embed")
    heads = fields.count("num_attention_heads", "n_head")
    new = fields.flag("new_decoder_architecture")
    if new:
        norms = fields.count("num_ln_in_parallel_attn", default=2)
    else:
        norms = 1 if fields.flag("parallel_attn", True) else 2
    kv_heads = 1 if fields.flag("multi_query", True) else heads
    return ModelDimensions(
        layers=fields.count("num_hidden_layers", "n_layer"),
        hidden=hidden,
        ffn=fields.count("ffn_hidden_size", default=4 * hidden),
        heads=heads,
        kv_heads=fields.count("num_kv_heads", "n_head_kv", default=heads, at_least=1) if new else kv_heads,
        vocab=fields.count("vocab_size"),
        bias=fields.flag("bias"),
        norm_bias=True,
        norms=norms,
        tied=fields.flag("tie_word_embeddings", True),
    )


def _deepseek(fields: ConfigFields, router_bias: bool) -> ModelDimensions:
    experts = fields.count("n_routed_experts", default=0)
    bias = fields.flag("attention_bias")
    more: dict[str, Any] = {}
    if experts:
        width = fields.count("moe_intermediate_size", at_least=1)
        first = fields.count("first_k_dense_replace", default=0)
        step = fields.count("moe_layer_freq", default=1, at_least=1)
        more = {
            "experts": experts,
            "top_k": fields.count("num_experts_per_tok"),
            "expert_ffn": width,
            "shared_ffn": width * fields.count("n_shared_experts", default=0),
            "router_bias": router_bias,
            "dense_layers": _layers_where(fields, lambda layer: layer < first or layer % step != 0),
        }
    rotated = fields.count("qk_rope_head_dim")
    return _llama_like(
        fields,
        kv_heads=0,
        head_dim=fields.count("qk_nope_head_dim") + rotated,
        rope_head_dim=rotated,
        value_head_dim=fields.count("v_head_dim"),
        query_rank=fields.count("q_lora_rank", default=0),
        latent_rank=fields.count("kv_lora_rank", at_least=1),
        qkv_bias=bias,
        output_bias=bias,
        **more,
    )


def _deepseek_v2(fields: ConfigFields) -> ModelDimensions:
    return _deepseek(fields, router_bias=False)


def _deepseek_v3(fields: ConfigFields) -> ModelDimensions:
    return _deepseek(fields, router_bias=True)  # which balances the load instead of a loss


def _opt(fields: ConfigFields) -> ModelDimensions:
    hidden = fields.count("hidden_size")
    narrow = fields.count("word_embed_proj_dim", default=hidden)
    fields.refuse_unless(
        narrow == hidden, f"has embeddings of {narrow} beside a hidden_size of {hidden}, which are not counted"
    )
    return ModelDimensions(
        layers=fields.count("num_hidden_layers"),
        hidden=hidden,
        ffn=fields.count("ffn_dim"),
        heads=fields.count("num_attention_heads"),
        vocab=fields.count("vocab_size"),
        positions=fields.count("max_position_embeddings") + 2,  # two are kept for padding
        bias=True,
        tied=fields.flag("tie_word_embeddings", True),
    )


def _bert(fields: ConfigFields) -> ModelDimensions:
    """With the head that predicts masked words, which BERT is trained through, and without the pooler."""
    hidden = fields.count("hidden_size")
    return ModelDimensions(
        layers=fields.count("num_hidden_layers"),
        hidden=hidden,
        ffn=fields.count("intermediate_size"),
        heads=fields.count("num_attention_heads"),
        vocab=fields.count("vocab_size"),
        positions=fields.count("max_position_embeddings"),
        bias=True,
        tied=fields.flag("tie_word_embeddings", True),
        causal=False,
        head_transform=True,
        other_parameters=hidden * fields.count("type_vocab_size", default=2),
    )


def _layers_where(fields: ConfigFields, holds: Callable[[int], bool]) -> int:
    layers = fields.count("num_hidden_layers")
    # More layers than any model has are refused by ModelDimensions; they need not be visited first.
    return sum(map(holds, range(min(layers, LARGEST["layers"]))))


FAMILIES: dict[str, Callable[[ConfigFields], ModelDimensions]] = {
    "bert": _bert,
    "bloom": _bloom,
    "cohere": _cohere,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "falcon": _falcon,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "granite": _llama,
    "llama": _llama,
    "mistral": _llama_like,
    "mixtral": _mixtral,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmoe": _olmoe,
    "opt": _opt,
    "phi": _phi,
    "phi3": _llama_like,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "roberta": _bert,
    "smollm3": _smollm3,
    "starcoder2": _starcoder2,
}
