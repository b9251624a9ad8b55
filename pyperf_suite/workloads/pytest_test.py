"""A test that pytest runs and the suite measures, as records name it: its node id, and the test's parametrisation.

Readers of records need no more than that, and never import the test.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from pyperf_suite.errors import Unsupported
from pyperf_suite.workloads.workload import Implementation, Place, Prepared, Workload

# What separates the file of a node id from the test in it; no other workload has it in its name.
SEPARATOR = "::"


class _InPytest(Implementation[Any]):
    """Whatever the test hands to its fixture."""

    name = "test"

    def prepare(self, parameters: Any, place: Place) -> Prepared:
        raise Unsupported("A test is measured by pytest alone: run pytest on it.")


class PytestTest(Workload[Any]):
    """`tests/test_softmax.py::test_softmax`; its parameters are a dataclass made of what a case holds."""

    parameters_type = object
    implementations: Mapping[str, Any] = {}
    own_check = False

    def __init__(self, name: str) -> None:
        self.name = name

    def type_of(self, parameters: Mapping[str, Any]) -> type:
        """A frozen dataclass with a field for each of these."""
        return _parametrisation(tuple((name, type(value)) for name, value in parameters.items()))

    def validate(self, parameters: Any) -> None:
        """Any parametrisation can be."""

    def implementation(self, name: str) -> Any:
        """The test alone knows which there are."""
        return _InPytest()


@functools.cache
def _parametrisation(fields: tuple[tuple[str, type], ...]) -> type:
    return dataclasses.make_dataclass("Parametrisation", fields, frozen=True)
