"""Ten functions of numpy as kernels, each launch well under a millisecond.

pyperf-suite run examples/bench_numpy.py
pyperf-suite ab --old numpy==1.26.4 --new numpy==2.1.0 examples/bench_numpy.py
python tools/selfcheck.py examples/bench_numpy.py --shifts 0:200
"""

import numpy as np

import pyperf_suite as suite


@suite.kernel(n=10_000)
def sort(n):
    """Sort float64."""
    return suite.launch(np.sort, suite.rand(n, dtype="float64"))


@suite.kernel(n=10_000)
def cumsum(n):
    """Running sum of float64."""
    return suite.launch(np.cumsum, suite.rand(n, dtype="float64"))


@suite.kernel(n=10_000)
def exp(n):
    """Exponential of float64."""
    return suite.launch(np.exp, suite.randn(n, dtype="float64"), reference=lambda x: np.exp(x.astype(np.longdouble)))


@suite.kernel(n=100_000)
def add(n):
    """Sum of two float32 arrays into a third."""
    out = suite.empty(n)
    return suite.launch(np.add, suite.rand(n), suite.rand(n), out, bytes=12 * n)


@suite.kernel(n=64)
def matmul(n):
    """Product of two small float64 matrices, on one thread."""
    return suite.launch(np.matmul, suite.rand(n, n, dtype="float64"), suite.rand(n, n, dtype="float64"), flop=2 * n**3)


@suite.kernel(n=4_096)
def rfft(n):
    """Fourier transform of real float64."""
    return suite.launch(np.fft.rfft, suite.rand(n, dtype="float64"))


@suite.kernel(n=10_000)
def bincount(n):
    """Counts of 1,000 different numbers."""
    return suite.launch(np.bincount, suite.randint(0, 1_000, n))


@suite.kernel(n=10_000)
def searchsorted(n):
    """Where to put values into 2,000 sorted ones."""
    return suite.launch(np.searchsorted, np.linspace(0, 1, 2_000), suite.rand(n, dtype="float64"))


@suite.kernel(n=2_000)
def median_of_rows(n):
    """Median along the rows of a matrix."""
    return suite.launch(np.median, suite.rand(n, 15, dtype="float64"), axis=1)


@suite.kernel(n=10_000)
def histogram(n):
    """Histogram of 50 bins."""
    return suite.launch(np.histogram, suite.rand(n, dtype="float64"), bins=50, range=(0.0, 1.0))
