"""The kernels of attention that were measured on a GPU: what each counts, what it costs, and how surely that is known.

A kernel hands blocks of queries to the slots of the multiprocessors. `KernelLaw` is the time of that, (launch + pairs
of the busiest slot + pairs spread evenly + tiles + bytes) times what neighbouring shapes showed the sum to miss.
`AttentionKernels` are those of one library on one GPU, `transferred` the same on a GPU without tables of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.planner.laws import transfers
from pyperf_suite.planner.laws.calibration import MEAN_OF_HALF_WIDTH, STEPS, Band, CalibrationBlock, ResidualGrid

Array = NDArray[np.float64]

# More rounds of unequal tiles than this even out; the bound would be the mean load.
MOST_ROUNDS = 10
ELEMENT_BYTES = 2
# What nothing is known of where no law of attention was fitted.
SUBJECT = "attention is"
# What the softmax of a pair costs, in columns of the head that its products would take: a straight line through what a
# pair costs on H200 in heads of 64 to 256 (TensorRT-LLM). Used where a GPU's table has no head dimension on one side.
SOFTMAX_COLUMNS = 25.0
# The same below the narrowest that was measured: 64 left out and read off 128, the median of GPUs and libraries.
NARROW_COLUMNS = 60.0
# Watts per TFLOP/s of the peak that GPUs with mma.sync kernels need to hold their clock. L40S has 0.97: so its
# attention reaches 49 % of the peak where an RTX 5090 at 400 W, 1.9 W, reaches 89 to 91 % (gau-nernst's learn-cuda).
WATT_PER_TFLOP = 1.42
# How the time of a kernel's bytes follows the memory's bandwidth from GPU to GPU: kernels that wait for memory only now
# and then gain less. H200 took 10 % less time a byte than H100, of whose kind it is, with 43 % more bandwidth.
MEMORY_EXPONENT = 0.3


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention, float64 arrays of one shape each; causal is bottom-right aligned.

    A query of a causal attention sees the last `window` of the keys that it would see; infinite where there is none.
    """

    batch: Array
    seq_q: Array
    seq_k: Array
    heads: Array
    kv_heads: Array
    causal: bool
    window: float = np.inf

    def where(self, chosen: NDArray[np.bool_], window: float = np.inf) -> AttentionShape:
        """Those of the sizes that are chosen, with that window."""
        batch, seq_q, seq_k, heads, kv_heads = (
            size[chosen] for size in (self.batch, self.seq_q, self.seq_k, self.heads, self.kv_heads)
        )
        return AttentionShape(batch, seq_q, seq_k, heads, kv_heads, self.causal, window)

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
        return self.instances * _stairs(self.seq_q, self.seq_k - self.seq_q, self.window)

    def nbytes(self, head_dim: Array | float) -> Array:
        rows = 2 * (self.heads * self.seq_q + self.kv_heads * self.seq_k)
        return ELEMENT_BYTES * self.batch * rows * head_dim


def _stairs(steps: Array, before: Array, most: float) -> Array:
    """The sum of min(before + i, most) over i = 1 … steps."""
    rising = np.clip(most - before, 0, steps)
    return rising * (before + (rising + 1) / 2) + (steps - rising) * (most if np.isfinite(most) else 0.0)


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
    to the largest of these bounds. The window of a block of queries begins within a block of keys.
    """
    query_blocks, key_blocks = np.ceil(shape.seq_q / block), np.ceil(shape.seq_k / block)
    tiles = shape.instances * query_blocks
    most_steps = np.ceil((shape.window - 1) / block) + 1
    if shape.causal:
        before = np.ceil((shape.seq_k - shape.seq_q) / block)
        # The last block sees all keys of its window, each earlier one a block less, down to the first window.
        heaviest = np.minimum(key_blocks, most_steps)
        head_steps = heaviest + _stairs(query_blocks - 1, before, most_steps)
    else:
        heaviest = key_blocks
        head_steps = query_blocks * key_blocks
    even = shape.instances * head_steps / slots
    busiest = np.maximum(even, heaviest)
    for round_ in range(1, MOST_ROUNDS):
        shared = round_ * slots < tiles
        if not shared.any():
            break
        if shape.causal:
            rank = np.floor(round_ * slots / shape.instances)
            steps = np.where(rank > 0, np.minimum(query_blocks - rank + before, most_steps), heaviest)
        else:
            steps = key_blocks
        busiest = np.maximum(busiest, np.where(shared, (round_ + 1) * steps, 0.0))
    pairs_of_step = float(block * block)
    return SpreadWork(
        busiest * pairs_of_step, even * pairs_of_step, shape.visible_pairs / slots, np.maximum(tiles / slots, 1.0)
    )


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

    `window` is that of the layers it was measured in, 0 for none. `grid` is log(measured / counted) at powers of two of
    batch·heads, of the sequence and of the heads that share keys. `error_scale` is how widely its held-out errors
    scatter compared with those of all kernels of its library. `plausibility_penalty` is the logarithm of how many times
    slower it is than what another library, another GPU or the next head dimension supports, 0 where one of them does.
    """

    head_dim: int
    window: int
    block: int
    resident: int
    sms: int
    costs: AttentionCosts
    grid: Array
    error_scale: float = 1.0
    plausibility_penalty: float = 0.0

    def features(self, shape: AttentionShape) -> Array:
        """What the costs are of: one row a shape, one column a cost."""
        work = spread(shape, self.block, self.resident * self.sms)
        one, nbytes = np.ones(shape.batch.shape), shape.nbytes(self.head_dim)
        return np.stack([one, work.busiest_pairs, work.even_pairs, work.rounds, nbytes], axis=-1)

    def counted_seconds(self, shape: AttentionShape) -> Array:
        """Seconds without the grid, of one axis of shapes."""
        return np.asarray(self.features(shape) @ np.array(astuple(self.costs)))

    def seconds(self, shape: AttentionShape) -> Array:
        return self.counted_seconds(shape) * np.exp(self.log_residual(shape))

    def log_residual(self, shape: AttentionShape) -> Array:
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
        return {**parts, "measured": counted * np.expm1(self.log_residual(shape))}

    def at_head_dim(self, head_dim: int) -> KernelLaw:
        """The same kernel for heads of another width, its pairs as much dearer as their products and softmax."""
        columns = SOFTMAX_COLUMNS if head_dim > self.head_dim else NARROW_COLUMNS
        dearer = (head_dim + columns) / (self.head_dim + columns)
        costs = replace(
            self.costs, busiest_pair_s=self.costs.busiest_pair_s * dearer, even_pair_s=self.costs.even_pair_s * dearer
        )
        return replace(self, head_dim=head_dim, costs=costs)

    def on(self, spec: GpuSpec, measured_on: GpuSpec, dtype: str) -> KernelLaw:
        """The same kernel on another GPU.

        What the products take at the peak follows the peak of a multiprocessor; what kernels take beyond it (softmax,
        waiting, synchronisation) follows the clock: a GPU with few tensor cores for its clock comes nearer to its peak.
        """
        clock, measured_clock = _clock_share(spec, measured_on, dtype), _clock_share(measured_on, measured_on, dtype)
        slower_clock = measured_on.boost_mhz * measured_clock / (spec.boost_mhz * clock)
        reached = measured_on.peak(dtype) * measured_clock / measured_on.sms
        slower_sm = reached / (spec.peak(dtype) * clock / spec.sms)
        ideal_pair_s = 4 * self.head_dim * self.resident / reached
        ideal = min(1.0, ideal_pair_s / max(self.costs.pair_s, 1e-30))
        slower = ideal * slower_sm + (1 - ideal) * slower_clock
        costs = AttentionCosts(
            self.costs.launch_s,
            self.costs.busiest_pair_s * slower,
            self.costs.even_pair_s * slower,
            self.costs.tile_s * slower_clock,
            self.costs.byte_s * (measured_on.memory_bytes_per_s / spec.memory_bytes_per_s) ** MEMORY_EXPONENT,
        )
        return replace(self, sms=spec.sms, costs=costs)


def grid_sizes(shape: AttentionShape) -> tuple[Array, Array, Array]:
    """The sizes that a kernel's grid is over."""
    return shape.instances, np.sqrt(shape.seq_q * shape.seq_k), shape.group


def pack_kernels(kernels: Sequence[KernelLaw], band: Band) -> Mapping[str, NDArray[Any]]:
    """Kernels as the arrays of a calibration's block, one row each, and the band of their held-out errors."""
    grids = np.array([kernel.grid for kernel in kernels])
    # A step is at most a percent of the time; what is finer would only not compress.
    steps = np.maximum(np.abs(grids).max(axis=(1, 2, 3)) / STEPS, 1e-4)
    packed: dict[str, NDArray[Any]] = {
        stored: np.array([getattr(kernel, name) for kernel in kernels])
        for name, stored in (*zip(WHOLE, WHOLE, strict=True), *REAL.items())
    }
    packed["costs"] = np.array([astuple(kernel.costs) for kernel in kernels])
    packed["grid"] = np.round(grids / steps[:, None, None, None]).astype(np.int8)
    return {**packed, "grid_step": steps, **band.as_arrays()}


WHOLE = ("head_dim", "window", "block", "resident")
# Fields of a kernel, by the names that calibrations store them under.
REAL = {"error_scale": "unsteady", "plausibility_penalty": "doubt"}


def unpack_kernels(arrays: Mapping[str, NDArray[Any]], sms: int) -> list[KernelLaw]:
    """The inverse of `pack_kernels` within a step, for a GPU of `sms` multiprocessors."""
    grids = arrays["grid"] * arrays["grid_step"][:, None, None, None]
    rows = zip(*(arrays[name].tolist() for name in (*WHOLE, "costs", *REAL.values())), grids, strict=True)
    return [
        KernelLaw(
            head_dim, window, block, resident, sms, AttentionCosts(*costs), grid, error_scale, plausibility_penalty
        )
        for head_dim, window, block, resident, costs, error_scale, plausibility_penalty, grid in rows
    ]


# Half the width of the 90 % interval, as a logarithm, of what single head dimensions left out showed
# (`python -m tools.fit.attention`): one between two that are known, one an octave beyond.
BETWEEN_WIDTHS = 0.50
BEYOND_WIDTHS = 0.45
# The same for a window that was not measured with that width, with caches in fp8; of those in bf16 it was 0.42.
OTHER_WINDOW = 0.55


@dataclass(frozen=True)
class KernelChoice:
    """A kernel that answers, with its weight, and how much wider than its own the interval is, as a logarithm."""

    weight: Any
    kernel: KernelLaw
    unsure: Any = 0.0


@dataclass(frozen=True)
class AttentionKernels:
    """The kernels of one library on one GPU, each for a head dimension and a window.

    `band` is where measured times lie around theirs. `transferred` says that they were measured on another GPU.
    """

    library: str
    kernels: Sequence[KernelLaw]
    band: Band
    fitted_range: Mapping[str, tuple[float, float]]
    error_percent: float
    origin: str
    transferred: bool = False

    def of_width(self, width: int) -> Mapping[int, KernelLaw]:
        """Those measured at that width by their window."""
        return {kernel.window: kernel for kernel in self.kernels if kernel.head_dim == width}

    @property
    def widths(self) -> list[int]:
        return sorted({kernel.head_dim for kernel in self.kernels})

    def at_width(self, width: int) -> list[KernelChoice]:
        """Which kernels predict heads of a width without a window.

        Its own; else the two next to it, straight between them; else the nearest, scaled by what its pairs cost.
        """
        known = {kernel.head_dim: kernel for kernel in self.kernels if kernel.window == 0}
        if width in known:
            return [KernelChoice(1.0, known[width])]
        known = {each: kernel for each, kernel in known.items() if kernel.plausibility_penalty == 0} or known
        below, above = ([each for each in known if (each < width) == is_below] for is_below in (True, False))
        if below and above:
            low, high = max(below), min(above)
            share = (width - low) / (high - low)
            return [
                KernelChoice(1 - share, known[low], BETWEEN_WIDTHS),
                KernelChoice(share, known[high], BETWEEN_WIDTHS),
            ]
        nearest = max(below) if below else min(above)
        octaves = max(1.0, abs(np.log2(width / nearest)))
        return [KernelChoice(1.0, known[nearest].at_head_dim(width), BEYOND_WIDTHS * octaves)]


def windowed(
    plain: AttentionKernels, known: AttentionKernels | None, width: int, window: int, seq: Array
) -> list[KernelChoice]:
    """Which kernels predict heads of a width with a window, for sequences of those lengths.

    The one measured with both. Else the one of the nearest window, going over to the one without a window where that is
    as long as the sequence: both count the tiles of the window that is requested.
    """
    there = {} if known is None else known.of_width(width)
    if window in there:
        return [KernelChoice(1.0, there[window])]
    full = plain.at_width(width)
    if not there:
        unsure = np.where(seq > window, OTHER_WINDOW, 0.0)
        return [replace(each, unsure=np.hypot(each.unsure, unsure)) for each in full]
    nearest = min(there, key=lambda each: transfers.log_ratio(each, window))
    beyond = np.log(np.maximum(seq / nearest, 1 + 1e-9))
    share = np.where(seq <= window, 1.0, np.clip(np.log(window / nearest) / beyond, 0.0, 1.0))
    return [
        KernelChoice(1 - share, there[nearest], OTHER_WINDOW),
        *(replace(each, weight=share * each.weight) for each in full),
    ]


@functools.lru_cache(maxsize=64)
def unpack_attention(block: CalibrationBlock, library: str, spec: GpuSpec) -> AttentionKernels:
    """The kernels that a block of a GPU's calibration keeps."""
    band = Band.from_arrays(block.arrays)
    assert band is not None
    kernels = unpack_kernels(block.arrays, spec.sms)
    return AttentionKernels(library, kernels, band, block.fitted_range, float(block.held_out["mape"]), block.origin)


def _clock_share(spec: GpuSpec, measured_on: GpuSpec, dtype: str) -> float:
    """The share of its clock that a GPU's power lets it hold in attention; on servers of what the measured one held."""
    needed_w = WATT_PER_TFLOP * spec.peak(dtype) / 1e12
    return min(1.0, spec.power_w / needed_w) if transfers.is_desktop(spec) else transfers.held_down(spec, measured_on)


def transferred(spec: GpuSpec, known: Mapping[str, AttentionKernels], dtype: str) -> AttentionKernels:
    """The kernels of the nearest of GPUs known by name, as fast as `spec`'s data sheet makes them.

    Raises UserError where none is known or `spec` has no units for that dtype.
    """
    source = transfers.nearest(spec, known, SUBJECT)
    theirs, unsure = known[source.name], transfers.transfer_width(spec, source, transfers.ATTENTION_WIDTHS)
    return AttentionKernels(
        theirs.library,
        [replace(kernel.on(spec, source, dtype), error_scale=1.0) for kernel in theirs.kernels],
        Band(np.ones(1), np.full(1, -unsure), np.full(1, unsure)),
        theirs.fitted_range,
        100 * unsure * MEAN_OF_HALF_WIDTH,
        f"read off {source.name}, fitted to {theirs.origin}",
        transferred=True,
    )
