"""A product beside an all_reduce (see probes/training/overlap.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("overlap")
def test_overlap(measured: Callable[[], None]) -> None:
    """One product and message, alone, in turn or together."""
    measured()
