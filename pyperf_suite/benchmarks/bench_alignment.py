"""What odd dimensions cost, and what padding them wins (see probes/alignment)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("alignment")
def test_alignment(measured: Callable[[], None]) -> None:
    """One size of one dimension, as it is or padded at each call."""
    measured()
