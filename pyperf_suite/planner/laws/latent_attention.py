"""The time of the prefill of DeepSeek's latent attention (MLA), alone or with its projections.

Work is counted from the sizes (pairs, bytes, blocks of a multiprocessor, products, launch) and priced by costs in units
of the data sheet; grids over the sizes say what the measured kernels make of that: `SummedLaw`. One vector a token is
kept for all heads; prefill expands it to keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.planner.laws.calibration import (
    BAND_NAMES,
    MEAN_OF_HALF_WIDTH,
    STEPS,
    Band,
    CalibrationBlock,
    Gpu,
    ResidualGrid,
    all_shipped,
    outside,
    spec_of,
)
from pyperf_suite.planner.laws.explained import Causes, Explained, validated_sizes
from pyperf_suite.planner.laws.transfers import LATENT_WIDTHS, find_law, transfer_width

Floats = NDArray[np.float64]
# Names of sizes, and of counted work, with their arrays.
Sizes = Mapping[str, Floats]

# DeepSeek-V3: widths of the model, of the queries' and the cache's latent vectors, and of a head's parts.
HIDDEN, QUERY_RANK, LATENT, ROPE, KEY, VALUE = 7168, 1536, 512, 64, 128, 128
# Queries that a kernel takes at once, and keys.
QUERY_BLOCK, KEY_BLOCK = 128, 64.0
ELEMENT_BYTES = 2
LAW, SCOPES = "mla_prefill", ("kernel", "module")
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


@dataclass(frozen=True)
class SummedLaw:
    """Seconds = (sum of cost × counted work) · exp(sum of grids).

    `costs` are one for each work counted, in its order; `grids` one for each of `GRIDS`; `band` is how far measurements
    lie around it.
    """

    costs: Floats
    grids: tuple[ResidualGrid, ...]
    band: Band

    def log_residual(self, sizes: Sizes) -> Floats:
        """The sum of the grids: log(measured / counted)."""
        total = np.zeros(np.broadcast_shapes(*(size.shape for size in sizes.values())))
        for grid, names in zip(self.grids, GRIDS, strict=True):
            total = total + grid(*(sizes[name] for name in names))
        return total

    def explained(self, work: Sizes, sizes: Sizes) -> tuple[Floats, Causes]:
        """Seconds, none beyond the data sheet's rate, and by cause; "ideal" is at that rate."""
        counted = np.asarray(sum(cost * each for cost, each in zip(self.costs, work.values(), strict=True)))
        log_residual = self.log_residual(sizes)
        seconds = np.maximum(counted * np.exp(log_residual), work["ideal"])

        def parts() -> dict[str, Floats]:
            found: dict[str, Floats] = {"ideal": np.asarray(work["ideal"])}
            for cost, (name, each) in zip(self.costs, work.items(), strict=True):
                priced = cost * each - (each if name == "ideal" else 0.0)
                found[CAUSES[name]] = np.asarray(found.get(CAUSES[name], 0.0) + priced)
            return {**found, "measured": seconds - counted}

        return seconds, Causes(parts)


# Grids are kept in steps of one byte, of at least so much: finer ones would only not compress.
LEAST_STEP = 0.015


def pack_laws(laws: Mapping[str, SummedLaw]) -> dict[str, NDArray[Any]]:
    """Laws by kind as arrays of one block; all have the same nodes of their grids and as many knots of their bands."""
    first, *_ = laws.values()
    nodes = {
        name: axis
        for names, grid in zip(GRIDS, first.grids, strict=True)
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


def unpack_law(block: CalibrationBlock, kind: str) -> SummedLaw:
    """The law of a kind that a block keeps."""
    arrays = block.arrays
    place = arrays["kinds"].tolist().index(kind)
    axes = np.split(arrays["nodes"], np.cumsum(arrays["node_counts"])[:-1])
    nodes = dict(zip(arrays["node_names"].tolist(), axes, strict=True))
    values = arrays["residual"][place] * arrays["residual_step"][place]
    grids, start = [], 0
    for names in GRIDS:
        shape = [nodes[name].size for name in names]
        end = start + int(np.prod(shape))
        grids.append(ResidualGrid(tuple(nodes[name] for name in names), values[start:end].reshape(shape)))
        start = end
    return SummedLaw(arrays["costs"][place], tuple(grids), Band(*(arrays[name][place] for name in BAND_NAMES)))


@dataclass(frozen=True)
class FoundLaw:
    """The law that answers for a GPU, its library and block; `transfer_width` is 0 where it is the GPU's own."""

    law: SummedLaw
    library: str
    block: CalibrationBlock
    error_percent: float
    transfer_width: float
    origin: str


def law_of(gpu: Gpu, kind: str, library: str | None = None) -> FoundLaw:
    """The law of that kind: the GPU's own, or that of the GPU most like it. Raises UserError without one."""
    spec = spec_of(gpu)
    own, is_own = find_law(gpu, LAW, f"{LAW} is")
    if not is_own and spec.compute_capability is None:
        measured = ", ".join(each.gpu for each in all_shipped() if each.has(LAW))
        raise UserError(f"Nothing like {LAW} on {spec.name} was measured, only on {measured}.")
    if library is not None:
        own.library(LAW, library)
    kinds = {each: own.block(f"{LAW}.{each}").arrays["kinds"].tolist() for each in own.libraries(LAW)}
    having = [each for each in kinds if kind in kinds[each] and library in (None, each)]
    if not having:
        there = "; ".join(f"{each}: {', '.join(sorted(known))}" for each, known in kinds.items())
        raise UserError(f"Of {library or 'any library'} no {LAW} of {kind} was measured on {own.gpu}, but {there}.")
    block = own.block(f"{LAW}.{having[0]}")
    error = float(block.arrays["mape"][block.arrays["kinds"].tolist().index(kind)])
    origin = block.origin if own.gpu == spec.name else f"read off {own.gpu}, fitted to {block.origin}"
    like = find_gpu(own.gpu)
    width = 0.0 if like.name == spec.name else transfer_width(spec, like, LATENT_WIDTHS, as_many_sms=True)
    return FoundLaw(unpack_law(block, kind), having[0], block, error, width, origin)


def latent_sizes(batch: Floats, seq_q: Floats, seq_k: Floats, heads: Floats) -> Sizes:
    """The sizes that the grids are of."""
    length = np.where(seq_q > 1, np.sqrt(seq_q * seq_k), seq_k)
    streams, tokens = batch * heads, batch * seq_q
    return {"batch": batch, "length": length, "heads": heads, "streams": streams, "tokens": tokens}


def latent_work(gpu: GpuSpec, gemm: str, batch: Floats, seq_q: Floats, seq_k: Floats, heads: Floats) -> Sizes:
    """What is counted, in seconds at the data sheet's rates or in numbers a multiprocessor; no projections for ""."""
    peak, bandwidth = gpu.peak("bf16"), gpu.memory_bytes_per_s
    pairs = batch * heads * seq_q * (seq_k - (seq_q - 1) / 2)
    moved = batch * heads * ELEMENT_BYTES * (seq_q + seq_k) * (KEY + ROPE + VALUE)
    tiles = batch * heads * np.ceil(seq_q / QUERY_BLOCK)
    work = {
        "launch": np.ones_like(batch),
        "ideal": 2.0 * pairs * (KEY + ROPE + VALUE) / peak,
        "cache": ELEMENT_BYTES * batch * seq_k * (LATENT + ROPE) / bandwidth,
        "resident": np.zeros_like(batch),  # all of it comes from memory; calibrations keep a cost for it
        "bytes": moved / bandwidth,
        "blocks": tiles / gpu.sms,
        "whole heads": np.ceil(tiles / gpu.sms) * seq_k,
        "splits": np.log2(1 + seq_k / KEY_BLOCK),
        "busiest": seq_k,
        "tokens": batch * seq_k / gpu.sms,
    }
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
    scope: str = "kernel",
    gemm_dtype: str = "bf16",
    library: str | None = None,
) -> Explained:
    """Seconds of latent attention with DeepSeek's dimensions on one GPU that has `heads` of its heads, forward.

    Sizes broadcast together. It is causal with `seq_q` the last of `seq_k` tokens (measured where they are equal), in
    bf16. `scope` is "kernel", or "module" with the projections, whose products are in `gemm_dtype`: "bf16",
    "fp8_block" or "nvfp4".

    Raises UserError for a size below 1, another scope, and what no table is known to be like; the sentence names what
    there is.
    """
    requested = validated_sizes("latent attention", batch=batch, seq_q=seq_q, seq_k=seq_k, heads=heads)
    if scope not in SCOPES:
        raise UserError(f"Latent attention has the scopes {SCOPES}, not {scope!r}.")
    if (requested[1] > requested[2]).any():
        raise UserError("Latent attention has at most as many queries as keys: give a seq_q up to seq_k.")
    if gemm_dtype not in GEMM_NAMES:
        raise UserError(f"Latent attention was measured with products in {', '.join(GEMMS)}, not {gemm_dtype}.")
    gemm = GEMM_NAMES[gemm_dtype] if scope == "module" else ""
    found = law_of(gpu, kind_of(scope, gemm), library)
    seconds, parts = found.law.explained(latent_work(spec_of(gpu), gemm, *requested), latent_sizes(*requested))
    named, width = dict(zip(("batch", "seq_q", "seq_k", "heads"), requested, strict=True)), found.transfer_width
    low, high = (np.log(end / seconds) for end in found.law.band.around(seconds))
    ends = -np.hypot(np.minimum(low, 0), width), np.hypot(np.maximum(high, 0), width)
    error = float(np.hypot(found.error_percent, 100 * MEAN_OF_HALF_WIDTH * width))
    beyond = outside(found.block.fitted_range, named) | (width > 0)
    low, high = (seconds * np.exp(end) for end in ends)
    return Explained(seconds, parts, beyond, error, found.origin, low, high, found.library)


def kind_of(scope: str, gemm: str) -> str:
    """The name of a kind of law in a block: "module with fp8_block products, bf16 cache"."""
    return f"{scope} with {gemm} products, bf16 cache" if gemm else f"{scope}, bf16 cache"
