"""The dimensions of a model from its Hugging Face `config.json`, for the families of models in `FAMILIES`.

The file may come from anywhere, so whatever is wrong with it is reported in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pyperf_suite.errors import UserError
from pyperf_suite.files import read_bytes, strict_json
from pyperf_suite.laws.transformer import LARGEST, ModelDimensions

# No dimension of a model comes near; larger numbers are not worth repeating to the user.
LARGEST_COUNT = 1 << 31


class ConfigFields:
    """The fields of a configuration. `origin` names it in errors; a field that is null counts as absent.

    Readers raise UserError for a field of another kind, and where neither a field nor a default is there.
    """

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._origin = origin

    def count(self, *names: str, default: int | None = None, at_least: int = 0) -> int:
        """Read the first of the names that is there, a whole number within bounds; else return the default."""
        for name in names:
            if name in self._values:
                return self._whole(name, self._values[name], at_least)
        if default is None:
            raise UserError(f"{self._origin}, lacks the field {' or '.join(names)}: add it.")
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name, default)
        return value if isinstance(value, bool) else self._refuse(name, value, "true or false")

    def counts(self, name: str) -> set[int]:
        return {self._whole(name, value, 0) for value in self._list(name)}

    def words(self, name: str) -> list[str]:
        words = self._list(name)
        return words if all(isinstance(word, str) for word in words) else self._refuse(name, words, "a list of words")

    def _list(self, name: str) -> list[Any]:
        values = self._values.get(name, [])
        return values if isinstance(values, list) else self._refuse(name, values, "a list")

    def _whole(self, name: str, value: Any, at_least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            self._refuse(name, value, "a whole number")
        if not at_least <= value <= LARGEST_COUNT:
            raise UserError(f"{self._origin}, has a {name} that is not within {at_least} to {LARGEST_COUNT}.")
        return int(value)

    def _refuse(self, name: str, value: Any, expected: str) -> NoReturn:
        shown = "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else f"{value!r:.40}"
        raise UserError(f"{self._origin}, has {name} = {shown}, where {expected} is expected.")


Reader = Callable[[ConfigFields], Any]


def _count(*names: str, default: int | None = None, at_least: int = 0) -> Reader:
    return lambda fields: fields.count(*names, default=default, at_least=at_least)


def _flag(name: str, default: bool = False) -> Reader:
    return lambda fields: fields.flag(name, default)


def _layers_where(holds: Callable[[ConfigFields, int], bool], listed_as: str = "") -> Reader:
    """Count the layers that `layer_types` lists as such; without that list those whose number `holds`."""

    def read(fields: ConfigFields) -> int:
        if listed_as and (kinds := fields.words("layer_types")):
            return kinds.count(listed_as)
        # ModelDimensions refuses more layers than any model has; they need not be counted first.
        layers = min(fields.count("num_hidden_layers"), LARGEST["layers"])
        return sum(holds(fields, layer) for layer in range(layers))

    return read


def _windows(holds: Callable[[ConfigFields, int], bool], default: int = 0) -> dict[str, Any]:
    return {
        "window": _count("sliding_window", default=default),
        "windowed_layers": _layers_where(holds, "sliding_attention"),
    }


def _experts(name: str, default: int | None = None, top_k: int | None = None) -> dict[str, Any]:
    return {
        "experts": _count(name, default=default),
        "top_k": _count("num_experts_per_tok", "experts_per_token", default=top_k),
    }


def _biases(default: bool = False) -> dict[str, Any]:
    return dict.fromkeys(("qkv_bias", "output_bias"), _flag("attention_bias", default))


def _norms_over_all_heads(fields: ConfigFields) -> int:
    """Count norms with a weight for each element of all queries and of all keys, where `qk_norm` has one head's."""
    layers, heads = fields.count("num_hidden_layers"), fields.count("num_attention_heads", at_least=1)
    head_dim = fields.count("head_dim", default=fields.count("hidden_size") // heads)
    return layers * head_dim * (heads + fields.count("num_key_value_heads", default=heads))


def _indexer(fields: ConfigFields) -> int:
    """Count DeepSeek-V3.2's indexer: small heads that choose the tokens which a query attends to."""
    dim, heads = fields.count("index_head_dim", default=128), fields.count("index_n_heads", default=64)
    hidden = fields.count("hidden_size")
    queries = fields.count("q_lora_rank", default=hidden) * heads * dim
    return fields.count("num_hidden_layers") * (queries + hidden * (dim + heads) + 2 * dim)


def _is_dense_in_qwen(fields: ConfigFields, layer: int) -> bool:
    step = fields.count("decoder_sparse_step", default=1, at_least=1)
    return layer in fields.counts("mlp_only_layers") or (layer + 1) % step != 0


def _is_dense_in_llama4(fields: ConfigFields, layer: int) -> bool:
    sparse, step = fields.counts("moe_layers"), fields.count("interleave_moe_layer_step", default=1, at_least=1)
    return layer not in sparse if sparse else (layer + 1) % step != 0


def _is_dense_in_deepseek(fields: ConfigFields, layer: int) -> bool:
    step = fields.count("moe_layer_freq", default=1, at_least=1)
    return layer < fields.count("first_k_dense_replace", default=0) or layer % step != 0


def _is_windowed_in_gemma3(fields: ConfigFields, layer: int) -> bool:
    return (layer + 1) % fields.count("sliding_window_pattern", "_sliding_window_pattern", default=6, at_least=1) != 0


def _family(*families: Mapping[str, Any], **sizes: Any) -> dict[str, Any]:
    """Dimensions of a family, later ones in place of earlier ones: values, or readers of its fields."""
    return {name: size for family in (*families, sizes) for name, size in family.items()}


# What is 0 follows from others.
TIED = {"tied": _flag("tie_word_embeddings", True)}
BASE: dict[str, Any] = {
    "layers": _count("num_hidden_layers"),
    "hidden": _count("hidden_size"),
    "heads": _count("num_attention_heads"),
    "ffn": _count("intermediate_size"),
    "vocab": _count("vocab_size"),
    "tied": _flag("tie_word_embeddings"),
}
# Gated MLPs, RMSNorm, no learned positions.
DECODER: dict[str, Any] = _family(
    BASE,
    kv_heads=_count("num_key_value_heads", default=0, at_least=1),
    head_dim=_count("head_dim", default=0, at_least=1),
    gated=True,
)
HEADS_OF_128 = {"head_dim": _count("head_dim", default=128, at_least=1)}
HEADS_OF_256 = {"head_dim": _count("head_dim", default=256, at_least=1)}
WINDOWS_IN_ALL = _windows(lambda *_: True)
LLAMA = _family(DECODER, _biases(), mlp_bias=_flag("mlp_bias"))
QWEN = _family(
    DECODER,
    # None unless requested; then of the layers behind the first so many.
    window=lambda fields: fields.count("sliding_window", default=4096) * fields.flag("use_sliding_window"),
    windowed_layers=_layers_where(
        lambda fields, layer: layer >= fields.count("max_window_layers", default=28), "sliding_attention"
    ),
)
QWEN_EXPERTS = _family(
    _experts("num_experts"),
    expert_ffn=_count("moe_intermediate_size", at_least=1),
    dense_layers=_layers_where(_is_dense_in_qwen),
)
DEEPSEEK_EXPERTS = _family(
    _experts("n_routed_experts", default=0),
    expert_ffn=_count("moe_intermediate_size", at_least=1),
    shared_ffn=lambda fields: fields.count("moe_intermediate_size") * fields.count("n_shared_experts", default=0),
    # It balances the load instead of a loss.
    router_bias=True,
    dense_layers=_layers_where(_is_dense_in_deepseek),
)
DEEPSEEK = _family(
    DECODER,
    _biases(),
    DEEPSEEK_EXPERTS,
    kv_heads=0,
    head_dim=lambda fields: fields.count("qk_nope_head_dim") + fields.count("qk_rope_head_dim"),
    rope_head_dim=_count("qk_rope_head_dim"),
    value_head_dim=_count("v_head_dim"),
    query_rank=_count("q_lora_rank", default=0),
    latent_rank=_count("kv_lora_rank", at_least=1),
)
# With the head that predicts masked words, which BERT is trained through, and without the pooler.
BERT = _family(
    BASE,
    TIED,
    positions=_count("max_position_embeddings"),
    bias=True,
    causal=False,
    head_transform=True,
    other_parameters=lambda fields: fields.count("hidden_size") * fields.count("type_vocab_size", default=2),
)
# Sources: each family's configuration and modelling code in huggingface/transformers.
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "bloom": _family(
        BASE,
        TIED,
        layers=_count("n_layer", "num_hidden_layers"),
        hidden=_count("hidden_size", "n_embed"),
        heads=_count("n_head", "num_attention_heads"),
        ffn=lambda fields: 4 * fields.count("hidden_size", "n_embed"),
        bias=True,
        # The norm of the embeddings.
        other_parameters=lambda fields: 2 * fields.count("hidden_size", "n_embed"),
    ),
    "deepseek_v2": _family(DEEPSEEK, router_bias=False),
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": _family(DEEPSEEK, other_parameters=_indexer),
    "gemma": _family(DECODER, HEADS_OF_256, TIED),
    "gemma2": _family(DECODER, HEADS_OF_256, TIED, _windows(lambda _, layer: layer % 2 == 0, 4096), norms=4),
    # Published configurations leave out what is Gemma3TextConfig's default.
    "gemma3_text": _family(
        DECODER,
        HEADS_OF_256,
        TIED,
        _windows(_is_windowed_in_gemma3, 4096),
        heads=_count("num_attention_heads", default=8),
        kv_heads=_count("num_key_value_heads", default=4, at_least=1),
        vocab=_count("vocab_size", default=262_208),
        norms=4,
        qk_norm=True,
    ),
    "glm4_moe": _family(
        DECODER,
        HEADS_OF_128,
        DEEPSEEK_EXPERTS,
        qkv_bias=_flag("attention_bias"),
        qk_norm=_flag("use_qk_norm"),
    ),
    "gpt2": _family(
        BASE,
        TIED,
        layers=_count("n_layer"),
        hidden=_count("n_embd"),
        heads=_count("n_head"),
        ffn=lambda fields: fields.count("n_inner", default=4 * fields.count("n_embd"), at_least=1),
        positions=_count("n_positions", "n_ctx"),
        bias=True,
    ),
    "gpt_neox": _family(BASE, _biases(default=True), mlp_bias=True, norm_bias=True),
    "gpt_oss": _family(
        DECODER,
        _experts("num_local_experts", top_k=4),
        _biases(True),
        _windows(lambda _, layer: layer % 2 == 0, 128),
        mlp_bias=True,
        router_bias=True,
        # A learned sink for each head's softmax.
        other_parameters=lambda fields: fields.count("num_hidden_layers") * fields.count("num_attention_heads"),
    ),
    "granite": LLAMA,
    "kimi_k2": DEEPSEEK,
    "llama": LLAMA,
    # Experts and a shared one in every so many layers; most layers see only their chunk of the sequence.
    "llama4_text": _family(
        DECODER,
        HEADS_OF_128,
        _biases(),
        _experts("num_local_experts", default=16, top_k=1),
        ffn=_count("intermediate_size_mlp", default=16384, at_least=1),
        expert_ffn=_count("intermediate_size", at_least=1),
        shared_ffn=_count("intermediate_size", at_least=1),
        dense_layers=_layers_where(_is_dense_in_llama4),
        window=_count("attention_chunk_size", default=8192, at_least=1),
        windowed_layers=_layers_where(
            lambda fields, layer: (layer + 1) % fields.count("no_rope_layer_interval", default=4, at_least=1) != 0,
            "chunked_attention",
        ),
        chunked=True,
    ),
    "mistral": _family(DECODER, WINDOWS_IN_ALL),
    "mixtral": _family(DECODER, WINDOWS_IN_ALL, _experts("num_local_experts", top_k=2)),
    "olmo": _family(DECODER, _biases(), norm_weight=False),
    "olmo2": _family(DECODER, other_parameters=_norms_over_all_heads),
    "olmoe": _family(DECODER, _experts("num_experts", default=64, top_k=8), other_parameters=_norms_over_all_heads),
    "phi3": _family(DECODER, WINDOWS_IN_ALL),
    "qwen2": _family(QWEN, qkv_bias=True),
    "qwen2_moe": _family(
        QWEN,
        QWEN_EXPERTS,
        qkv_bias=_flag("qkv_bias", True),
        shared_ffn=_count("shared_expert_intermediate_size"),
        shared_gate=True,
    ),
    "qwen3": _family(QWEN, HEADS_OF_128, _biases(), qk_norm=True),
    "qwen3_moe": _family(QWEN, QWEN_EXPERTS, _biases(), qk_norm=True),
    "roberta": BERT,
    "smollm3": _family(DECODER, TIED),
}
# What families have in the place of attention, in all of their layers or in most.
NOT_PRICED = {
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2", "nemotron_h"), "Mamba"),
    "qwen3_next": "Gated DeltaNet",
}

# They say nothing of a model without experts.
OF_EXPERTS = ("experts", "top_k", "expert_ffn", "shared_ffn", "router_bias", "dense_layers")
# Configurations of published models are a few KiB; with labels of classes in it one may be longer.
MOST_BYTES = 1 << 20
BY_HAND = "give --layers, --hidden, --heads, --ffn and --vocab, and --kv-heads, --experts, --top-k"
LONGEST_SEQ = ("max_position_embeddings", "n_positions", "seq_length")


@dataclass(frozen=True)
class ModelConfig:
    """A `config.json`: dimensions, the longest sequence it names (0: none), and notes on what is left out."""

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
    try:
        values = strict_json(content, infinity=True)
    except ValueError as error:
        raise UserError(f"{path} is no model configuration, for {error}: name a whole config.json.") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no JSON object, as a model configuration does: name a config.json.")
    return model_config(values, str(path))


def model_config(values: Mapping[str, Any], origin: str) -> ModelConfig:
    """Read a configuration's fields; `origin` names it in errors. Raises UserError as `read_model_config` does.

    Of a model of text and images, the model of text is taken.
    """
    notes, text, family = [], values.get("text_config"), values.get("model_type")
    if isinstance(text, dict) and not (isinstance(family, str) and family in FAMILIES):
        notes.append("Of this model of several kinds of input only the part that reads and writes text is taken.")
        values = {"model_type": f"{family}_text", **text}
        family = values["model_type"]
    if not isinstance(family, str):
        raise UserError(f"{origin} does not say its model_type, so its fields cannot be read: {BY_HAND}.")
    if family in NOT_PRICED:
        raise UserError(f"{origin} is a {family} model, with layers of {NOT_PRICED[family]}, which are not priced.")
    if family not in FAMILIES:
        known = ", ".join(sorted(name.removesuffix("_text") for name in FAMILIES))
        raise UserError(f"{origin} is of the unknown family {family[:40]!r} (known: {known}): {BY_HAND}.")
    fields = ConfigFields(values, f"{origin}, a {family} model")
    if fields.count("num_nextn_predict_layers", default=0):
        notes.append("The layers that predict several tokens at once are not counted.")
    try:
        dimensions = _dimensions(FAMILIES[family], fields)
    except UserError as wrong:
        raise wrong if str(wrong).startswith(origin) else UserError(f"{origin}: {wrong}") from None
    if not dimensions.window and fields.flag("use_sliding_window", True) and fields.count("sliding_window", default=0):
        notes.append("Attention is taken over the whole sequence, though some of this model's layers see a window.")
    if chosen := fields.count("index_topk", default=0):
        notes.append(f"Attention is taken over the whole sequence, though its indexer chooses {chosen} tokens a query.")
    return ModelConfig(dimensions, fields.count(*LONGEST_SEQ, default=0), tuple(notes))


def _dimensions(family: Mapping[str, Any], fields: ConfigFields) -> ModelDimensions:
    left = family
    if "experts" in family and not family["experts"](fields):
        left = {name: value for name, value in family.items() if name not in OF_EXPERTS}
    sizes = {name: value(fields) if callable(value) else value for name, value in left.items()}
    if not (sizes.get("window") and sizes.get("windowed_layers")):
        sizes |= {"window": 0, "windowed_layers": 0, "chunked": False}
    return ModelDimensions(**sizes)
