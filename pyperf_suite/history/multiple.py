"""Several benchmarks at once: which of their verdicts survive being one of many.

Among twenty comparisons of identical code at 1 % each, every fifth suite would hold an alarm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FALSE_DISCOVERY_RATE = 0.01


def survivors(p_values: Sequence[float], rate: float = FALSE_DISCOVERY_RATE) -> list[bool]:
    """Which hypotheses are rejected so that the expected share of false ones among them is at most `rate`.

    After Benjamini and Hochberg (1995), doi:10.1111/j.2517-6161.1995.tb02031.x. Holds for independent p-values and for
    positively dependent ones. Raises ValueError for a p-value outside 0 … 1.
    """
    return [adjusted <= rate for adjusted in adjusted_p_values(p_values)]


def adjusted_p_values(p_values: Sequence[float]) -> list[float]:
    """For each p-value, the least false discovery rate at which its hypothesis is rejected, in the same order.

    Raises ValueError for a p-value outside 0 … 1.
    """
    values = np.asarray(p_values, dtype=float)
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError("a p-value lies between 0 and 1")
    order = np.argsort(values, kind="stable")[::-1]
    ranks = np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum.accumulate(np.minimum(1.0, values[order] * len(values) / ranks))
    return [float(value) for value in adjusted]
