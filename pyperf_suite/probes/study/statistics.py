"""Samples per second of a configuration over its experiments: mean and standard error, and median with an interval.

The experiment, a set of processes started anew, is the unit: steps within one resemble each other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.measure.median import median_interval

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Throughput:
    """Samples per second; `experiments` has each one's, which are samples over the time of all its steps.

    `standard_error` is the standard deviation of the mean over experiments, NaN of a single one. `low` to `high` holds
    the median with `confidence`, which a few experiments cannot bring to 95 %.
    """

    mean: float
    standard_error: float
    median: float
    low: float
    high: float
    confidence: float
    experiments: tuple[float, ...]


def throughput(samples: int, experiments: Sequence[Sequence[float]]) -> Throughput:
    """Of `samples` a step, from the seconds of each experiment's steps.

    Raises ValueError for no experiments, one without steps, or a step that took no time.
    """
    if not experiments or not all(experiments):
        raise ValueError("a throughput needs at least one experiment with at least one step")
    if any(not second > 0 for steps in experiments for second in steps):
        raise ValueError("a throughput needs steps that took time")
    whole = [samples * len(steps) / math.fsum(steps) for steps in experiments]
    usual = [samples / statistics.median(steps) for steps in experiments]
    interval = median_interval(usual, CONFIDENCE, effective=len(usual))
    return Throughput(
        mean=math.fsum(whole) / len(whole),
        standard_error=statistics.stdev(whole) / math.sqrt(len(whole)) if len(whole) > 1 else math.nan,
        median=statistics.median(usual),
        low=interval.low,
        high=interval.high,
        confidence=interval.confidence,
        experiments=tuple(whole),
    )


def rank_correlation(some: Sequence[float], others: Sequence[float]) -> float:
    """Spearman's; NaN where all on one side are equal, or there are none.

    Raises ValueError where they are not as many.
    """
    if len(some) != len(others):
        raise ValueError(f"{len(some)} values have no order in common with {len(others)}")
    level = len(set(some)) <= 1 or len(set(others)) <= 1
    return math.nan if level else float(np.corrcoef(_ranks(some), _ranks(others))[0, 1])


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """From 1 up; equal values share the mean of theirs. In scipy.stats too, which takes a second to import."""
    _, place, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    shared: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return shared
