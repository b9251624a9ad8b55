"""Divisibility of a dimension: the largest power of two in it, and the sizes beside it that divide by more.

Vector loads, TMA and tensor cores take runs of bytes whole, so how fast a product runs can hang on such a divisor.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

# One size, or an array of them, each answered for itself.
Size = TypeVar("Size", int, NDArray[np.int64])


def largest_power_of_two(size: Size) -> Size:
    """The largest power of two that divides a size of at least 1: 1 for odd sizes, 8 for 1000, 1024 for 1024."""
    return size & -size


def round_up(size: Size, multiple: int) -> Size:
    """The smallest multiple that is not less than the size."""
    return -(-size // multiple) * multiple


def nearest_with(divisor: int, size: int) -> int:
    """The size nearest to `size` whose largest power of two is exactly `divisor`, itself a power of two.

    These are the odd multiples of the divisor; of two equally near the smaller one, and never less than the divisor.
    """
    below = (size // divisor - 1) // 2 * 2 + 1
    candidates = [odd * divisor for odd in (below, below + 2) if odd >= 1]
    return min(candidates, key=lambda candidate: (abs(candidate - size), candidate))


def elements_in(line_bytes: int, element_bytes: int) -> int:
    """How many elements fill a line of memory: a row of a multiple of them ends where a line does."""
    return max(1, line_bytes // element_bytes)
