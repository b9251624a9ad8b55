"""Updates of many small and few large tensors, by loop, multi-tensor operations and fused (see probes/training)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("optimizer")
def test_optimizer(measured: Callable[[], None]) -> None:
    """One optimizer's update in one way."""
    measured()
