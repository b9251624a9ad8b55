"""How much the values of identical code differ from run to run: what two finished runs must be beyond.

Processes of one run share its hour, its placement in memory and its neighbours; only other runs tell what those do.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pyperf_suite.history.stored.series import TIME, Benchmark, Series
from pyperf_suite.history.stored.sides import Measured
from pyperf_suite.history.stored.store import Store

FEWEST_RUNS = 5

# A benchmark without a history of its own is taken to be as noisy as the noisier ones of its machine.
NOISIER_SHARE = 0.9
# That many benchmarks tell how noisy a machine is; reading all of thousands takes long and says no more.
MOST_BENCHMARKS = 200


@dataclass(frozen=True)
class RunNoise:
    """The standard deviation of the logarithm of a run's value over runs of the same code.

    `freedom` is in degrees, infinite for a bound that was chosen on the safe side. `source` names where it is from.
    """

    deviation: float
    freedom: float
    source: str


NoiseOf = Callable[[Measured], RunNoise | None]


def run_noise(series: Series, without: Iterable[str] = ()) -> RunNoise | None:
    """The noise of a series' runs, but for the runs named in `without`; None where fewer than five are left.

    From the differences of neighbouring runs (von Neumann 1941, doi:10.1214/aoms/1177731677), which a slow drift hardly
    moves and a step enters only once; none is taken across a break or from one GPU to another.
    """
    left_out = set(without)
    edges = [0, *(each.index for each in series.breaks), len(series.points)]
    segments = [
        [point for point in series.points[start:end] if point.run_id not in left_out]
        for start, end in itertools.pairwise(edges)
    ]
    runs = sum(map(len, segments))
    steps = [
        math.log(later.value / earlier.value)
        for segment in segments
        for earlier, later in itertools.pairwise(segment)
        if earlier.unit == later.unit
    ]
    if runs < FEWEST_RUNS or len(steps) < FEWEST_RUNS - 1:
        return None
    deviation = math.sqrt(statistics.fmean(step**2 for step in steps) / 2)
    # Neighbouring differences share a run: n of them tell about as much as two thirds as many independent values.
    return RunNoise(deviation, len(steps) * 2 / 3, f"{runs} runs of its own")


def noise_from_store(store: Store, machine: str, without: Sequence[str] = ()) -> NoiseOf:
    """What the runs stored of a machine tell of a benchmark's noise: its own, else that of the noisier ones.

    `without` names the runs that are being compared. The function returned gives None where no benchmark of the
    machine has runs enough.
    """
    benchmarks = {
        (one.probe, one.case_id): one
        for one in store.benchmarks(machine=machine)
        if one.metric == TIME and one.count >= FEWEST_RUNS
    }
    bound: list[RunNoise | None] = []

    def of(measured: Measured) -> RunNoise | None:
        known = benchmarks.get(measured.key)
        own = run_noise(store.series(known), without) if known else None
        if own is not None:
            return own
        if not bound:
            bound.append(_of_the_noisier(store, list(benchmarks.values()), without))
        return bound[0]

    return of


def _of_the_noisier(store: Store, benchmarks: Sequence[Benchmark], without: Sequence[str]) -> RunNoise | None:
    longest = sorted(benchmarks, key=lambda one: -one.count)[:MOST_BENCHMARKS]
    found = [noise for one in longest if (noise := run_noise(store.series(one), without)) is not None]
    if not found:
        return None
    deviation = float(np.quantile([one.deviation for one in found], NOISIER_SHARE))
    several = f"the noisier of {len(found)} benchmarks that have" if len(found) > 1 else "the one benchmark that has"
    return RunNoise(deviation, math.inf, f"{several} {FEWEST_RUNS} runs or more here")
