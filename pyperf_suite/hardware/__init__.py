"""Describe the machine: CPU, memory, GPUs; its name in the results (identity), its condition then (state)."""

from __future__ import annotations
