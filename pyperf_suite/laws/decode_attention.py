"""The time of attention of one new token a sequence against cached keys, and of DeepSeek's latent attention (MLA).

Work is counted from the sizes (bytes of the cache, blocks of keys a multiprocessor, products, launch) and priced by
costs in units of the data sheet; grids over the sizes say what the measured kernels make of that: `SummedLaw`. Latent
attention caches one vector a token for all heads. Its prefill expands it to keys and values; its decode takes the
expansion into the queries and reads the latent vectors themselves. It is priced alone or with its projections.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.band import DEVIATIONS, Band
from pyperf_suite.laws.band import NAMES as BAND_NAMES
from pyperf_suite.laws.calibration import (
    STEPS,
    Calibration,
    CalibrationBlock,
    Gpu,
    ResidualGrid,
    all_shipped,
    outside,
    own_calibration,
    spec_of,
)
from pyperf_suite.laws.explained import Causes, Explained, sizes_asked
from pyperf_suite.laws.transfers import decode_deviation, nearest

Floats = NDArray[np.float64]
# Names of sizes, and of counted work, with their arrays.
Sizes = Mapping[str, Floats]

# Tensor cores take rows of queries by 16, and kernels keys by 64.
QUERY_ROWS = 16
KEY_BLOCK = 64.0
ELEMENT_BYTES = 2
# Up to the first of these multiples of L2 a cache was read from it on L40S, four times as fast as from memory, and from
# the second on from memory.
L2_KEPT = (1.1, 1.3)


@dataclass(frozen=True)
class SummedLaw:
    """Seconds = (sum of cost × counted work) · exp(sum of grids).

    `costs` are one for each work counted, in its order; `grids` one for each tuple of names of sizes that the law of
    the kind has; `band` is how far measurements lie around it.
    """

    costs: Floats
    grids: tuple[ResidualGrid, ...]
    band: Band

    def missed(self, sizes: Sizes, over: Sequence[tuple[str, ...]]) -> Floats:
        """The sum of the grids: log(measured / counted)."""
        total = np.zeros(np.broadcast_shapes(*(size.shape for size in sizes.values())))
        for grid, names in zip(self.grids, over, strict=True):
            total = total + grid(*(sizes[name] for name in names))
        return total

    def explained(
        self, work: Sizes, sizes: Sizes, over: Sequence[tuple[str, ...]], causes: Mapping[str, str]
    ) -> tuple[Floats, Causes]:
        """Seconds, and by cause; `causes` names that of each work counted, "ideal" being at the data sheet's rate."""
        counted = np.asarray(sum(cost * each for cost, each in zip(self.costs, work.values(), strict=True)))
        missed = self.missed(sizes, over)

        def parts() -> dict[str, Floats]:
            found: dict[str, Floats] = {"ideal": np.asarray(work["ideal"])} if "ideal" in work else {}
            for cost, (name, each) in zip(self.costs, work.items(), strict=True):
                priced = cost * each - (each if name == "ideal" else 0.0)
                found[causes[name]] = np.asarray(found.get(causes[name], 0.0) + priced)
            return {**found, "measured": counted * np.expm1(missed)}

        return counted * np.exp(missed), Causes(parts)


# Grids are kept in steps of one byte, of at least so much: finer ones would only not compress.
LEAST_STEP = 0.015


def pack_laws(laws: Mapping[str, SummedLaw], over: Sequence[tuple[str, ...]]) -> dict[str, NDArray[Any]]:
    """Laws by kind as arrays of one block; all have the same nodes of their grids and as many knots of their bands."""
    first, *_ = laws.values()
    nodes = {
        name: axis
        for names, grid in zip(over, first.grids, strict=True)
        for name, axis in zip(names, grid.axes, strict=True)
    }
    values = [np.concatenate([grid.values.ravel() for grid in law.grids]) for law in laws.values()]
    steps = np.maximum(LEAST_STEP, np.abs(values).max(axis=1, keepdims=True) / STEPS)
    arrays = {
        "kinds": np.array(list(laws)),
        "costs": np.array([law.costs for law in laws.values()]),
        "residual": np.round(values / steps).astype(np.int8),
        "residual_step": steps,
        "node_names": np.array(list(nodes)),
        "node_counts": np.array([axis.size for axis in nodes.values()]),
        "nodes": np.concatenate(list(nodes.values())),
    }
    return arrays | {name: np.array([law.band.as_arrays()[name] for law in laws.values()]) for name in BAND_NAMES}


def unpack_law(block: CalibrationBlock, kind: str, over: Sequence[tuple[str, ...]]) -> SummedLaw:
    """The law of a kind that a block keeps."""
    arrays = block.arrays
    place = arrays["kinds"].tolist().index(kind)
    axes = np.split(arrays["nodes"], np.cumsum(arrays["node_counts"])[:-1])
    nodes = dict(zip(arrays["node_names"].tolist(), axes, strict=True))
    values = arrays["residual"][place] * arrays["residual_step"][place]
    grids, start = [], 0
    for names in over:
        shape = [nodes[name].size for name in names]
        end = start + int(np.prod(shape))
        grids.append(ResidualGrid(tuple(nodes[name] for name in names), values[start:end].reshape(shape)))
        start = end
    return SummedLaw(arrays["costs"][place], tuple(grids), Band(*(arrays[name][place] for name in BAND_NAMES)))


# The mean of |x| over the standard deviation of a normal x, in percent.
MEAN_OF_DEVIATION = 80.0


@dataclass(frozen=True)
class FoundLaw:
    """The law that answers for a GPU: of which library, from which block; `apart` is 0 where it is the GPU's own."""

    law: SummedLaw
    library: str
    block: CalibrationBlock
    error_percent: float
    apart: float
    origin: str

    def interval(self, seconds: Floats) -> tuple[Floats, Floats]:
        """Between which nine of ten measurements lie."""
        low, high = self.law.band.around(seconds)
        beyond = DEVIATIONS * self.apart
        low, high = np.minimum(low, seconds), np.maximum(high, seconds)
        return (
            seconds * np.exp(-np.hypot(np.log(seconds / low), beyond)),
            seconds * np.exp(np.hypot(np.log(high / seconds), beyond)),
        )

    def answer(self, seconds: Floats, parts: Causes, asked: Sizes) -> Explained:
        """Seconds with the interval around them, and whether the sizes are within what was fitted."""
        low, high = self.interval(seconds)
        error = float(np.hypot(self.error_percent, MEAN_OF_DEVIATION * self.apart))
        beyond = outside(self.block.fitted_range, asked)
        return Explained(seconds, parts, beyond, error, self.origin, low, high, self.library)


def law_of(
    gpu: Gpu, name: str, over: Sequence[tuple[str, ...]], kind: str = "", library: str | None = None
) -> FoundLaw:
    """The law of that name and kind: the GPU's own, or that of the GPU most like it. Raises UserError without one."""
    spec = spec_of(gpu)
    own = own_calibration(gpu, name) or donor(spec, name)
    if library is not None:
        own.library(name, library)
    kinds = {each: own.block(f"{name}.{each}").arrays["kinds"].tolist() for each in own.libraries(name)}
    having = [each for each in kinds if kind in kinds[each] and library in (None, each)]
    if not having:
        there = "; ".join(f"{each}: {', '.join(sorted(known))}" for each, known in kinds.items())
        raise UserError(f"Of {library or 'any library'} no {name} of {kind} was measured on {own.gpu}, but {there}.")
    block = own.block(f"{name}.{having[0]}")
    error = float(block.arrays["mape"][block.arrays["kinds"].tolist().index(kind)])
    origin = block.origin if own.gpu == spec.name else f"read off {own.gpu}, fitted to {block.origin}"
    apart = decode_deviation(spec, find_gpu(own.gpu))
    return FoundLaw(unpack_law(block, kind, over), having[0], block, error, apart, origin)


@functools.cache
def donor(spec: GpuSpec, name: str) -> Calibration:
    """The shipped calibration of the GPU most like `spec` with a law of that name.

    Raises UserError where there is none, or `spec` is no GPU that CUDA runs on.
    """
    shipped = {each.gpu: each for each in all_shipped() if each.libraries(name)}
    measured = ", ".join(sorted(shipped)) or "no GPU"
    if spec.compute_capability is None or ("fp8kv" in name and "fp8" not in spec.peak_flop_per_s):
        raise UserError(f"Nothing like {name} on {spec.name} was measured, only on {measured}.")
    return shipped[nearest(spec, shipped, f"{name} is").name]


LAWS = {"bf16": "attention_decode_bf16", "fp8": "attention_decode_fp8kv"}
CACHE_BYTES = {"bf16": 2, "fp8": 1}
# What the grids are over: streams are key heads of all sequences, each read once; `keys` are those that a token sees,
# `kept` those in the cache over those that it sees.
GRIDS = (
    ("streams", "keys", "group"),
    ("streams", "keys", "head_dim"),
    ("streams", "keys", "group", "head_dim"),
    ("streams", "kv_heads", "head_dim"),
    ("streams", "kept", "head_dim"),
    ("streams", "kept", "group"),
)
CAUSES = {
    "launch": "launch",
    "ideal": "bandwidth",
    "resident": "cache",
    "queries": "bandwidth",
    "blocks": "wave",
    "rows": "wave",
    "whole rows": "rate",
    "products": "rate",
    "splits": "wave",
}
# The kept axis has a node of its own where no window is: grids are zero there.
NO_WINDOW = 1 / 64


def decode_sizes(
    batch: Floats, kv_length: Floats, heads: Floats, kv_heads: Floats, head_dim: Floats, window: Floats
) -> Sizes:
    """The sizes that costs and grids are of, float64 arrays of one shape."""
    keys = np.where(window > 0, np.minimum(kv_length, np.maximum(window, 1.0)), kv_length)
    kept = np.where(window > 0, np.maximum(kv_length / np.maximum(window, 1.0), 2 * NO_WINDOW), NO_WINDOW)
    streams, group = batch * kv_heads, heads / kv_heads
    read = {"streams": streams, "keys": keys, "group": group, "head_dim": head_dim}
    return read | {"kv_heads": kv_heads, "kept": kept}


def decode_work(gpu: GpuSpec, sizes: Sizes, cache_bytes: float) -> Sizes:
    """What a decode is counted to do, in seconds at the data sheet's rates or in numbers a multiprocessor."""
    streams, keys, group, head_dim = (sizes[name] for name in ("streams", "keys", "group", "head_dim"))
    pair_flop = 4.0 * streams * keys * head_dim / gpu.peak("bf16")
    cache = 2.0 * cache_bytes * head_dim * streams * keys
    spilled = spilled_share(gpu, cache)
    # Keys of a stream are split until all multiprocessors have work; their partial sums are added up.
    split = np.minimum(keys, gpu.sms * KEY_BLOCK / np.minimum(streams, gpu.sms))
    return {
        "launch": np.ones_like(streams),
        "ideal": cache * spilled / gpu.memory_bytes_per_s,
        "resident": cache * (1 - spilled) / gpu.memory_bytes_per_s,
        "queries": 2.0 * ELEMENT_BYTES * head_dim * streams * group / gpu.memory_bytes_per_s,
        "blocks": streams / gpu.sms,
        "rows": streams * group / gpu.sms,
        "whole rows": pair_flop * np.ceil(group / QUERY_ROWS) * QUERY_ROWS,
        "products": pair_flop * group,
        "splits": np.log2(split),
    }


def spilled_share(gpu: GpuSpec, nbytes: Floats) -> Floats:
    """The share of a working set, read again and again, that L2 does not keep: none or all but for a narrow range."""
    kept, lost = L2_KEPT
    return np.clip(np.log(nbytes / (kept * gpu.l2_bytes)) / np.log(lost / kept), 0.0, 1.0)


def decode_time(
    gpu: Gpu,
    batch: ArrayLike,
    kv_length: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    window: ArrayLike = 0,
    dtype: str = "bf16",
    cache_dtype: str | None = None,
    library: str | None = None,
) -> Explained:
    """Seconds of attention of one new token for each of `batch` sequences, `kv_length` keys in the cache of each.

    Sizes broadcast together. A token sees the last `window` keys, all for 0. `cache_dtype` is "bf16" or "fp8", by
    default as `dtype`; queries and products are in bf16.

    Raises UserError for a size below 1, heads that do not share kv_heads evenly, and a dtype, library or GPU that no
    table is known to be like.
    """
    asked = sizes_asked("decode", "window", batch=batch, kv_length=kv_length, heads=heads, kv_heads=kv_heads,
                        head_dim=head_dim, window=window)  # fmt: skip
    if (asked[2] % asked[3]).any():
        raise UserError("Heads are a multiple of the key heads that they share.")
    cache = cache_dtype or ("bf16" if dtype == "fp16" else dtype)
    if dtype not in ("bf16", "fp16", "fp8") or cache not in LAWS:
        raise UserError(f"Decode was measured in bf16 with caches in bf16 and fp8, not {dtype} with {cache}.")
    found = law_of(gpu, LAWS[cache], GRIDS, library=library)
    spec = spec_of(gpu)
    sizes = decode_sizes(*asked)
    work = decode_work(spec, sizes, CACHE_BYTES[cache])
    seconds, parts = found.law.explained(work, sizes, GRIDS, CAUSES)
    names = ("batch", "kv_length", "heads", "kv_heads", "head_dim")
    return found.answer(seconds, parts, dict(zip(names, asked[:5], strict=True)))


# DeepSeek-V3: widths of the model, of the queries' and the cache's latent vectors, and of a head's parts.
HIDDEN, QUERY_RANK, LATENT, ROPE, KEY, VALUE = 7168, 1536, 512, 64, 128, 128
# Heads that a decode kernel takes at once, and queries that a prefill kernel does.
HEAD_BLOCK, QUERY_BLOCK = 64, 128
PHASES, SCOPES = ("prefill", "decode"), ("kernel", "module")
# Products of projections as they are called in a kind of law, and as a data sheet calls them, with bytes of a weight.
GEMMS = {"bf16": ("bf16", 2.0), "fp8_block": ("fp8", 1.0), "nvfp4": ("fp4", 0.5625)}
GEMM_NAMES = {"bf16": "bf16", "bfloat16": "bf16", "fp8": "fp8_block", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
# What the grids of latent attention are over.
LATENT_GRIDS = (("batch", "length", "heads"), ("streams", "length"), ("tokens", "heads"))
LATENT_CAUSES = {
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
    asked = sizes_asked("latent attention", batch=batch, seq_q=seq_q, seq_k=seq_k, heads=heads)
    if phase not in PHASES or scope not in SCOPES:
        raise UserError(f"Latent attention has the phases {PHASES} and the scopes {SCOPES}, not {phase!r}, {scope!r}.")
    if (asked[1] > asked[2]).any():
        raise UserError("Latent attention has at most as many queries as keys: give a seq_q up to seq_k.")
    if phase == "decode" and (asked[1] != 1).any():
        raise UserError("Decode of latent attention was measured for one new token: ask for seq_q 1.")
    cache, gemm = cache_dtype or dtype, gemm_dtype or dtype
    if dtype not in CACHE_BYTES or cache not in CACHE_BYTES or gemm not in GEMM_NAMES:
        raise UserError(
            f"Latent attention was measured in bf16 and fp8 (projections also in nvfp4), not {dtype}, {cache}, {gemm}."
        )
    gemm = GEMM_NAMES[gemm] if scope == "module" else ""
    found = law_of(gpu, f"mla_{phase}", LATENT_GRIDS, kind_of(scope, gemm, cache), library)
    sizes = latent_sizes(*asked)
    work = latent_work(spec_of(gpu), phase, gemm, CACHE_BYTES[cache], *asked)
    seconds, parts = found.law.explained(work, sizes, LATENT_GRIDS, LATENT_CAUSES)
    return found.answer(seconds, parts, dict(zip(("batch", "seq_q", "seq_k", "heads"), asked, strict=True)))


def kind_of(scope: str, gemm: str, cache: str) -> str:
    """The name of a kind of law in a block: "module with fp8_block products, bf16 cache"."""
    return f"{scope} with {gemm} products, {cache} cache" if gemm else f"{scope}, {cache} cache"
