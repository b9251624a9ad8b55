"""A number with its unit, its bounds and how it came about; numbers are quantities until `render` writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyperf_suite.record.interval import Ratio

UNITS: Mapping[str, tuple[str, float]] = {
    "": ("", 1.0),
    "s": ("s", 1.0),
    "ms": ("s", 1e-3),
    "us": ("s", 1e-6),
    "ns": ("s", 1e-9),
    "min": ("s", 60.0),
    "duration": ("s", 1.0),
    "B": ("B", 1.0),
    "MB": ("B", 1e6),
    "GB": ("B", 1e9),
    "GiB": ("B", 2.0**30),
    "size": ("B", 1.0),
    "GB/s": ("B/s", 1e9),
    "Gbps": ("B/s", 1e9 / 8),
    "TFLOP": ("FLOP", 1e12),
    "GFLOP/s": ("FLOP/s", 1e9),
    "TFLOP/s": ("FLOP/s", 1e12),
    "/s": ("/s", 1.0),
    "samples/s": ("/s", 1.0),
    "tokens/s": ("/s", 1.0),
    "x": ("ratio", 1.0),
    "%": ("ratio", 1.0),
    "+%": ("change", 1.0),
    "joules": ("J", 1.0),
    "W": ("W", 1.0),
    "count": ("count", 1.0),
    "billion": ("count", 1e9),
}
"""Each unit that something is shown in: what its values are counted in, and how many of that it is.

`duration`, `size` and `joules` choose the unit by the value, `size` with powers of 1024. `%` shows a share, `+%` a
change, of which 0 is none.
"""


# Ratio of upper to lower bound above which a value is no headline and has two digits, and above which it is unknown.
VAGUE_SPAN, UNKNOWN_SPAN = 4.0, 100.0


@dataclass(frozen=True)
class Quantity:
    """A value counted in the base of `unit`: seconds for "ms", bytes for "MB", FLOP a second for "TFLOP/s".

    `low` and `high` bound it with a confidence of 95 %, a time of one process with 90 %; NaN where that is not known.
    `processes` is over how many processes the interval was taken, 0 for what was counted and not timed. `predicted` is
    what a law says; `noisy` that every slice of the measurement was disturbed, `converged` whether its interval
    is as narrow as the profile requires.
    """

    value: float
    unit: str = ""
    low: float = math.nan
    high: float = math.nan
    processes: int = 0
    predicted: bool = False
    noisy: bool = False
    converged: bool = True

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"{self.unit!r} is no unit: {', '.join(UNITS)}")

    @property
    def base(self) -> str:
        return UNITS[self.unit][0]

    @property
    def has_interval(self) -> bool:
        """True if the bounds are known and differ."""
        return self.low < self.high

    @property
    def span(self) -> float:
        """How many times the lower bound the upper one is, of a change as factors; 1 where one of them is none."""
        added = 1.0 if self.unit == "+%" else 0.0
        low, high = self.low + added, self.high + added
        return high / low if 0 < low < high < math.inf and self.unit != "%" else 1.0

    @property
    def is_unknown(self) -> bool:
        """True if nothing was measured undisturbed, or the bounds span more than UNKNOWN_SPAN."""
        return self.noisy or self.span > UNKNOWN_SPAN

    def excludes(self, value: float) -> bool:
        """True if the whole interval lies on one side of `value`: a ratio beyond 1 is no noise."""
        return self.low > value or self.high < value


def quantity(value: Any, unit: str = "", predicted: bool = False) -> Quantity:
    """A number or a Ratio as a quantity of that unit; a Quantity as it stands."""
    if isinstance(value, Quantity):
        return value
    if isinstance(value, Ratio):
        # A counted ratio has bounds that equal it: they tell of no spread, but of certainty.
        return Quantity(value.value, unit or "x", value.low, value.high, value.processes, predicted)
    return Quantity(float(value), unit, predicted=predicted)
