"""Several benchmarks at once: which of their verdicts survive being one of many.

Among twenty comparisons of identical code at 1 % each, every fifth suite would hold an alarm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyperf_suite.history.finding import Verdict
from pyperf_suite.history.statistics.decision import Decision

# Of what a suite calls slower or faster beyond the margin, at most this share is expected to be mistaken, even if all
# the others lay just within the margin; for identical code it is far less.
FALSE_DISCOVERY_RATE = 0.05


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


def suite_verdicts(decisions: Sequence[Decision], rate: float = FALSE_DISCOVERY_RATE) -> list[Verdict]:
    """The verdicts of all benchmarks of a suite together: slower and faster are those whose p-value survives.

    A difference that does not survive is undecided after all; one that was not clear enough by itself may be so beside
    many others.
    """
    verdicts: list[Verdict] = []
    for decision, survives in zip(decisions, survivors([each.p_value for each in decisions], rate), strict=True):
        if survives:
            verdicts.append("slower" if decision.ratio.value > 1 else "faster")
        else:
            verdicts.append("equivalent" if decision.verdict == "equivalent" else "undecided")
    return verdicts
