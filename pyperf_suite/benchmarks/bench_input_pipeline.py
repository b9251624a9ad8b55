"""How long a model waits for its data, and what shortens that (see probes/training/input_pipeline.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("input_pipeline")
def test_input_pipeline(measured: Callable[[], None]) -> None:
    """A few iterations with one setting of the loader."""
    measured()
