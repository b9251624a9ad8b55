"""The time of fused attention in training on a named GPU: whole sequences, with or without a window, and backward.

A roofline anchored to published charts: tiles of products at a share of the peak, and half of the bytes next to them.
A few queries against many keys, as in inference, are not priced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.planner.laws.calibration import MEAN_OF_HALF_WIDTH, Calibration, Gpu, correction_of, spec_of, stated
from pyperf_suite.planner.laws.explained import Explained, validated_sizes
from pyperf_suite.planner.laws.transfers import held_by_power, is_desktop

Array = NDArray[np.float64]
Kernel = Literal["usual", "FlashAttention-2"]

LAW = "attention_bf16"
# Widths that kernels are built for; a head in between is padded to the next (FlashAttention-3 hopper/tile_size.h).
WIDTHS = (64, 96, 128, 192, 256, 512)
# Share of the dense peak that the forward's products reach in long sequences, by head dimension; between, straight.
# Ampere: FlashAttention-2 (Dao-AILab/flash-attention, its chart of an A100). Hopper: the mean of cuDNN and
# FlashAttention-3 (Shah et al. 2024, figures 5 and 6, an H100), cuDNN on an H200 (cudnn-frontend) 8 % above. Blackwell
# and desktop GPUs: modules of inference at 16,384 tokens (ai-dynamo/aiconfigurator), FlashAttention-2 on an RTX 5090.
HEAD_DIMS = (64, 128, 256)
SHARES: Mapping[str, tuple[float, float, float]] = {
    "Ampere": (0.59, 0.735, 0.70),
    "Hopper": (0.46, 0.65, 0.66),
    "Blackwell": (0.36, 0.58, 0.60),
    "desktop": (0.70, 0.75, 0.70),
    "other": (0.40, 0.45, 0.45),
}
# FlashAttention-2 has no kernels for Hopper: the same charts.
FLASH_2_ON_HOPPER = (0.31, 0.385, 0.36)
CHARTS = "the charts of FlashAttention-2, FlashAttention-3 and cuDNN on A100 and H100"
# dQ, dK, dV, and the scores and the gradient of the weights once more: five products where the forward has two. Their
# rate over the forward's, by HEAD_DIMS, in the same charts and on an H200 (cudnn-frontend).
BACKWARD_FLOP_RATIO, BACKWARD_RATE = 2.5, (0.96, 0.86, 0.86)
# Queries and keys of a tile: a causal mask leaves half of one a row in vain, a window as much again.
TILE = 128
# Passes over queries and over keys, in 16 bits: Q, O and K, V; backward reads Q, O twice, dO twice, K, V, writes dQ,
# dK, dV, and adds up dQ in single precision. Half of it hides behind products, as the charts' short sequences show.
PASSES = {False: (2, 2), True: (10, 4)}
EXPOSED, ELEMENT_BYTES, LAUNCH_S = 0.5, 2, 4e-6
# Half the 90 % width of a logarithm: of the charts' kernels, and of others.
LOG_HALF_WIDTH, OTHER_KERNELS = 0.20, 0.45
# Next to it: unequal queries and keys, a window, sizes beyond the charts'.
UNEQUAL, WINDOWED, BEYOND = 0.25, 0.25, 0.25
LONGEST, SHORTEST = 32768, 512
# GPUs that the shares were measured on.
MEASURED_ON = ("A100 SXM", "H100 SXM", "H200 SXM", "B200 SXM", "L40S", "RTX 5090")
# Queries a key head up to which keys are split over multiprocessors (Flash-Decoding, Dao et al. 2023).
FEW_ROWS = 64
# Watts per TFLOP/s of the peak that GPUs with mma.sync kernels need to hold their clock. L40S has 0.97: so its
# attention reaches 49 % of the peak where an RTX 5090 at 400 W, 1.9 W, reaches 89 to 91 % (gau-nernst's learn-cuda).
WATT_PER_TFLOP = 1.42


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention, float64 arrays of one shape each; causal is bottom-right aligned.

    `head_dim` is the model's, `width` the kernel's; a query sees the last `window` keys, infinite where all.
    """

    batch: Array
    seq_q: Array
    seq_k: Array
    heads: Array
    kv_heads: Array
    head_dim: Array
    width: Array
    window: Array
    causal: bool = True

    @property
    def visible_pairs(self) -> Array:
        """Pairs of query and key of all heads that count."""
        if not self.causal:
            return self.batch * self.heads * self.seq_q * self.seq_k
        # The sum of min(before + i, window) over i = 1 … queries.
        before, most = self.seq_k - self.seq_q, np.where(np.isfinite(self.window), self.window, 0.0)
        rising = np.clip(self.window - before, 0, self.seq_q)
        return self.batch * self.heads * (rising * (before + (rising + 1) / 2) + (self.seq_q - rising) * most)

    @property
    def computed_pairs(self) -> Array:
        """Pairs of all tiles that hold a visible pair."""
        edges = (1 + np.isfinite(self.window)) * TILE / 2 if self.causal else 0.0
        rows = self.batch * self.heads * self.seq_q
        return np.minimum(self.visible_pairs + rows * edges, rows * np.maximum(self.seq_k, TILE))

    def moved_bytes(self, backward: bool) -> Array:
        """Bytes of all passes over queries and keys."""
        of_queries, of_keys = PASSES[backward]
        rows = of_queries * self.heads * self.seq_q + of_keys * self.kv_heads * self.seq_k
        return ELEMENT_BYTES * self.batch * rows * self.head_dim


def kind_of_kernels(spec: GpuSpec) -> str:
    """The one of SHARES whose kernels a GPU runs."""
    if is_desktop(spec):
        return "desktop"
    major = (spec.compute_capability or (0, 0))[0]
    return {8: "Ampere", 9: "Hopper", 10: "Blackwell"}.get(major, "other")


def share_of_peak(spec: GpuSpec, head_dim: float | Array, kernel: Kernel = "usual") -> Array:
    """The share of the peak that a kernel's forward products reach in long sequences."""
    kind = kind_of_kernels(spec)
    shares = FLASH_2_ON_HOPPER if kernel == "FlashAttention-2" and kind == "Hopper" else SHARES[kind]
    clock = min(1.0, spec.power_w / (WATT_PER_TFLOP * spec.peak("fp16") / 1e12)) if kind == "desktop" else 1.0
    return np.asarray(clock / held_by_power(spec) * np.interp(head_dim, HEAD_DIMS, shares))


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
    kernel: Kernel = "usual",
) -> Explained:
    """Seconds of softmax(Q·Kᵀ)·V by a fused kernel, forward or the backward pass alone; arrays broadcast.

    The parts are ideal (visible pairs at the data sheet's peak), alignment (heads padded to the kernel's width), tile
    (tiles over the diagonal and the edges), wave (multiprocessors without a tile), rate (what kernels fall short of the
    peak), bandwidth, launch and, from a calibration of one's own, this machine.

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
        kernel: "FlashAttention-2", or "usual": the fastest that the GPU's generation has.

    Raises:
        UserError: an unknown GPU, a dtype without units or law, sizes below 1, heads that do not divide, causal with
            more queries than keys, forward a few queries against more keys, a window without causal.
    """
    if dtype not in ("bf16", "fp16"):
        raise UserError(f"Attention in {dtype} was not measured: ask for bf16, fp16.")
    batches, queries, keys, query_heads, key_heads, widths, windows = validated_sizes(
        "attention", "window", batch=batch, seq_q=seq_q, seq_k=seq_k, heads=heads, kv_heads=kv_heads,
        head_dim=head_dim, window=window,
    )  # fmt: skip
    if np.any(widths > WIDTHS[-1]):
        raise UserError(
            f"Heads of {widths.max():g} are wider than any kernel that was measured: give a head_dim up to "
            f"{WIDTHS[-1]}."
        )
    uneven = query_heads % key_heads != 0
    if np.any(uneven):
        raise UserError(
            f"{query_heads[uneven].flat[0]:g} heads cannot share {key_heads[uneven].flat[0]:g} key and value "
            "heads evenly: choose kv_heads that divide heads."
        )
    if causal and np.any(queries > keys):
        raise UserError("Causal attention with more queries than keys leaves queries that see nothing: give more keys.")
    if not causal and np.any(windows > 0):
        raise UserError("A window of attention without a causal mask was not measured: ask for causal or no window.")
    seen = np.where((windows > 0) & (windows < keys), windows, np.inf)
    padded = np.array(WIDTHS, dtype=np.float64)[np.searchsorted(WIDTHS, widths)]
    shape = AttentionShape(batches, queries, keys, query_heads, key_heads, widths, padded, seen, causal)
    few_rows = (shape.seq_q * shape.heads <= FEW_ROWS * shape.kv_heads) & (shape.seq_q < shape.seq_k)
    if not backward and np.any(few_rows):
        raise UserError("A few queries against many keys, as in decode, are not priced: give as many queries as keys.")
    spec = spec_of(gpu)
    parts = _parts(spec, shape, spec.peak(dtype), share_of_peak(spec, shape.width, kernel), backward)
    width, origin, kind = LOG_HALF_WIDTH, CHARTS, kind_of_kernels(spec)
    if kind not in ("Ampere", "Hopper"):
        width, origin = OTHER_KERNELS, f"a share of the peak of {kind} GPUs, in the form of {CHARTS}"
    error, origin = stated(gpu, LAW, 100 * MEAN_OF_HALF_WIDTH * width, origin)
    if isinstance(gpu, Calibration):
        sizes = {"batch": shape.batch, "seq_q": shape.seq_q, "heads": shape.heads, "head_dim": shape.head_dim}
        parts["this machine"] = sum(parts.values()) * (correction_of(gpu, LAW, sizes) - 1)
    seconds = np.asarray(sum(parts.values()))
    unequal, windowed = shape.seq_q != shape.seq_k, np.isfinite(shape.window)
    beyond = (shape.seq_k < SHORTEST) | (shape.seq_k > LONGEST)
    beyond |= ~np.isin(shape.width, HEAD_DIMS) | (shape.head_dim < HEAD_DIMS[0])
    unsure = np.sqrt(width**2 + unequal * UNEQUAL**2 + windowed * WINDOWED**2 + beyond * BEYOND**2)
    extrapolated = (spec.name not in MEASURED_ON) | unequal | windowed | beyond
    ends = seconds * np.exp(-unsure), seconds * np.exp(unsure)
    return Explained(seconds, parts, extrapolated, error, origin, *ends, kernel, np.full(seconds.shape, width))


def _parts(spec: GpuSpec, shape: AttentionShape, peak: float, share: Array, backward: bool) -> dict[str, Array]:
    """Seconds by cause. Only products take longer backward by the rate at which these run; bytes are counted anew."""
    ratio, rate = BACKWARD_FLOP_RATIO if backward else 1.0, share
    if backward:
        rate = share * np.interp(shape.width, HEAD_DIMS, BACKWARD_RATE)
    flop_per_s, flop = rate * peak, 4 * ratio * shape.head_dim
    tiles = shape.batch * shape.heads * np.ceil((shape.seq_k if backward else shape.seq_q) / TILE)
    ideal, visible_s = flop * shape.visible_pairs / peak, flop * shape.visible_pairs / flop_per_s
    computed_s = flop * shape.computed_pairs / flop_per_s
    padded_s = computed_s * (shape.width / shape.head_dim - 1)
    return {
        "ideal": ideal,
        "alignment": padded_s,
        "tile": computed_s - visible_s,
        "wave": (computed_s + padded_s) * (np.maximum(1.0, spec.sms / tiles) - 1),
        "rate": visible_s - ideal,
        "bandwidth": EXPOSED * shape.moved_bytes(backward) / spec.memory_bytes_per_s,
        "launch": np.full_like(ideal, LAUNCH_S),
    }
