"""The one price list: what a kernel or a collective costs on a GPU, by its laws, and whether a calibration has prices.

Whatever adds up kernels (`size`, `layout`, an iteration) asks only `Prices`, or what answers the same calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.planner.laws.attention import LAW, attention_time
from pyperf_suite.planner.laws.calibration import Calibration, spec_of
from pyperf_suite.planner.laws.collectives import Network, collective_time
from pyperf_suite.planner.laws.explained import Bytes, Count, Explained
from pyperf_suite.planner.laws.gemm import gemm_time
from pyperf_suite.planner.laws.roofline import memory_bound_time

# Dtypes of products that nothing is computed wider than.
WIDE = ("fp16", "bf16", "tf32", "fp32")
# The smallest that there are, sizes of models, odd ones, and the largest that was fitted.
PRODUCTS = np.array(list(product((1, 96, 4097, 32768), (32, 50257, 65536), (32, 1000, 65536))), dtype=np.int64).T
# Batch, sequence, heads and key-value heads, from the ends of what was fitted; each with all of these widths.
ATTENTIONS = ((1, 128, 1, 1), (2, 2048, 32, 8), (1, 16384, 96, 96))
HEAD_DIMS = (64, 96, 128, 192, 256)
# The least and the greatest that anything takes, in seconds: beyond lies no price but a slip.
SHORTEST_S, LONGEST_S = 1e-9, 1e9


@dataclass(frozen=True)
class Prices:
    """Prices by the laws as calibrated for a GPU, or as transferred to it. Raises UserError for an unknown GPU.

    In training products follow one another without a pause, so that power holds the clocks down: `mode` "sustained".
    "burst" prices a product that runs alone. Attention is computed in 16 bits where products have 8 or 32: in bf16,
    before Ampere in fp16. `library` is whose products are priced, None the law's default.
    `slower` is by what each kind of kernel calls takes longer within a step than alone.

    Sizes are plain numbers, or arrays that broadcast together. A query of attention sees `window` keys, 0: all;
    collectives are of S bytes as of nccl-tests, by default on the nodes and the network of the GPU's maker.
    """

    gpu: str | GpuSpec | Calibration
    dtype: str = "bf16"
    mode: Literal["burst", "sustained"] = "sustained"
    library: str | None = None
    slower: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def wide(self) -> Prices:
        """The same in 16 bits: what stays in them where layers are computed in fewer."""
        return self if self.dtype in WIDE else replace(self, dtype="bf16")

    def gemm(self, layout: str, m: Count, n: Count, k: Count) -> Explained:
        return gemm_time(self.gpu, m, n, k, self.dtype, layout, self.mode, self.library)

    def attention(
        self, causal: bool, backward: bool, batch: Count, seq: Count, heads: Count, kv_heads: Count, head_dim: Count,
        window: Count = 0,
    ) -> Explained:  # fmt: skip
        known = "bf16" if "bf16" in spec_of(self.gpu).peak_flop_per_s else "fp16"
        dtype = self.dtype if self.dtype in ("fp16", "bf16") else known
        return attention_time(self.gpu, batch, seq, seq, heads, kv_heads, head_dim, causal, dtype, backward, window)

    def memory_bound(self, nbytes: Bytes) -> Explained:
        return memory_bound_time(self.gpu, nbytes)

    def collective(
        self, op: str, nbytes: Bytes, ranks: Count, ranks_per_node: Count | None = None, network: Network | None = None
    ) -> Explained:
        return collective_time(self.gpu, op, nbytes, ranks, ranks_per_node, network)


def check_form(calibration: Calibration, origin: Path) -> None:
    """Raise UserError where a block states no error or a law has no time for some size, by age or someone's hand."""
    for name, block in calibration.blocks.items():
        mape = block.held_out.get("mape")
        if not (isinstance(mape, (int, float)) and 0 <= mape < float("inf")):
            raise UserError(
                f"{origin} has a block {name} without an error: make it anew with `pyperf-suite calibrate`."
            )
    try:
        spec_of(calibration)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrong = []
            for law, priced in _tried(calibration):
                seconds = np.asarray(priced.seconds)
                others = [*priced.parts.values(), *(end for end in (priced.low, priced.high) if end is not None)]
                is_timed = np.all((seconds >= SHORTEST_S) & (seconds <= LONGEST_S))
                if not is_timed or not all(np.isfinite(each).all() for each in others):
                    wrong.append(law)
    except UserError as reason:
        why = str(reason).rstrip(".")
    except (ArithmeticError, LookupError, TypeError, ValueError, AssertionError, MemoryError) as error:
        why = f"its laws end in {type(error).__name__}"
    else:
        if not wrong:
            return
        why = f"its law of {wrong[0]} gives no time for every size"
    raise UserError(f"{origin} is no calibration of a GPU, for {why}: make it anew with `pyperf-suite calibrate`.")


def _tried(calibration: Calibration) -> Iterator[tuple[str, Explained]]:
    laws = {name.removesuffix("_here").split(".")[0] for name in calibration.blocks}
    m, n, k = PRODUCTS
    for dtype in ("bf16", "fp8"):
        if f"gemm_{dtype}" in laws:
            for library in calibration.libraries(f"gemm_{dtype}") or (None,):
                yield "products", gemm_time(calibration, m, n, k, dtype=dtype, library=library)
    if LAW in laws:
        batch, seq, heads, kv_heads, head_dim = np.array(
            [(*shape, width) for shape in ATTENTIONS for width in HEAD_DIMS], dtype=np.int64
        ).T
        for backward in (False, True):
            yield "attention", Prices(calibration).attention(True, backward, batch, seq, heads, kv_heads, head_dim)
