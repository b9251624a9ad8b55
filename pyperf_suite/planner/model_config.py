"""The dimensions of a model from its Hugging Face `config.json`, for the families of models in `FAMILIES`.

The file may come from anywhere, so whatever is wrong with it is reported in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pyperf_suite.errors import UserError, offer
from pyperf_suite.files import read_bytes, strict_json
from pyperf_suite.laws.transformer import LARGEST, ModelDimensions

# No dimension of a model comes near; larger numbers are not worth repeating to the user.
LARGEST_COUNT = 1 << 31
# Other names of the fields that Llama's configuration has, or Qwen3-MoE's of experts.
NAMES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "n_embed"),
    "num_attention_heads": ("n_head",),
    "head_dim": ("attention_head_dim",),
    "intermediate_size": ("n_inner",),
    "max_position_embeddings": ("n_positions", "n_ctx", "seq_length"),
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "num_experts_per_tok": ("experts_per_token",),
    "n_shared_experts": ("num_shared_experts",),
    "sliding_window_pattern": ("_sliding_window_pattern",),
}
USUAL_NAMES = {other: name for name, others in NAMES.items() for other in others}


class ConfigFields:
    """The fields of a configuration by their usual names, and the family's `defaults` of fields that it leaves out.

    `origin` names it in errors; a field that is null counts as absent, without a default. Readers raise UserError for
    a field of another kind, and where neither a field nor a default is there.
    """

    def __init__(self, values: Mapping[str, Any], origin: str, defaults: Mapping[str, Any]) -> None:
        self._written = {USUAL_NAMES[name]: name for name in values if name in USUAL_NAMES}
        self._written |= {name: name for name in values if name not in USUAL_NAMES}
        given = {name: values[written] for name, written in self._written.items()}
        self._values = {name: value for name, value in {**defaults, **given}.items() if value is not None}
        self._origin = origin

    def count(self, name: str, default: int | None = None, at_least: int = 0) -> int:
        """Read a whole number within bounds; return the default where there is none."""
        if name in self._values:
            return self._whole(name, self._values[name], at_least)
        if default is None:
            raise UserError(f"{self._origin}, lacks the field {name}: add it.")
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name, default)
        return value if isinstance(value, bool) else self._refuse(name, value, "true or false")

    def never(self, name: str) -> bool:
        """Read a flag whose effect is not counted. Raises UserError where it is set."""
        return self.flag(name) and bool(self._refuse(name, True, "false"))

    def counts(self, name: str) -> set[int] | None:
        """Read a list of whole numbers; None where there is none."""
        return {self._whole(name, value, 0) for value in self._list(name)} if name in self._values else None

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
            name = self._written.get(name, name)
            raise UserError(f"{self._origin}, has a {name} that is not within {at_least} to {LARGEST_COUNT}.")
        return int(value)

    def _refuse(self, name: str, value: Any, expected: str) -> NoReturn:
        shown = "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else f"{value!r:.40}"
        name = self._written.get(name, name)
        raise UserError(f"{self._origin}, has {name} = {shown}, where {expected} is expected.")


Reader = Callable[[ConfigFields], Any]
Holds = Callable[[ConfigFields, int], bool]


@dataclass(frozen=True)
class Family:
    """Dimensions of a family: values, names of flags, or readers of fields; and `defaults` of fields left out."""

    sizes: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


def _family(*like: Family, **sizes: Any) -> Family:
    """Combine families; later dimensions and defaults replace earlier ones."""
    families = (*like, Family(sizes))
    return Family(
        {name: size for family in families for name, size in family.sizes.items()},
        {name: value for family in families for name, value in family.defaults.items()},
    )


def _absent(**defaults: Any) -> Family:
    """Give fields that a configuration leaves out the values that transformers takes."""
    return Family({}, defaults)


def _count(name: str, default: int | None = None, at_least: int = 0) -> Reader:
    return lambda fields: fields.count(name, default, at_least)


def _layers_where(holds: Holds, listed_as: str = "", listing: str = "") -> Reader:
    """Count the layers that the list says are such; without that list those whose number `holds`."""

    def read(fields: ConfigFields) -> int:
        if listing and (kinds := fields.words(listing)):
            return kinds.count(listed_as)
        # ModelDimensions refuses more layers than any model has; they need not be counted first.
        layers = min(fields.count("num_hidden_layers"), LARGEST["layers"])
        return sum(holds(fields, layer) for layer in range(layers))

    return read


def _windows(holds: Holds) -> Family:
    layers = _layers_where(holds, "sliding_attention", "layer_types")
    return _family(window=_count("sliding_window", 0), windowed_layers=layers)


def _norms_over_all_heads(fields: ConfigFields) -> int:
    """Count norms with a weight for each element of all queries and of all keys, where `qk_norm` has one head's."""
    layers, heads = fields.count("num_hidden_layers"), fields.count("num_attention_heads", at_least=1)
    head_dim = fields.count("head_dim", fields.count("hidden_size") // heads)
    return layers * head_dim * (heads + fields.count("num_key_value_heads", heads))


def _indexer(fields: ConfigFields) -> int:
    """Count DeepSeek-V3.2's indexer: small heads that choose the tokens which a query attends to."""
    dim, heads, hidden = (fields.count(name) for name in ("index_head_dim", "index_n_heads", "hidden_size"))
    queries = fields.count("q_lora_rank", hidden) * heads * dim
    return fields.count("num_hidden_layers") * (queries + hidden * (dim + heads) + 2 * dim)


def _below(name: str) -> Holds:
    return lambda fields, layer: layer < fields.count(name)


def _from(name: str) -> Holds:
    return lambda fields, layer: layer >= fields.count(name)


def _but_every(step: str) -> Holds:
    """Hold for all layers but each `step`-th."""
    return lambda fields, layer: (layer + 1) % fields.count(step, at_least=1) != 0


def _is_dense_in_llama4(fields: ConfigFields, layer: int) -> bool:
    step, sparse = "interleave_moe_layer_step", fields.counts("moe_layers")
    if sparse is None and fields.count(step):
        return _but_every(step)(fields, layer)
    return layer not in (sparse or ())


def _is_dense_in_qwen(fields: ConfigFields, layer: int) -> bool:
    return layer in (fields.counts("mlp_only_layers") or ()) or _but_every("decoder_sparse_step")(fields, layer)


WINDOWS_IN_EVERY_2ND = _windows(lambda _, layer: layer % 2 == 0)
# A field of 0 follows from others.
BASE = _family(
    layers=_count("num_hidden_layers"),
    hidden=_count("hidden_size"),
    heads=_count("num_attention_heads"),
    ffn=_count("intermediate_size"),
    vocab=_count("vocab_size"),
    tied="tie_word_embeddings",
)
TIED = _absent(tie_word_embeddings=True)
# Gated MLPs, RMSNorm, no learned positions.
DECODER = _family(
    BASE, kv_heads=_count("num_key_value_heads", 0, at_least=1), head_dim=_count("head_dim", 0, at_least=1), gated=True
)
PLAIN_MLP = _family(gated=False)
BIASED_INPUTS = _family(qkv_bias="attention_bias")
BIASED_ATTENTION = _family(qkv_bias="attention_bias", output_bias="attention_bias")
WINDOWS_IN_ALL = _windows(lambda *_: True)
WINDOWS_BUT_EVERY_4TH = _family(
    _windows(_but_every("sliding_window_pattern")), _absent(sliding_window=4096, sliding_window_pattern=4)
)
LLAMA = _family(DECODER, BIASED_ATTENTION, mlp_bias="mlp_bias")
MISTRAL = _family(DECODER, WINDOWS_IN_ALL, _absent(sliding_window=4096, num_key_value_heads=8))
NEMOTRON = _family(LLAMA, PLAIN_MLP, norm_bias=True)
GEMMA = _family(
    DECODER,
    BIASED_ATTENTION,
    TIED,
    _absent(head_dim=256, num_key_value_heads=4),
    causal=lambda fields: not fields.flag("use_bidirectional_attention"),
)
QWEN = _family(
    DECODER,
    _absent(num_key_value_heads=32, use_sliding_window=False, sliding_window=4096, max_window_layers=28),
    # None unless requested; then those of the first `max_window_layers` layers.
    window=lambda fields: fields.count("sliding_window", 0) * fields.flag("use_sliding_window"),
    windowed_layers=_layers_where(_from("max_window_layers"), "sliding_attention", "layer_types"),
)
QWEN2 = _family(QWEN, qkv_bias=True)
QK_NORMED = _family(DECODER, BIASED_ATTENTION, qk_norm=True)
QWEN3 = _family(QWEN, QK_NORMED)
EXPERTS = _family(experts=_count("num_experts"), top_k=_count("num_experts_per_tok"))
OWN_WIDTH = _family(EXPERTS, expert_ffn=_count("moe_intermediate_size", at_least=1))
QWEN_EXPERTS = _family(OWN_WIDTH, _absent(decoder_sparse_step=1), dense_layers=_layers_where(_is_dense_in_qwen))
QWEN3_MOE = _family(QWEN3, QWEN_EXPERTS, _absent(num_key_value_heads=4))
# The router's bias balances the load instead of a loss.
SHARED_EXPERTS = _family(
    OWN_WIDTH,
    shared_ffn=lambda fields: fields.count("moe_intermediate_size") * fields.count("n_shared_experts", 0),
    router_bias=True,
)
DEEPSEEK_EXPERTS = _family(SHARED_EXPERTS, dense_layers=_layers_where(_below("first_k_dense_replace")))
LISTED_EXPERTS = _family(
    SHARED_EXPERTS, dense_layers=_layers_where(_below("first_k_dense_replace"), "dense", "mlp_layer_types")
)
ONE_DENSE_LAYER = _absent(first_k_dense_replace=1, n_shared_experts=1)
LATENT = _family(
    DECODER,
    BIASED_ATTENTION,
    _absent(q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
    kv_heads=0,
    head_dim=lambda fields: fields.count("qk_nope_head_dim") + fields.count("qk_rope_head_dim"),
    rope_head_dim=_count("qk_rope_head_dim"),
    value_head_dim=_count("v_head_dim"),
    query_rank=_count("q_lora_rank", 0),
    latent_rank=_count("kv_lora_rank", at_least=1),
)
DEEPSEEK = _family(LATENT, DEEPSEEK_EXPERTS, _absent(first_k_dense_replace=3, n_shared_experts=1))
DEEPSEEK_V32 = _family(
    DEEPSEEK, LISTED_EXPERTS, _absent(index_head_dim=128, index_n_heads=64), other_parameters=_indexer
)
OLMO = _family(DECODER, BIASED_ATTENTION, other_parameters=_norms_over_all_heads)
COHERE = _family(DECODER, TIED, BIASED_ATTENTION, norms=1)
ERNIE = _family(DECODER, TIED, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias")
GLM = _family(DECODER, BIASED_INPUTS, _absent(attention_bias=True, num_key_value_heads=2))
GLM_MOE = _family(DECODER, BIASED_INPUTS, DEEPSEEK_EXPERTS, ONE_DENSE_LAYER, _absent(num_key_value_heads=8))
GPT = _family(
    BASE,
    TIED,
    ffn=lambda fields: fields.count("intermediate_size", 4 * fields.count("hidden_size"), at_least=1),
    bias=True,
)
GPT2 = _family(GPT, positions=_count("max_position_embeddings"))
# With the head that predicts masked words, which BERT is trained through, and without the pooler. An output matrix of
# its own has a bias of its own.
BERT = _family(
    BASE,
    TIED,
    _absent(type_vocab_size=2),
    positions=_count("max_position_embeddings"),
    bias=True,
    causal=False,
    head_transform=True,
    other_parameters=lambda fields: (
        fields.count("hidden_size") * fields.count("type_vocab_size")
        + fields.count("vocab_size") * (not fields.flag("tie_word_embeddings"))
    ),
)
# Sources: each family's configuration and modelling code in huggingface/transformers, whose models are compared with
# these in tests/planner/test_transformers.py.
FAMILIES: dict[str, Family] = {
    "arcee": _family(LLAMA, PLAIN_MLP),
    "bert": BERT,
    # A norm follows the embeddings.
    "bloom": _family(GPT, other_parameters=lambda fields: 2 * fields.count("hidden_size")),
    "camembert": BERT,
    "cohere": _family(
        COHERE, other_parameters=lambda fields: fields.flag("use_qk_norm") * _norms_over_all_heads(fields)
    ),
    "cohere2": _family(COHERE, WINDOWS_BUT_EVERY_4TH),
    "deepseek_v2": _family(
        DEEPSEEK,
        _absent(first_k_dense_replace=0, n_shared_experts=2),
        router_bias=False,
        mlp_bias=lambda fields: fields.never("mlp_bias"),
    ),
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK_V32,
    "dots1": _family(
        QK_NORMED,
        DEEPSEEK_EXPERTS,
        _windows(_from("max_window_layers")),
        _absent(num_key_value_heads=32, first_k_dense_replace=0, sliding_window=4096, max_window_layers=62),
    ),
    "ernie4_5": _family(ERNIE, _absent(head_dim=128, num_key_value_heads=2)),
    "exaone": _family(LLAMA, _absent(num_key_value_heads=8)),
    "exaone4": _family(QK_NORMED, WINDOWS_BUT_EVERY_4TH, _absent(num_key_value_heads=32)),
    "exaone_moe": _family(
        QK_NORMED, LISTED_EXPERTS, WINDOWS_BUT_EVERY_4TH, ONE_DENSE_LAYER, _absent(num_key_value_heads=32)
    ),
    "flex_olmo": _family(OLMO, EXPERTS),
    "gemma": _family(GEMMA, _absent(num_key_value_heads=16)),
    "gemma2": _family(GEMMA, WINDOWS_IN_EVERY_2ND, _absent(sliding_window=4096), norms=4),
    # Published configurations leave out heads and vocabulary too.
    "gemma3_text": _family(
        GEMMA,
        _windows(_but_every("sliding_window_pattern")),
        _absent(num_attention_heads=8, vocab_size=262_208, sliding_window=4096, sliding_window_pattern=6),
        norms=4,
        qk_norm=True,
    ),
    "glm": _family(GLM, _absent(head_dim=128)),
    "glm4": _family(GLM, _absent(head_dim=128), norms=4),
    "glm4_moe": _family(GLM_MOE, qk_norm="use_qk_norm"),
    "glm4_moe_lite": _family(
        LATENT, LISTED_EXPERTS, ONE_DENSE_LAYER, _absent(q_lora_rank=768, qk_nope_head_dim=192, v_head_dim=256)
    ),
    "glm_moe_dsa": _family(
        DEEPSEEK_V32, _absent(q_lora_rank=2048, qk_nope_head_dim=192, v_head_dim=256, index_n_heads=32)
    ),
    "gpt2": GPT2,
    "gpt_bigcode": _family(GPT2, _absent(multi_query=True), kv_heads=lambda fields: int(fields.flag("multi_query"))),
    "gpt_neox": _family(BASE, BIASED_ATTENTION, _absent(attention_bias=True), mlp_bias=True, norm_bias=True),
    "gpt_oss": _family(
        DECODER,
        EXPERTS,
        BIASED_ATTENTION,
        WINDOWS_IN_EVERY_2ND,
        _absent(head_dim=64, num_key_value_heads=8, attention_bias=True, sliding_window=128, num_experts_per_tok=4),
        mlp_bias=True,
        router_bias=True,
        # A learned sink for each head's softmax.
        other_parameters=lambda fields: fields.count("num_hidden_layers") * fields.count("num_attention_heads"),
    ),
    "granite": LLAMA,
    "granitemoe": _family(DECODER, BIASED_ATTENTION, EXPERTS, _absent(num_experts=8, num_experts_per_tok=2)),
    "hunyuan_v1_dense": QK_NORMED,
    "internlm3": _family(LLAMA, _absent(head_dim=128, num_key_value_heads=2)),
    "jais2": _family(NEMOTRON, _absent(attention_bias=True, mlp_bias=True)),
    "kimi_k2": DEEPSEEK,
    "llama": LLAMA,
    # Experts and a shared one in one layer of a period; most layers see only their chunk of the sequence.
    "llama4_text": _family(
        DECODER,
        BIASED_ATTENTION,
        EXPERTS,
        _absent(
            head_dim=128, num_key_value_heads=8, num_experts=16, num_experts_per_tok=1, intermediate_size_mlp=16384
        ),
        _absent(interleave_moe_layer_step=1, attention_chunk_size=8192, no_rope_layer_interval=4),
        ffn=_count("intermediate_size_mlp", at_least=1),
        expert_ffn=_count("intermediate_size", at_least=1),
        shared_ffn=_count("intermediate_size", at_least=1),
        dense_layers=_layers_where(_is_dense_in_llama4),
        window=_count("attention_chunk_size", 0, at_least=1),
        windowed_layers=_layers_where(_but_every("no_rope_layer_interval"), "chunked_attention", "layer_types"),
        chunked=True,
    ),
    "minimax_m2": _family(OLMO, EXPERTS, _absent(head_dim=128, num_key_value_heads=8), router_bias=True),
    "ministral": MISTRAL,
    "ministral3": _family(MISTRAL, _absent(head_dim=128, sliding_window=None)),
    "mistral": MISTRAL,
    "mixtral": _family(MISTRAL, EXPERTS, _absent(sliding_window=None, num_experts=8, num_experts_per_tok=2)),
    "nemotron": NEMOTRON,
    "olmo": _family(DECODER, BIASED_ATTENTION, norm_weight=False),
    "olmo2": OLMO,
    "olmo3": _family(OLMO, WINDOWS_BUT_EVERY_4TH),
    "olmoe": _family(OLMO, EXPERTS, _absent(num_experts=64, num_experts_per_tok=8)),
    "phi3": _family(DECODER, WINDOWS_IN_ALL),
    "qwen2": QWEN2,
    "qwen2_moe": _family(
        QWEN,
        QWEN_EXPERTS,
        _absent(num_key_value_heads=16, qkv_bias=True),
        qkv_bias="qkv_bias",
        shared_ffn=_count("shared_expert_intermediate_size"),
        shared_gate=True,
    ),
    "qwen3": _family(QWEN3, _absent(head_dim=128)),
    "qwen3_moe": QWEN3_MOE,
    "roberta": BERT,
    "seed_oss": _family(
        LLAMA, _absent(head_dim=128, num_key_value_heads=8, attention_bias=True), output_bias="attention_out_bias"
    ),
    "smollm3": _family(LLAMA, TIED, _absent(num_key_value_heads=4)),
    "starcoder2": _family(
        ERNIE, PLAIN_MLP, WINDOWS_IN_ALL, _absent(num_key_value_heads=2, use_bias=True), norm_bias=True
    ),
    "vaultgemma": _family(GEMMA, WINDOWS_IN_EVERY_2ND, _absent(sliding_window=4096)),
    "xlm-roberta": BERT,
    "youtu": _family(LATENT, TIED),
}
# The part of text of models of several kinds of input, where its family has a name of its own.
FAMILIES |= {
    **dict.fromkeys(("qwen2_5_omni_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl", "qwen2_vl_text"), QWEN2),
    "glm4v_moe_text": _family(GLM_MOE, _absent(attention_bias=True)),
    "glm4v_text": _family(GLM, norms=4),
    "hunyuan_vl_text": _family(QK_NORMED, TIED),
    "paddleocr_vl_text": FAMILIES["ernie4_5"],
    "qwen3_omni_moe_text": QWEN3_MOE,
    "qwen3_vl_moe_text": _family(QWEN3_MOE, _absent(head_dim=128, num_key_value_heads=16)),
    "qwen3_vl_text": FAMILIES["qwen3"],
}
# They say nothing of a model without experts.
OF_EXPERTS = ("experts", "top_k", "expert_ffn", "shared_ffn", "router_bias", "dense_layers")
# Layers that families have in the place of attention, in all of their layers or in some.
NOT_PRICED = {
    **dict.fromkeys(("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "mamba"), "Mamba"),
    **dict.fromkeys(("mamba2", "nemotron_h", "zamba", "zamba2"), "Mamba"),
    **dict.fromkeys(("kimi_linear", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), "Gated DeltaNet"),
    **dict.fromkeys(("lfm2", "lfm2_moe"), "convolutions"),
    "minimax": "lightning attention",
    "recurrent_gemma": "a gated linear recurrence",
    "rwkv": "RWKV",
    "xlstm": "xLSTM",
}
# Fields in which a model of several kinds of input has its model of text; and those that hold a whole one in it, whose
# own flag says whether embedding and logits are one. Of the others the outer flag does, whatever that of the text says.
TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
WITH_A_WHOLE_MODEL = ("llama4",)
# Configurations of published models are a few KiB; with labels of classes in it one may be longer.
MOST_BYTES = 1 << 20
BY_HAND = "give --layers, --hidden, --heads, --ffn and --vocab, and --kv-heads, --experts, --top-k"


@dataclass(frozen=True)
class ModelConfig:
    """A `config.json`: dimensions, the longest sequence it names (0: none), and notes on what is left out."""

    dimensions: ModelDimensions
    longest_seq: int
    notes: tuple[str, ...]


def read_model_config(path: Path, family: str | None = None) -> ModelConfig:
    """Read a `config.json`, or that of a model's folder, as of another `family` where one is given.

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
    return model_config(values, str(path), family)


def model_config(values: Mapping[str, Any], origin: str, family: str | None = None) -> ModelConfig:
    """Read a configuration's fields; `origin` names it in errors. Raises UserError as `read_model_config` does.

    Of a model of text and images, the model of text is taken.
    """
    if family is not None and family not in FAMILIES:
        raise UserError(f"--family {family[:40]} is not known: {offer(family, FAMILIES)}")
    text = _model_of_text(values)
    known = _known(family or text.get("model_type"), origin)
    built = FAMILIES[known]
    fields = ConfigFields(text, f"{origin}, a {known} model", built.defaults)
    try:
        dense = "experts" in built.sizes and not built.sizes["experts"](fields)
        sizes: dict[str, Any] = {}
        for name, size in built.sizes.items():
            if not (dense and name in OF_EXPERTS):
                sizes[name] = size(fields) if callable(size) else fields.flag(size) if isinstance(size, str) else size
        if not (sizes.get("window") and sizes.get("windowed_layers")):
            sizes |= {"window": 0, "windowed_layers": 0, "chunked": False}
        dimensions = ModelDimensions(**sizes)
    except UserError as wrong:
        raise wrong if str(wrong).startswith(origin) else UserError(f"{origin}: {wrong}") from None
    notes = _notes(fields, dimensions)
    if text is not values:
        notes = ("Of this model of several kinds of input only the part that reads and writes text is taken.", *notes)
    return ModelConfig(dimensions, fields.count("max_position_embeddings", 0), notes)


def _model_of_text(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of the model of text in a model of several kinds of input."""
    text = next((values[name] for name in TEXT_PARTS if isinstance(values.get(name), dict)), None)
    if text is None:
        return values
    outer = values.get("model_type")
    text = {"model_type": f"{outer}_text", **text}
    if values.get("tie_word_embeddings") is not None and outer not in WITH_A_WHOLE_MODEL:
        text["tie_word_embeddings"] = values["tie_word_embeddings"]
    return _model_of_text(text)


def _known(family: Any, origin: str) -> str:
    if not isinstance(family, str):
        raise UserError(
            f"{origin} does not say its model_type, so its fields cannot be read: name a family that it is built like, "
            f"as in --family llama, or {BY_HAND}."
        )
    if family in NOT_PRICED:
        raise UserError(f"{origin} is a {family} model, with layers of {NOT_PRICED[family]}, which are not priced.")
    if family not in FAMILIES:
        raise UserError(
            f"{origin} is of the unknown family {family[:40]!r} (docs/size.md lists those known): name one that it is "
            f"built like, as in --family llama, or {BY_HAND}."
        )
    return family


def _notes(fields: ConfigFields, dimensions: ModelDimensions) -> tuple[str, ...]:
    """Return notes on parts of the model that the dimensions leave out."""
    notes = []
    if fields.count("num_nextn_predict_layers", 0):
        notes.append("The layers that predict several tokens at once are not counted.")
    if not dimensions.window and fields.flag("use_sliding_window", True) and fields.count("sliding_window", 0):
        notes.append("Attention is taken over the whole sequence, though some of this model's layers see a window.")
    if chosen := fields.count("index_topk", 0):
        notes.append(f"Attention is taken over the whole sequence, though its indexer chooses {chosen} tokens a query.")
    return tuple(notes)
