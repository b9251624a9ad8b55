"""Stand-ins for the laws of grouped products and of latent attention, until they are there. To be removed."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.laws.explained import Explained
from pyperf_suite.laws.gemm import gemm_time


def grouped_gemm_time(
    gpu: Any, tokens: Any, hidden: Any, expert_ffn: Any, experts: Any, top_k: Any, dtype: str = "bf16", ep: Any = 1,
    tp: Any = 1, balance: str = "balanced", gated: bool = True, backward: bool = False, library: str | None = None,
) -> Explained:  # fmt: skip
    """As one product of all visits."""
    visits, width = np.asarray(tokens) * top_k // ep, np.asarray(expert_ffn) // tp
    both = [
        gemm_time(gpu, np.maximum(visits, 1), n, k, dtype)
        for n, k in (((2 if gated else 1) * width, hidden), (hidden, width))
    ]
    seconds = (2 if backward else 1) * sum(each.seconds for each in both)
    return Explained(seconds, {"ideal": seconds}, both[0].extrapolated, None)


def mla_time(gpu: Any, *sizes: Any, **more: Any) -> Explained:
    """Not known."""
    raise UserError("Latent attention was not measured.")
