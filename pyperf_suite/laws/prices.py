"""The one price list: what a kernel or a collective costs on a GPU, by its laws.

Whatever adds up kernels (`size`, `layout`, an iteration) asks only `KernelPrices`, so that a test or a measurement can
answer in the place of a calibration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.attention.fused import attention_time
from pyperf_suite.laws.calibration import Calibration, spec_of
from pyperf_suite.laws.explained import Explained
from pyperf_suite.laws.matmul.gemm import gemm_time
from pyperf_suite.laws.network.collectives import collective_time
from pyperf_suite.laws.roofline import memory_bound_time

# One size, or an array of them.
Count = int | NDArray[np.int64]
Bytes = float | NDArray[np.float64] | NDArray[np.int64]


class KernelPrices(Protocol):
    """The cost of one call of each kind of work; sizes are plain numbers, or arrays that broadcast together."""

    def gemm(self, layout: str, m: Count, n: Count, k: Count) -> Explained:
        """C[M,N] = A[M,K]·B[K,N]."""

    def attention(
        self, causal: bool, backward: bool, batch: Count, seq: Count, heads: Count, kv_heads: Count, head_dim: Count
    ) -> Explained:
        """Attention between the projections, forward or backward alone."""

    def memory_bound(self, nbytes: Bytes) -> Explained:
        """A kernel that moves so many bytes and computes next to nothing."""

    def collective(
        self,
        op: str,
        nbytes: Bytes,
        ranks: Count,
        ranks_per_node: Count | None = None,
        network_bytes_per_s: float | None = None,
    ) -> Explained:
        """A collective of S bytes, as of nccl-tests; by default on the nodes and the network of the GPU's maker."""


@dataclass(frozen=True)
class Prices:
    """Prices by the laws as calibrated for a GPU, or as transferred to it. Raises UserError for an unknown GPU.

    In training products follow one another without a pause, so that power holds the clocks down: `mode` "sustained".
    "burst" prices a product that runs alone. Attention is computed in 16 bits where products have 8 or 32: in bf16,
    before Ampere in fp16.
    """

    gpu: str | GpuSpec | Calibration
    dtype: str = "bf16"
    mode: Literal["burst", "sustained"] = "sustained"

    def gemm(self, layout: str, m: Count, n: Count, k: Count) -> Explained:
        return gemm_time(self.gpu, m, n, k, self.dtype, layout, self.mode)

    def attention(
        self, causal: bool, backward: bool, batch: Count, seq: Count, heads: Count, kv_heads: Count, head_dim: Count
    ) -> Explained:
        dtype = self.dtype
        if dtype not in ("fp16", "bf16"):
            dtype = "bf16" if "bf16" in spec_of(self.gpu).peak_flop_per_s else "fp16"
        return attention_time(self.gpu, batch, seq, seq, heads, kv_heads, head_dim, causal, dtype, backward)

    def memory_bound(self, nbytes: Bytes) -> Explained:
        return memory_bound_time(self.gpu, nbytes)

    def collective(
        self,
        op: str,
        nbytes: Bytes,
        ranks: Count,
        ranks_per_node: Count | None = None,
        network_bytes_per_s: float | None = None,
    ) -> Explained:
        return collective_time(self.gpu, op, nbytes, ranks, ranks_per_node, network_bytes_per_s)


@dataclass(frozen=True)
class UnseenPrices:
    """The same prices where a law extrapolates, and 0 elsewhere: an iteration of them is its extrapolated share.

    `errors` collects the stated error of each law that was asked, in % (None if nothing was held out), `origins` the
    measurements behind them.
    """

    prices: KernelPrices
    errors: dict[str, float | None] = field(default_factory=dict)
    origins: dict[str, None] = field(default_factory=dict)

    def gemm(self, *arguments: Any) -> Explained:
        return self._unseen("products", self.prices.gemm(*arguments))

    def attention(self, *arguments: Any) -> Explained:
        return self._unseen("attention", self.prices.attention(*arguments))

    def memory_bound(self, nbytes: Bytes) -> Explained:
        return self._unseen("memory bound", self.prices.memory_bound(nbytes))

    def collective(self, *arguments: Any) -> Explained:
        price = self.prices.collective(*arguments)
        return self._unseen("collectives", price) if np.any(np.asarray(price.seconds) > 0) else price

    def _unseen(self, law: str, price: Explained) -> Explained:
        errors = [error for error in (self.errors.get(law), price.error_percent) if error is not None]
        self.errors[law] = max(errors, default=None)
        if price.origin:
            self.origins[price.origin] = None
        return Explained(np.where(price.extrapolated, price.seconds, 0.0))
