"""What one kernel or collective costs, behind one small interface: the laws of a GPU, or whatever stands in for them.

Laws of whole iterations ask only this, so that a test or a measurement can answer in the place of a calibration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.calibration import Calibration
from pyperf_suite.laws.explained import Explained

# One size, or those of a grid.
Count = int | NDArray[np.int64]
Bytes = float | NDArray[np.float64]


class KernelPrices(Protocol):
    """Seconds of one call of each kind of work: a number, or an array where a size is one."""

    def gemm(self, layout: str, m: Count, n: Count, k: Count) -> Any:
        """C[M,N] = A[M,K]·B[K,N]."""

    def attention(
        self, causal: bool, backward: bool, batch: Count, seq: Count, heads: Count, kv_heads: Count, head_dim: Count
    ) -> Any:
        """Fused attention between the projections, forward or backward alone."""

    def memory_bound(self, nbytes: Bytes) -> Any:
        """A kernel that moves so many bytes and computes next to nothing."""

    def collective(
        self, op: str, nbytes: Bytes, ranks: Count, ranks_per_node: Count, network_bytes_per_s: float | None
    ) -> Any:
        """A collective of S bytes, as of nccl-tests, with the network that joins its nodes."""


@dataclass(frozen=True)
class LawPrices:
    """Prices by the laws as calibrated for a GPU, or as transferred to it.

    One iteration after another is a sustained load, so that is how products are priced unless `mode` says "burst".
    """

    gpu: str | GpuSpec | Calibration
    dtype: str = "bf16"
    mode: Literal["burst", "sustained"] = "sustained"

    def gemm(self, layout: str, m: Count, n: Count, k: Count) -> Any:
        from pyperf_suite.laws import gemm_time

        return _as_asked(gemm_time(self.gpu, m, n, k, dtype=self.dtype, layout=layout, mode=self.mode))

    def attention(
        self, causal: bool, backward: bool, batch: Count, seq: Count, heads: Count, kv_heads: Count, head_dim: Count
    ) -> Any:
        from pyperf_suite.laws import attention_time

        shape = (batch, seq, seq, heads, kv_heads, head_dim)
        return _as_asked(attention_time(self.gpu, *shape, causal=causal, dtype=self.dtype, backward=backward))

    def memory_bound(self, nbytes: Bytes) -> Any:
        from pyperf_suite.laws import memory_bound_time

        return _as_asked(memory_bound_time(self.gpu, nbytes))

    def collective(
        self, op: str, nbytes: Bytes, ranks: Count, ranks_per_node: Count, network_bytes_per_s: float | None
    ) -> Any:
        from pyperf_suite.laws import collective_time

        return _as_asked(
            collective_time(
                self.gpu, op, nbytes, ranks, ranks_per_node=ranks_per_node, network_bytes_per_s=network_bytes_per_s
            )
        )


@dataclass(frozen=True)
class UnseenPrices:
    """The same laws' seconds where they are asked beyond what they were fitted on, and no seconds elsewhere.

    A law of iterations over these prices tells how much of its answer is extrapolated. `errors` keeps what each law
    that was asked says of its error on measurements that were left out, in % (None: untested), `origins` their sources.
    """

    laws: LawPrices
    errors: dict[str, float | None] = field(default_factory=dict)
    origins: dict[str, None] = field(default_factory=dict)

    def gemm(self, layout: str, m: Count, n: Count, k: Count) -> Any:
        from pyperf_suite.laws import gemm_time

        laws = self.laws
        told = gemm_time(laws.gpu, m, n, k, dtype=laws.dtype, layout=layout, mode=laws.mode, explain=True)
        return self._unseen("products", told)

    def attention(
        self, causal: bool, backward: bool, batch: Count, seq: Count, heads: Count, kv_heads: Count, head_dim: Count
    ) -> Any:
        from pyperf_suite.laws import attention_time

        shape = (batch, seq, seq, heads, kv_heads, head_dim)
        dtype = self.laws.dtype
        told = attention_time(self.laws.gpu, *shape, causal=causal, dtype=dtype, backward=backward, explain=True)
        return self._unseen("attention", told)

    def memory_bound(self, nbytes: Bytes) -> Any:
        from pyperf_suite.laws import memory_bound_time

        return self._unseen("memory bound", memory_bound_time(self.laws.gpu, nbytes, explain=True))

    def collective(
        self, op: str, nbytes: Bytes, ranks: Count, ranks_per_node: Count, network_bytes_per_s: float | None
    ) -> Any:
        from pyperf_suite.laws import collective_time

        told = collective_time(
            self.laws.gpu, op, nbytes, ranks, True, ranks_per_node=ranks_per_node,
            network_bytes_per_s=network_bytes_per_s,
        )  # fmt: skip
        if not np.any(np.asarray(told.seconds) > 0):
            return _as_asked(told.seconds)
        return self._unseen("collectives", told)

    def _unseen(self, law: str, told: Explained) -> Any:
        errors = [error for error in (self.errors.get(law), told.error_percent) if error is not None]
        self.errors[law] = max(errors, default=None)
        if told.origin:
            self.origins[told.origin] = None
        return _as_asked(np.where(told.extrapolated, told.seconds, 0.0))


def _as_asked(seconds: ArrayLike) -> Any:
    """A plain number where one was asked for."""
    return float(np.asarray(seconds)) if np.ndim(seconds) == 0 else seconds
