"""The time of attention on a named GPU by a named library: prefill, with or without a window, and its backward.

A few queries against many keys, as in inference, are not priced.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.planner.laws.attention_kernels import (
    SUBJECT,
    Array,
    AttentionKernels,
    AttentionShape,
    KernelChoice,
    transferred,
    unpack_attention,
    windowed,
)
from pyperf_suite.planner.laws.calibration import (
    LIBRARIES,
    MEAN_OF_HALF_WIDTH,
    Calibration,
    CalibrationBlock,
    Gpu,
    correction_of,
    outside,
    spec_of,
    stated,
)
from pyperf_suite.planner.laws.explained import Explained, validated_sizes
from pyperf_suite.planner.laws.transfers import find_law

# The law of prefill, and that of layers with a window.
PLAIN, WINDOWED = "attention_bf16", "attention_window_bf16"
# Widths that kernels are built for; a head in between is padded to the next (FlashAttention-3 hopper/tile_size.h).
WIDTHS = (64, 96, 128, 192, 256, 512)
# dQ, dK, dV, and the scores and the gradient of the weights once more: five products where the forward has two.
BACKWARD_FLOP_RATIO = 2.5
# The backward's FLOP rate over the forward's in long sequences, and the queries at which it is half of that. From the
# FlashAttention-3 paper (arXiv:2407.08608, figures 5 and 6: FlashAttention-2, -3 and cuDNN on an H100, 512 to 16k
# queries); cuDNN on an H200 (cudnn-frontend's benchmarks, sdpa_h200.csv) and FlashAttention-2 on an RTX A5000
# (gpu-mode/ring-attention issue 10, heads of 64) lie within 6 %. Heads wider than 128 were not published.
BACKWARD_RATE, HOPPER = {64: 0.96, 128: 0.86}, 9
BACKWARD_HALF_SEQ = 150.0
# How much wider than the forward's an interval is, as half the 90 % width of a logarithm: the backward as published for
# a GPU like it and that width, or elsewhere; attention without a mask; unequal queries and keys; sizes beyond those
# measured.
PUBLISHED, UNPUBLISHED = 0.10, 0.25
WITHOUT_MASK = 0.10
UNEQUAL = 0.25
BEYOND_SIZES = 0.20
# Up to so many queries a key head keys are split over the slots, and reading them takes longer than the products
# (Flash-Decoding, Dao et al. 2023): twice as many FLOP a byte of K and V are below the balance of every GPU here.
FEW_ROWS = 64

PARTS = ("ideal", "alignment", "tile", "wave", "rate", "bandwidth", "launch", "measured")


@dataclass(frozen=True)
class _Laws:
    """Kernels without a window and, if there are any, with one."""

    plain: AttentionKernels
    windowed: AttentionKernels | None


@dataclass
class _Forward:
    """What is put together for each shape: seconds by cause, ends of the interval as logarithms, what is unsure."""

    parts: dict[str, Array]
    low: Array
    high: Array
    unsure: Array
    extrapolated: NDArray[np.bool_]


def _laws(gpu: Gpu, spec: GpuSpec, dtype: str, library: str | None) -> _Laws:
    chosen = library or LIBRARIES[0]
    calibration, is_own = find_law(gpu, PLAIN, SUBJECT, chosen)
    chosen = calibration.library(PLAIN, library if is_own else chosen)
    plain = calibration.block(f"{PLAIN}.{chosen}")
    if is_own:
        return _Laws(
            unpack_attention(plain, chosen, spec),
            unpack_attention(calibration.block(f"{WINDOWED}.{chosen}"), chosen, spec)
            if calibration.has(WINDOWED, chosen)
            else None,
        )
    with_window, _ = find_law(spec, WINDOWED, SUBJECT, chosen)
    return _Laws(
        _transferred(spec, calibration.gpu, plain, chosen, dtype),
        _transferred(spec, with_window.gpu, with_window.block(f"{WINDOWED}.{chosen}"), chosen, dtype),
    )


@functools.lru_cache(maxsize=64)
def _transferred(spec: GpuSpec, source: str, block: CalibrationBlock, library: str, dtype: str) -> AttentionKernels:
    return transferred(spec, {source: unpack_attention(block, library, find_gpu(source))}, dtype)


def attention_time(
    gpu: Gpu,
    batch: ArrayLike,
    seq_q: ArrayLike,
    seq_k: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    causal: bool = True,
    dtype: str = "bf16",
    backward: bool = False,
    window: ArrayLike = 0,
    library: str | None = None,
) -> Explained:
    """Seconds of softmax(Q·Kᵀ)·V by one library, forward or the backward pass alone; arrays broadcast.

    The parts are ideal (visible pairs at the data sheet's peak), alignment (heads padded to the kernel's width), tile
    (blocks over the diagonal and the edges), wave (the busiest slot beyond the mean), rate (what kernels fall short of
    the peak), bandwidth, launch, measured (what neighbouring shapes showed the rest to miss) and, from a calibration of
    one's own, this machine.

    Fitted were causal forward passes with as many queries as keys; libraries prepare Q, K and V in the same time. The
    backward has 2.5 times the forward's FLOP at `BACKWARD_RATE` of its rate. Where a kernel is one that nothing else
    measured supports (`KernelLaw.plausibility_penalty`), the interval reaches down to what others support.

    Args:
        gpu: its name, its `GpuSpec`, or a `Calibration`.
        batch: sequences, at least 1, as all sizes.
        seq_q: queries of each.
        seq_k: keys of each.
        heads: of the queries; a multiple of `kv_heads`.
        kv_heads: of keys and values.
        head_dim: up to 512.
        causal: bottom-right aligned: query i sees keys j ≤ i + seq_k − seq_q.
        dtype: "bf16", or "fp16", which has the same law.
        backward: the backward pass instead of the forward.
        window: how many of the last keys a query sees; 0 for all. Causal only.
        library: "trtllm", "sglang" or "vllm"; None for the first of them that was measured on the GPU.

    Raises:
        UserError: an unknown GPU, a dtype without units or law, a library without measurements, sizes below 1, heads
            that do not divide, causal with more queries than keys, forward a few queries against more keys, a window
            without causal.
    """
    spec = spec_of(gpu)
    if dtype not in ("bf16", "fp16"):
        raise UserError(f"Attention in {dtype} was not measured: ask for bf16, fp16.")
    shape, width, windows = _checked(batch, seq_q, seq_k, heads, kv_heads, head_dim, causal, window)
    if not backward and np.any((shape.seq_q * shape.group <= FEW_ROWS) & (shape.seq_q < shape.seq_k)):
        raise UserError("A few queries against many keys, as in decode, are not priced: give as many queries as keys.")
    laws = _laws(gpu, spec, dtype, library)
    forward = _forward(laws, shape, width, windows, spec.peak(dtype))
    parts, unsure = forward.parts, np.hypot(forward.unsure, 0.0 if causal else WITHOUT_MASK)
    level = np.zeros(width.shape)
    if backward:
        rate = np.interp(width, list(BACKWARD_RATE), list(BACKWARD_RATE.values())) / (
            1 + BACKWARD_HALF_SEQ / shape.seq_q
        )
        ideal = BACKWARD_FLOP_RATIO * parts["ideal"]
        parts = {name: BACKWARD_FLOP_RATIO / rate * part for name, part in parts.items()}
        # What the ideal and the rest differ by is the rate's.
        parts |= {"ideal": ideal, "rate": parts["rate"] + parts["ideal"] - ideal}
        is_published = ((spec.compute_capability or (0,))[0] == HOPPER) & (width <= max(BACKWARD_RATE))
        next_to_forward = np.where(is_published, PUBLISHED, UNPUBLISHED)
        unsure = np.hypot(unsure, next_to_forward)
        # Of heads of a width that was published the ratio is one unknown; of wider ones each has its own.
        level = np.where(width <= max(BACKWARD_RATE), next_to_forward, 0.0)
    law = laws.windowed if laws.windowed is not None and bool((windows > 0).all()) else laws.plain
    error_percent, origin = stated(gpu, f"attention_{dtype}", law.error_percent, law.origin)
    if isinstance(gpu, Calibration):
        sizes = {"batch": shape.batch, "seq_q": shape.seq_q, "heads": shape.heads, "head_dim": width}
        parts["this machine"] = _total(parts) * (correction_of(gpu, f"attention_{dtype}", sizes) - 1)
    # No kernel is faster than the peak.
    parts["measured"] = parts["measured"] + np.maximum(parts["ideal"] - _total(parts), 0.0)
    seconds = _total(parts)
    beyond = 100 * MEAN_OF_HALF_WIDTH * float(np.median(unsure)) if unsure.size else 0.0
    return Explained(
        seconds,
        parts,
        forward.extrapolated,
        float(np.hypot(error_percent or 0.0, beyond)),
        origin,
        seconds * np.exp(-_wider(forward.low, unsure)),
        seconds * np.exp(_wider(forward.high, unsure)),
        laws.plain.library,
        level,
    )


def _checked(
    batch: ArrayLike,
    seq_q: ArrayLike,
    seq_k: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    causal: bool,
    window: ArrayLike,
) -> tuple[AttentionShape, Array, Array]:
    batches, queries, keys, query_heads, key_heads, width, windows = validated_sizes(
        "attention", "window", batch=batch, seq_q=seq_q, seq_k=seq_k, heads=heads, kv_heads=kv_heads,
        head_dim=head_dim, window=window,
    )  # fmt: skip
    if np.any(width > WIDTHS[-1]):
        raise UserError(
            f"Heads of {width.max():g} are wider than any kernel that was measured: give a head_dim up to {WIDTHS[-1]}."
        )
    divided = AttentionShape(batches, queries, keys, query_heads, key_heads, causal)
    uneven = divided.heads % divided.kv_heads != 0
    if np.any(uneven):
        raise UserError(
            f"{divided.heads[uneven].flat[0]:g} heads cannot share {divided.kv_heads[uneven].flat[0]:g} key and value "
            "heads evenly: choose kv_heads that divide heads."
        )
    if causal and np.any(divided.seq_q > divided.seq_k):
        raise UserError("Causal attention with more queries than keys leaves queries that see nothing: give more keys.")
    if not causal and np.any(windows > 0):
        raise UserError("A window of attention without a causal mask was not measured: ask for causal or no window.")
    return divided, width, windows


def _forward(laws: _Laws, shape: AttentionShape, head_dim: Array, windows: Array, flop_per_s: float) -> _Forward:
    low, high, unsure, *parts = (np.zeros(head_dim.shape) for _ in range(3 + len(PARTS)))
    found = _Forward(dict(zip(PARTS, parts, strict=True)), low, high, unsure, np.zeros(head_dim.shape, dtype=bool))
    widths = padded(head_dim)
    for window in np.unique(windows):
        for width in np.unique(widths[windows == window]):
            here = (windows == window) & (widths == width)
            there = shape.where(here, window or np.inf)
            if window:
                choices = windowed(laws.plain, laws.windowed, int(width), int(window), there.seq_k)
            else:
                choices = laws.plain.at_width(int(width))
            _weigh(found, here, choices, there, head_dim[here] / width, flop_per_s, laws)
    # A kernel's width is read off heads that fill it; how little of it a narrower head can use was not measured.
    narrowest = min(width for law in (laws.plain, laws.windowed) if law is not None for width in law.widths)
    sizes = {"batch": shape.batch, "seq": shape.seq_k, "heads": shape.heads, "kv_heads": shape.kv_heads}
    beyond = outside(laws.plain.fitted_range, sizes) | (head_dim < narrowest)
    unequal = shape.seq_q != shape.seq_k
    further = np.hypot(np.where(beyond, BEYOND_SIZES, 0.0), np.where(unequal, UNEQUAL, 0.0))
    found.unsure = np.array(np.hypot(found.unsure, further))
    found.extrapolated |= beyond | unequal | laws.plain.transferred
    return found


def _weigh(
    found: _Forward,
    here: NDArray[np.bool_],
    choices: list[KernelChoice],
    shape: AttentionShape,
    filled: Array,
    flop_per_s: float,
    laws: _Laws,
) -> None:
    """Add what the kernels that were chosen say, by their weights."""
    for choice in choices:
        kernel, weight = choice.kernel, np.broadcast_to(choice.weight, filled.shape)
        parts = kernel.parts(shape, filled, flop_per_s)
        law = laws.windowed if kernel.window and laws.windowed is not None else laws.plain
        low, high = law.band.around(1.0, _total(parts))
        for name, seconds in parts.items():
            found.parts[name][here] += weight * seconds
        found.low[here] += weight * (kernel.error_scale * -np.log(low) + kernel.plausibility_penalty)
        found.high[here] += weight * kernel.error_scale * np.log(high)
        found.unsure[here] += weight * choice.unsure
        found.extrapolated[here] |= (weight > 0) & ((np.asarray(choice.unsure) > 0) | (kernel.plausibility_penalty > 0))


def _wider(side: Array, unsure: Array) -> Array:
    """A side of an interval with a further cause of error that is independent of it."""
    return np.asarray(np.where(unsure > 0, np.hypot(np.maximum(side, 0.0), unsure), side))


def _total(parts: Mapping[str, Array]) -> Array:
    return np.asarray(sum(parts.values()))


def padded(head_dim: Array) -> Array:
    """The width of the kernel that computes heads of `head_dim`, at most the widest of `WIDTHS`."""
    widths = np.array(WIDTHS, dtype=np.float64)
    return widths[np.searchsorted(widths, head_dim)]
