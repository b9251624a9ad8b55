"""The most that this CPU's cores multiply, by a loop of our kernels' own instructions on registers alone."""

from __future__ import annotations

from dataclasses import dataclass

from pyperf_suite.errors import UserError
from pyperf_suite.workloads.backends import native_extension

# Enough for dozens of slices, of which the best counts, and what a look takes that only adds to earlier ones.
MEASURED_S = 0.01
AGAIN_S = 0.002
# Clocks and rates nearer to each other than this are taken for the same.
SAME = 0.95


@dataclass(frozen=True)
class CorePeak:
    """A core's peak while `workers` of them multiply at once, the mean of theirs.

    `clock_hz` is the clock while it multiplies, `idle_clock_hz` that of plain integers before: wide vectors and matrix
    units may lower it.
    """

    isa: str
    unit: str
    dtype: str
    workers: int
    flop_per_s: float
    clock_hz: float
    idle_clock_hz: float

    @property
    def flop_per_cycle(self) -> float:
        return self.flop_per_s / self.clock_hz

    @property
    def lowers_clock(self) -> bool:
        """Whether multiplying costs clock: a licence for wide vectors, or a power limit."""
        return self.clock_hz < SAME * self.idle_clock_hz


_best: dict[tuple[str, str | None, int], list[tuple[float, ...]]] = {}


def core_peak(dtype: str, isa: str | None = None, workers: int = 1) -> CorePeak:
    """The best that this process has seen so far: each call looks again, for whoever else runs can only lower a look.

    Raises UserError for an instruction set or cores that are not here.
    """
    native, key = native_extension(), (dtype, isa, workers)
    try:
        looked = native.core_peaks(dtype, workers, AGAIN_S if key in _best else MEASURED_S, isa)
        unit = native.unit(isa or native.isas()[0], dtype)
    except ValueError as refused:
        raise UserError(str(refused)) from None
    best = _best.get(key, looked)
    _best[key] = cores = [tuple(map(max, *each)) for each in zip(best, looked, strict=True)]
    flop_per_s, clock_hz, idle_clock_hz = (sum(each) / workers for each in zip(*cores, strict=True))
    return CorePeak(isa or native.isas()[0], unit, dtype, workers, flop_per_s, clock_hz, idle_clock_hz)
