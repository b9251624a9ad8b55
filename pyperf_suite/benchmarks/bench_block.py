"""A transformer block and a small GPT in training, whole and by parts (see probes/training/block)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("block")
def test_block(measured: Callable[[], None]) -> None:
    """One step, one part of a block, or one product that they are held against."""
    measured()
