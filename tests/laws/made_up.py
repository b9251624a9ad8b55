"""Prices of a made-up GPU, whose iterations can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pyperf_suite.laws.explained import Explained


@dataclass
class MadeUpPrices:
    """100 TFLOP/s, 1 TB/s; a collective takes a second a GB where `linked`."""

    linked: bool = True

    def gemm(self, layout: str, m: Any, n: Any, k: Any) -> Explained:
        return Explained(2.0 * m * n * k / 1e14)

    def attention(
        self, causal: bool, backward: bool, batch: Any, seq: Any, heads: Any, kv_heads: Any, head_dim: Any
    ) -> Explained:
        flop = (2.5 if backward else 1.0) * 4.0 * batch * heads * seq**2 * head_dim / (2 if causal else 1)
        return Explained(flop / 1e14)

    def memory_bound(self, nbytes: Any) -> Explained:
        return Explained(nbytes / 1e12)

    def collective(
        self,
        op: str,
        nbytes: Any,
        ranks: Any,
        ranks_per_node: Any = None,
        network_bytes_per_s: float | None = None,
    ) -> Explained:
        return Explained(np.where(np.asarray(ranks) > 1, nbytes / 1e9 if self.linked else 0.0, 0.0))
