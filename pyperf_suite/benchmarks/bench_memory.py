"""What takes a training step's memory, beside the formulas (see probes/training/memory.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("memory")
def test_memory(measured: Callable[[], None]) -> None:
    """One configuration's bytes, counted and not timed."""
    measured()
