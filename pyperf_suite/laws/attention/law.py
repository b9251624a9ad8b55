"""The law of attention with its constants: time = overhead + what the busiest slot computes, tile by tile.

Constants are fitted as those of laws/matmul/staircase.py are: none can come out negative, and short cases count as much
as long ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.laws.attention.counted import TiledAttention
from pyperf_suite.laws.matmul.staircase import nonnegative_fit


@dataclass(frozen=True)
class AttentionLaw:
    """Seconds = overhead + Σ over the busiest slot's tiles of (per_tile + Σ over the steps of each of its parts).

    A step of m queries over n keys costs m·n·padded_head_dim products (`per_product_s` is one multiply-add of Q·Kᵀ and
    one of P·V), m·n scores of the softmax, and n·padded_head_dim elements of K and of V that are brought in.
    """

    overhead_s: float
    per_tile_s: float
    per_product_s: float
    per_score_s: float
    per_element_s: float

    def seconds(self, cases: Sequence[TiledAttention]) -> NDArray[np.float64]:
        """Predicted seconds of each."""
        return _features(cases) @ np.array(astuple(self))

    def product_share(self, head_dim: int) -> float:
        """Share of a step over many queries that the two products take; the rest is the softmax, in [0, 1].

        The softmax costs the same whatever the head dimension, so its share grows as heads get narrower.
        """
        products = self.per_product_s * head_dim
        both = products + self.per_score_s
        return products / both if both else 1.0

    @classmethod
    def fit(cls, cases: Sequence[TiledAttention], seconds: ArrayLike) -> AttentionLaw:
        """Fit to measured seconds, one per case. Raises ValueError where there are none."""
        return cls(*nonnegative_fit(_features(cases), seconds))


def _features(cases: Sequence[TiledAttention]) -> NDArray[np.float64]:
    rows = []
    for case in cases:
        steps, tiles = case.busiest
        m, n, width = case.blocks.m, case.blocks.n, case.padded_head_dim
        rows.append((1.0, tiles, steps * m * n * width, steps * m * n, steps * n * width))
    return np.array(rows, dtype=np.float64).reshape(-1, 5)
