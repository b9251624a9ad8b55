"""Sizes of messages as text."""

from __future__ import annotations

from pyperf_suite.render.text import told
from pyperf_suite.spec.quantity import Quantity


def readable(size_bytes: float) -> str:
    """`16 MiB`: in the largest unit that leaves at least one of it."""
    return told(Quantity(size_bytes, "size"))
