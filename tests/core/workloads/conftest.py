"""Restore torch's settings: the next case finds nothing of the one before."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def torchs_switches_as_they_were() -> Iterator[None]:
    """Every backend of attention is allowed again."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        for backend in ("flash", "cudnn", "mem_efficient", "math"):
            getattr(torch.backends.cuda, f"enable_{backend}_sdp")(True)
