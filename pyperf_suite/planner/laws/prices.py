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
from pyperf_suite.planner.laws.attention import PLAIN, attention_time, mla_time
from pyperf_suite.planner.laws.calibration import Calibration, spec_of
from pyperf_suite.planner.laws.collectives import collective_time
from pyperf_suite.planner.laws.explained import Bytes, Causes, Count, Explained
from pyperf_suite.planner.laws.gemm import gemm_time
from pyperf_suite.planner.laws.internode import Network
from pyperf_suite.planner.laws.roofline import memory_bound_time

# Dtypes of products that nothing is computed wider than.
WIDE = ("fp16", "bf16", "tf32", "fp32")
# The smallest that there are, sizes of models, odd ones, and the largest that was fitted.
PRODUCTS = np.array(list(product((1, 96, 4097, 32768), (32, 50257, 65536), (32, 1000, 65536))), dtype=np.int64).T
# Batch, sequence, heads and key-value heads, from the ends of what was fitted; each with all of these widths.
ATTENTIONS = ((1, 128, 1, 1), (2, 2048, 32, 8), (1, 16384, 96, 96))
HEAD_DIMS = (64, 96, 128, 192, 256)
# DeepSeek's latent attention has keys of 192 and values of 128: 1.25 times the work of heads of 128. Where it was
# measured, its law gives 0.5 to 0.93 of the time of that much attention (5th to 95th percentile of 80 sizes, 5 GPUs).
LATENT_HEAD_DIM, LATENT_WORK, LATENT_LEAST = 128, 1.25, 0.5
# Whose attention is nearest to that of training: by it runs of models left out are predicted better than by others'.
TRAINING_ATTENTION = "vllm"
# The least and the greatest that anything takes, in seconds: beyond lies no price but a slip.
SHORTEST_S, LONGEST_S = 1e-9, 1e9


@dataclass(frozen=True)
class Prices:
    """Prices by the laws as calibrated for a GPU, or as transferred to it. Raises UserError for an unknown GPU.

    In training products follow one another without a pause, so that power holds the clocks down: `mode` "sustained".
    "burst" prices a product that runs alone. Attention is computed in 16 bits where products have 8 or 32: in bf16,
    before Ampere in fp16. `library` is whose kernels are priced, None the default of each law, and for attention in
    training `TRAINING_ATTENTION`. `slower` is by what each kind of kernel calls takes longer within a step than alone.

    Sizes are plain numbers, or arrays that broadcast together. A query of attention sees `window` keys, 0: all;
    collectives are of S bytes as of nccl-tests, by default on the nodes and the network of the GPU's maker.
    """

    gpu: str | GpuSpec | Calibration
    dtype: str = "bf16"
    mode: Literal["burst", "sustained"] = "sustained"
    library: str | None = None
    slower: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def _attention_dtype(self) -> str:
        if self.dtype in ("fp16", "bf16"):
            return self.dtype
        return "bf16" if "bf16" in spec_of(self.gpu).peak_flop_per_s else "fp16"

    @property
    def _attention_library(self) -> str | None:
        own = self.gpu.libraries(PLAIN) if isinstance(self.gpu, Calibration) else ()
        lacks = bool(own) and TRAINING_ATTENTION not in own
        return self.library if self.library or lacks or self.mode == "burst" else TRAINING_ATTENTION

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
        return attention_time(
            self.gpu, batch, seq, seq, heads, kv_heads, head_dim, causal, self._attention_dtype, backward, window,
            library=self._attention_library,
        )  # fmt: skip

    def latent_attention(self, backward: bool, batch: Count, seq: Count, heads: Count) -> Explained:
        """By the law of MLA, and where it knows nothing as attention of as much work between heads of 128.

        Its backward, which no one measured, takes as many times the forward as that attention's.
        """
        once, way = (self.attention(True, way, batch, seq, heads, heads, LATENT_HEAD_DIM) for way in (False, backward))
        try:
            forward = mla_time(self.gpu, batch, seq, seq, heads, library=self.library)
        except UserError:
            return _scaled(way, LATENT_WORK, LATENT_LEAST, 1.0)
        if not backward:
            return forward
        errors = [np.asarray(end) / way.seconds for end in (way.low, way.high)] if way.low is not None else [1.0, 1.0]
        return _scaled(forward, way.seconds / once.seconds, *errors)

    def memory_bound(self, nbytes: Bytes) -> Explained:
        return memory_bound_time(self.gpu, nbytes)

    def collective(
        self,
        op: str,
        nbytes: Bytes,
        ranks: Count,
        ranks_per_node: Count | None = None,
        network: Network | None = None,
    ) -> Explained:
        return collective_time(self.gpu, op, nbytes, ranks, ranks_per_node, network)


def _scaled(price: Explained, times: Any, times_low: Any, times_high: Any) -> Explained:
    """So many times as long, with the ends of its interval moved apart as well."""
    parts = Causes(lambda: {cause: times * seconds for cause, seconds in price.parts.items()})
    low, high = (
        None if end is None else times * further * np.asarray(end)
        for end, further in ((price.low, times_low), (price.high, times_high))
    )
    return replace(price, seconds=times * price.seconds, parts=parts, low=low, high=high)


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
            wrong = [law for law, priced in _tried(calibration) if not _has_times(priced)]
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
    if PLAIN in laws:
        batch, seq, heads, kv_heads, head_dim = np.array(
            [(*shape, width) for shape in ATTENTIONS for width in HEAD_DIMS], dtype=np.int64
        ).T
        for library, backward in product(calibration.libraries(PLAIN) or (None,), (False, True)):
            prices = Prices(calibration, library=library)
            yield "attention", prices.attention(True, backward, batch, seq, heads, kv_heads, head_dim)


def _has_times(priced: Explained) -> bool:
    seconds, interval = np.asarray(priced.seconds), [end for end in (priced.low, priced.high) if end is not None]
    return bool(((seconds >= SHORTEST_S) & (seconds <= LONGEST_S)).all()) and all(
        bool(np.isfinite(part).all()) for part in (*priced.parts.values(), *interval)
    )
