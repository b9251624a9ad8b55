"""Series that tests make up: noise, and runs, one a day."""

import datetime
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyperf_suite.regressions.stored.series import BenchmarkSeries, Measured, State

BEGIN = datetime.datetime(2026, 1, 1)


def correlated(noise: np.ndarray, rho: float) -> np.ndarray:
    """The noise as an AR(1) series along its first axis: each value has the correlation `rho` with the last."""
    steps = itertools.accumulate(math.sqrt(1 - rho**2) * noise, lambda last, step: rho * last + step)
    return np.array(list(steps))


def commit(index: int) -> str:
    return f"{index:03d}" + "c" * 37


def a_series(
    values: Sequence[float],
    commits: Sequence[str] | None = None,
    clocks: Sequence[float] | None = None,
    compilers: Sequence[str] | None = None,
    drivers: Sequence[str] | None = None,
    units: str = "",
    **fields: Any,
) -> BenchmarkSeries:
    """Each of a commit of its own if none is named; another compiler or driver than the day before is a break.

    `units` has a letter for the GPU of each run. `fields` are those of the series.
    """
    names = ("tile_wave", "0123456789abcdef", "matmul[native m=8]")
    points = []
    for index, value in enumerate(values):
        gpu = ({"uuid": f"GPU-{units[index]}"} if units else {}) | ({"driver": drivers[index]} if drivers else {})
        state = {"gpu": gpu, "source": {"commit": commit(index) if commits is None else commits[index]}}
        state |= {"kernel_compiler": compilers[index]} if compilers else {}
        begin = (BEGIN + datetime.timedelta(days=index)).isoformat(timespec="milliseconds") + "+00:00"
        points.append(
            Measured(
                *("cpu-someones-2c", f"run{index}", *names),
                started_at=begin,
                medians=(float(value),),
                low=0.9 * float(value),
                high=1.1 * float(value),
                ok=1,
                clock_hz=None if clocks is None else clocks[index],
                state=State(state),
            )
        )
    return BenchmarkSeries("cpu-someones-2c", *names, "s", tuple(points), **fields)
