"""A training step in each precision, by batch (see probes/training/precision.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("precision")
def test_precision(measured: Callable[[], None]) -> None:
    """A step of one transformer in one precision, with its casts of weights kept or not."""
    measured()
