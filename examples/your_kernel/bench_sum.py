"""Sums of squares, without torch or a GPU: pyperf-suite run bench_sum.py --profile standard."""

import math

import numpy as np
import pyperf_suite as suite


@suite.kernel(n=(1_000, 10_000, 100_000, 1_000_000))
def sum_of_squares(n):
    """Three ways to sum the squares of a vector."""
    ways = {
        "multiply": lambda x: (x * x).sum(),
        "power": lambda x: (x**2).sum(),
        "einsum": lambda x: np.einsum("i,i->", x, x),
    }
    x = suite.randn(n, dtype="float64")
    return suite.launch(ways, x, reference=lambda x: math.fsum(x * x), bytes=x.nbytes)
