"""How fast rows are summed, by their length."""

import numpy as np

import pyperf_suite as suite
from pyperf_suite.user_kernels.probe import kernel_probe


@suite.kernel(columns={"quick": (64, 1024, 16384), "full": (64, 256, 1024, 4096, 16384)}, dtype="float32")
def row_sum(columns, dtype):
    """One sum a row, of 2^20 elements in all."""
    x = suite.randn((1 << 20) // columns, columns, dtype=dtype)
    ways = {"einsum": lambda x: np.einsum("ij->i", x), "numpy": lambda x: x.sum(1)}
    return suite.launch(ways, x, reference=lambda x: x.astype("float64").sum(1), bytes=x.nbytes, flop=x.size)


PROBE = kernel_probe(row_sum, question="How fast are rows summed, by their length?", topic="products")
