"""Tests as records know them: the node id without parametrisation, and parameters by value, for places change."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pyperf_suite.pytest_plugin.fixtures import BENCHMARK
from pyperf_suite.record.case import Case
from pyperf_suite.runner.plan import PlannedCase
from pyperf_suite.user_kernels.arrays import content_hash, is_array
from pyperf_suite.workloads import find_workload

Scalar = bool | int | float | str

_LONGEST_TEXT = 80
# Texts that other objects may have too: by address, and of arrays.
_SHORTENED = re.compile(r" at 0x|\.\.\.|\b(array|tensor)\(")
# The parameter by which pytest-repeat makes several items of a test: they are one case.
_REPEATED = "__pytest_repeat_step_number"


@dataclass(frozen=True)
class Node:
    """A test: `name` without parametrisation, `parameters`, and those `unnamed` that only their place distinguishes."""

    nodeid: str
    name: str
    parameters: Any
    file: Path
    unnamed: tuple[str, ...] = ()

    def planned(self, implementation: str = BENCHMARK) -> PlannedCase:
        return PlannedCase(self.name, Case(self.name, self.parameters, implementation))


def nodes_of(items: Sequence[pytest.Item]) -> dict[str, Node]:
    """By node id, repetitions of a test as its first. Tests with equal parameters go by pytest's id too.

    Where that numbers values, as of one array in two layouts, their place in the list is written too.
    """
    first_of: dict[tuple[str, str], pytest.Item] = {}
    firsts = {item.nodeid: first_of.setdefault((_name_of(item), _id_of(item)), item).nodeid for item in items}
    tests = list(first_of.values())
    lengths = _lengths(tests)
    described = {item.nodeid: (_name_of(item), *_parametrisation(item, lengths)) for item in tests}
    similar = Counter((name, tuple(sorted(values.items()))) for name, values, _ in described.values())
    nodes = {}
    for item in tests:
        name, values, unnamed = described[item.nodeid]
        if similar[name, tuple(sorted(values.items()))] > 1:
            values, numbered = _parametrisation(item, lengths, by_text=False)
            values |= {"id": f"[{_id_of(item)}]"}
            unnamed = tuple(dict.fromkeys((*unnamed, *numbered)))
        nodes[item.nodeid] = Node(item.nodeid, name, find_workload(name).type_for(values)(**values), item.path, unnamed)
    return {nodeid: nodes[first] for nodeid, first in firsts.items()}


def _name_of(item: pytest.Item) -> str:
    """The node id without the parametrisation that stands in brackets behind it."""
    return item.nodeid.removesuffix(f"[{item.callspec.id}]") if hasattr(item, "callspec") else item.nodeid


def _indices(item: Any) -> dict[str, int]:
    """The place of each parameter's value, but pytest-repeat's: pytest counts its repetitions in those of marks."""
    if not hasattr(item, "callspec"):
        return {}
    indices, fixtures = dict(item.callspec.indices), item._fixtureinfo.name2fixturedefs
    if indices.pop(_REPEATED, None) is not None:
        repetitions = int(item.callspec.id.rpartition("-")[2])
        for name in indices:
            if fixtures[name][-1].func.__module__ == "_pytest.python":  # no fixture, but a mark
                indices[name] //= repetitions
    return indices


def _id_of(item: Any) -> str:
    """The parametrisation as pytest names it, without pytest-repeat's number."""
    if not hasattr(item, "callspec"):
        return ""
    name = str(item.callspec.id)
    return re.sub(r"-?\d+-\d+$", "", name) if _REPEATED in item.callspec.indices else name


def _lengths(items: Iterable[pytest.Item]) -> dict[tuple[str, str], int]:
    """How many values each parameter of each test has: by its mark or fixture, else those collected."""
    found: dict[tuple[str, str], int] = {}
    for item in items:
        for name, index in _indices(item).items():
            key = (_name_of(item), name)
            found[key] = max(found.get(key) or _declared_length(item, name), index + 1)
    return found


def _declared_length(item: Any, parameter: str) -> int:
    """The number of values that the mark or the fixture of a parameter lists; 0 if neither does."""
    for mark in item.iter_markers("parametrize"):
        names, cases = (*mark.args, *mark.kwargs.values())[:2]
        if parameter in (re.split(r"[\s,]+", names) if isinstance(names, str) else names) and hasattr(cases, "__len__"):
            return len(cases)
    fixtures = item._fixtureinfo.name2fixturedefs.get(parameter)
    return len(fixtures[-1].params or ()) if fixtures else 0


def _parametrisation(
    item: Any, lengths: Mapping[tuple[str, str], int], by_text: bool = True
) -> tuple[dict[str, Scalar], tuple[str, ...]]:
    """The parameters as records hold them, and names of those that go by place; all numbered ones not `by_text`."""
    values: dict[str, Scalar] = {}
    unnamed = []
    indices = _indices(item)
    for name, index in indices.items():
        value = item.callspec.params[name]
        text = text_of(value, item.module.__name__)
        # As `t0` or `<lambda>1`: nobody gave the value an id.
        numbered = rf"{re.escape(name)}{index}|{re.escape(getattr(value, '__name__', name))}_?\d*"
        is_numbered = not isinstance(value, str) and re.search(rf"(^|-)({numbered})(-|$)", item.callspec.id)
        if (text is None or not by_text) and is_numbered:
            unnamed.append(name)
            text = f"{type(value).__qualname__}#{index + 1}/{lengths[_name_of(item), name]}"
        if text is not None:
            values[name] = text
    has_all = len(values) == len(indices)
    return values if has_all else values | {"id": _id_of(item)}, tuple(unnamed)


def text_of(value: Any, module: str = "") -> Scalar | None:
    """A value as records hold it, None without a text of its own; functions of `module` go by their names alone."""
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    try:
        text = value if isinstance(value, str) else _described(value, module)
    except Exception:  # a text of the user's own may raise anything
        return None
    if len(text) <= _LONGEST_TEXT and text.isprintable():
        return text
    return None if isinstance(value, str) else f"{type(value).__qualname__}#{_hashed(text.encode())}"


class _Unnamed(Exception):
    """No text says which object it is."""


def _described(value: Any, module: str) -> str:
    """A text of the value that another value has not. Raises _Unnamed where there is none."""
    described = functools.partial(_described, module=module)
    if isinstance(value, functools.partial):
        named = [f"{name}={described(each)}" for name, each in value.keywords.items()]
        return f"{described(value.func)}({', '.join([*map(described, value.args), *named])})"
    if is_array(value) and value.shape:
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype}[{','.join(map(str, value.shape))}]#{_hashed(content_hash(value))}"
    if isinstance(getattr(value, "__name__", None), str):
        return _qualified(value, module)
    if type(value) is dict:
        return f"{{{', '.join(f'{described(key)}: {described(each)}' for key, each in value.items())}}}"
    if type(value) in (list, tuple):
        inner = ", ".join(map(described, value))
        return f"[{inner}]" if type(value) is list else f"({inner}{',' if len(value) == 1 else ''})"
    if type(value) in (set, frozenset):
        return f"{{{', '.join(sorted(map(described, value)))}}}"
    if isinstance(value, str):
        return repr(value)
    text = str(value)
    if not _SHORTENED.search(text) and f"{id(value):x}" not in text.lower():
        return text
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        names = [each.name for each in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else value._fields
        return f"{type(value).__qualname__}({', '.join(f'{name}={described(getattr(value, name))}' for name in names)})"
    raise _Unnamed


def _qualified(value: Any, module: str) -> str:
    """The qualified name of a function, class or method, with what a function holds that was made in another."""
    name, where = getattr(value, "__qualname__", value.__name__), getattr(value, "__module__", None)
    owner = getattr(value, "__self__", None)
    if name.endswith("<lambda>"):
        raise _Unnamed
    if owner is not None and not isinstance(owner, type | ModuleType):
        return f"{_described(owner, module)}.{value.__name__}"
    if "<locals>" in name and not isinstance(value, type):
        made = inspect.unwrap(value)
        if not inspect.isfunction(made):
            raise _Unnamed
        cells = [cell.cell_contents for cell in made.__closure__ or ()]
        held = [*(made.__defaults__ or ()), *(made.__kwdefaults__ or {}).values(), *cells]
        name += f"({', '.join(_described(each, module) for each in held)})"
    # A number's type is the same in whichever library.
    is_own = where in (None, "builtins", module) or hasattr(value, "dtype")
    return name if is_own else f"{where}.{name}"


def _hashed(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
