"""Masks that are wrong by one key, seen although one key among thousands moves an output by less than its rounding.

Each mistake moves all outputs in a direction known exactly, so the errors are projected on it (a matched filter).
"""

from __future__ import annotations

import numpy as np

from pyperf_suite.measure.arrays import Array, as_float64, inner_product, like, module_of
from pyperf_suite.measure.attention_reference import KeyHead, Panel

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


def mask_weights(panel: Panel, visible: Array, head: KeyHead, scale: float) -> Array:
    """[mistake, query]: how far each mistake moves an output of a panel along the key's value minus the output."""
    module, keys = module_of(panel.q), head.k.shape[0]
    queries, _, last, beyond = (like(at, panel.q) for at in (np.arange(len(visible)), *_keys_at(visible, keys)))
    scores = scale * (panel.q * head.k[beyond]).sum(axis=1)
    added = module.exp(scores - panel.log_sum_exp) * (like(visible, panel.q) < keys)
    weights = module.stack([-panel.p[:, 0], -panel.p[queries, last], added])
    weights *= abs(weights) < _LARGEST_WEIGHT
    # Normalised anew without the key, or with it.
    return as_float64(weights / (1 + weights))


class MaskErrors:
    """The share of each mistake in the errors of all outputs compared."""

    def __init__(self) -> None:
        self._found = np.zeros(len(MISTAKES))
        self._size = np.zeros(len(MISTAKES))
        self._noise = np.zeros(len(MISTAKES))

    def add(self, error: Array, o: Array, o_limit: Array, weights: Array, visible: Array, v: Array) -> None:
        """Take in the errors of outputs `o` [queries, head_dim] with their `mask_weights`; `v` is their key head's."""
        for mistake, at in enumerate(_keys_at(visible, v.shape[0])):
            moved = weights[mistake][:, None] * (as_float64(v[like(at, v)]) - o)
            self._found[mistake] += inner_product(error, moved)
            self._size[mistake] += inner_product(moved, moved)
            moved *= o_limit
            self._noise[mistake] += inner_product(moved, moved)

    def explanation(self) -> str | None:
        """The mistake that the errors tell of, where one does; None too where rounding could pass for it."""
        for mistake, found, size, noise in zip(MISTAKES, self._found, self._size, self._noise, strict=True):
            deviation = np.sqrt(noise) / _DEVIATIONS_IN_LIMIT
            if found > _DECISIVE_SHARE * size > _CERTAINTY * deviation:
                return mistake
        return None


def _keys_at(visible: Array, keys: int) -> tuple[Array, Array, Array]:
    """The key that each mistake is about: the first, the last that is seen, the one beyond it."""
    return np.zeros_like(visible), visible - 1, np.minimum(visible, keys - 1)
