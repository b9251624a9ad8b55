"""The law of attention with its constants: time = overhead + what the busiest slot computes, tile by tile.

It is judged on cases that it was not fitted to, and it names the causes that make one split of the heads the slower.

Constants are fitted as those of laws/matmul/staircase.py are: none can come out negative, and short cases count as much
as long ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.laws.attention.counted import TiledAttention
from pyperf_suite.laws.matmul.staircase import nonnegative_fit, relative_error

# The law has five constants; with fewer cases it repeats what it was given.
FEWEST_FITTED = 5

# A cause is named where it explains so much of the difference, and all that are named at least so much together.
ONE_CAUSE, ALL_CAUSES = 0.25, 0.5


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


@dataclass(frozen=True)
class FittedLaw:
    """A law, how many cases made it, and its relative errors on those it was not fitted to."""

    law: AttentionLaw
    fitted_on: int
    held_out: tuple[float, ...]

    @classmethod
    def fit(cls, measured: Sequence[tuple[TiledAttention, float]]) -> FittedLaw | None:
        """Judged on every third (head_dim, queries, keys, mask), fitted on the others; None where cases are too few."""
        judging = set(sorted({_kind(case) for case, _ in measured})[1::3])
        fitted, held_out = (
            [each for each in measured if (_kind(each[0]) in judging) == judged] for judged in (False, True)
        )
        if len(fitted) < FEWEST_FITTED or not held_out:
            return None
        law = AttentionLaw.fit([case for case, _ in fitted], [seconds for _, seconds in fitted])
        errors = relative_error(law.seconds([case for case, _ in held_out]), [seconds for _, seconds in held_out])
        return cls(law, len(fitted), tuple(errors.tolist()))


def causes(slow: TiledAttention, fast: TiledAttention, ratio: float, law: AttentionLaw | None) -> list[str]:
    """What explains that one case takes `ratio` times as long as another of the same work, the strongest first.

    Each of "padding", "edges", "slots" and "softmax" is a share of time well spent, and explains the logarithm of the
    ratio of both shares. None is named unless together they explain half of the difference.
    """
    if ratio <= 1:
        return []
    bad, good = _well_spent(slow, law), _well_spent(fast, law)
    explained = {
        cause: math.log(good[cause] / bad[cause]) / math.log(ratio) for cause in bad if bad[cause] and good[cause]
    }
    named = sorted((cause for cause in explained if explained[cause] >= ONE_CAUSE), key=lambda each: -explained[each])
    return named if sum(explained[cause] for cause in named) >= ALL_CAUSES else []


def _well_spent(case: TiledAttention, law: AttentionLaw | None) -> dict[str, float]:
    counted = {"padding": case.padding_efficiency, "edges": case.tile_efficiency, "slots": case.slot_efficiency}
    return counted if law is None else counted | {"softmax": law.product_share(case.padded_head_dim)}


def _kind(case: TiledAttention) -> tuple[int, int, int, bool]:
    return (case.head_dim, case.seq_q, case.seq_k, case.causal)


def _features(cases: Sequence[TiledAttention]) -> NDArray[np.float64]:
    rows = []
    for case in cases:
        steps, tiles = case.busiest
        m, n, width = case.blocks.m, case.blocks.n, case.padded_head_dim
        rows.append((1.0, tiles, steps * m * n * width, steps * m * n, steps * n * width))
    return np.array(rows, dtype=np.float64).reshape(-1, 5)
