"""The dimensions of a model from its Hugging Face `config.json`, for the families of models in `FAMILIES`.

The file may come from anywhere, so whatever is wrong with it is reported in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.files import read_bytes, strict_json
from pyperf_suite.laws.transformer import LARGEST, ModelDimensions

# No dimension of a model comes near; larger numbers are not worth repeating to the user.
LARGEST_COUNT = 1 << 31


class ConfigFields:
    """The fields of a configuration. `origin` names it in errors; a field that is null counts as absent."""

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        self._values = values
        self._origin = origin

    def count(self, *names: str, default: int | None = None, at_least: int = 0) -> int:
        """The first of the names that is there, a whole number; else the default.

        Raises UserError for anything else than a whole number within bounds, and where no name and no default is there.
        """
        for name in names:
            if not self.lacks(name):
                return self._whole(name, self._values[name], at_least)
        if default is None:
            raise UserError(f"{self._origin}, lacks the field {' or '.join(names)}: add it.")
        return default

    def lacks(self, *names: str) -> bool:
        return all(self._values.get(name) is None for name in names)

    def flag(self, name: str, default: bool = False) -> bool:
        """A truth value. Raises UserError for anything else."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise UserError(f"{self._origin}, has {name} = {_shown(value)}, where true or false is expected.")
        return value

    def counts(self, name: str) -> frozenset[int]:
        """A list of whole numbers, empty where absent. Raises UserError for anything else."""
        values = self._values.get(name)
        if values is None:
            return frozenset()
        if not isinstance(values, list):
            raise UserError(f"{self._origin}, has {name} = {_shown(values)}, where a list is expected.")
        return frozenset(self._whole(name, value, 0) for value in values)

    def words(self, name: str) -> list[str]:
        """A list of words, empty where absent. Raises UserError for anything else."""
        values = self._values.get(name)
        if values is None:
            return []
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise UserError(f"{self._origin}, has {name} = {_shown(values)}, where a list of words is expected.")
        return values

    def _whole(self, name: str, value: Any, at_least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(f"{self._origin}, has {name} = {_shown(value)}, where a whole number is expected.")
        if not at_least <= value <= LARGEST_COUNT:
            raise UserError(f"{self._origin}, has a {name} that is not within {at_least} to {LARGEST_COUNT}.")
        return value


def _shown(value: Any) -> str:
    """A value as it may stand in a sentence: a nested or long one by its kind."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


# One name of a field, or several of which the first that is there counts.
Names = str | tuple[str, ...]


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
    # Read only where a family has no default of its own.
    if "heads" not in more:
        common["heads"] = fields.count("num_attention_heads")
    if "vocab" not in more:
        common["vocab"] = fields.count("vocab_size")
    return ModelDimensions(**common | more)


def _count_or_follows(fields: ConfigFields, *names: str) -> int:
    """A size of at least 1; 0 if there is none, which has it follow from others."""
    return fields.count(*names, default=0, at_least=0 if fields.lacks(*names) else 1)


def _attention_biases(fields: ConfigFields, default: bool = False) -> dict[str, Any]:
    bias = fields.flag("attention_bias", default)
    return {"qkv_bias": bias, "output_bias": bias}


def _tied(fields: ConfigFields) -> dict[str, Any]:
    """One matrix for embedding and logits unless the file says otherwise."""
    return {"tied": fields.flag("tie_word_embeddings", True)}


def _head_dim(fields: ConfigFields, default: int) -> dict[str, int]:
    return {"head_dim": fields.count("head_dim", default=default, at_least=1)}


def _experts(fields: ConfigFields, name: str, default: int | None = None, top_k: int | None = None) -> dict[str, int]:
    names = ("num_experts_per_tok", "experts_per_token")
    return {"experts": fields.count(name, default=default), "top_k": fields.count(*names, default=top_k)}


def _windows(fields: ConfigFields, has_one: Callable[[int], bool], default: int = 0) -> dict[str, int]:
    """The window, and how many layers have one: those that `layer_types` lists, else those whose number `has_one`."""
    window = fields.count("sliding_window", default=default)
    listed = fields.words("layer_types")
    layers = listed.count("sliding_attention") if listed else _layers_where(fields, has_one)
    return {"window": window, "windowed_layers": layers} if window and layers else {}


def _window_everywhere(fields: ConfigFields) -> dict[str, int]:
    return _windows(fields, lambda layer: layer >= 0)


def _qwen_windows(fields: ConfigFields) -> dict[str, int]:
    """None unless requested; then of the layers behind the first so many."""
    if not fields.flag("use_sliding_window"):
        return {}
    first = fields.count("max_window_layers", default=28)
    return _windows(fields, lambda layer: layer >= first, 4096)


def _llama(fields: ConfigFields) -> ModelDimensions:
    return _llama_like(fields, **_attention_biases(fields), mlp_bias=fields.flag("mlp_bias"))


def _qwen2_moe(fields: ConfigFields) -> ModelDimensions:
    return _llama_like(
        fields,
        **_qwen_experts(fields),
        **_qwen_windows(fields),
        qkv_bias=fields.flag("qkv_bias", True),
        shared_ffn=fields.count("shared_expert_intermediate_size"),
        shared_gate=True,
    )


def _qwen_experts(fields: ConfigFields) -> dict[str, int]:
    step = fields.count("decoder_sparse_step", default=1, at_least=1)
    dense = fields.counts("mlp_only_layers")
    return {
        **_experts(fields, "num_experts"),
        "expert_ffn": fields.count("moe_intermediate_size", at_least=1),
        "dense_layers": _layers_where(fields, lambda layer: layer in dense or (layer + 1) % step != 0),
    }


def _gemma2(fields: ConfigFields) -> ModelDimensions:
    windows = _windows(fields, lambda layer: layer % 2 == 0, 4096)
    return _llama_like(fields, **_head_dim(fields, 256), **_tied(fields), **windows, norms=4)


def _gemma3(fields: ConfigFields) -> ModelDimensions:
    every = fields.count("sliding_window_pattern", "_sliding_window_pattern", default=6, at_least=1)
    # Published configurations leave out what is Gemma3TextConfig's default.
    return _llama_like(
        fields,
        heads=fields.count("num_attention_heads", default=8),
        kv_heads=fields.count("num_key_value_heads", default=4, at_least=1),
        vocab=fields.count("vocab_size", default=262_208),
        **_head_dim(fields, 256),
        **_tied(fields),
        **_windows(fields, lambda layer: (layer + 1) % every != 0, 4096),
        norms=4,
        qk_norm=True,
    )


def _gpt_oss(fields: ConfigFields) -> ModelDimensions:
    return _llama_like(
        fields,
        **_experts(fields, "num_local_experts", top_k=4),
        **_attention_biases(fields, default=True),
        **_windows(fields, lambda layer: layer % 2 == 0, 128),
        mlp_bias=True,
        router_bias=True,
        # A learned sink for each head's softmax.
        other_parameters=fields.count("num_hidden_layers") * fields.count("num_attention_heads"),
    )


def _llama4(fields: ConfigFields) -> ModelDimensions:
    """Experts and a shared one in every so many layers; most layers see only their chunk of the sequence."""
    width = fields.count("intermediate_size", at_least=1)
    step = fields.count("interleave_moe_layer_step", default=1, at_least=1)
    sparse = fields.counts("moe_layers") or frozenset(range(step - 1, LARGEST["layers"], step))
    every = fields.count("no_rope_layer_interval", default=4, at_least=1)
    listed = fields.words("layer_types")
    chunked = (
        listed.count("chunked_attention") if listed else _layers_where(fields, lambda layer: (layer + 1) % every != 0)
    )
    return _llama_like(
        fields,
        ffn=fields.count("intermediate_size_mlp", default=16384, at_least=1),
        **_head_dim(fields, 128),
        **_attention_biases(fields),
        **_experts(fields, "num_local_experts", default=16, top_k=1),
        expert_ffn=width,
        shared_ffn=width,
        dense_layers=_layers_where(fields, lambda layer: layer not in sparse),
        window=fields.count("attention_chunk_size", default=8192, at_least=1),
        windowed_layers=chunked,
        chunked=True,
    )


def _norms_over_all_heads(fields: ConfigFields) -> int:
    """Of norms with a weight for each element of all queries and of all keys, where `qk_norm` has one head's."""
    layers, heads = fields.count("num_hidden_layers"), fields.count("num_attention_heads", at_least=1)
    head_dim = fields.count("head_dim", default=fields.count("hidden_size") // heads)
    return layers * head_dim * (heads + fields.count("num_key_value_heads", default=heads))


def _plain(
    fields: ConfigFields, layers: Names = "num_hidden_layers", hidden: Names = "hidden_size",
    heads: Names = "num_attention_heads", **more: Any
) -> ModelDimensions:  # fmt: skip
    """A model without Llama's traits; families differ in the names of these three sizes, some of which have two."""

    def count(names: Names) -> int:
        return fields.count(*([names] if isinstance(names, str) else names))

    return ModelDimensions(
        layers=count(layers), hidden=count(hidden), heads=count(heads), vocab=fields.count("vocab_size"), **more
    )


def _gpt2(fields: ConfigFields) -> ModelDimensions:
    ffn = fields.count("n_inner", default=4 * fields.count("n_embd"), at_least=1)
    positions = fields.count("n_positions", "n_ctx")
    return _plain(fields, "n_layer", "n_embd", "n_head", ffn=ffn, positions=positions, bias=True, **_tied(fields))


def _gpt_neox(fields: ConfigFields) -> ModelDimensions:
    return _plain(
        fields,
        ffn=fields.count("intermediate_size"),
        **_attention_biases(fields, default=True),
        mlp_bias=True,
        norm_bias=True,
        tied=fields.flag("tie_word_embeddings"),
    )


def _bloom(fields: ConfigFields) -> ModelDimensions:
    names = (("n_layer", "num_hidden_layers"), ("hidden_size", "n_embed"), ("n_head", "num_attention_heads"))
    hidden = fields.count(*names[1])
    # Of the others: the norm of the embeddings.
    return _plain(fields, *names, ffn=4 * hidden, bias=True, **_tied(fields), other_parameters=2 * hidden)


def _deepseek_experts(fields: ConfigFields, router_bias: bool = True) -> dict[str, Any]:
    if experts := fields.count("n_routed_experts", default=0):
        width = fields.count("moe_intermediate_size", at_least=1)
        first = fields.count("first_k_dense_replace", default=0)
        step = fields.count("moe_layer_freq", default=1, at_least=1)
        return {
            "experts": experts,
            "top_k": fields.count("num_experts_per_tok"),
            "expert_ffn": width,
            "shared_ffn": width * fields.count("n_shared_experts", default=0),
            "router_bias": router_bias,
            "dense_layers": _layers_where(fields, lambda layer: layer < first or layer % step != 0),
        }
    return {}


def _glm4_moe(fields: ConfigFields) -> ModelDimensions:
    return _llama_like(
        fields,
        **_head_dim(fields, 128),
        **_deepseek_experts(fields),
        qkv_bias=fields.flag("attention_bias"),
        qk_norm=fields.flag("use_qk_norm"),
    )


def _deepseek_v32(fields: ConfigFields) -> ModelDimensions:
    """DeepSeek-V3 with an indexer, small heads that choose the tokens which a query attends to."""
    dim, heads = fields.count("index_head_dim", default=128), fields.count("index_n_heads", default=64)
    queries = fields.count("q_lora_rank", default=fields.count("hidden_size")) * heads * dim
    indexer = queries + fields.count("hidden_size") * (dim + heads) + 2 * dim
    return _deepseek(fields, other_parameters=fields.count("num_hidden_layers") * indexer)


def _deepseek(fields: ConfigFields, router_bias: bool = True, **more: Any) -> ModelDimensions:
    rotated = fields.count("qk_rope_head_dim")
    return _llama_like(
        fields,
        kv_heads=0,
        head_dim=fields.count("qk_nope_head_dim") + rotated,
        rope_head_dim=rotated,
        value_head_dim=fields.count("v_head_dim"),
        query_rank=fields.count("q_lora_rank", default=0),
        latent_rank=fields.count("kv_lora_rank", at_least=1),
        **_attention_biases(fields),
        **_deepseek_experts(fields, router_bias),
        **more,
    )


def _bert(fields: ConfigFields) -> ModelDimensions:
    """With the head that predicts masked words, which BERT is trained through, and without the pooler."""
    return _plain(
        fields,
        ffn=fields.count("intermediate_size"),
        positions=fields.count("max_position_embeddings"),
        bias=True,
        **_tied(fields),
        causal=False,
        head_transform=True,
        other_parameters=fields.count("hidden_size") * fields.count("type_vocab_size", default=2),
    )


def _layers_where(fields: ConfigFields, holds: Callable[[int], bool]) -> int:
    layers = fields.count("num_hidden_layers")
    # ModelDimensions refuses more layers than any model has; they need not be counted first.
    return sum(map(holds, range(min(layers, LARGEST["layers"]))))


# Sources: each family's configuration and modelling code in huggingface/transformers.
FAMILIES: dict[str, Callable[[ConfigFields], ModelDimensions]] = {
    "bert": _bert,
    "bloom": _bloom,
    "deepseek_v2": lambda fields: _deepseek(fields, router_bias=False),
    "deepseek_v3": _deepseek,  # whose router has a bias, which balances the load instead of a loss
    "deepseek_v32": _deepseek_v32,
    "gemma": lambda fields: _llama_like(fields, **_head_dim(fields, 256), **_tied(fields)),
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "glm4_moe": _glm4_moe,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "granite": _llama,
    "kimi_k2": _deepseek,
    "llama": _llama,
    "llama4_text": _llama4,
    "mistral": lambda fields: _llama_like(fields, **_window_everywhere(fields)),
    "mixtral": lambda fields: _llama_like(
        fields, **_experts(fields, "num_local_experts", top_k=2), **_window_everywhere(fields)
    ),
    "olmo": lambda fields: _llama_like(fields, **_attention_biases(fields), norm_weight=False),
    "olmo2": lambda fields: _llama_like(fields, other_parameters=_norms_over_all_heads(fields)),
    "olmoe": lambda fields: _llama_like(
        fields, **_experts(fields, "num_experts", default=64, top_k=8), other_parameters=_norms_over_all_heads(fields)
    ),
    "phi3": lambda fields: _llama_like(fields, **_window_everywhere(fields)),
    "qwen2": lambda fields: _llama_like(fields, qkv_bias=True, **_qwen_windows(fields)),
    "qwen2_moe": _qwen2_moe,
    "qwen3": lambda fields: _llama_like(
        fields, **_head_dim(fields, 128), **_attention_biases(fields), **_qwen_windows(fields), qk_norm=True
    ),
    "qwen3_moe": lambda fields: _llama_like(
        fields, **_qwen_experts(fields), **_attention_biases(fields), **_qwen_windows(fields), qk_norm=True
    ),
    "roberta": _bert,
    "smollm3": lambda fields: _llama_like(fields, **_tied(fields)),
}
# What families have in the place of attention, in all of their layers or in most.
NOT_PRICED = {
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2", "nemotron_h"), "Mamba"),
    "qwen3_next": "Gated DeltaNet",
}

# Configurations of published models are a few KiB; with labels of classes in it one may be longer.
MOST_BYTES = 1 << 20
BY_HAND = "give --layers, --hidden, --heads, --ffn and --vocab, and --kv-heads, --experts, --top-k"
# What any decoder's configuration calls these six, to say which of them a file of an unknown family has.
USUAL_FIELDS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size",
                "vocab_size")  # fmt: skip
LONGEST_SEQ = ("max_position_embeddings", "n_positions", "seq_length")


@dataclass(frozen=True)
class ModelConfig:
    """What a `config.json` says: its family, the model's dimensions, the longest sequence it names (0: none).

    `notes` are sentences about what of it the dimensions leave out.
    """

    family: str
    dimensions: ModelDimensions
    longest_seq: int
    notes: tuple[str, ...]


def read_model_config(path: Path) -> ModelConfig:
    """Read a `config.json`, or that of a model's folder.

    Raises UserError where there is none, where it is larger than 1 MiB, not JSON, of an unknown family, lacks a field
    that its family needs, or has one that no model can have.
    """
    try:
        path = path / "config.json" if path.is_dir() else path
        content = read_bytes(path, MOST_BYTES)
    except OSError as error:
        raise UserError(
            f"The model configuration {path} cannot be read ({error.strerror}): name a config.json, or the folder it "
            "lies in."
        ) from None
    return model_config(_object_in(content, str(path)), str(path))


def model_config(values: Mapping[str, Any], origin: str) -> ModelConfig:
    """What a configuration says, its fields already read; `origin` names it in errors.

    Of a model of text and images, the model of text is taken. Raises UserError as `read_model_config` does.
    """
    notes = []
    if not _is_known(values.get("model_type")) and isinstance(values.get("text_config"), dict):
        notes.append("Of this model of several kinds of input only the part that reads and writes text is taken.")
        values = {"model_type": f"{values.get('model_type')}_text", **values["text_config"]}
    family, read = _family(values, origin)
    fields = ConfigFields(values, f"{origin}, a {family} model")
    if fields.count("num_nextn_predict_layers", default=0):
        notes.append("The layers that predict several tokens at once are not counted.")
    try:
        dimensions = read(fields)
    except UserError as wrong:
        raise wrong if str(wrong).startswith(origin) else UserError(f"{origin}: {wrong}") from None
    if not dimensions.window and fields.flag("use_sliding_window", True) and fields.count("sliding_window", default=0):
        notes.append("Attention is taken over the whole sequence, though some of this model's layers see a window.")
    if chosen := fields.count("index_topk", default=0):
        notes.append(f"Attention is taken over the whole sequence, though its indexer chooses {chosen} tokens a query.")
    return ModelConfig(family, dimensions, fields.count(*LONGEST_SEQ, default=0), tuple(notes))


def _is_known(family: Any) -> bool:
    return isinstance(family, str) and family in FAMILIES


def _family(values: Mapping[str, Any], origin: str) -> tuple[str, Callable[[ConfigFields], ModelDimensions]]:
    family = values.get("model_type")
    if not isinstance(family, str):
        raise UserError(f"{origin} does not say its model_type, so its fields cannot be read: {BY_HAND}.")
    if family in NOT_PRICED:
        raise UserError(f"{origin} is a {family} model, with layers of {NOT_PRICED[family]}, which are not priced.")
    if not _is_known(family):
        known = ", ".join(sorted(name.removesuffix("_text") for name in FAMILIES))
        has = ", ".join(f"{name} = {values[name]}" for name in USUAL_FIELDS if isinstance(values.get(name), int))
        raise UserError(
            f"{origin} is of the unknown family {family[:40]!r} (known: {known}): "
            f"{BY_HAND}{f' (has {has[:200]})' if has else ''}."
        )
    return family, FAMILIES[family]


def _object_in(content: bytes, origin: str) -> Mapping[str, Any]:
    try:
        found = strict_json(content, infinity=True)
    except ValueError as error:
        raise UserError(f"{origin} is no model configuration, for {error}: name a whole config.json.") from None
    if not isinstance(found, dict):
        raise UserError(f"{origin} holds no JSON object, as a model configuration does: name a config.json.")
    return found
