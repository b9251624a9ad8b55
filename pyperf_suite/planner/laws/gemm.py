"""The time of a matrix product on a GPU by one library, and its causes.

A library keeps kernels for several tiles and picks one for each shape; the law picks the tile and split of K with the
least time on a menu. A coarse residual is what the library makes of that on the GPU; misaligned sizes and running for
seconds on end come on top. A GPU without tables has the law of the most similar one, by its own data sheet.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, all_gpus, find_gpu
from pyperf_suite.planner.laws import transfers
from pyperf_suite.planner.laws.alignment import BYTES_OF, SIDE_BY_SIDE, alignment_penalty, padded_sizes
from pyperf_suite.planner.laws.calibration import (
    BAND_NAMES,
    LIBRARIES,
    POOLED,
    Band,
    Calibration,
    CalibrationBlock,
    Gpu,
    ResidualGrid,
    correction_of,
    outside,
    shipped_calibration,
    spec_of,
    stated,
)
from pyperf_suite.planner.laws.explained import Causes, Explained, validated_sizes
from pyperf_suite.planner.laws.transfers import MEASURED_MAXIMA, MeasuredMaximum, sustained_slowdown

# Tiles of C that cuBLAS and CUTLASS have kernels for, rows × columns; each has a share of the peak of its own.
TILES = (
    *((64, 64), (64, 128), (128, 64), (128, 128), (64, 256)),
    *((256, 64), (128, 192), (192, 128), (128, 256), (256, 128)),
)
SPLITS = (2, 3, 4, 6, 8, 16)
# A slice of K is worth a worker of its own from about two of its steps on.
LEAST_SLICE = 128
STEP_BYTES = 128  # of K that a kernel loads at a time: a line of shared memory with 128-byte swizzling
# Bytes per clock of an SM's share of L2; fitted factors multiply it.
L2_BYTES_PER_CLOCK = 32.0
# From Hopper on no rule of tiles predicts what one row more costs: of the steps above 5 % in a published table of every
# m of an H100 the law of tiles found 8 %, and 34 % of those that it predicted were there. Left are those between two
# neighbouring m of the tables: 67 % of those predicted at sites left out were there, and 55 % found.
STEPLESS = (9, 0)
# Shapes are priced in pieces that stay in a core's cache.
PIECE = 16384
# More waves than this leave nothing to split.
WAVES_WORTH_SPLITTING = 1.5

# Constants that calibrations store under another name.
STORED = {"wave_smoothing": "softness"}

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MenuCoefficients:
    """The constants of the law; each but the launch is relative to the GPU's data sheet, so that it can be transferred.

    `tile_rates` is each tile's share of the peak, `launch_s` the time of the smallest product, `prologue_clocks` a
    tile's cost before its steps through K, `wave_smoothing` how far a wave that is not full is hidden by the next tiles
    (0: waves are hard), `overlap` the exponent that joins compute and memory (∞: the longer one counts),
    `memory_share` that of the memory bandwidth, `l2_share` that of L2's, `resident_share` the part of L2 below which
    operands are found there, `resident_steepness` how sharp that bound is; a split of K costs `split_s` and its partial
    sums `split_traffic` times their bytes at L2's rate.
    """

    launch_s: float
    prologue_clocks: float
    wave_smoothing: float
    overlap: float
    memory_share: float
    l2_share: float
    resident_share: float
    resident_steepness: float
    split_s: float
    split_traffic: float
    tile_rates: Floats

    def as_arrays(self) -> dict[str, Floats]:
        return {STORED.get(name, name): np.asarray(value, dtype=np.float64) for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> MenuCoefficients:
        """The inverse of `as_arrays`; other names are left alone. Raises KeyError for one that is missing."""
        names = [name for name in cls.__dataclass_fields__ if name != "tile_rates"]
        scalars = {name: float(arrays[STORED.get(name, name)]) for name in names}
        return cls(**scalars, tile_rates=np.asarray(arrays["tile_rates"], dtype=np.float64))


@dataclass(frozen=True)
class Rates:
    """Data sheet of a GPU in the law's units, for one dtype; without `steps` time is smooth in the rows m."""

    sms: int
    clock_hz: float
    flop_per_s: float
    memory_bytes_per_s: float
    l2_bytes: float
    operand_bytes: int
    result_bytes: int
    steps: bool = True

    @classmethod
    def of(cls, gpu: GpuSpec, dtype: str) -> Rates:
        operand = int(BYTES_OF[dtype])
        flop_per_s = gpu.peak(dtype)
        clock_hz, bandwidth = gpu.boost_mhz * 1e6, gpu.memory_bytes_per_s
        steps = (gpu.compute_capability or (0, 0)) < STEPLESS
        return cls(gpu.sms, clock_hz, flop_per_s, bandwidth, float(gpu.l2_bytes), operand, max(operand, 2), steps)

    def tiles_down(self, m: Floats, height: Floats | int) -> Floats:
        """Tiles of that height that m rows take: whole ones, or as many as neighbouring m take on average."""
        tiles = m / height
        return np.ceil(tiles) if self.steps else np.maximum(tiles + 0.5, 1.0)


def menu_seconds(law: MenuCoefficients, rates: Rates, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Floats:
    """Seconds of products C[m, n] = A[m, k]·B[k, n]; sizes of at least 1, broadcast against each other."""
    return menu_choice(law, rates, m, n, k)[0]


def menu_choice(
    law: MenuCoefficients, rates: Rates, m: ArrayLike, n: ArrayLike, k: ArrayLike
) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """The same with the place in `TILES` of the tile that was chosen, and the slices of K."""
    sizes = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in (m, n, k)))
    flat, shape = [np.ravel(size) for size in sizes], sizes[0].shape
    seconds, (tile, splits) = np.empty(flat[0].size), np.empty((2, flat[0].size), dtype=np.int64)
    for start in range(0, seconds.size, PIECE):
        piece = slice(start, start + PIECE)
        seconds[piece], tile[piece], splits[piece] = _choose(law, rates, *(size[piece] for size in flat))
    return seconds.reshape(shape), tile.reshape(shape), splits.reshape(shape)


def _choose(
    law: MenuCoefficients, rates: Rates, m: Floats, n: Floats, k: Floats
) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Seconds, tile and splits of the best on the menu; K is split only where its tiles leave SMs idle."""
    moved = rates.operand_bytes * (m + n) * k + rates.result_bytes * m * n
    resident = 1.0 / (1.0 + (moved / (law.resident_share * rates.l2_bytes)) ** law.resident_steepness)
    memory_bytes_per_s = law.memory_share * rates.memory_bytes_per_s
    # Few warps are in flight then, so that L2 does not outrun HBM; it does GDDR.
    l2_bytes_per_s = max(_l2_bytes_per_s(law, rates), memory_bytes_per_s)
    memory_s = moved * (resident / l2_bytes_per_s + (1.0 - resident) / memory_bytes_per_s)
    compute_s, tile, fewest_waves = _best_tile(law, rates, m, n, k, 1)
    seconds = joined(compute_s, memory_s, law.overlap)
    splits = np.ones(m.shape, dtype=np.int64)
    at = np.flatnonzero((fewest_waves < WAVES_WORTH_SPLITTING) & (k >= SPLITS[0] * LEAST_SLICE))
    for split in SPLITS if at.size else ():
        at = at[k[at] >= split * LEAST_SLICE]
        compute_s, split_tile, _ = _best_tile(law, rates, m[at], n[at], k[at], split)
        total = joined(compute_s, memory_s[at], law.overlap) + _split_seconds(law, rates, m[at], n[at], split)
        better = total < seconds[at]
        chosen = at[better]
        seconds[chosen], tile[chosen], splits[chosen] = total[better], split_tile[better], split
    return seconds + law.launch_s, tile, splits


def _best_tile(
    law: MenuCoefficients, rates: Rates, m: Floats, n: Floats, k: Floats, splits: int
) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Compute seconds of the tile with the least, its index, and the fewest waves that any tile needs."""
    depth = _stepped(k / splits, rates)
    high = {height: rates.tiles_down(m, height) for height in {height for height, _ in TILES}}
    wide = {width: np.ceil(n / width) * (splits / rates.sms) for width in {width for _, width in TILES}}
    best, chosen = np.full(m.shape, np.inf), np.zeros(m.shape, dtype=np.int64)
    fewest = np.full(m.shape, np.inf)
    for index, (height, width) in enumerate(TILES):
        waves = high[height] * wide[width]
        seconds = waited(waves, law.wave_smoothing) * _tile_seconds(
            law, rates, height * width, law.tile_rates[index], depth
        )
        chosen[seconds < best] = index
        np.minimum(best, seconds, out=best)
        np.minimum(fewest, waves, out=fewest)
    return best, chosen, fewest


def _stepped(depth: Floats, rates: Rates) -> Floats:
    step = STEP_BYTES // rates.operand_bytes
    return np.ceil(depth / step) * step


def _tile_seconds(law: MenuCoefficients, rates: Rates, area: ArrayLike, share: ArrayLike, depth: Floats) -> Floats:
    flop_s = 2.0 * np.asarray(area) / (np.asarray(share) * rates.flop_per_s / rates.sms)
    return flop_s * depth + law.prologue_clocks / rates.clock_hz


def waited(waves: Floats, wave_smoothing: float) -> Floats:
    """Waves as they are waited for: whole ones where hard, their quotient but at least one where soft."""
    return np.ceil(waves) * (1 - wave_smoothing) + np.maximum(waves, 1.0) * wave_smoothing


def _l2_bytes_per_s(law: MenuCoefficients, rates: Rates) -> float:
    return law.l2_share * L2_BYTES_PER_CLOCK * rates.sms * rates.clock_hz


def _split_seconds(law: MenuCoefficients, rates: Rates, m: Floats, n: Floats, splits: ArrayLike) -> Floats:
    return law.split_s + law.split_traffic * 8.0 * m * n * np.asarray(splits) / _l2_bytes_per_s(law, rates)


def joined(compute_s: Floats, memory_s: Floats, overlap: float) -> Floats:
    """(aᵖ + bᵖ)^(1/p), with the larger one taken out so that no power overflows."""
    longer = np.maximum(compute_s, memory_s)
    ratio = np.minimum(compute_s, memory_s) / longer
    return longer * (1.0 + ratio**overlap) ** (1.0 / overlap)


MODES = ("burst", "sustained")
# Block that prices a dtype. Kernels for fp16 are those for bf16.
BLOCK_OF = {**dict.fromkeys(("bf16", "fp16", "tf32", "fp32"), "gemm_bf16"), "fp8": "gemm_fp8"}
# The others have no tables of their own: their law is bf16's by the data sheet, how far it errs is not known.
FITTED_DTYPES = ("bf16", "fp16", "fp8")
# SGLang's linear layer in 16 bits is PyTorch's, F.linear, so cuBLAS (collector/sglang/collect_gemm.py of the tables).
CUBLAS, CUBLAS_COLUMN = "cublas", "sglang"
# Library of published products on AMD's GPUs: hipBLASLt by way of PyTorch.
PYTORCH = "pytorch"
# By how much a band has to be wider at an n between those of the tables: with all sites of an n left out, bands of left
# out sites cover 82 to 85 % of them (H200, A100 and in fp8 H100), at a k left out 92 to 96 %.
BETWEEN_NODES = 1.25
# Prefix of stored names in the blocks of all GPUs: of a GPU that has the law of another of its kind.
SIMILAR_GPU = "alike_"


@dataclass(frozen=True)
class GemmLaw:
    """Law of one GPU's products of one dtype by one library.

    `source` is the GPU whose tables the law was fitted to, the GPU itself or one that it was transferred from; None
    where it was pooled over all. `residual` is None where nothing says how far the library departs from the menu,
    `band` where nothing says how far measurements lie from the law. `peak_scale` is by how much its products come
    nearer to the data sheet's peak than the source's.
    """

    gpu: GpuSpec
    dtype: str
    library: str
    coefficients: MenuCoefficients
    residual: ResidualGrid | None
    block: CalibrationBlock
    band: Band | None = None
    error_percent: float | None = None
    source: GpuSpec | None = None
    peak_scale: float = 1.0

    @property
    def is_transferred(self) -> bool:
        return self.source is None or self.source.name != self.gpu.name or self.dtype not in FITTED_DTYPES

    @property
    def rates(self) -> Rates:
        """The data sheet in the law's units. Raises UserError where the GPU has no units for the dtype."""
        rates = Rates.of(self.gpu, self.dtype)
        return replace(rates, flop_per_s=rates.flop_per_s * self.peak_scale)

    @property
    def origin(self) -> str:
        if not self.is_transferred:
            return self.block.origin
        maximum = MEASURED_MAXIMA.get(self.gpu.name) if self.peak_scale != 1 else None
        ceiling = f", held to {maximum.tflop_per_s:g} TFLOP/s of {maximum.origin}" if maximum else ""
        return f"transferred to {self.dtype} on {self.gpu.name} by its data sheet from {self.block.origin}{ceiling}"

    def seconds(self, m: Floats, n: Floats, k: Floats) -> Floats:
        return menu_seconds(self.coefficients, self.rates, m, n, k) * self.library_factor(m, n, k)

    def library_factor(self, m: Floats, n: Floats, k: Floats) -> Floats:
        return np.ones(m.shape) if self.residual is None else np.exp(self.residual(m, n, k))

    def interval(self, seconds: Floats, m: Floats, n: Floats) -> tuple[Floats, Floats]:
        """The seconds between which nine of ten measurements lie, wider at an n that no table has."""
        assert self.band is not None
        low, high = (np.log(side) for side in self.band.around(np.ones(m.shape), m))
        if self.residual is not None:
            nodes = self.residual.axes[1]
            between = nodes[np.clip(np.searchsorted(nodes, n), 0, nodes.size - 1)] != n
            low, high = (side * np.where(between, BETWEEN_NODES, 1.0) for side in (low, high))
        return seconds * np.exp(low), seconds * np.exp(high)


def gemm_law(gpu: Gpu, dtype: str = "bf16", library: str | None = None) -> GemmLaw:
    """The law of a GPU by its name, its `GpuSpec` or a calibration; transferred where there is none of its own.

    Raises UserError for an unknown GPU, dtype or library, a dtype that the GPU has no units for or that nothing was
    measured of.
    """
    if dtype not in BLOCK_OF:
        raise UserError(
            f"No table of products of {dtype!r} was published: there are bf16 and fp16 and, with scales for whole "
            "tensors or rows, fp8; fp32 and tf32 go by the data sheet."
        )
    name, spec = BLOCK_OF[dtype], spec_of(gpu)
    spec.peak(dtype)
    if library == CUBLAS and name == "gemm_bf16":
        library = CUBLAS_COLUMN
    own, is_own = transfers.find_law(gpu, name)
    if is_own and dtype in FITTED_DTYPES:
        return _law(own, spec, dtype, own.library(name, library))
    return _transferred(spec, dtype, library)


def _law(calibration: Calibration, gpu: GpuSpec, dtype: str, library: str) -> GemmLaw:
    """The law of a calibration's block, for its own GPU or one that it is transferred to."""
    block = calibration.block(f"{BLOCK_OF[dtype]}.{library}")
    residual = ResidualGrid.from_arrays(block.arrays) if "residual" in block.arrays else None
    source = None if calibration.gpu == POOLED else find_gpu(calibration.gpu)
    coefficients, band = MenuCoefficients.from_arrays(block.arrays), Band.from_arrays(block.arrays)
    error_percent = float(block.held_out["mape"])
    return GemmLaw(gpu, dtype, library, coefficients, residual, block, band, error_percent, source)


# Cards for games clock above what their data sheet's peak is of: an RTX 5090 runs its fastest product at 112 % of it.
ABOVE_PEAK = 1.125
# Rounds of finding the rate with which the law has a published product take its time.
ROUNDS = 8
WITHIN = 1.075


@functools.cache
def _transferred(gpu: GpuSpec, dtype: str, library: str | None) -> GemmLaw:
    """The law of the most similar GPU by the data sheet of this one, or that of all GPUs where none is."""
    name = BLOCK_OF[dtype]
    pooled = shipped_calibration(POOLED)
    if pooled is None:
        raise UserError(f"No calibration of products is shipped for {gpu.name}: fit one with `pyperf-suite calibrate`.")
    maximum = MEASURED_MAXIMA.get(gpu.name) if gpu.compute_capability or name == "gemm_bf16" else None
    if maximum is None and gpu.compute_capability is None:
        there = "bf16 and fp16" if gpu.name in MEASURED_MAXIMA else "nothing"
        raise UserError(f"No product of {dtype!r} was published of {gpu.name}, but {there}: measure one.")
    if gpu.compute_capability is None and library not in (None, PYTORCH):
        raise UserError(f"No products by {library} were published of {gpu.name}: there are those by {PYTORCH}.")
    kin = _kin(gpu, name)
    if kin and maximum is None:
        theirs = gemm_law(kin[0], dtype, library)
        law = replace(theirs, gpu=gpu, peak_scale=theirs.peak_scale * transfers.held_down(gpu, kin[0]))
    else:
        # Power holds cards for workstations and games down less than an L40S: on an RTX A6000 the law of all GPUs errs
        # by 10 % where the L40S's errs by 21.
        near, _ = transfers.find_law(gpu, name)
        calibration = (
            near if transfers.have_same_kernels(gpu, find_gpu(near.gpu)) and not transfers.is_desktop(gpu) else pooled
        )
        law = _law(calibration, gpu, dtype, calibration.library(name, library if gpu.compute_capability else None))
    if dtype not in FITTED_DTYPES:
        return replace(law, band=None, error_percent=None)
    law = _with_band_of_others(law, pooled.block(f"{name}.{law.library}"))
    law = replace(law, library=law.library if gpu.compute_capability else PYTORCH)
    return law if maximum is None else _held_to(law, maximum)


def _with_band_of_others(law: GemmLaw, others: CalibrationBlock) -> GemmLaw:
    """The law with the interval of GPUs that were left out, of its kind if it was read off one."""
    like = law.source is not None and transfers.log_ratio(law.gpu.peak(law.dtype), law.source.peak(law.dtype)) < np.log(
        transfers.LIKE_PEAK
    )
    prefix = SIMILAR_GPU if like else ""
    at, low, high = (others.arrays[f"{prefix}{name}"] for name in BAND_NAMES)
    # The only pair of one kind that both have tables are twins.
    further = transfers.HELD_DOWN_WIDTH if like and law.source and not transfers.are_twins(law.gpu, law.source) else 0.0
    band = Band(at, np.copysign(np.hypot(low, further), low), np.copysign(np.hypot(high, further), high))
    return replace(law, band=band, error_percent=float(others.held_out[f"{prefix}mape"]))


def _kin(gpu: GpuSpec, name: str) -> list[GpuSpec]:
    """GPUs with the same kernels, and tables or a published product, those with the nearest power a FLOP first."""
    kin = [
        other
        for other in all_gpus()
        if other.name != gpu.name
        and transfers.have_same_kernels(gpu, other)
        and (other.name in MEASURED_MAXIMA or ((own := shipped_calibration(other.name)) and own.libraries(name)))
    ]

    def unlike(candidate: GpuSpec) -> tuple[bool, float, float]:
        power, memory = (
            transfers.log_ratio(of(candidate), of(gpu))
            for of in (transfers.power_a_flop, lambda each: each.memory_bytes_per_s)
        )
        return candidate.compute_capability != gpu.compute_capability, power, memory

    return sorted(kin, key=unlike)


def _held_to(law: GemmLaw, maximum: MeasuredMaximum) -> GemmLaw:
    """The law with the rate at which a measured product takes the time that it took.

    A GPU with the law of another of its kind, whose own maximum is known, is as much faster as its maximum is, and then
    moved no further than to `WITHIN` of it: the tables, of other software, say more of the level. In fp8 the rate is as
    much higher as in bf16. What a card reaches beyond its peak, by a clock above its data sheet's, is the interval's.
    """
    if law.dtype == "fp8":
        return replace(law, peak_scale=gemm_law(law.gpu, "bf16", law.library).peak_scale)
    m, n, k = (np.array([float(size)]) for size in maximum.sizes)
    wanted, within = 2 * float((m * n * k)[0]) / min(1e12 * maximum.tflop_per_s, law.gpu.peak(law.dtype)), 1.0
    known = MEASURED_MAXIMA.get(law.source.name) if law.source else None
    if law.source and known and known.origin == maximum.origin:
        sheets = law.source.peak(law.dtype) / law.gpu.peak(law.dtype)
        law, within = replace(law, peak_scale=maximum.tflop_per_s / known.tflop_per_s * sheets), WITHIN
    moved = law
    for _ in range(ROUNDS):
        ratio = float(moved.seconds(m, n, k)[0]) / wanted
        moved = replace(moved, peak_scale=moved.peak_scale * ratio / float(np.clip(ratio, 1 / within, within)))
    if within == 1.0 or law.band is None:
        return moved
    # Either of two laws that disagree may be right.
    apart = float(np.log(moved.peak_scale / law.peak_scale))
    band = replace(law.band, low=law.band.low + min(apart, 0.0), high=law.band.high + max(apart, 0.0))
    return replace(moved, band=band)


def gemm_time(
    gpu: Gpu,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    dtype: str = "bf16",
    layout: str = "TN",
    mode: str = "burst",
    library: str | None = None,
) -> Explained:
    """Seconds of products C[m, n] = A[m, k]·B[k, n] by a library on a GPU, of the sizes' broadcast shape.

    The tables hold layout TN with random operands and a warm L2; the other layouts differ by alignment alone. Times of
    fp8 are those of a linear layer: they include the quantization of A.
    A dtype of PADDED_DTYPES is priced as the product that its libraries take, with rows of whole 16 bytes.
    The parts are `ideal` 2mnk at the peak, `tile` what edges of tiles and of K add, `kernel` the rest of a tile's time
    (rate below peak, prologue), `wave` SMs without a tile, `bandwidth` what memory adds, `split` reducing a split K,
    `launch`, `library` what its choice of kernel makes of that (negative where better), `alignment` and `sustained`.

    Args:
        gpu: its name, its `GpuSpec`, or a `Calibration`, whose corrections then count.
        m: rows of C, the tokens of a linear layer.
        n: columns of C, its outputs.
        k: the depth, its inputs.
        dtype: of the operands: bf16, fp16 or fp8, or fp32 or tf32 by the data sheet, of which no interval is known.
        layout: as in `workloads.matmul.parameters`, TN, NN, NT or TT.
        mode: burst, or sustained where products run for seconds on end and power holds the clock down.
        library: trtllm, sglang or vllm, or "cublas" in 16 bits; by default the first of them that was measured.

    Raises:
        UserError: an unknown GPU, dtype, layout, mode or library, or sizes below 1.
    """
    if mode not in MODES:
        raise UserError(f"Unknown mode {mode!r}: choose from {', '.join(MODES)}.")
    if layout not in SIDE_BY_SIDE:
        raise UserError(f"There is no layout {layout!r}: ask for one of {', '.join(SIDE_BY_SIDE)}.")
    law = gemm_law(gpu, dtype, library)
    requested = validated_sizes("product", m=m, n=n, k=k)
    rows, columns, depth = padded_sizes(requested[0], requested[1], requested[2], dtype, layout)
    sizes = [size.astype(np.float64) for size in (rows, columns, depth)]
    here = correction_of(gpu, BLOCK_OF[dtype], dict(zip("mnk", sizes, strict=True)))
    penalty, least_penalty, most_penalty = alignment_penalty(law.gpu, rows, columns, depth, dtype, layout)
    plain = menu_seconds(law.coefficients, law.rates, *sizes)
    ideal = 2.0 * sizes[0] * sizes[1] * sizes[2] / law.gpu.peak(dtype)
    aligned = np.maximum(plain * law.library_factor(*sizes) * here, ideal)
    burst = aligned * penalty
    seconds = burst * sustained_slowdown(law.gpu, ideal / burst) if mode == "sustained" else burst

    def parts() -> dict[str, NDArray[np.float64]]:
        wanted = 2.0 * requested[0] * requested[1] * requested[2] / law.gpu.peak(dtype)
        unaligned = burst - aligned + ideal - wanted
        beyond = {"library": aligned - plain, "alignment": unaligned, "sustained": seconds - burst}
        return _menu_parts(law, *sizes) | {"ideal": wanted} | beyond

    low = high = None
    if law.band is not None:
        low, high = law.interval(seconds, sizes[0], sizes[1])
        low, high = low * least_penalty / penalty, high * most_penalty / penalty
        low = np.maximum(low, np.minimum(seconds, ideal) / ABOVE_PEAK)
    error_percent, origin = stated(gpu, BLOCK_OF[dtype], law.error_percent, law.origin)
    beyond = outside(law.block.fitted_range, dict(zip("mnk", sizes, strict=True))) | law.is_transferred
    return Explained(seconds, Causes(parts), beyond, error_percent, origin, low, high, library or law.library)


def library_spread(gpu: Gpu, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str = "bf16") -> dict[str, Floats]:
    """Seconds of the same products by each library that was measured, in layout TN and a burst.

    Raises UserError as `gemm_time` does.
    """
    found = {gemm_law(gpu, dtype).library: gemm_time(gpu, m, n, k, dtype).seconds}
    for library in LIBRARIES:
        with suppress(UserError):
            found[library] = gemm_time(gpu, m, n, k, dtype, library=library).seconds
    return found


def _menu_parts(law: GemmLaw, m: Floats, n: Floats, k: Floats) -> dict[str, Floats]:
    costs, rates, peak = law.coefficients, law.rates, law.gpu.peak(law.dtype)
    seconds, tile, splits = menu_choice(costs, rates, m, n, k)
    height, width = (np.array(sides, dtype=np.float64)[tile] for sides in zip(*TILES, strict=True))
    waves = rates.tiles_down(m, height) * np.ceil(n / width) * splits / rates.sms
    depth = _stepped(k / splits, rates)
    tile_s = _tile_seconds(costs, rates, height * width, costs.tile_rates[tile], depth)
    ideal, padded = 2.0 * m * n * k / peak, 2.0 * waves * rates.sms * height * width * depth / peak
    busy_s, compute_s = waves * tile_s, waited(waves, costs.wave_smoothing) * tile_s
    split_s = np.where(splits > 1, _split_seconds(costs, rates, m, n, splits), 0.0)
    return {
        "ideal": ideal,
        "tile": padded - ideal,
        "kernel": busy_s - padded,
        "wave": compute_s - busy_s,
        "bandwidth": seconds - split_s - costs.launch_s - compute_s,
        "split": split_s,
        "launch": np.full_like(ideal, costs.launch_s),
    }
