"""What a piece of work costs, asked for once for each shape: the laws of a GPU behind one small interface.

Search and report know only the interface, so measurements or another machine's laws can stand in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.laws.explained import Explained

if TYPE_CHECKING:
    from pyperf_suite.hardware.catalogue import GpuSpec
    from pyperf_suite.laws.calibration import Calibration

Sizes = NDArray[np.int64]

# A law that was held against no measurement is trusted this far, in %: what a GPU that is left out whole misses by.
UNTESTED_ERROR_PERCENT = 15.0
# Of a normal error, the standard deviation over the mean absolute error.
DEVIATION_OVER_MEAN = (np.pi / 2) ** 0.5
# Nine in ten: the interval told beside each gain.
NORMAL_QUANTILE = 1.645


class Prices(Protocol):
    """Seconds of each kind of work on one GPU, explained; sizes are integer arrays of one shape."""

    def gemm(self, layout: str, m: Sizes, n: Sizes, k: Sizes) -> Explained:
        """One product C[M,N] = A[M,K]·B[K,N]."""

    def attention(self, causal: bool, backward: bool, batch: Sizes, seq: Sizes, heads: Sizes, kv_heads: Sizes,
                  head_dim: Sizes) -> Explained:  # fmt: skip
        """One attention between the projections, forward or backward alone."""

    def memory_bound(self, nbytes: Sizes) -> Explained:
        """One kernel that moves so many bytes and computes next to nothing."""

    def collective(self, op: str, nbytes: Sizes, ranks: Sizes) -> Explained:
        """One collective of S bytes, as of nccl-tests, among so many ranks."""


@dataclass(frozen=True)
class LawPrices:
    """Prices by the laws as calibrated for a GPU, or as transferred to it. Raises UserError for an unknown GPU."""

    gpu: str | GpuSpec | Calibration
    dtype: str = "bf16"
    mode: str = "burst"

    def gemm(self, layout: str, m: Sizes, n: Sizes, k: Sizes) -> Explained:
        from pyperf_suite.laws.gemm import gemm_time

        return gemm_time(self.gpu, m, n, k, dtype=self.dtype, layout=layout, mode=self.mode)

    def attention(self, causal: bool, backward: bool, batch: Sizes, seq: Sizes, heads: Sizes, kv_heads: Sizes,
                  head_dim: Sizes) -> Explained:  # fmt: skip
        from pyperf_suite.laws.attention import attention_time

        return attention_time(
            self.gpu, batch, seq, seq, heads, kv_heads, head_dim, causal, self._attention_dtype(), backward=backward,
        )  # fmt: skip

    def memory_bound(self, nbytes: Sizes) -> Explained:
        from pyperf_suite.laws.roofline import memory_bound_time

        return memory_bound_time(self.gpu, nbytes)

    def collective(self, op: str, nbytes: Sizes, ranks: Sizes) -> Explained:
        from pyperf_suite.laws.collectives import collective_time

        return collective_time(self.gpu, op, nbytes, ranks)

    def _attention_dtype(self) -> str:
        """Attention is computed in 16 bits also where products are computed in 8 or 32: in bf16, before Ampere fp16."""
        from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu

        if self.dtype in ("fp16", "bf16"):
            return self.dtype
        if isinstance(self.gpu, GpuSpec):
            spec = self.gpu
        else:
            spec = find_gpu(self.gpu if isinstance(self.gpu, str) else self.gpu.gpu)
        return "bf16" if "bf16" in spec.peak_flop_per_s else "fp16"


@dataclass(frozen=True)
class Part:
    """One kind of work in a step: `calls` of a law with these sizes.

    `law` is a method of `Prices`, `fixed` its arguments that are no sizes. Sizes and calls broadcast together.
    """

    name: str
    law: str
    fixed: tuple[Any, ...]
    sizes: tuple[Any, ...]
    calls: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """What the sizes broadcast to: the axes that the price depends on."""
        return np.broadcast_shapes(*map(np.shape, self.sizes))


@dataclass(frozen=True)
class Priced:
    """What one call of a part costs; `back` has the part's own shape and says where its prices stand in `explained`."""

    explained: Explained
    back: NDArray[np.int64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Of one call."""
        return np.asarray(self.explained.seconds)[self.back]

    @property
    def causes(self) -> dict[str, NDArray[np.float64]]:
        """Seconds of one call by cause; they add up to `seconds`."""
        whole = np.shape(self.explained.seconds)
        return {cause: np.broadcast_to(part, whole)[self.back] for cause, part in self.explained.parts.items()}

    @property
    def extrapolated(self) -> NDArray[np.bool_]:
        """Where the law was asked beyond what it was fitted on."""
        return np.broadcast_to(self.explained.extrapolated, np.shape(self.explained.seconds))[self.back]

    @property
    def deviation(self) -> float:
        """Standard deviation of the law's error, as a share of the time."""
        return deviation_of(self.explained)


def deviation_of(explained: Explained) -> float:
    """Standard deviation of a law's error, as a share of the time, by what it says of itself."""
    error = explained.error_percent
    return (UNTESTED_ERROR_PERCENT if error is None else error) / 100 * DEVIATION_OVER_MEAN


def price(parts: Sequence[Part], prices: Prices) -> list[Priced]:
    """Each part's price, in their order. Equal shapes, of whatever part, are asked for once, all of a law together."""
    priced: dict[int, Priced] = {}
    asked: dict[tuple[str, tuple[Any, ...]], list[int]] = {}
    for place, part in enumerate(parts):
        asked.setdefault((part.law, part.fixed), []).append(place)
    for (law, fixed), places in asked.items():
        columns = [np.broadcast_arrays(*map(np.asarray, parts[place].sizes)) for place in places]
        flat = [np.concatenate([column[n].ravel() for column in columns]) for n in range(len(columns[0]))]
        rows, inverse = distinct(flat)
        explained: Explained = getattr(prices, law)(*fixed, *rows)
        ends = np.cumsum([column[0].size for column in columns])
        for place, back in zip(places, np.split(inverse, ends[:-1]), strict=True):
            priced[place] = Priced(explained, back.reshape(parts[place].shape))
    return [priced[place] for place in range(len(parts))]


def distinct(columns: Sequence[Sizes]) -> tuple[list[Sizes], NDArray[np.int64]]:
    """The distinct rows of columns of equal length, as columns, and for each row the place of its like."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        # The key so far and the column are renumbered before they join: their product stays far below 2⁶³.
        values, places = np.unique(column, return_inverse=True)
        _, key = np.unique(key, return_inverse=True)
        key = key * len(values) + places
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return [np.asarray(column[first], dtype=np.int64) for column in columns], np.asarray(inverse, dtype=np.int64)
