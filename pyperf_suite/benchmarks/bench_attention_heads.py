"""Attention by number of heads and head dimension (see probes/attention_heads)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("attention_heads")
def test_attention_heads(measured: Callable[[], None]) -> None:
    """One split of a hidden size into heads, by one implementation."""
    measured()
