"""The checkout that the package was installed from, and its tools, which are no part of the package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The folder that holds setup.py."""
    return CHECKOUT


@pytest.fixture
def tool(monkeypatch):
    """Import one of tools/*.py by its name, as setup.py does."""

    def load(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(CHECKOUT / "tools"))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load
