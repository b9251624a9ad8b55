"""Our own kernels beside the library's (see probes/baseline.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("baseline")
def test_baseline(measured: Callable[[], None]) -> None:
    """One product by one implementation."""
    measured()
