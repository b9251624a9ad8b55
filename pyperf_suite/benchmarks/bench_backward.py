"""Forward, dgrad and wgrad of single layers (see probes/training/backward.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("backward")
def test_backward(measured: Callable[[], None]) -> None:
    """One pass of one layer."""
    measured()
