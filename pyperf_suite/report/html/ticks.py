"""Round numbers for an axis, and numbers as short as they can be read."""

from __future__ import annotations

import math


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within the range.

    >>> round_ticks(0, 1000)
    [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]
    """
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(each for factor in (1, 2, 5, 10) if span / (each := factor * power) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) + 0.0 for number in range(first, last + 1)]


def short(value: float) -> str:
    """Four digits at most, thousands as k.

    >>> [short(value) for value in (0.25, 1500.0, 12000.0, 3e9)]
    ['0.25', '1500', '12k', '3e+09']
    """
    if 1e4 <= abs(value) < 1e6:
        return f"{value / 1e3:.4g}k"
    return f"{value:.4g}"
