"""Which tests the suite measures, and what their records call them: node id, parametrisation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from pyperf_suite.runner.case import Case
from pyperf_suite.runner.plan import PlannedCase
from pyperf_suite.workloads import find_workload

# What pytest-benchmark's fixture measures has no name of its own.
BENCHMARK = "benchmark"

_LONGEST_TEXT = 80


@dataclass(frozen=True)
class Node:
    """A test as pytest names it, and as records do: `name` without parametrisation, and the parametrisation."""

    nodeid: str
    name: str
    parameters: Any

    def planned(self, implementation: str = BENCHMARK) -> PlannedCase:
        """The case of one of the implementations that the test measures."""
        return PlannedCase(self.name, Case(self.name, self.parameters, implementation))


def nodes_of(items: Iterable[pytest.Item]) -> dict[str, Node]:
    """By node id. Tests whose parameters would be written alike are told apart by pytest's id of them."""
    described = {item.nodeid: (_name_of(item), _parametrisation(item)) for item in items}
    alike = Counter((name, tuple(sorted(values.items()))) for name, values in described.values())
    nodes = {}
    for nodeid, (name, values) in described.items():
        if alike[name, tuple(sorted(values.items()))] > 1:
            values = values | {"id": nodeid.removeprefix(name)}
        nodes[nodeid] = Node(nodeid, name, find_workload(name).type_for(values)(**values))
    return nodes


def _name_of(item: pytest.Item) -> str:
    """The node id without the parametrisation that stands in brackets behind it."""
    return item.nodeid.removesuffix(f"[{item.callspec.id}]") if hasattr(item, "callspec") else item.nodeid


def _parametrisation(item: pytest.Item) -> dict[str, bool | int | float | str]:
    if not hasattr(item, "callspec"):
        return {}
    texts = {name: _plain(value) for name, value in item.callspec.params.items()}
    found = {name: value for name, value in texts.items() if value is not None}
    return found if len(found) == len(texts) else found | {"id": item.callspec.id}


def _plain(value: Any) -> bool | int | float | str | None:
    """A value as records hold it; None for an object that no text tells from others."""
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    text = value if isinstance(value, str) else getattr(value, "__name__", None) or str(value)
    unclear = len(text) > _LONGEST_TEXT or not text.isprintable() or " at 0x" in text or text == "<lambda>"
    return None if unclear else text
