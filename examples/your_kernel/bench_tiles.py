"""A product cut into tiles, which threads take one after the other: pyperf-suite run bench_tiles.py."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a tile is one thread's work; numpy reads this when it is imported

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyperf_suite as suite

threads = functools.cache(ThreadPoolExecutor)


def product(a, b, tile, workers):
    """Each worker multiplies whole tiles of so many columns."""
    out = np.empty((len(a), b.shape[1]), dtype=a.dtype)
    parts = [slice(begin, begin + tile) for begin in range(0, b.shape[1], tile)]
    list(threads(workers).map(lambda part: np.matmul(a, b[:, part], out=out[:, part]), parts))
    return out


def in_double(a, b, *_):
    """The reference: the same product, of float64."""
    return a.astype("float64") @ b


# As many tiles as workers are a wave: the first tile beyond a full one makes all but one worker wait.
@suite.kernel(n=tuple(range(256, 3073, 256)), tile=256, workers=2, m=128, k=1024)
def tiled(n, tile, workers, m, k):
    """One row of tiles along N."""
    a, b = suite.randn(m, k), suite.randn(k, n)
    return suite.launch(product, a, b, tile, workers, reference=in_double, flop=2 * m * n * k)
