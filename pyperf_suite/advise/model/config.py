"""The dimensions of a model from its Hugging Face `config.json`, of the families that `model_families` knows.

The file may come from anywhere, so whatever is wrong with it is told in one sentence.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyperf_suite.advise.model.config_fields import ConfigFields
from pyperf_suite.advise.model.families import FAMILIES
from pyperf_suite.errors import UserError
from pyperf_suite.laws.transformer import ModelDimensions

# Configurations of published models are a few KiB; with labels of classes in it one may be longer.
MOST_BYTES = 1 << 20
BY_HAND = (
    "of a transformer give --layers, --hidden, --heads, --ffn and --vocab instead, and --kv-heads, --experts, --top-k "
    "where it has them"
)
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
    return model_config(_object_in(_bytes_of(path), str(path)), str(path))


def model_config(values: Mapping[str, Any], origin: str) -> ModelConfig:
    """What a configuration says, its fields already read; `origin` names it in errors.

    Of a model of text and images, the model of text is taken. Raises UserError as `read_model_config` does.
    """
    notes = []
    if not _is_known(values.get("model_type")) and isinstance(values.get("text_config"), dict):
        notes.append("Of this model of several kinds of input only the part that reads and writes text is taken.")
        values = values["text_config"]
    family, read = _family(values, origin)
    fields = ConfigFields(values, f"{origin}, a {family} model")
    if fields.flag("use_sliding_window", True) and fields.count("sliding_window", default=0):
        notes.append("Attention is taken over the whole sequence, though some of this model's layers see a window.")
    if fields.count("num_nextn_predict_layers", default=0):
        notes.append("The layers that predict several tokens at once are not counted.")
    try:
        dimensions = read(fields)
    except UserError as wrong:
        raise wrong if str(wrong).startswith(origin) else UserError(f"{origin}: {wrong}") from None
    return ModelConfig(family, dimensions, fields.count(*LONGEST_SEQ, default=0), tuple(notes))


def _is_known(family: Any) -> bool:
    return isinstance(family, str) and family in FAMILIES


def _family(values: Mapping[str, Any], origin: str) -> tuple[str, Callable[[ConfigFields], ModelDimensions]]:
    family = values.get("model_type")
    if not isinstance(family, str):
        raise UserError(f"{origin} does not say its model_type, so its fields cannot be read: {BY_HAND}.")
    if not _is_known(family):
        has = ", ".join(f"{name} = {values[name]}" for name in USUAL_FIELDS if isinstance(values.get(name), int))
        raise UserError(
            f"{origin} is of the unknown family {family[:40]!r}, where {', '.join(sorted(FAMILIES))} are known: "
            f"{BY_HAND}{f' (it has {has[:200]})' if has else ''}."
        )
    return family, FAMILIES[family]


def _bytes_of(path: Path) -> bytes:
    """The file's content, of a folder that of its `config.json`; no more of it than tells that it is too long."""
    try:
        path = path / "config.json" if path.is_dir() else path
        # A pipe or a device would have the reader wait, or never end.
        if not path.is_file():
            raise UserError(f"There is no model configuration at {path}: name a config.json, or the folder it lies in.")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"The model configuration {path} cannot be read: {error.strerror}.") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{path} is larger than the 1 MiB that a model configuration may have: name a config.json.")
    return content


def _object_in(content: bytes, origin: str) -> Mapping[str, Any]:
    try:
        found = json.loads(content.decode("utf-8-sig"), object_pairs_hook=functools.partial(_without_repeats, origin))
    except RecursionError:
        raise UserError(f"{origin} is nested too deeply for a model configuration: name a config.json.") from None
    except UnicodeDecodeError:
        raise UserError(f"{origin} is not text in UTF-8, as JSON is: name a config.json.") from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"{origin} is not whole JSON: {error.msg} in line {error.lineno}, column {error.colno}; fetch it again."
        ) from None
    except ValueError:  # which Python raises for such numbers alone
        raise UserError(f"{origin} has a number of thousands of digits, as no model has: name a config.json.") from None
    if not isinstance(found, dict):
        raise UserError(f"{origin} holds no JSON object, as a model configuration does: name a config.json.")
    return found


def _without_repeats(origin: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises UserError where it has a name twice: readers differ in which of the two they take."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise UserError(f"{origin} has the field {name[:40]!r} twice: keep the right one.")
        found[name] = value
    return found
