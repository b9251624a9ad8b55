"""How fast bytes get to where they are computed with (see probes/training/transfer.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("transfer")
def test_transfer(measured: Callable[[], None]) -> None:
    """One size by one way."""
    measured()
