"""The time of attention on a named GPU by a named library: whole sequences, with or without a window, and backward.

Kernels are read off tables, one a head dimension and window; DeepSeek's latent attention (MLA) is one
more, without its projections. A few queries against many keys, as in inference, are not priced.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.planner.laws import transfers
from pyperf_suite.planner.laws.calibration import (
    BAND_NAMES,
    LIBRARIES,
    MEAN_OF_HALF_WIDTH,
    STEPS,
    Band,
    Calibration,
    CalibrationBlock,
    Gpu,
    ResidualGrid,
    all_shipped,
    correction_of,
    outside,
    spec_of,
    stated,
)
from pyperf_suite.planner.laws.explained import Explained, validated_sizes

Array = NDArray[np.float64]
# A kernel by two whole numbers, of attention its head_dim and its window.
Kind = tuple[int, int]
# Grids are kept in steps of one byte of at least this logarithm: finer ones would only not compress.
LEAST_STEP = 0.005


@dataclass(frozen=True)
class TableLaw:
    """seconds = (work · costs) · exp(grid(sizes)).

    `work` has the shape [calls, works], `costs` [works]; `grid` is log(measured / counted) at powers of two of each
    size; `band` is log(measured / predicted) of sites that the fit did not see.
    """

    costs: Array
    grid: ResidualGrid
    band: Band

    def seconds(self, work: Array, sizes: tuple[Array, ...]) -> Array:
        return np.asarray((work @ self.costs) * np.exp(self.grid(*sizes)))


def pack_tables(laws: Mapping[Kind, TableLaw]) -> dict[str, NDArray[Any]]:
    """Arrays of a block, one row a kind; all grids have the same shape, bands as many knots as the longest."""
    values = np.array([law.grid.values for law in laws.values()])
    steps = np.maximum(np.abs(values).max(axis=(1, 2, 3)) / STEPS, LEAST_STEP)
    knots = max(law.band.at.size for law in laws.values())
    bands = [
        {name: np.pad(side, (0, knots - side.size), mode="edge") for name, side in law.band.as_arrays().items()}
        for law in laws.values()
    ]
    return {
        "kinds": np.array(list(laws)),
        "costs": np.array([law.costs for law in laws.values()]),
        "grid": np.round(values / steps[:, None, None, None]).astype(np.int8),
        "grid_step": steps,
    } | {name: np.array([band[name] for band in bands]) for name in BAND_NAMES}


def unpack_tables(block: CalibrationBlock) -> dict[Kind, TableLaw]:
    """The inverse of `pack_tables`, within a step of the grid."""
    rows = (block.arrays[name] for name in ("kinds", "costs", "grid", "grid_step", *BAND_NAMES))
    return {
        tuple(kind.tolist()): TableLaw(costs, ResidualGrid.octaves(grid * step), Band(*band))
        for kind, costs, grid, step, *band in zip(*rows, strict=True)
    }


# Blocks of whole sequences, of layers with a window, of latent attention.
PLAIN, WINDOWED, LATENT = "attention_bf16", "attention_window_bf16", "mla_prefill"
SUBJECT = "attention is"
# Widths that kernels are built for; a head in between is padded to the next (FlashAttention-3 hopper/tile_size.h).
WIDTHS = (64, 96, 128, 192, 256, 512)
# DeepSeek-V3's latent attention: keys of 128 and 64 rotated, values of 128, so as many FLOP as heads of 160.
LATENT_WIDTH = 160
# Cost of the softmax of a pair, in columns of the head: a line through heads of 64 to 256 on H200 (TensorRT-LLM).
SOFTMAX_COLUMNS = 25.0
# Queries and keys of a tile, and how many tiles a multiprocessor holds.
BLOCK, RESIDENT = 64, 2
ELEMENT_BYTES = 2
# dQ, dK, dV, and the scores and the gradient of the weights once more: five products where the forward has two.
BACKWARD_FLOP_RATIO = 2.5
# The backward's FLOP rate over the forward's in long sequences, and the queries at which it is half of that. From the
# FlashAttention-3 paper (arXiv:2407.08608, figures 5 and 6: FlashAttention-2, -3 and cuDNN on an H100, 512 to 16k
# queries); cuDNN on an H200 (cudnn-frontend's benchmarks, sdpa_h200.csv) and FlashAttention-2 on an RTX A5000
# (gpu-mode/ring-attention issue 10, heads of 64) lie within 6 %. Heads wider than 128 were not published.
BACKWARD_RATE, HOPPER = {64: 0.96, 128: 0.86}, 9
BACKWARD_HALF_SEQ = 150.0
# Half the 90 % width of a logarithm by which an interval is wider than the forward's: the backward as published for
# such a GPU and width, or elsewhere; attention without a mask; unequal queries and keys; sizes beyond those measured; a
# head dimension or a window that was not measured.
PUBLISHED, UNPUBLISHED = 0.10, 0.25
WITHOUT_MASK = 0.10
UNEQUAL = 0.25
BEYOND_SIZES = 0.20
OTHER_WIDTH, OTHER_WINDOW = 0.50, 0.55
# Up to so many queries a key head keys are split over the slots, and reading them takes longer than the products
# (Flash-Decoding, Dao et al. 2023): twice as many FLOP a byte of K and V are below the balance of every GPU here.
FEW_ROWS = 64
# Watts per TFLOP/s of the peak that GPUs with mma.sync kernels need to hold their clock. L40S has 0.97: so its
# attention reaches 49 % of the peak where an RTX 5090 at 400 W, 1.9 W, reaches 89 to 91 % (gau-nernst's learn-cuda).
WATT_PER_TFLOP = 1.42
# Exponent, 0 to 1, by which a kernel's bytes follow the memory's bandwidth from GPU to GPU: kernels that wait for it
# only now and then gain less. H200 took 10 % less time a byte than H100, of whose kind it is, with 43 % more bandwidth.
MEMORY_EXPONENT = 0.3


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

    def where(self, chosen: NDArray[np.bool_]) -> AttentionShape:
        """The chosen sizes."""
        sizes = {name: size[chosen] for name, size in vars(self).items() if name != "causal"}
        return replace(self, **sizes)

    @property
    def sizes(self) -> tuple[Array, ...]:
        """Axes of the grids: batch · heads, length, heads that share keys."""
        return self.batch * self.heads, np.sqrt(self.seq_q * self.seq_k), self.heads / self.kv_heads

    @property
    def visible_pairs(self) -> Array:
        """Pairs of query and key of all heads that count."""
        if not self.causal:
            return self.batch * self.heads * self.seq_q * self.seq_k
        return self.batch * self.heads * _stairs(self.seq_q, self.seq_k - self.seq_q, self.window)

    def work(self, sms: int, flop_per_s: float, bytes_per_s: float) -> Array:
        """Counted work [..., 5]: launch; seconds of all tiles; of the busiest slot; of bytes; rounds."""
        query_blocks, key_blocks = np.ceil(self.seq_q / BLOCK), np.ceil(self.seq_k / BLOCK)
        instances, slots = self.batch * self.heads, RESIDENT * sms
        longest = np.minimum(key_blocks, np.ceil((self.window - 1) / BLOCK) + 1) if self.causal else key_blocks
        steps = _stairs(query_blocks, key_blocks - query_blocks, longest) if self.causal else query_blocks * key_blocks
        tile_s = 4 * BLOCK**2 * (self.width + SOFTMAX_COLUMNS) / flop_per_s
        even = instances * steps * tile_s
        rows = 2 * (self.heads * self.seq_q + self.kv_heads * self.seq_k)
        moved = ELEMENT_BYTES * self.batch * rows * self.head_dim / bytes_per_s
        rounds = np.maximum(instances * query_blocks / slots, 1.0)
        return np.stack([np.ones_like(even), even, np.maximum(even, slots * longest * tile_s), moved, rounds], axis=-1)


def _stairs(steps: Array, before: Array, most: Array) -> Array:
    """The sum of min(before + i, most) over i = 1 … steps."""
    rising = np.clip(most - before, 0, steps)
    return rising * (before + (rising + 1) / 2) + (steps - rising) * np.where(np.isfinite(most), most, 0.0)


@dataclass
class _Forward:
    """Seconds by cause, both sides of the interval and what is unsure as logarithms, and where it extrapolates."""

    parts: dict[str, Array]
    low: Array
    high: Array
    unsure: Array
    extrapolated: NDArray[np.bool_]


@dataclass(frozen=True)
class AttentionLaws:
    """The kernels of one library for one GPU, by head_dim and window (0: none), and where they were measured.

    `flop_per_s` and `bytes_per_s` are the rates that costs are counted in: where kernels are read off another GPU, the
    peak that the power allows and a bandwidth between both. `transfer_width` is 0 where they are the GPU's own.
    """

    kernels: Mapping[Kind, TableLaw]
    library: str
    block: CalibrationBlock
    spec: GpuSpec
    flop_per_s: float
    bytes_per_s: float
    transfer_width: float
    error_percent: float
    origin: str

    def choices(self, width: int, window: int, seq: Array) -> list[tuple[Any, Kind, Any]]:
        """Kernels with their weights, and how much wider the interval is than theirs.

        The measured one; else those of the two next widths, straight between them; of windows the next shorter and the
        next longer one by their logarithms, no window counting as one of the whole sequence.
        """
        known = sorted({kind[0] for kind in self.kernels if not kind[1]})
        if width in known or (width, window) in self.kernels:
            return self._windowed(width, window, seq)
        narrower = max((each for each in known if each < width), default=known[0])
        wider = min((each for each in known if each > width), default=known[-1])
        share = (width - narrower) / (wider - narrower) if narrower < wider else 1.0
        return [
            (weight * part, kind, np.hypot(unsure, OTHER_WIDTH))
            for part, end in ((1 - share, narrower), (share, wider))
            if part
            for weight, kind, unsure in self._windowed(end, window, seq)
        ]

    def _windowed(self, width: int, window: int, seq: Array) -> list[tuple[Any, Kind, Any]]:
        if not window or (width, window) in self.kernels:
            return [(1.0, (width, window), 0.0)]
        unsure = np.where(seq > window, OTHER_WINDOW, 0.0)
        shorter = max((kind[1] for kind in self.kernels if kind[0] == width and 0 < kind[1] < window), default=0)
        longer = min((kind[1] for kind in self.kernels if kind[0] == width and kind[1] > window), default=0)
        if not shorter:
            return [(1.0, (width, longer), unsure)]
        end = np.minimum(seq, longer) if longer else seq
        share = np.where(seq <= window, 1.0, np.log(window / shorter) / np.log(np.maximum(end / shorter, 1 + 1e-9)))
        share = np.clip(share, 0.0, 1.0)
        return [(1 - share, (width, shorter), unsure), (share, (width, longer), unsure)]


def _laws(gpu: Gpu, dtype: str, library: str | None, law: str = PLAIN) -> AttentionLaws:
    """The law of the GPU's own tables, else of those of the GPU most like it. Raises UserError where there are none."""
    spec, wanted = spec_of(gpu), library or (LIBRARIES[0] if law == PLAIN else None)
    calibration, is_own = transfers.find_law(gpu, law, SUBJECT, wanted)
    chosen = calibration.library(law, library if is_own or law != PLAIN else wanted)
    names = [
        f"{law}.{chosen}",
        *([f"{WINDOWED}.{chosen}"] if law == PLAIN and calibration.has(WINDOWED, chosen) else []),
    ]
    blocks = tuple(calibration.block(name) for name in names)
    kernels, block, source = _unpacked(blocks), blocks[0], find_gpu(calibration.gpu)
    error = float(block.held_out["mape"])
    rates = spec.peak(dtype), spec.memory_bytes_per_s
    if is_own:
        return AttentionLaws(kernels, chosen, block, spec, *rates, 0.0, error, block.origin)
    widths, as_many = (transfers.ATTENTION_WIDTHS, False) if law == PLAIN else (transfers.LATENT_WIDTHS, True)
    width = transfers.transfer_width(spec, source, widths, as_many)
    share = _clock_share(spec, source, dtype) / _clock_share(source, source, "bf16")
    rates = rates[0] * share, source.memory_bytes_per_s * (rates[1] / source.memory_bytes_per_s) ** MEMORY_EXPONENT
    origin = f"read off {source.name}, fitted to {block.origin}"
    return AttentionLaws(kernels, chosen, block, spec, *rates, width, error, origin)


@functools.lru_cache(maxsize=64)
def _unpacked(blocks: tuple[CalibrationBlock, ...]) -> dict[Kind, TableLaw]:
    return {kind: law for block in blocks for kind, law in unpack_tables(block).items()}


def _clock_share(spec: GpuSpec, measured_on: GpuSpec, dtype: str) -> float:
    """The share of its clock that a GPU's power lets it hold in attention; on servers of what the measured one held."""
    needed_w = WATT_PER_TFLOP * spec.peak(dtype) / 1e12
    if transfers.is_desktop(spec):
        return min(1.0, spec.power_w / needed_w)
    return transfers.held_down(spec, measured_on)


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
    backward has 2.5 times the forward's FLOP at `BACKWARD_RATE` of its rate.

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
    if dtype not in ("bf16", "fp16"):
        raise UserError(f"Attention in {dtype} was not measured: ask for bf16, fp16.")
    shape, windows = _checked(batch, seq_q, seq_k, heads, kv_heads, head_dim, causal, window)
    few_rows = (shape.seq_q * shape.heads <= FEW_ROWS * shape.kv_heads) & (shape.seq_q < shape.seq_k)
    if not backward and np.any(few_rows):
        raise UserError("A few queries against many keys, as in decode, are not priced: give as many queries as keys.")
    laws = _laws(gpu, dtype, library)
    found = _forward(laws, shape, windows, laws.spec.peak(dtype))
    parts, level = found.parts, np.zeros(shape.batch.shape)
    found.unsure = np.hypot(found.unsure, 0.0 if causal else WITHOUT_MASK)
    if backward:
        rate = np.interp(shape.head_dim, list(BACKWARD_RATE), list(BACKWARD_RATE.values())) / (
            1 + BACKWARD_HALF_SEQ / shape.seq_q
        )
        ideal = BACKWARD_FLOP_RATIO * parts["ideal"]
        parts = {name: BACKWARD_FLOP_RATIO / rate * part for name, part in parts.items()}
        # What the ideal and the rest differ by is the rate's.
        parts |= {"ideal": ideal, "rate": parts["rate"] + parts["ideal"] - ideal}
        is_published = ((laws.spec.compute_capability or (0,))[0] == HOPPER) & (shape.head_dim <= max(BACKWARD_RATE))
        next_to_forward = np.where(is_published, PUBLISHED, UNPUBLISHED)
        found.unsure = np.hypot(found.unsure, next_to_forward)
        # Of heads of a width that was published the ratio is one unknown; of wider ones each has its own.
        level = np.where(shape.head_dim <= max(BACKWARD_RATE), next_to_forward, 0.0)
    error_percent, origin = stated(gpu, f"attention_{dtype}", laws.error_percent, laws.origin)
    if isinstance(gpu, Calibration):
        sizes = {"batch": shape.batch, "seq_q": shape.seq_q, "heads": shape.heads, "head_dim": shape.head_dim}
        parts["this machine"] = _total(parts) * (correction_of(gpu, f"attention_{dtype}", sizes) - 1)
    found.parts = parts
    return _answer(laws, found, error_percent or 0.0, origin, level)


def mla_time(
    gpu: Gpu, batch: ArrayLike, seq_q: ArrayLike, seq_k: ArrayLike, heads: ArrayLike, library: str | None = None
) -> Explained:
    """Seconds of latent attention with DeepSeek's dimensions, forward, in bf16, on one GPU that has `heads` heads.

    Sizes broadcast together. It is causal with `seq_q` the last of `seq_k` tokens (measured where they are equal); the
    projections are products of their own. Raises UserError for a size below 1 and a GPU that no table is known to be
    like.
    """
    requested = validated_sizes("latent attention", batch=batch, seq_q=seq_q, seq_k=seq_k, heads=heads)
    if (requested[1] > requested[2]).any():
        raise UserError("Latent attention has at most as many queries as keys: give a seq_q up to seq_k.")
    spec = spec_of(gpu)
    peak = spec.peak("bf16")
    if spec.compute_capability is None:
        measured = ", ".join(each.gpu for each in all_shipped() if each.has(LATENT))
        raise UserError(f"Nothing like {LATENT} on {spec.name} was measured, only on {measured}.")
    laws = _laws(gpu, "bf16", library, LATENT)
    shape = latent_shape(*requested)
    found = _forward(laws, shape, np.zeros(shape.batch.shape), peak)
    return _answer(laws, found, laws.error_percent, laws.origin, np.zeros(shape.batch.shape))


def latent_shape(batch: Array, seq_q: Array, seq_k: Array, heads: Array) -> AttentionShape:
    """Latent attention as one whose heads share the keys, which is what its grid is over."""
    widths = np.full(batch.shape, float(LATENT_WIDTH))
    return AttentionShape(
        batch, seq_q, seq_k, heads, np.ones(batch.shape), widths, widths, np.full(batch.shape, np.inf)
    )


def _answer(laws: AttentionLaws, found: _Forward, error_percent: float, origin: str, level: Array) -> Explained:
    parts, unsure = found.parts, np.hypot(found.unsure, laws.transfer_width)
    # No kernel is faster than the peak.
    parts["measured"] = parts["measured"] + np.maximum(parts["ideal"] - _total(parts), 0.0)
    seconds = _total(parts)
    beyond = 100 * MEAN_OF_HALF_WIDTH * float(np.median(unsure)) if unsure.size else 0.0
    low, high = seconds * np.exp(-_wider(found.low, unsure)), seconds * np.exp(_wider(found.high, unsure))
    error = float(np.hypot(error_percent, beyond))
    return Explained(seconds, parts, found.extrapolated, error, origin, low, high, laws.library, level)


def _checked(
    batch: ArrayLike,
    seq_q: ArrayLike,
    seq_k: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    causal: bool,
    window: ArrayLike,
) -> tuple[AttentionShape, Array]:
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
    seen = np.where(windows > 0, windows, np.inf)
    shape = AttentionShape(batches, queries, keys, query_heads, key_heads, widths, padded(widths), seen, causal)
    return shape, windows


def _forward(laws: AttentionLaws, shape: AttentionShape, windows: Array, peak: float) -> _Forward:
    names = ("ideal", "alignment", "tile", "wave", "rate", "bandwidth", "launch", "measured")
    parts = {name: np.zeros(windows.shape) for name in names}
    low, high, unsure = (np.zeros(windows.shape) for _ in range(3))
    for window, width in np.unique(np.stack([windows.ravel(), shape.width.ravel()], axis=1), axis=0):
        here = (windows == window) & (shape.width == width)
        there = shape.where(here)
        work = there.work(laws.spec.sms, laws.flop_per_s, laws.bytes_per_s)
        for weight, kind, further in laws.choices(int(width), int(window), there.seq_k):
            kernel = laws.kernels[kind]
            found = _parts(kernel, there, work, laws.flop_per_s, peak)
            for name, seconds in found.items():
                parts[name][here] += weight * seconds
            ends = kernel.band.around(1.0, _total(found))
            low[here] -= weight * np.log(ends[0])
            high[here] += weight * np.log(ends[1])
            unsure[here] += weight * further
    sizes = {"batch": shape.batch, "seq": shape.seq_k, "heads": shape.heads, "kv_heads": shape.kv_heads}
    # How little of a kernel's width a head narrower than all measured ones can use was not measured.
    beyond = outside(laws.block.fitted_range, sizes) | (shape.head_dim < min(kind[0] for kind in laws.kernels))
    unequal = shape.seq_q != shape.seq_k
    extrapolated = beyond | unequal | (unsure > 0) | (laws.transfer_width > 0)
    unsure = np.sqrt(unsure**2 + np.where(beyond, BEYOND_SIZES, 0.0) ** 2 + np.where(unequal, UNEQUAL, 0.0) ** 2)
    return _Forward(parts, low, high, unsure, extrapolated)


def _parts(kernel: TableLaw, shape: AttentionShape, work: Array, flop_per_s: float, peak: float) -> dict[str, Array]:
    """Seconds by cause that add up to the law's; `flop_per_s` is what the work was counted at."""
    launch, even, busiest, bytes_, rounds = (cost * work[..., i] for i, cost in enumerate(kernel.costs))
    of_pairs = even + kernel.costs[2] * work[..., 1]
    counting = kernel.costs[1:3].sum() * 4 * (shape.width + SOFTMAX_COLUMNS) * shape.visible_pairs / flop_per_s
    ideal, filled = 4 * shape.visible_pairs * shape.head_dim / peak, shape.head_dim / shape.width
    counted = work @ kernel.costs
    return {
        "ideal": ideal,
        "alignment": counting * (1 - filled),
        "tile": of_pairs - counting + rounds,
        "wave": even + busiest - of_pairs,
        "rate": counting * filled - ideal,
        "bandwidth": bytes_,
        "launch": launch,
        "measured": kernel.seconds(work, shape.sizes) - counted,
    }


def _wider(side: Array, unsure: Array) -> Array:
    """A side of an interval with a further cause of error that is independent of it."""
    return np.asarray(np.where(unsure > 0, np.hypot(np.maximum(side, 0.0), unsure), side))


def _total(parts: Mapping[str, Array]) -> Array:
    return np.asarray(sum(parts.values()))


def padded(head_dim: Array) -> Array:
    """The width of the kernel that computes heads of `head_dim`, at most the widest of `WIDTHS`."""
    widths = np.array(WIDTHS, dtype=np.float64)
    return widths[np.searchsorted(widths, head_dim)]
