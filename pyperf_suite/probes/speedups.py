"""How many times faster a probe's cases run than others, over the processes that measured both."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyperf_suite.measure.ratio import Ratio, ratio_over_processes
from pyperf_suite.probes.readings import Reading

# Less is not worth a change of a model.
WORTH = 1.02


def wins(ratio: Ratio) -> bool:
    """Whether it is faster beyond its interval, and by enough to act on."""
    return ratio.low > 1 and ratio.value >= WORTH


def is_settled(ratio: Ratio) -> bool:
    """Whether it is told apart from, or shown to be below, what is worth acting on."""
    return wins(ratio) or ratio.high < WORTH


def speedup(slow: Reading, fast: Reading) -> Ratio | None:
    """Time of `slow` over time of `fast`: above 1 where the second is faster. None where no process measured both."""
    return mean_speedup([(slow, fast)])


def mean_speedup(pairs: Sequence[tuple[Reading, Reading]]) -> Ratio | None:
    """The geometric mean over (slow, fast) pairs, each taken within a process; a process counts once, as its mean.

    None where there is no pair, or no process that measured them all.
    """
    measured = [set(reading.by_process) for pair in pairs for reading in pair]
    processes = sorted(set.intersection(*measured)) if measured else []
    if not processes:
        return None
    ratios = [
        math.exp(math.fsum(math.log(slow.by_process[p] / fast.by_process[p]) for slow, fast in pairs) / len(pairs))
        for p in processes
    ]
    # Errors of single readings are independent: they add as squares, and a mean over pairs has less of them.
    squares = math.fsum(_half_width(reading) ** 2 for pair in pairs for reading in pair)
    return ratio_over_processes(ratios, math.sqrt(squares) / len(pairs))


def _half_width(reading: Reading) -> float:
    return (reading.high - reading.low) / (2 * reading.seconds)
