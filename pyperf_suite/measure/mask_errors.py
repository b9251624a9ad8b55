"""Masks that are wrong by one key, seen although one key among thousands moves an output by less than its rounding.

Each mistake moves all outputs in a direction known exactly, so the errors are projected on it (a matched filter).
"""

from __future__ import annotations

import numpy as np

from .attention_reference import Array, Float64, KeyHead, Panel

MISTAKES = (
    "each query misses the first key it should see",
    "each query misses the last key it should see",
    "each query sees one key too many",
)

# Where one key has more than this weight, the limit per element sees it missing.
_LARGEST_WEIGHT = 0.5

# The mistake made has a share of 1 and a right mask one of 0; in between, noise must be as unlikely as this many of
# its standard deviations. Those are a tenth of an element's limit or less: a nineteenth where scores and
# probabilities are rounded to bf16, near a thirtieth where only probabilities are, or in fp32.
_DECISIVE_SHARE = 0.5
_CERTAINTY = 6.0
_DEVIATIONS_IN_LIMIT = 10.0


class MaskErrors:
    """The share of each mistake in the errors of all panels compared."""

    def __init__(self) -> None:
        self._found = np.zeros(len(MISTAKES))
        self._size = np.zeros(len(MISTAKES))
        self._noise = np.zeros(len(MISTAKES))

    def add(self, panel: Panel, error: Float64, visible: Array, head: KeyHead, scale: float) -> None:
        """Take in the errors of a panel's outputs, [queries, head_dim]."""
        queries, keys = np.arange(len(visible)), head.k.shape[0]
        beyond = np.minimum(visible, keys - 1)
        scores = scale * np.einsum("id,id->i", panel.q, head.k[beyond])
        added = np.where(visible < keys, np.exp(scores - panel.log_sum_exp), 0.0)
        for mistake, (at, weight) in enumerate(
            (
                (np.zeros_like(visible), -panel.p[:, 0]),
                (visible - 1, -panel.p[queries, visible - 1]),
                (beyond, added),
            )
        ):
            weight = np.where(np.abs(weight) < _LARGEST_WEIGHT, weight, 0.0)
            # Normalised anew without the key, or with it.
            moved = (weight / (1 + weight))[:, None] * (head.v[at] - panel.o)
            self._found[mistake] += float(np.vdot(error, moved))
            self._size[mistake] += float(np.vdot(moved, moved))
            self._noise[mistake] += float(np.vdot(moved * panel.o_limit, moved * panel.o_limit))

    def explanation(self) -> str | None:
        """The mistake that the errors tell of, where one does; None too where rounding could pass for it."""
        for mistake, found, size, noise in zip(MISTAKES, self._found, self._size, self._noise, strict=True):
            deviation = np.sqrt(noise) / _DEVIATIONS_IN_LIMIT
            if found > _DECISIVE_SHARE * size > _CERTAINTY * deviation:
                return mistake
        return None
