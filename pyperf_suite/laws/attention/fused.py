"""The time of attention on a named GPU: what the kernels of the libraries that were measured there would take.

Prefill and training run the kernels of `attention_kernel`; a few queries against many keys read memory. The answer is
the median of the libraries, and what the fastest of them would save is told as `library choice`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.attention.counted import BACKWARD_FLOP_RATIO
from pyperf_suite.laws.attention.kernel import KernelLaw
from pyperf_suite.laws.attention.library import AttentionKernels, kernels_of
from pyperf_suite.laws.attention.work import AttentionShape
from pyperf_suite.laws.calibration import Calibration, spec_of
from pyperf_suite.laws.correction import correction_of, stated
from pyperf_suite.laws.explained import Explained
from pyperf_suite.laws.roofline import memory_bound_time

# Widths that kernels are built for; a head in between is padded to the next (FlashAttention-3 hopper/tile_size.h).
WIDTHS = (64, 96, 128, 192, 256, 512)
# cuDNN on an H200 (cudnn-frontend's benchmarks, sdpa_h200.csv): medians over ten shapes of head dimension 128. The
# backward reaches 0.84 of the forward's FLOP rate; fp8 takes two thirds of the time of bf16, forward only.
BACKWARD_RATE = 0.84
FP8_TIME = 0.67
# What single shapes there differ from that ratio, on average: it adds to the error that is stated.
BACKWARD_ERROR_PERCENT = 3.0
# Up to so many queries a key head keys are split over the slots, and reading them takes longer than the products
# (Flash-Decoding, Dao et al. 2023): twice as many FLOP a byte of K and V are below the balance of every GPU here.
DECODE_ROWS = 64

DTYPES = ("bf16", "fp16", "fp8")
PARTS = (
    *("ideal", "alignment", "tile", "wave", "rate", "bandwidth", "launch", "measured"),
    "library choice",
)

Array = NDArray[np.float64]


def attention_time(
    gpu: str | GpuSpec | Calibration,
    batch: ArrayLike,
    seq_q: ArrayLike,
    seq_k: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    causal: bool = True,
    dtype: str = "bf16",
    backward: bool = False,
) -> Explained:
    """Seconds of softmax(Q·Kᵀ)·V, forward or the backward pass alone; arrays broadcast.

    The parts are ideal (visible pairs at the data sheet's peak), alignment (heads padded to the kernel's width), tile
    (blocks over the diagonal and the edges), wave (the busiest slot beyond the mean), rate (what kernels fall short of
    the peak), bandwidth, launch, measured (what neighbouring shapes showed the rest to miss), library choice (the
    median beyond the fastest library) and, from a calibration of one's own, this machine.

    Fitted were causal forward passes with as many queries as keys, by libraries of which some prepare Q, K and V in the
    same time. The backward has 2.5 times the forward's FLOP at `BACKWARD_RATE` of its rate, as cuDNN on an H200.

    Args:
        gpu: its name, its `GpuSpec`, or a `Calibration`.
        batch: sequences, at least 1, as all sizes.
        seq_q: queries of each.
        seq_k: keys of each.
        heads: of the queries; a multiple of `kv_heads`.
        kv_heads: of keys and values.
        head_dim: up to 512.
        causal: bottom-right aligned: query i sees keys j ≤ i + seq_k − seq_q.
        dtype: "bf16", "fp16" (the same law), or "fp8", forward only.
        backward: the backward pass instead of the forward.

    Raises:
        UserError: an unknown GPU, a dtype without units or law, sizes below 1, heads that do not divide, causal with
            more queries than keys.
    """
    spec = spec_of(gpu)
    if dtype not in DTYPES:
        raise UserError(f"Attention in {dtype} was not measured: ask for {', '.join(DTYPES)}.")
    if backward and dtype == "fp8":
        raise UserError("No library's backward of attention was faster in fp8 than in bf16: ask for bf16.")
    shape, head_dim = _checked(batch, seq_q, seq_k, heads, kv_heads, head_dim, causal)
    kernels = kernels_of(gpu, spec, "fp16" if dtype == "fp16" else "bf16")
    parts = _forward_parts(gpu, spec, kernels, shape, head_dim, dtype)
    error_percent, origin = kernels.error_percent, kernels.origin
    if isinstance(gpu, Calibration):
        error_percent, origin = stated(gpu, f"attention_{dtype}", error_percent, origin)
    if backward:
        parts = _rescaled(parts, BACKWARD_FLOP_RATIO / BACKWARD_RATE, BACKWARD_FLOP_RATIO)
        error_percent += BACKWARD_ERROR_PERCENT
    if isinstance(gpu, Calibration):
        sizes = {"batch": shape.batch, "seq_q": shape.seq_q, "heads": shape.heads, "head_dim": head_dim}
        parts["this machine"] = _total(parts) * (correction_of(gpu, f"attention_{dtype}", sizes) - 1)
    seconds = _total(parts)
    return Explained(seconds, parts, _extrapolated(kernels, shape, head_dim), error_percent, origin)


def _checked(
    batch: ArrayLike,
    seq_q: ArrayLike,
    seq_k: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    causal: bool,
) -> tuple[AttentionShape, Array]:
    """The sizes and the head dimension as float64 arrays of one shape."""
    names = ("batch", "seq_q", "seq_k", "heads", "kv_heads", "head_dim")
    sizes = [np.asarray(size, dtype=np.float64) for size in (batch, seq_q, seq_k, heads, kv_heads, head_dim)]
    for name, size in zip(names, sizes, strict=True):
        wrong = size[~((size >= 1) & np.isfinite(size))]
        if wrong.size:
            raise UserError(f"Attention with a {name} of {wrong.flat[0]:g} was asked for: give 1 or more.")
    batches, queries, keys, query_heads, key_heads, width = np.broadcast_arrays(*sizes)
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
    return divided, width


def _forward_parts(
    gpu: str | GpuSpec | Calibration,
    spec: GpuSpec,
    kernels: AttentionKernels,
    shape: AttentionShape,
    head_dim: Array,
    dtype: str,
) -> dict[str, Array]:
    """Seconds of the forward pass by cause, an array of the shape's form each."""
    parts = {name: np.zeros(head_dim.shape) for name in PARTS}
    flop_per_s = spec.peak("bf16" if dtype == "fp8" else dtype)
    widths, decode = padded(head_dim), _is_decode(shape)
    for width in np.unique(widths[~decode]):
        here = (widths == width) & ~decode
        for weight, libraries in kernels.at_width(int(width)):
            found = _median(libraries, shape.where(here), head_dim[here] / width, flop_per_s)
            for name, seconds in found.items():
                parts[name][here] += weight * seconds
    if dtype == "fp8":
        parts = _rescaled(parts, FP8_TIME, flop_per_s / spec.peak("fp8"))
    if decode.any():
        element_share = 0.5 if dtype == "fp8" else 1.0
        nbytes = shape.where(decode).nbytes(head_dim[decode]) * element_share
        reading = memory_bound_time(gpu, nbytes).parts
        parts["launch"][decode] = reading["launch"]
        parts["bandwidth"][decode] = _total(reading) - reading["launch"]
    return parts


def _median(
    libraries: Sequence[KernelLaw], shape: AttentionShape, filled: Array, flop_per_s: float
) -> dict[str, Array]:
    """The parts of the fastest library, and what the median of all takes longer; of one axis of shapes."""
    found = [kernel.parts(shape, filled, flop_per_s) for kernel in libraries]
    totals = np.stack([_total(parts) for parts in found])
    fastest = totals.argmin(axis=0)
    rows = np.arange(fastest.size)
    parts = {name: np.stack([parts[name] for parts in found])[fastest, rows] for name in found[0]}
    return {**parts, "library choice": np.median(totals, axis=0) - totals[fastest, rows]}


def _rescaled(parts: Mapping[str, Array], factor: float, ideal_factor: float) -> dict[str, Array]:
    """Every part times `factor`, but the ideal times its own; what they differ by is the rate's."""
    scaled = {name: part * factor for name, part in parts.items()}
    ideal = parts["ideal"] * ideal_factor
    return {**scaled, "ideal": ideal, "rate": scaled["rate"] + scaled["ideal"] - ideal}


def _total(parts: Mapping[str, Array]) -> Array:
    return np.asarray(sum(parts.values()))


def _is_decode(shape: AttentionShape) -> NDArray[np.bool_]:
    """Where keys are many and queries few: the time is that of reading the keys and values."""
    return (shape.seq_q * shape.group <= DECODE_ROWS) & (shape.seq_q < shape.seq_k)


def _extrapolated(kernels: AttentionKernels, shape: AttentionShape, head_dim: Array) -> NDArray[np.bool_]:
    """Where the law was asked for what no measurement of this GPU is near to."""
    if kernels.transferred:
        return np.ones(head_dim.shape, dtype=bool)
    beyond = ~np.isin(padded(head_dim), list(kernels.by_head_dim)) | (shape.seq_q != shape.seq_k)
    # A kernel's width is read off heads that fill it; how little of it a narrower head can use was not measured.
    beyond |= head_dim < min(kernels.by_head_dim)
    sizes = {"batch": shape.batch, "seq": shape.seq_k, "heads": shape.heads, "kv_heads": shape.kv_heads}
    for name, size in sizes.items():
        low, high = kernels.fitted_range[name]
        beyond |= (size < low) | (size > high)
    return np.asarray(beyond)


def padded(head_dim: Array) -> Array:
    """The width of the kernel that computes heads of `head_dim`, at most the widest of `WIDTHS`."""
    widths = np.array(WIDTHS, dtype=np.float64)
    return widths[np.searchsorted(widths, head_dim)]
