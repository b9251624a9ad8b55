"""Made-up laws for tests, whose right answers are known without a GPU or a calibration."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from pyperf_suite.planner.laws.explained import Explained


@dataclass
class MadeUpPrices:
    """A GPU of 100 TFLOP/s that computes whole tiles of 128, twice as slowly where a size is odd in eights.

    `error_percent` is what the laws admit to.
    """

    error_percent: float | None = 1.0
    slower: dict[str, float] = field(default_factory=dict)

    @property
    def wide(self):
        return self

    def gemm(self, layout, m, n, k):
        m, n, k = map(np.asarray, np.broadcast_arrays(m, n, k))
        assert min(m.min(), n.min(), k.min()) >= 1
        ideal = 2.0 * m * n * k / 1e14
        tiled = 2.0 * (-(-m // 128) * 128) * (-(-n // 128) * 128) * k / 1e14
        penalty = np.where((m % 8 == 0) & (n % 8 == 0) & (k % 8 == 0), 0.0, tiled)
        parts = {"ideal": ideal, "tile": tiled - ideal, "alignment": penalty, "launch": np.full(m.shape, 1e-6)}
        return self._explained(parts, m > 1 << 20)

    def attention(self, causal, backward, batch, seq, heads, kv_heads, head_dim, window=0):
        assert np.min(heads) >= 1
        assert not np.any(heads % kv_heads)
        seen = np.where(np.asarray(window) > 0, np.minimum(window, seq) * 2, seq)
        ideal = (2.5 if backward else 1.0) * 4.0 * batch * heads * head_dim * seq * seen / (2 if causal else 1) / 5e13
        padded = -(-head_dim // 64) * 64 / head_dim
        return self._explained({"ideal": ideal, "head_dim": ideal * (padded - 1)})

    def memory_bound(self, nbytes):
        return self._explained({"bandwidth": nbytes / 1e12})

    def collective(self, op, nbytes, ranks, ranks_per_node=None, network=None):
        return self._explained({"bandwidth": 2 * nbytes / 1e11 * (ranks - 1) / ranks})

    def _explained(self, parts, extrapolated=False):
        return Explained(sum(parts.values()), parts, extrapolated, self.error_percent, "made up")


@pytest.fixture
def made_up() -> MadeUpPrices:
    return MadeUpPrices()


@pytest.fixture
def made_up_with():
    return MadeUpPrices
