"""What the sizing laws are fitted to on this machine (see probes/calibration/probe.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("calibration")
def test_calibration(measured: Callable[[], None]) -> None:
    """One library product or attention."""
    measured()
