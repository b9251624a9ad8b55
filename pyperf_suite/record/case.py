"""A case as plain data: an operator, that operator's parameters, an implementation and a seed.

Its id hashes canonical JSON with fields at their default left out, so a new field with a default keeps old ids.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any

from pyperf_suite.errors import UserError

MODES = ("burst", "sustained")


def _operator(name: str) -> Any:
    """The operator of that name, imported when it is requested: operators stand above records."""
    return importlib.import_module("pyperf_suite.workloads").find_workload(name)


@dataclass(frozen=True)
class Case:
    """One thing to measure. `parameters` is the operator's own frozen dataclass.

    `mode` "burst" measures what a device does at once; "sustained" after work without a pause, when heat and power
    caps have had their say: two seconds of it on a CPU, on a GPU until its clock has settled.
    """

    operator: str
    parameters: Any
    implementation: str
    seed: int = 0
    mode: str = "burst"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with defaults left out: the form that is stored, hashed and sent to workers."""
        encoded = {
            "operator": self.operator,
            "parameters": encode_fields(self.parameters),
            "implementation": self.implementation,
        }
        return (
            encoded | ({"seed": self.seed} if self.seed else {}) | ({"mode": self.mode} if self.mode != "burst" else {})
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        """The inverse of `to_json`. Raises UserError for an unknown operator or parameters it does not have."""
        try:
            operator = _operator(data["operator"])
            decoded = decode_fields(operator.type_for(data["parameters"]), data["parameters"])
            return cls(operator.name, decoded, data["implementation"], data.get("seed", 0), data.get("mode", "burst"))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"This is not a case of the suite ({repr(error)[:200]}): {str(data)[:200]}") from None

    @functools.cached_property
    def case_id(self) -> str:
        """16 hexadecimal digits of the SHA-256 of the canonical JSON."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @functools.cached_property
    def label(self) -> str:
        """Return the case for people: `matmul[native m=128 n=257 k=1024 schedule=persistent@2 tile=128x128x256]`."""
        return label_of(self.to_json())

    def validate(self) -> None:
        """Raise UserError where the case can never be measured, naming what is allowed."""
        if self.mode not in MODES:
            raise UserError(f"Unknown mode {self.mode!r}: choose from {', '.join(MODES)}.")
        operator = _operator(self.operator)
        operator.validate(self.parameters)
        operator.implementation(self.implementation).validate(self.parameters)


def label_of(case: Mapping[str, Any]) -> str:
    """`Case.label` from the case's JSON alone, so that a case of an operator that is gone keeps its name."""
    fields = [f"{name}={value}" for name, value in (case.get("parameters") or {}).items()]
    mode = [] if case.get("mode", "burst") == "burst" else [f"mode={case['mode']}"]
    return f"{case.get('operator')}[{' '.join((str(case.get('implementation')), *fields, *mode))}]"


def encode_fields(parameters: Any) -> dict[str, Any]:
    """A parameter dataclass as plain JSON: defaults left out, words like Tile and Schedule as they are written."""
    encoded = {}
    for each in dataclasses.fields(parameters):
        value = getattr(parameters, each.name)
        if value != each.default:
            encoded[each.name] = value if isinstance(value, bool | int | float | str) else str(value)
    return encoded


def decode_fields(parameters_type: type, data: Mapping[str, Any]) -> Any:
    """The inverse of `encode_fields`. Raises UserError for no such field, and for a value of another type."""
    fields = _fields(parameters_type)
    values = {}
    for name, value in data.items():
        if name not in fields:
            raise UserError(f"{parameters_type.__name__} has no field {name!r}: it has {', '.join(fields)}.")
        parse, types = fields[name]
        if type(value) not in types:
            raise UserError(
                f"{parameters_type.__name__}.{name} cannot be {repr(value)[:80]}: it is of type "
                f"{' or '.join(each.__name__ for each in types)}."
            )
        values[name] = parse(value) if parse is not None and value is not None else value
    return parameters_type(**values)


@functools.cache
def _fields(parameters_type: type) -> dict[str, tuple[Any, tuple[type, ...]]]:
    """For each field the `parse` of its type, None where JSON already holds the value, and the types JSON may have."""
    fields = {}
    for name, hint in typing.get_type_hints(parameters_type).items():
        choices = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
        parse = next((choice.parse for choice in choices if hasattr(choice, "parse")), None)
        plain = tuple(each for each in choices if each in (bool, int, float, str, type(None)))
        words = (str,) if parse is not None and str not in plain else ()
        fields[name] = (parse, (*plain, *words, *((int,) if float in plain and int not in plain else ())))
    return fields
