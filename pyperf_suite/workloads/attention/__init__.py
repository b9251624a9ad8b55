"""Attention: one signature, our own kernels and the libraries' beside them."""

from __future__ import annotations

from pyperf_suite.workloads.attention.attention import Attention
from pyperf_suite.workloads.attention.parameters import AttentionParameters

__all__ = ["Attention", "AttentionParameters"]
