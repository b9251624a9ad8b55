"""Slowdown of a matrix product by rows that start off 16 and 32 bytes.

Vector loads, TMA and tensor cores take runs of bytes whole, so a product can be slower for a divisor of its sizes. The
published tables hold multiples of 32 alone; for other sizes a few cliffs were published, so each factor comes with the
range it may lie in.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.hardware.catalogue import GpuSpec, architecture
from pyperf_suite.laws.tiling import largest_power_of_two, round_up

BYTES_OF = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}
# Size whose elements lie side by side, of A, B and C in this order, by layout (workloads/matmul/__init__.py).
SIDE_BY_SIDE = {"TN": ("k", "k", "n"), "NN": ("k", "n", "n"), "NT": ("m", "n", "n"), "TT": ("m", "k", "n")}
# Units for these take rows of whole 16 bytes or nothing (cuBLAS, cublasLtMatmul): other sizes have to be padded.
PADDED_DTYPES = ("fp8", "int8", "fp4")
PADDED_BYTES = 16
# From here on no cliff is left: on an H100 K = 10848 and 10912 (64 bytes) run as 10880, 10944 and 11008 do, within 1 %.
ALIGNED_BYTES = 32


# Factors on the time, and the least and the most that measurements leave possible.
Penalty = tuple[Any, Any, Any]

# Slowdown of a product whose least aligned row is aligned to this many bytes. Without TMA and wgmma, which need rows of
# whole 16 bytes, Hopper falls back to the instructions of Ampere: the factor is near the ratio of their peaks, so it is
# taken for all that is below 16 bytes (stas00/ml-engineering swiglu-maf-bench, H100, fp16, K = 10922 against 10848 to
# 11008). Odd sizes were not published and may be worse. Rows of whole 16 bytes keep TMA: in run 20261126T060756Z-19ae
# cuBLAS takes, in bf16 on an H200 (M = 1536, K = 2048), at N = 1416, 1544, 2696 and 2824 1.10, 1.02, 0.99 and 1.08
# times the cycles of 1408, 1536, 2688 and 2816, edges of tiles and waves included.
ON_HOPPER: Mapping[int, Penalty] = {
    2: (1.45, 1.45, 2.5),
    4: (1.45, 1.44, 1.46),
    8: (1.45, 1.0, 1.46),
    16: (1.0, 1.0, 1.10),
}
# pytorch/pytorch issue 181718, RTX 4090, bf16, M = N = K = 2055 to 2073 against 2040, which just fills its tiles where
# 2055 begins new ones. What tile quantization explains is taken out (tiles of 128 x 128, as the kernels are called:
# 11 %); what the second wave explains may be all of the rest, hence the least. At 16 bytes the library took a good
# kernel once and a bad one, of 64 x 64, twice: the geometric mean of the three.
ON_ADA: Mapping[int, Penalty] = {**dict.fromkeys((2, 4, 8), (1.27, 1.0, 1.46)), 16: (1.39, 1.0, 1.86)}


def cliffs_of(gpu: GpuSpec) -> Mapping[int, Penalty]:
    """The cliffs to reckon with on a GPU: Hopper's if its tensor cores read operands through TMA, else Ada's."""
    capability = gpu.compute_capability
    return ON_ADA if capability is None or architecture(capability).generation == "Ampere" else ON_HOPPER


def aligned_bytes(
    m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str = "bf16", layout: str = "TN"
) -> NDArray[np.int64]:
    """The largest power of two that divides the bytes of each row of A, B and C, at most `ALIGNED_BYTES`.

    Sizes of at least 1, of any shapes that broadcast. A dimension that no operand has side by side does not count: M
    with TN, K with NT.
    """
    sizes = _sizes(m, n, k)
    # The lowest bit that is set in any of the sizes is the largest power of two that divides all of them.
    side_by_side = functools.reduce(operator.or_, (sizes[name] for name in SIDE_BY_SIDE[layout]))
    worst = largest_power_of_two(side_by_side)
    shape = np.broadcast(*sizes.values()).shape
    return np.broadcast_to(np.minimum(worst * BYTES_OF[dtype], ALIGNED_BYTES).astype(np.int64), shape)


def alignment_penalty(
    gpu: GpuSpec, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str = "bf16", layout: str = "TN"
) -> Penalty:
    """Factors of at least 1 on a product's time for rows that start off 16 and 32 bytes, of the sizes' broadcast shape.

    The worst row decides, as it does when cuBLAS picks a kernel ("align1", "align8"). A dtype whose units take only
    whole 16 bytes is priced as padded to them.
    """
    divisor = aligned_bytes(m, n, k, dtype, layout)
    if dtype in PADDED_DTYPES:
        # The work of the product with each row filled up, over that of the requested product.
        filled, multiple = np.ones(()), int(PADDED_BYTES / BYTES_OF[dtype])
        for name, size in _sizes(m, n, k).items():
            filled = filled * ((round_up(size, multiple) if name in SIDE_BY_SIDE[layout] else size) / size)
        return filled, filled, filled
    cliffs = cliffs_of(gpu)
    place = np.searchsorted(list(cliffs), divisor)
    factor, low, high = np.moveaxis(np.array([*cliffs.values(), (1.0, 1.0, 1.0)])[place], -1, 0)
    return factor, low, high


def _sizes(m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Mapping[str, NDArray[np.int64]]:
    return {name: np.asarray(size, dtype=np.int64) for name, size in (("m", m), ("n", n), ("k", k))}
