"""What one kernel or collective costs, behind one small interface: the laws of a GPU, or whatever stands in for them.

Laws of whole iterations ask only this, so that a test or a measurement can answer in the place of a calibration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.calibration import Calibration


class KernelPrices(Protocol):
    """Seconds of one call of each kind of work."""

    def gemm(self, layout: str, m: int, n: int, k: int) -> float:
        """C[M,N] = A[M,K]·B[K,N]."""

    def attention(
        self, causal: bool, backward: bool, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int
    ) -> float:
        """Fused attention between the projections, forward or backward alone."""

    def memory_bound(self, nbytes: float) -> float:
        """A kernel that moves so many bytes and computes next to nothing."""

    def collective(
        self, op: str, nbytes: float, ranks: int, ranks_per_node: int, network_bytes_per_s: float | None
    ) -> float:
        """A collective of S bytes, as of nccl-tests, with the network that joins its nodes."""


@dataclass(frozen=True)
class LawPrices:
    """Prices by the laws as calibrated for a GPU, or as transferred to it.

    One iteration after another is a sustained load, so that is how products are priced unless `mode` says "burst".
    """

    gpu: str | GpuSpec | Calibration
    dtype: str = "bf16"
    mode: Literal["burst", "sustained"] = "sustained"

    def gemm(self, layout: str, m: int, n: int, k: int) -> float:
        from pyperf_suite.laws import gemm_time

        return float(gemm_time(self.gpu, m, n, k, dtype=self.dtype, layout=layout, mode=self.mode))

    def attention(
        self, causal: bool, backward: bool, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int
    ) -> float:
        from pyperf_suite.laws import attention_time

        shape = (batch, seq, seq, heads, kv_heads, head_dim)
        return float(attention_time(self.gpu, *shape, causal=causal, dtype=self.dtype, backward=backward))

    def memory_bound(self, nbytes: float) -> float:
        from pyperf_suite.laws import memory_bound_time

        return float(memory_bound_time(self.gpu, nbytes))

    def collective(
        self, op: str, nbytes: float, ranks: int, ranks_per_node: int, network_bytes_per_s: float | None
    ) -> float:
        from pyperf_suite.laws import collective_time

        seconds = collective_time(
            self.gpu, op, nbytes, ranks, ranks_per_node=ranks_per_node, network_bytes_per_s=network_bytes_per_s
        )
        return float(seconds)
