"""The one place that imports the native extension, so that a missing build is one sentence and not a traceback."""

from __future__ import annotations

import importlib
from types import ModuleType

from pyperf_suite.errors import UserError


def native_extension() -> ModuleType:
    """`pyperf_suite._native`. Raises UserError that says how to build it where it is absent or does not load."""
    try:
        return importlib.import_module("pyperf_suite._native")
    except ImportError as error:
        raise UserError(
            f"The native extension does not load ({error}): build it with `pip install -e .` in the checkout, "
            "which needs a C++17 compiler."
        ) from None
