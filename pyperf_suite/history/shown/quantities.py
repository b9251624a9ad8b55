"""Values of a series as a person reads them: seconds in the unit that suits them, other quantities as they are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


@dataclass(frozen=True)
class Scale:
    """What a value is multiplied with to be read in `unit`; `counted` quantities are told in whole digits."""

    factor: float
    unit: str
    counted: bool = False

    def number(self, value: float) -> str:
        """Four significant digits, or all of a count."""
        scaled = value * self.factor
        if self.counted and scaled == round(scaled):
            return f"{scaled:.0f}"
        digits = max(0, 4 - len(f"{abs(int(scaled))}")) if abs(scaled) >= 1 else 4
        return f"{scaled:.{digits}f}" if 1e-3 <= abs(scaled) < 1e6 else f"{scaled:.4g}"

    def told(self, value: float) -> str:
        """The number and its unit."""
        return f"{self.number(value)} {self.unit}".rstrip()


def scale_for(values: Sequence[float], unit_of_measure: str) -> Scale:
    """The scale in which a series' median has one to three digits before the point; only seconds are scaled."""
    if unit_of_measure not in ("s", "seconds") or not values:
        return Scale(1.0, unit_of_measure, counted=True)
    middle = statistics.median(values)
    for step, unit in _STEPS:
        if middle >= step:
            return Scale(1 / step, unit)
    return Scale(1 / _STEPS[-1][0], _STEPS[-1][1])
