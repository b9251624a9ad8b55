"""A calibration put to the test: every law it holds prices a few sizes, and each price has to be one.

Coefficients may have the right form and still be of nothing that runs, as when a hand made one of them negative.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.calibration import Calibration
from pyperf_suite.laws.explained import Explained
from pyperf_suite.laws.network.communication import OPERATIONS

# The smallest that there are, sizes of models, odd ones, and the largest that was fitted.
PRODUCTS = np.array(list(product((1, 96, 4097, 32768), (32, 50257, 65536), (32, 1000, 65536))), dtype=np.int64).T
BYTES = np.array([1 << 9, 10_000, 1 << 20, 1 << 26, 1 << 34], dtype=np.int64)
# Batch, sequence, heads and key-value heads, from the ends of what was fitted; each with all of these widths.
ATTENTIONS = ((1, 128, 1, 1), (2, 2048, 32, 8), (1, 16384, 96, 96))
HEAD_DIMS = (64, 96, 128, 192, 256)
RANKS = (2, 3, 8, 64)
# The least and the greatest that anything takes, in seconds: beyond lies no price but a slip.
SHORTEST_S, LONGEST_S = 1e-9, 1e9


def cannot_price(calibration: Calibration) -> str | None:
    """Why its laws are none, in a part of a sentence; None where each gives every size a time."""
    try:
        find_gpu(calibration.gpu)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return next(filter(None, (_wrong(*tried) for tried in _tried(calibration))), None)
    except UserError as reason:
        return str(reason).rstrip(".")
    except (ArithmeticError, LookupError, TypeError, ValueError, AssertionError, MemoryError) as error:
        return f"its laws end in {type(error).__name__}"


def _tried(calibration: Calibration) -> Iterator[tuple[str, Explained | NDArray[np.float64]]]:
    """Each law's name and what it makes of the sizes."""
    from pyperf_suite.laws.attention.fused import attention_time
    from pyperf_suite.laws.matmul.gemm import gemm_time
    from pyperf_suite.laws.network.collectives import collective_time
    from pyperf_suite.laws.roofline import memory_bound_time
    from pyperf_suite.laws.training.step_time import found_constants

    laws = {name.removesuffix("_here") for name in calibration.blocks}
    m, n, k = PRODUCTS
    peaks = find_gpu(calibration.gpu).peak_flop_per_s
    for dtype in ("bf16", "fp8"):
        if f"gemm_{dtype}" in laws and dtype in peaks:
            yield "products", gemm_time(calibration, m, n, k, dtype=dtype, layout="TN")
    if "attention_bf16" in laws and "bf16" in peaks:
        batch, seq, heads, kv_heads, head_dim = np.array(
            [(*shape, width) for shape in ATTENTIONS for width in HEAD_DIMS], dtype=np.int64
        ).T
        for backward in (False, True):
            yield (
                "attention",
                attention_time(
                    calibration,
                    batch,
                    seq,
                    seq,
                    heads,
                    kv_heads,
                    head_dim,
                    True,
                    "bf16",
                    backward=backward,
                ),
            )
    if "memory" in laws:
        yield "memory", memory_bound_time(calibration, BYTES)
    if "collectives" in laws:
        for operation, ranks in product(OPERATIONS, RANKS):
            yield "collectives", collective_time(calibration, operation, BYTES, np.full(BYTES.shape, ranks))
    if "step" in laws:
        constants = found_constants(calibration).constants
        # As times: a host that takes none is one, a network that carries nothing is none.
        yield "steps", np.array([constants.slowdown, constants.host_s_per_layer + SHORTEST_S])
        if constants.network_bytes_per_s is not None:
            yield "steps", np.array([1 << 20]) / constants.network_bytes_per_s


def _wrong(law: str, priced: Explained | NDArray[np.float64]) -> str | None:
    seconds = np.asarray(priced.seconds if isinstance(priced, Explained) else priced)
    if seconds.dtype.kind != "f" or not bool(((seconds >= SHORTEST_S) & (seconds <= LONGEST_S)).all()):
        return f"its law of {law} gives no time for every size"
    if isinstance(priced, Explained):
        if not all(bool(np.isfinite(part).all()) for part in priced.parts.values()):
            return f"its law of {law} gives causes that are no times"
        if priced.error_percent is not None and not 0 <= priced.error_percent < float("inf"):
            return f"its law of {law} has no error"
    return None
