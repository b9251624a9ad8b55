"""The native module for the tests that ask for it; where it is not built they skip, saying how to."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

HOW_TO_BUILD = "the native extension is not built: run `pip install -e .` in the checkout"


@pytest.fixture(scope="session")
def native() -> ModuleType:
    """`pyperf_suite._native`, or a skip that says how to build it."""
    return pytest.importorskip("pyperf_suite._native", reason=HOW_TO_BUILD)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `isa` runs once for each instruction set this processor has kernels for."""
    if "isa" not in metafunc.fixturenames:
        return
    if importlib.util.find_spec("pyperf_suite._native") is None:
        metafunc.parametrize("isa", [pytest.param("none", marks=pytest.mark.skip(reason=HOW_TO_BUILD))])
        return
    metafunc.parametrize("isa", importlib.import_module("pyperf_suite._native").isas())
