"""How the parts of this machine are connected (see probes/training/topology.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("topology")
def test_topology(measured: Callable[[], None]) -> None:
    """One part of the machine, read and not timed."""
    measured()
