"""The time of attention on a named GPU: what the kernels of the libraries that were measured there would take.

Prefill runs kernels of `KernelLaw`: (launch + pairs of the busiest slot + pairs spread evenly + tiles + bytes) times
what neighbouring shapes showed the sum to miss. A few queries against many keys read memory. The answer is the
median of the libraries, and what the fastest of them would save is reported as `library choice`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.calibration import (
    Calibration,
    CalibrationBlock,
    ResidualGrid,
    all_shipped,
    correction_of,
    log_ratio,
    most_alike,
    shipped_calibration,
    spec_of,
    stated,
)
from pyperf_suite.laws.explained import Explained
from pyperf_suite.laws.roofline import memory_bound_time
from pyperf_suite.laws.tiled_attention import BACKWARD_FLOP_RATIO

Array = NDArray[np.float64]

# More rounds of unequal tiles than this even out; the bound would be the mean load.
MOST_ROUNDS = 10
ELEMENT_BYTES = 2


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention, float64 arrays of one shape each; causal is bottom-right aligned."""

    batch: Array
    seq_q: Array
    seq_k: Array
    heads: Array
    kv_heads: Array
    causal: bool

    def where(self, chosen: NDArray[np.bool_]) -> AttentionShape:
        batch, seq_q, seq_k, heads, kv_heads = (
            size[chosen] for size in (self.batch, self.seq_q, self.seq_k, self.heads, self.kv_heads)
        )
        return AttentionShape(batch, seq_q, seq_k, heads, kv_heads, self.causal)

    @property
    def instances(self) -> Array:
        return self.batch * self.heads

    @property
    def group(self) -> Array:
        return self.heads / self.kv_heads

    @property
    def visible_pairs(self) -> Array:
        """Pairs of query and key of all heads that count; `tiled_attention.visible_pairs` per head."""
        if not self.causal:
            return self.instances * self.seq_q * self.seq_k
        return self.instances * self.seq_q * (self.seq_k - (self.seq_q - 1) / 2)

    def nbytes(self, head_dim: Array | float) -> Array:
        rows = 2 * (self.heads * self.seq_q + self.kv_heads * self.seq_k)
        return ELEMENT_BYTES * self.batch * rows * head_dim


@dataclass(frozen=True)
class SpreadWork:
    """An attention cut into blocks of queries over slots; pairs are counted per slot.

    `busiest_pairs` are those of the slot that is done last, `even_pairs` what each would have were they spread evenly,
    `visible_pairs` the part of these that counts. `rounds` is how many tiles come to a slot, at least one.
    """

    busiest_pairs: Array
    even_pairs: Array
    visible_pairs: Array
    rounds: Array


def spread(shape: AttentionShape, block: int, slots: int) -> SpreadWork:
    """Tiles of `block` queries that step over `block` keys at a time, handed to `slots`, the heaviest first.

    The busiest slot has no less than the mean, and no less than (j+1) times the (j·slots+1)-th heaviest tile for every
    j: of so many tiles two or more must share a slot (Graham, SIAM J. Appl. Math. 17, 1969). Longest-first comes close
    to the largest of these bounds.
    """
    query_blocks, key_blocks = np.ceil(shape.seq_q / block), np.ceil(shape.seq_k / block)
    tiles = shape.instances * query_blocks
    if shape.causal:
        before = np.ceil((shape.seq_k - shape.seq_q) / block)
        # The last block sees all keys, each earlier one a block less.
        head_steps = key_blocks + (query_blocks - 1) * (query_blocks / 2 + before)
    else:
        head_steps = query_blocks * key_blocks
    even = shape.instances * head_steps / slots
    busiest = np.maximum(even, key_blocks)
    for round_ in range(1, MOST_ROUNDS):
        shared = round_ * slots < tiles
        if not shared.any():
            break
        if shape.causal:
            rank = np.floor(round_ * slots / shape.instances)
            steps = np.where(rank > 0, query_blocks - rank + before, key_blocks)
        else:
            steps = key_blocks
        busiest = np.maximum(busiest, np.where(shared, (round_ + 1) * steps, 0.0))
    pairs_of_step = float(block * block)
    return SpreadWork(
        busiest * pairs_of_step, even * pairs_of_step, shape.visible_pairs / slots, np.maximum(tiles / slots, 1.0)
    )


# What the softmax of a pair costs, in columns of the head that its products would take: a straight line through what a
# pair costs on H200 in heads of 64 to 256 (TensorRT-LLM). Asked where a GPU's table has no head dimension on one side.
SOFTMAX_COLUMNS = 25.0
ARRAYS = ("library", "head_dim", "block", "resident", "costs", "grid")


@dataclass(frozen=True)
class AttentionCosts:
    """Seconds by what is counted; pairs, tiles are those of a slot, bytes those of all."""

    launch_s: float
    busiest_pair_s: float
    even_pair_s: float
    tile_s: float
    byte_s: float

    @property
    def pair_s(self) -> float:
        return self.busiest_pair_s + self.even_pair_s


@dataclass(frozen=True)
class KernelLaw:
    """One kernel: tiles of `block` queries, `resident` on a multiprocessor at once, of `sms`.

    `grid` is log(measured / counted) at powers of two of batch·heads, of the sequence and of the heads that share keys.
    """

    library: str
    head_dim: int
    block: int
    resident: int
    sms: int
    costs: AttentionCosts
    grid: Array

    def features(self, shape: AttentionShape) -> Array:
        """What the costs are of: one row a shape, one column a cost."""
        work = spread(shape, self.block, self.resident * self.sms)
        one, nbytes = np.ones(shape.batch.shape), shape.nbytes(self.head_dim)
        return np.stack([one, work.busiest_pairs, work.even_pairs, work.rounds, nbytes], axis=-1)

    def counted_seconds(self, shape: AttentionShape) -> Array:
        """Seconds without the grid, of one axis of shapes."""
        return np.asarray(self.features(shape) @ np.array(astuple(self.costs)))

    def seconds(self, shape: AttentionShape) -> Array:
        return self.counted_seconds(shape) * np.exp(self.missed(shape))

    def missed(self, shape: AttentionShape) -> Array:
        return ResidualGrid.octaves(self.grid)(*grid_sizes(shape))

    def parts(self, shape: AttentionShape, filled: Array, flop_per_s: float) -> dict[str, Array]:
        """Seconds by cause, of one axis of shapes; where all of the width is `filled` they add up to `seconds`.

        `filled` is the share of the kernel's width that is the model's head dimension, the rest being computed in vain.
        """
        work = spread(shape, self.block, self.resident * self.sms)
        counting = work.visible_pairs * self.costs.pair_s
        ideal = 4 * shape.visible_pairs * self.head_dim * filled / flop_per_s
        padding = counting * (1 - filled)
        parts = {
            "ideal": ideal,
            "alignment": padding,
            "tile": (work.even_pairs - work.visible_pairs) * self.costs.pair_s + work.rounds * self.costs.tile_s,
            "wave": (work.busiest_pairs - work.even_pairs) * self.costs.busiest_pair_s,
            "rate": counting - padding - ideal,
            "bandwidth": shape.nbytes(self.head_dim * filled) * self.costs.byte_s,
            "launch": np.full(shape.batch.shape, self.costs.launch_s),
        }
        counted = np.asarray(sum(parts.values()))
        return {**parts, "measured": counted * np.expm1(self.missed(shape))}

    def at_head_dim(self, head_dim: int) -> KernelLaw:
        """The same kernel for heads of another width, its pairs as much dearer as their products and softmax."""
        dearer = (head_dim + SOFTMAX_COLUMNS) / (self.head_dim + SOFTMAX_COLUMNS)
        costs = replace(
            self.costs, busiest_pair_s=self.costs.busiest_pair_s * dearer, even_pair_s=self.costs.even_pair_s * dearer
        )
        return replace(self, head_dim=head_dim, costs=costs)

    def on(self, sms: int, faster_sm: float, faster_memory: float) -> KernelLaw:
        """The same kernel on another GPU, whose multiprocessors and memory are so many times as fast."""
        costs = AttentionCosts(
            self.costs.launch_s,
            self.costs.busiest_pair_s / faster_sm,
            self.costs.even_pair_s / faster_sm,
            self.costs.tile_s / faster_sm,
            self.costs.byte_s / faster_memory,
        )
        return replace(self, sms=sms, costs=costs)


def grid_sizes(shape: AttentionShape) -> tuple[Array, Array, Array]:
    """The sizes that a kernel's grid is over."""
    return shape.instances, np.sqrt(shape.seq_q * shape.seq_k), shape.group


def pack_kernels(kernels: list[KernelLaw]) -> Mapping[str, NDArray[np.generic]]:
    """Kernels as the arrays of a calibration's block, one row each."""
    return {
        "library": np.array([kernel.library for kernel in kernels]),
        "head_dim": np.array([kernel.head_dim for kernel in kernels]),
        "block": np.array([kernel.block for kernel in kernels]),
        "resident": np.array([kernel.resident for kernel in kernels]),
        "costs": np.array([astuple(kernel.costs) for kernel in kernels]),
        # A thousandth of the logarithm is a thousandth of the time; what is finer would only not compress.
        "grid": np.array([np.round(kernel.grid * 500).astype(np.int16) for kernel in kernels]),
    }


def unpack_kernels(block: CalibrationBlock, sms: int) -> list[KernelLaw]:
    """The inverse of `pack_kernels`, for a GPU of `sms` multiprocessors."""
    return [
        KernelLaw(
            str(library), int(head_dim), int(rows), int(resident), sms, AttentionCosts(*costs.tolist()), grid / 500
        )
        for library, head_dim, rows, resident, costs, grid in zip(*(block.arrays[name] for name in ARRAYS), strict=True)
    ]


BLOCK = "attention_bf16"
# How the time of a kernel's bytes follows the memory's bandwidth from GPU to GPU: kernels that wait for memory only now
# and then gain less. H200 took 10 % less time a byte than H100, of whose kind it is, with 43 % more bandwidth.
MEMORY_EXPONENT = 0.3
# Mean error on a GPU whose own table was left out (tools/fit/attention.py): read off one of the same architecture,
# off another (B200 18 %, A100 38 %, L40S 42 %).
ERROR_PERCENT_SAME_ARCHITECTURE = 4.0
ERROR_PERCENT_OTHER_ARCHITECTURE = 42.0


@dataclass(frozen=True)
class AttentionKernels:
    """The kernels of one GPU by the head dimension that each was measured at, one a library."""

    by_head_dim: Mapping[int, Sequence[KernelLaw]]
    fitted_range: Mapping[str, tuple[float, float]]
    error_percent: float
    origin: str
    transferred: bool = False

    def at_width(self, width: int) -> list[tuple[float, Sequence[KernelLaw]]]:
        """Which kernels predict heads of a width, with their weights.

        Its own; else the two next to it, straight between them; else the nearest, scaled by what its pairs cost.
        """
        if width in self.by_head_dim:
            return [(1.0, self.by_head_dim[width])]
        below = [known for known in self.by_head_dim if known < width]
        above = [known for known in self.by_head_dim if known > width]
        if below and above:
            low, high = max(below), min(above)
            share = (width - low) / (high - low)
            return [(1 - share, self.by_head_dim[low]), (share, self.by_head_dim[high])]
        nearest = max(below) if below else min(above)
        return [(1.0, [kernel.at_head_dim(width) for kernel in self.by_head_dim[nearest]])]


def unpack_attention(block: CalibrationBlock, spec: GpuSpec) -> AttentionKernels:
    """The kernels that a block of a GPU's calibration keeps."""
    by_head_dim: dict[int, list[KernelLaw]] = {}
    for kernel in unpack_kernels(block, spec.sms):
        by_head_dim.setdefault(kernel.head_dim, []).append(kernel)
    return AttentionKernels(by_head_dim, block.fitted_range, float(block.held_out["mape"]), block.origin)


def transferred_attention(
    spec: GpuSpec, known: Mapping[str, AttentionKernels], dtype: str = "bf16"
) -> AttentionKernels:
    """The kernels of the most alike of GPUs known by name, as fast as `spec`'s units and memory make them.

    Most alike is one of its architecture, then the nearest in bandwidth, as for `roofline.transferred_law`. Raises
    UserError where none is known or `spec` has no units for that dtype.
    """

    def sm_rate(gpu: GpuSpec) -> float:
        return gpu.peak(dtype) / gpu.sms

    nearest = most_alike(
        spec,
        known,
        "attention is",
        lambda other: (
            other.architecture != spec.architecture,
            log_ratio(other.memory_bytes_per_s, spec.memory_bytes_per_s),
            log_ratio(other.peak(dtype), spec.peak(dtype)),
        ),
    )
    faster_sm = sm_rate(spec) / sm_rate(nearest)
    faster_memory = (spec.memory_bytes_per_s / nearest.memory_bytes_per_s) ** MEMORY_EXPONENT
    theirs = known[nearest.name]
    same = nearest.architecture == spec.architecture
    return AttentionKernels(
        {
            head_dim: [kernel.on(spec.sms, faster_sm, faster_memory) for kernel in kernels]
            for head_dim, kernels in theirs.by_head_dim.items()
        },
        theirs.fitted_range,
        ERROR_PERCENT_SAME_ARCHITECTURE if same else ERROR_PERCENT_OTHER_ARCHITECTURE,
        f"read off {nearest.name}, fitted to {theirs.origin}",
        transferred=True,
    )


def kernels_of(gpu: str | GpuSpec | Calibration, spec: GpuSpec, dtype: str) -> AttentionKernels:
    """The kernels of `gpu`, whose data sheet is `spec`, for products in that dtype."""
    if isinstance(gpu, Calibration) and BLOCK in gpu.blocks:
        return unpack_attention(gpu.block(BLOCK), spec)
    return _shipped_kernels(spec, dtype)


@functools.cache
def _shipped_kernels(spec: GpuSpec, dtype: str) -> AttentionKernels:
    own = shipped_calibration(spec.name)
    if own is not None and BLOCK in own.blocks:
        return unpack_attention(own.block(BLOCK), spec)
    shipped = [calibration for calibration in all_shipped() if BLOCK in calibration.blocks]
    known = {each.gpu: unpack_attention(each.block(BLOCK), find_gpu(each.gpu)) for each in shipped}
    return transferred_attention(spec, known, dtype)


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
PARTS = (*("ideal", "alignment", "tile", "wave", "rate", "bandwidth", "launch", "measured"), "library choice")


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
