"""Families of transformers: each has the parameters of the model that transformers builds, or is refused by its name.

Nothing is downloaded, and models are built on torch's meta device, where weights take no memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.planner.model_config import FAMILIES, model_config

# Transformers is imported inside of tests: it takes seconds.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        not (find_spec("transformers") and find_spec("torch")),
        reason="needs transformers and torch: pip install -c constraints.txt --group transformers",
    ),
]

# No two products of these are equal.
SIZES = {
    "vocab_size": 1009,
    "hidden_size": 96,
    "intermediate_size": 152,
    "intermediate_size_mlp": 168,
    "n_inner": 152,
    "num_hidden_layers": 7,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 20,
    "num_experts": 10,
    "n_routed_experts": 10,
    "num_local_experts": 10,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 56,
    "shared_expert_intermediate_size": 88,
    "n_shared_experts": 2,
    "first_k_dense_replace": 2,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 28,
    "kv_lora_rank": 36,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
    "index_n_heads": 5,
    "index_head_dim": 16,
    "max_position_embeddings": 256,
    "type_vocab_size": 3,
    "pad_token_id": 0,
    "num_nextn_predict_layers": 0,
}
# The model that predicts masked words is counted.
ENCODERS = ("bert", "camembert", "roberta", "xlm-roberta")
# Sizes of models whose others are the family's usual ones: smaller than these, and those that a file has to say.
SMALLER = ("intermediate_size", "num_hidden_layers")
STATED_SIZES = ("num_attention_heads", "vocab_size", "max_position_embeddings", "moe_intermediate_size")
STATED_SIZES += (
    "num_experts",
    "n_routed_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "shared_expert_intermediate_size",
)
# Biases of dense MLPs and shared experts alone.
REFUSED = {("deepseek_v2", "mlp_bias")}
WINDOWED, WINDOWED_WITHOUT_A_LIST = ("sliding_attention", "chunked_attention"), ("mistral",)
# Models of text within models of images are compared within these.
WITHIN = {"qwen2_vl", "qwen2_5_vl", *(name for name in FAMILIES if name.endswith("_text"))} - {
    "gemma3_text",
    "llama4_text",
}
TEXTS = sorted(FAMILIES.keys() - WITHIN)


class NotBuilt(Exception):
    """Transformers cannot build a model of these sizes, or lacks a package for images."""


def kind_of(family: str) -> Any:
    """The class of a family's configurations. Skips the test of one that transformers does not have."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if family not in CONFIG_MAPPING:
        pytest.skip(f"transformers has no {family}")
    return CONFIG_MAPPING[family]


def built(auto: Any, kind: Any, sizes: dict[str, Any]) -> tuple[Any, Any]:
    """A configuration and its model. Raises NotBuilt."""
    import torch
    from huggingface_hub.errors import StrictDataclassError

    try:
        config = kind(**sizes)
        with torch.device("meta"):
            return config, auto.from_config(config)
    except (
        AssertionError,
        AttributeError,
        ImportError,
        KeyError,
        StrictDataclassError,
        TypeError,
        ValueError,
    ) as error:
        raise NotBuilt(str(error)) from None


def text_family(family: str) -> str:
    """The family of the model of text, its own where transformers names several or needs more to say it."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        return str(kind_of(family)().get_text_config().model_type)
    except (AttributeError, KeyError, StrictDataclassError, TypeError, ValueError):
        return family


def sizes_of(kind: Any) -> dict[str, Any]:
    """The sizes that a configuration has, by its own names."""
    has, names = kind().to_dict(), getattr(kind, "attribute_map", {})
    own = {names.get(name, name): size for name, size in SIZES.items()}
    return {name: size for name, size in own.items() if name in has}


def flags_of(kind: Any) -> list[dict[str, bool]]:
    """No change, and each flag that adds or ties parameters turned round."""
    flags = {name: value for name, value in kind().to_dict().items() if isinstance(value, bool)}
    adding = [name for name in flags if "bias" in name or "tie" in name or "qk" in name or name == "multi_query"]
    return [{}, *({name: not flags[name]} for name in adding if name != "use_bidirectional_attention")]


def parameters(*modules: Any) -> int:
    """Count parameters once each, and what else is saved: routers' biases."""
    counts = {id(each): each.numel() for module in modules for each in module.parameters()}
    for module in modules:
        saved = module.state_dict().keys()
        counts |= {
            id(each): each.numel()
            for name, each in module.named_buffers()
            if name in saved and each.is_floating_point()
        }
    return sum(counts.values())


def saved(config: Any, folder: Path) -> dict[str, Any]:
    config.save_pretrained(folder)
    return dict(json.loads((folder / "config.json").read_text()))


def counted(values: dict[str, Any]) -> int:
    return model_config(values, "config.json").dimensions.parameters


def of_text(family: str) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    return AutoModelForMaskedLM if family in ENCODERS else AutoModelForCausalLM


@pytest.mark.parametrize("family", TEXTS)
def test_a_saved_configuration_has_the_parameters_of_the_model(family: str, tmp_path: Path) -> None:
    kind = kind_of(family)
    compared = 0
    for flags in flags_of(kind):
        try:
            config, model = built(of_text(family), kind, sizes_of(kind) | flags)
        except NotBuilt:
            continue
        if (family, *flags) in REFUSED:
            with pytest.raises(UserError, match=f"has {min(flags)} = True, where false is expected"):
                counted(saved(config, tmp_path))
        else:
            assert counted(saved(config, tmp_path)) == parameters(model), flags
            compared += 1
    assert compared > 1


@pytest.mark.parametrize("family", TEXTS)
def test_what_a_configuration_leaves_out_is_as_transformers_has_it(family: str) -> None:
    kind = kind_of(family)
    usual, names = kind().to_dict(), getattr(kind, "attribute_map", {})
    fields = {names.get(name, name): SIZES[name] for name in SMALLER}
    for name in (names.get(name, name) for name in STATED_SIZES):
        fields[name] = usual.get(name) or SIZES.get(name)
    fields[names.get("hidden_size", "hidden_size")] = (
        64 * fields[names.get("num_attention_heads", "num_attention_heads")]
    )
    fields = {name: size for name, size in fields.items() if name in usual and size}
    try:
        config, model = built(of_text(family), kind, fields)
    except NotBuilt as reason:
        pytest.skip(f"transformers itself needs more than these: {reason}")
    read = model_config({"model_type": family, **fields}, "config.json").dimensions
    assert read.parameters == parameters(model)
    kinds = getattr(config, "layer_types", None) or ()
    assert read.windowed_layers == sum(kind in WINDOWED for kind in kinds) or family in WINDOWED_WITHOUT_A_LIST


def models_of_images() -> Iterator[tuple[str, dict[str, Any]]]:
    """Families whose model of text is known, with their sizes and each way to tie embedding and logits."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    for family in sorted(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES):
        if text_family(family) not in FAMILIES:
            continue
        usual = kind_of(family)()
        text = sizes_of(type(usual.get_text_config()))
        outer = {name: SIZES[name] for name in ("hidden_size", "vocab_size") if name in usual.to_dict()}
        yield family, {**outer, "text_config": text}
        for tied in ("outer", "inner", "neither"):
            inside = {**text, "tie_word_embeddings": tied == "inner"}
            yield family, {**outer, "tie_word_embeddings": tied == "outer", "text_config": inside}


def test_of_a_model_of_images_the_model_of_text_has_its_parameters(tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText

    compared = set()
    for family, sizes in models_of_images():
        try:
            config, model = built(AutoModelForImageTextToText, kind_of(family), sizes)
        except NotBuilt:
            continue
        assert counted(saved(config, tmp_path)) == parameters(model.get_decoder(), model.get_output_embeddings()), (
            family
        )
        compared.add(family)
    assert len(compared) > 30, compared


def test_another_family_is_refused_by_its_name() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    for family in map(text_family, sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)):
        if family not in FAMILIES:
            with pytest.raises(UserError, match=f"is (a {family} model|of the unknown family '{family}')"):
                model_config({"model_type": family}, "config.json")
