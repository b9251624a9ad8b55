"""Training steps that drop activations and compute them again, and the batches that then fit (see probes/training)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("checkpointing")
def test_checkpointing(measured: Callable[[], None]) -> None:
    """One batch under one policy."""
    measured()
