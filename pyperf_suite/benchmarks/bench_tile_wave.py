"""Tile and wave quantization of this machine (see probes/tile_wave)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("tile_wave")
def test_tile_wave(measured: Callable[[], None]) -> None:
    """One size of one sweep across the edges of tiles and waves."""
    measured()
