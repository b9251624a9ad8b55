"""What kernels and collectives cost a rank of one thread on a CPU, from measurements on that machine alone.

Each kernel by a straight line over what it does — calls, FLOPs, bytes — for one core has no waves and few cliffs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.laws.attention.counted import attention_flop, visible_pairs
from pyperf_suite.laws.calibration import Block
from pyperf_suite.laws.explained import Explained
from pyperf_suite.laws.network.alpha_beta import AlphaBetaOverRanks
from pyperf_suite.laws.prices import Bytes, Count

FLOAT = 4
LAYOUTS = ("TN", "NN", "NT")
# Of scaled_dot_product_attention's ways on a CPU: fused, and written out in products and a softmax.
ATTENTIONS = ("flash", "math")
KERNELS = (
    *(f"product_{layout}" for layout in LAYOUTS),
    *(f"attention_{kind}_{way}" for kind in ATTENTIONS for way in ("forward", "backward")),
    "pass",
    "copy",
    "update",
)


@dataclass(frozen=True)
class CpuPrices:
    """`KernelPrices` of one thread in float32. `lines` has for each of KERNELS the seconds of a unit of each feature.

    Features of products are a call, a FLOP and a byte of the operands; of attention a call, a FLOP and a score; of a
    pass through norms and activation functions, and of a copy, a call and a byte; of AdamW's update a tensor and an
    element. `attention_kind` is the one of ATTENTIONS that is asked for.
    """

    lines: Mapping[str, tuple[float, ...]]
    collectives: Mapping[str, AlphaBetaOverRanks]
    attention_kind: str = "flash"

    def of_attention(self, kind: str) -> CpuPrices:
        """The same with another way to compute attention. Raises UserError for one that was not measured."""
        if f"attention_{kind}_forward" not in self.lines:
            raise UserError(f"Attention by {kind} was not measured on this CPU, only by {', '.join(ATTENTIONS)}.")
        return replace(self, attention_kind=kind)

    def gemm(self, layout: str, m: Count, n: Count, k: Count) -> Explained:
        """C[M,N] = A[M,K]·B[K,N] in float32."""
        return self._at(f"product_{layout}", product_features(m, n, k))

    def attention(
        self, causal: bool, backward: bool, batch: Count, seq: Count, heads: Count, kv_heads: Count, head_dim: Count
    ) -> Explained:
        """One attention, forward or backward alone; shared key-value heads save no computation."""
        way = "backward" if backward else "forward"
        features = attention_features(causal, backward, batch, seq, heads, head_dim)
        return self._at(f"attention_{self.attention_kind}_{way}", features)

    def memory_bound(self, nbytes: Bytes) -> Explained:
        """A pass as norms and activation functions make them: on one core they are no faster than their arithmetic."""
        return self._at("pass", (1.0, nbytes))

    def copy(self, nbytes: Bytes) -> Explained:
        """A pass that adds or copies, by bytes read and written."""
        return self._at("copy", (1.0, nbytes))

    def update(self, tensors: int, elements: float) -> Explained:
        """AdamW's update, fused."""
        return self._at("update", (tensors, elements))

    def collective(
        self,
        op: str,
        nbytes: Bytes,
        ranks: Count,
        ranks_per_node: Count | None = None,
        network_bytes_per_s: float | None = None,
    ) -> Explained:
        """A collective of S bytes over gloo among ranks of this machine. Raises UserError for one not measured."""
        del ranks_per_node, network_bytes_per_s
        if np.ndim(ranks) == 0 and int(ranks) == 1:
            return Explained(0.0)
        if op not in self.collectives:
            known = ", ".join(sorted(self.collectives)) or "none"
            raise UserError(f"{op} was not measured on this CPU, only {known}: calibrate it anew.")
        return Explained(float(self.collectives[op].seconds(nbytes, int(ranks))))

    def _at(self, kernel: str, features: Sequence[Any]) -> Explained:
        if kernel not in self.lines:
            raise UserError(f"{kernel} was not measured on this CPU: calibrate it anew.")
        return Explained(sum(price * feature for price, feature in zip(self.lines[kernel], features, strict=True)))


def product_features(m: Any, n: Any, k: Any) -> tuple[Any, Any, Any]:
    """Calls, FLOPs, and bytes of both operands and the result."""
    return 1.0, 2.0 * m * n * k, FLOAT * (1.0 * m * k + 1.0 * k * n + 1.0 * m * n)


def attention_features(
    causal: bool, backward: bool, batch: Any, seq: Any, heads: Any, head_dim: Any
) -> tuple[Any, Any, Any]:
    """Calls, FLOPs, and scores of one attention as wide as it is long."""
    pairs = visible_pairs(seq, seq, causal)
    return 1.0, attention_flop(batch, heads, head_dim, pairs, backward), 1.0 * batch * heads * seq * seq


def fit_line(features: ArrayLike, seconds: ArrayLike) -> tuple[float, ...]:
    """Non-negative seconds of a unit of each feature, by least squares of the relative error; one row a measurement."""
    from scipy.optimize import nnls

    rows, time = np.asarray(features, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    relative = rows / time[:, None]
    # Columns differ by ten orders of magnitude; scaled ones keep the solver's tolerance meaningful.
    scale = np.maximum(relative.max(axis=0), np.finfo(np.float64).tiny)
    solution, _ = nnls(relative / scale, np.ones(time.size))
    return tuple(float(price) for price in solution / scale)


def line_errors(features: ArrayLike, seconds: ArrayLike) -> NDArray[np.float64]:
    """|predicted − measured| / measured of every measurement by a line that did not see it; empty for fewer than 3."""
    rows, time = np.asarray(features, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if time.size < 3:
        return np.empty(0)
    others = [np.arange(time.size) != place for place in range(time.size)]
    return np.array([abs(rows[~seen][0] @ fit_line(rows[seen], time[seen]) / time[~seen][0] - 1) for seen in others])


def pack_lines(lines: Mapping[str, tuple[float, ...]], held_out: Mapping[str, float | int | str], origin: str) -> Block:
    """The lines as a block of a calibration."""
    return Block({name: np.array(line) for name, line in lines.items()}, held_out, {}, origin)


def unpack_lines(block: Block) -> dict[str, tuple[float, ...]]:
    """The inverse of `pack_lines`."""
    return {name: tuple(np.atleast_1d(array).astype(float).tolist()) for name, array in block.arrays.items()}
