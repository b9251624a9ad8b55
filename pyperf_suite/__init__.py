"""Microbenchmarks of the laws that decide how fast a transformer trains on a machine."""

from __future__ import annotations

__version__ = "0.1.0"
