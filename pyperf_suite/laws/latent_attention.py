"""The time of DeepSeek's multi-head latent attention, of its kernel alone or of the module with its projections.

One latent vector a token is cached for all heads. Prefill expands it to keys and values; decode takes the expansion
into the queries and reads the latent vectors themselves. The form of the law is `decode_attention.SummedLaw`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.calibration import Gpu, spec_of
from pyperf_suite.laws.decode_attention import (
    CACHE_BYTES,
    ELEMENT_BYTES,
    KEY_BLOCK,
    Floats,
    Sizes,
    law_of,
    spilled_share,
)
from pyperf_suite.laws.explained import Explained

# DeepSeek-V3: widths of the model, of the queries' and the cache's latent vectors, and of a head's parts.
HIDDEN, QUERY_RANK, LATENT, ROPE, KEY, VALUE = 7168, 1536, 512, 64, 128, 128
# Heads that a decode kernel takes at once, and queries that a prefill kernel does.
HEAD_BLOCK, QUERY_BLOCK = 64, 128
PHASES, SCOPES = ("prefill", "decode"), ("kernel", "module")
# Products of projections as they are called in a kind of law, and as a data sheet calls them, with bytes of a weight.
GEMMS = {"bf16": ("bf16", 2.0), "fp8_block": ("fp8", 1.0), "nvfp4": ("fp4", 0.5625)}
GEMM_NAMES = {"bf16": "bf16", "bfloat16": "bf16", "fp8": "fp8_block", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
# What the grids are over.
GRIDS = (("batch", "length", "heads"), ("streams", "length"), ("tokens", "heads"))
CAUSES = {
    "launch": "launch",
    "ideal": "rate",
    "cache": "bandwidth",
    "resident": "cache",
    "bytes": "bandwidth",
    "blocks": "wave",
    "whole heads": "tile",
    "splits": "wave",
    "busiest": "wave",
    "tokens": "kernel",
    "weights": "bandwidth",
    "projections": "kernel",
    "activations": "bandwidth",
}


def latent_sizes(batch: Floats, seq_q: Floats, seq_k: Floats, heads: Floats) -> Sizes:
    """The sizes that the grids are of."""
    length = np.where(seq_q > 1, np.sqrt(seq_q * seq_k), seq_k)
    streams, tokens = batch * heads, batch * seq_q
    return {"batch": batch, "length": length, "heads": heads, "streams": streams, "tokens": tokens}


def latent_work(
    gpu: GpuSpec, phase: str, gemm: str, cache_bytes: float, batch: Floats, seq_q: Floats, seq_k: Floats, heads: Floats
) -> Sizes:
    """What is counted, in seconds at the data sheet's rates or in numbers a multiprocessor; no projections for ""."""
    peak, bandwidth = gpu.peak("bf16"), gpu.memory_bytes_per_s
    cache = cache_bytes * batch * seq_k * (LATENT + ROPE)
    spilled = spilled_share(gpu, cache) if phase == "decode" else 1.0
    reads = {"cache": cache * spilled / bandwidth, "resident": cache * (1 - spilled) / bandwidth}
    if phase == "decode":
        pair_flop = 2.0 * batch * seq_q * seq_k * (2 * LATENT + ROPE) / peak
        blocks = batch * np.ceil(heads / HEAD_BLOCK) / gpu.sms
        moved = ELEMENT_BYTES * batch * seq_q * heads * (2 * LATENT + ROPE)
        attention = {
            "ideal": pair_flop * heads,
            **reads,
            "bytes": moved / bandwidth,
            "blocks": blocks,
            "whole heads": pair_flop * np.ceil(heads / HEAD_BLOCK) * HEAD_BLOCK,
            "splits": np.log2(1 + seq_k / KEY_BLOCK),
            "busiest": np.maximum(blocks, 1.0) * np.ceil(seq_k / KEY_BLOCK) / np.maximum(1.0, np.floor(1 / blocks)),
        }
    else:
        pairs = batch * heads * seq_q * (seq_k - (seq_q - 1) / 2)
        moved = batch * heads * ELEMENT_BYTES * (seq_q + seq_k) * (KEY + ROPE + VALUE)
        tiles = batch * heads * np.ceil(seq_q / QUERY_BLOCK)
        attention = {
            "ideal": 2.0 * pairs * (KEY + ROPE + VALUE) / peak,
            **reads,
            "bytes": moved / bandwidth,
            "blocks": tiles / gpu.sms,
            "whole heads": np.ceil(tiles / gpu.sms) * seq_k,
            "splits": np.log2(1 + seq_k / KEY_BLOCK),
            "busiest": seq_k,
        }
    # A cache in fp8 is converted on the multiprocessors.
    work = {"launch": np.ones_like(batch), **attention, "tokens": batch * seq_k / gpu.sms}
    if not gemm:
        return work | dict.fromkeys(("weights", "projections", "activations"), np.zeros_like(batch))
    dtype, weight_bytes = GEMMS[gemm]
    weights = HIDDEN * (QUERY_RANK + LATENT + ROPE) + heads * (
        QUERY_RANK * (KEY + ROPE) + LATENT * (KEY + VALUE) + VALUE * HIDDEN
    )
    rows = ELEMENT_BYTES * batch * seq_q * (2 * HIDDEN + heads * (KEY + ROPE + VALUE))
    return work | {
        "weights": weight_bytes * weights / bandwidth,
        "projections": 2.0 * batch * seq_q * weights / gpu.peak(dtype),
        "activations": rows / bandwidth,
    }


def mla_time(
    gpu: Gpu,
    batch: ArrayLike,
    seq_q: ArrayLike,
    seq_k: ArrayLike,
    heads: ArrayLike,
    phase: str = "prefill",
    dtype: str = "bf16",
    cache_dtype: str | None = None,
    scope: str = "kernel",
    gemm_dtype: str | None = None,
    library: str | None = None,
) -> Explained:
    """Seconds of latent attention with DeepSeek's dimensions on one GPU that has `heads` of its heads, forward.

    Sizes broadcast together. Prefill is causal with `seq_q` the last of `seq_k` tokens (measured where they are
    equal); decode is one new token, `seq_q` 1, against `seq_k` cached ones. `scope` is "kernel", or "module" with the
    projections, whose products are in `gemm_dtype`: "bf16", "fp8_block" or "nvfp4". Defaults of both dtypes follow
    `dtype`, "bf16" or "fp8".

    Raises UserError for a size below 1, another phase or scope, and what no table is known to be like; the sentence
    names what there is.
    """
    asked = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in (batch, seq_q, seq_k, heads)))
    if phase not in PHASES or scope not in SCOPES:
        raise UserError(f"Latent attention has the phases {PHASES} and the scopes {SCOPES}, not {phase!r}, {scope!r}.")
    if any((each < 1).any() for each in asked) or (asked[1] > asked[2]).any():
        raise UserError("Sizes of latent attention are at least 1, and seq_q at most seq_k.")
    if phase == "decode" and (asked[1] != 1).any():
        raise UserError("Decode of latent attention was measured for one new token: ask for seq_q 1.")
    cache, gemm = cache_dtype or dtype, gemm_dtype or dtype
    if dtype not in CACHE_BYTES or cache not in CACHE_BYTES or gemm not in GEMM_NAMES:
        raise UserError(
            f"Latent attention was measured in bf16 and fp8 (projections also in nvfp4), not {dtype}, {cache}, {gemm}."
        )
    gemm = GEMM_NAMES[gemm] if scope == "module" else ""
    found = law_of(gpu, f"mla_{phase}", GRIDS, kind_of(scope, gemm, cache), library)
    sizes = latent_sizes(*asked)
    work = latent_work(spec_of(gpu), phase, gemm, CACHE_BYTES[cache], *asked)
    seconds, parts = found.law.explained(work, sizes, GRIDS, CAUSES)
    return found.answer(seconds, parts, dict(zip(("batch", "seq_q", "seq_k", "heads"), asked, strict=True)))


def kind_of(scope: str, gemm: str, cache: str) -> str:
    """The name of a kind of law in a block: "module with fp8_block products, bf16 cache"."""
    return f"{scope} with {gemm} products, {cache} cache" if gemm else f"{scope}, {cache} cache"
