"""Raw bandwidth of collectives between ranks (see probes/collectives/)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("collectives")
def test_collectives(measured: Callable[[], None]) -> None:
    """One collective at one size by one implementation."""
    measured()
