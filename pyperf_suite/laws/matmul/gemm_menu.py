"""The time of a library's matrix product: the best tile and split of K on a menu, in waves, beside memory and launch.

A library keeps kernels for several tiles and picks one for each shape; the law picks the one with the least time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.hardware.catalogue import GpuSpec

# Tiles of C that cuBLAS and CUTLASS have kernels for, rows × columns; each has a share of the peak of its own.
TILES = (
    *((64, 64), (64, 128), (128, 64), (128, 128), (64, 256)),
    *((256, 64), (128, 192), (192, 128), (128, 256), (256, 128)),
)
SPLITS = (2, 3, 4, 6, 8, 16)
# A slice of K is worth a worker of its own from about two of its steps on.
LEAST_SLICE = 128
STEP_BYTES = 128  # of K that a kernel loads at a time: a line of shared memory with 128-byte swizzling
# What an SM's share of L2 delivers each clock; fitted factors stand beside it.
L2_BYTES_PER_CLOCK = 32.0
# Shapes are priced in pieces that stay in a core's cache.
PIECE = 16384
# More waves than this leave nothing to split.
WAVES_WORTH_SPLITTING = 1.5

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MenuCoefficients:
    """The constants of the law; each but the launch is relative to the GPU's data sheet, so that it can be transferred.

    `tile_rates` is each tile's share of the peak, `launch_s` the time of the smallest product, `prologue_clocks` a
    tile's cost beside its steps through K, `softness` how far a wave that is not full is hidden by the next tiles
    (0: waves are hard), `overlap` the exponent that joins compute and memory (∞: the longer one counts),
    `memory_share` that of the memory bandwidth, `l2_share` that of L2's, `resident_share` the part of L2 below which
    operands are found there, `resident_steepness` how sharp that bound is; a split of K costs `split_s` and its partial
    sums `split_traffic` times their bytes at L2's rate.
    """

    tile_rates: Floats
    launch_s: float
    prologue_clocks: float
    softness: float
    overlap: float
    memory_share: float
    l2_share: float
    resident_share: float
    resident_steepness: float
    split_s: float
    split_traffic: float

    def as_arrays(self) -> dict[str, Floats]:
        """By name, as a calibration's block keeps them."""
        return {name: np.asarray(value, dtype=np.float64) for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> MenuCoefficients:
        """The inverse of `as_arrays`; other names are left alone. Raises KeyError for one that is missing."""
        scalars = {name: float(arrays[name]) for name in cls.__dataclass_fields__ if name != "tile_rates"}
        return cls(np.asarray(arrays["tile_rates"], dtype=np.float64), **scalars)


@dataclass(frozen=True)
class Rates:
    """What a GPU's data sheet says, in the law's units, for one dtype."""

    sms: int
    clock_hz: float
    flop_per_s: float
    memory_bytes_per_s: float
    l2_bytes: float
    operand_bytes: int
    result_bytes: int

    @classmethod
    def of(cls, gpu: GpuSpec, dtype: str) -> Rates:
        """Raises UserError where the GPU has no units for the dtype."""
        operand = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}.get(dtype, 1)
        flop_per_s = gpu.peak(dtype)
        clock_hz, bandwidth = gpu.boost_mhz * 1e6, gpu.memory_bytes_per_s
        return cls(gpu.sms, clock_hz, flop_per_s, bandwidth, float(gpu.l2_bytes), operand, max(operand, 2))


@dataclass(frozen=True)
class MenuTimes:
    """What the law makes of each product; all arrays of one shape, times in seconds.

    `tile` is the index in `TILES`, `splits` the slices of K, `waves` the quotient of tiles and SMs, `busy_s` what the
    tiles take where no SM ever idles, `compute_s` with the waves as they are, `memory_s` the operands' and result's
    way through memory, `split_s` the reduction, and `seconds` all together with the launch.
    """

    seconds: Floats
    tile: NDArray[np.int64]
    splits: NDArray[np.int64]
    waves: Floats
    busy_s: Floats
    compute_s: Floats
    memory_s: Floats
    split_s: Floats
    padded_flop: Floats


def menu_seconds(law: MenuCoefficients, rates: Rates, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Floats:
    """Seconds of products C[m, n] = A[m, k]·B[k, n]; sizes of at least 1, broadcast against each other."""
    sizes = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in (m, n, k)))
    flat = [np.ravel(size) for size in sizes]
    seconds = np.empty(flat[0].size)
    for start in range(0, seconds.size, PIECE):
        piece = slice(start, start + PIECE)
        seconds[piece] = _choose(law, rates, *(size[piece] for size in flat))[0]
    return seconds.reshape(sizes[0].shape)


def menu_times(law: MenuCoefficients, rates: Rates, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> MenuTimes:
    """The same with the tile and split that were chosen, and what each part of the time is."""
    rows, columns, depth = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in (m, n, k)))
    flat = [np.ravel(size) for size in (rows, columns, depth)]
    pieces = [
        _choose(law, rates, *(size[start : start + PIECE] for size in flat)) for start in range(0, flat[0].size, PIECE)
    ]
    seconds, tile, splits = (
        np.concatenate([piece[part] for piece in pieces] or [np.empty(0)]).reshape(rows.shape) for part in range(3)
    )
    tile, splits = tile.astype(np.int64), splits.astype(np.int64)
    height, width = (np.array(sizes, dtype=np.float64)[tile] for sizes in zip(*TILES, strict=True))
    tiles = np.ceil(rows / height) * np.ceil(columns / width) * splits
    slice_depth = _stepped(depth / splits, rates)
    waves = tiles / rates.sms
    tile_s = _tile_seconds(law, rates, height * width, law.tile_rates[tile], slice_depth)
    return MenuTimes(
        seconds=seconds,
        tile=tile,
        splits=splits,
        waves=waves,
        busy_s=waves * tile_s,
        compute_s=_waited(law, waves) * tile_s,
        memory_s=_memory_seconds(law, rates, rows, columns, depth),
        split_s=np.where(splits > 1, _split_seconds(law, rates, rows, columns, splits), 0.0),
        padded_flop=2.0 * tiles * height * width * slice_depth,
    )


def _choose(
    law: MenuCoefficients, rates: Rates, m: Floats, n: Floats, k: Floats
) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Seconds, tile and splits of the best on the menu; K is split only where its tiles leave SMs idle."""
    memory_s = _memory_seconds(law, rates, m, n, k)
    compute_s, tile, fewest_waves = _best_tile(law, rates, m, n, k, 1)
    seconds = _joined(law, compute_s, memory_s)
    splits = np.ones(m.shape, dtype=np.int64)
    few = np.flatnonzero((fewest_waves < WAVES_WORTH_SPLITTING) & (k >= SPLITS[0] * LEAST_SLICE))
    for split in SPLITS if few.size else ():
        few = few[k[few] >= split * LEAST_SLICE]
        compute_s, split_tile, _ = _best_tile(law, rates, m[few], n[few], k[few], split)
        total = _joined(law, compute_s, memory_s[few]) + _split_seconds(law, rates, m[few], n[few], split)
        better = total < seconds[few]
        chosen = few[better]
        seconds[chosen], tile[chosen], splits[chosen] = total[better], split_tile[better], split
    return seconds + law.launch_s, tile, splits


def _best_tile(
    law: MenuCoefficients, rates: Rates, m: Floats, n: Floats, k: Floats, splits: int
) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Compute seconds of the tile with the least, its index, and the fewest waves that any tile needs."""
    depth = _stepped(k / splits, rates)
    high = {height: np.ceil(m / height) for height in {height for height, _ in TILES}}
    wide = {width: np.ceil(n / width) * (splits / rates.sms) for width in {width for _, width in TILES}}
    best, chosen = np.full(m.shape, np.inf), np.zeros(m.shape, dtype=np.int64)
    fewest = np.full(m.shape, np.inf)
    for index, (height, width) in enumerate(TILES):
        waves = high[height] * wide[width]
        seconds = _waited(law, waves) * _tile_seconds(law, rates, height * width, law.tile_rates[index], depth)
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


def _waited(law: MenuCoefficients, waves: Floats) -> Floats:
    """Waves as they are waited for: whole ones where hard, their quotient but at least one where soft."""
    return np.ceil(waves) * (1 - law.softness) + np.maximum(waves, 1.0) * law.softness


def _l2_bytes_per_s(law: MenuCoefficients, rates: Rates) -> float:
    return law.l2_share * L2_BYTES_PER_CLOCK * rates.sms * rates.clock_hz


def _memory_seconds(law: MenuCoefficients, rates: Rates, m: Floats, n: Floats, k: Floats) -> Floats:
    moved = rates.operand_bytes * (m + n) * k + rates.result_bytes * m * n
    resident = 1.0 / (1.0 + (moved / (law.resident_share * rates.l2_bytes)) ** law.resident_steepness)
    memory_bytes_per_s = law.memory_share * rates.memory_bytes_per_s
    # Few warps are in flight then, so that L2 does not outrun HBM; it does GDDR.
    l2_bytes_per_s = max(_l2_bytes_per_s(law, rates), memory_bytes_per_s)
    return moved * (resident / l2_bytes_per_s + (1.0 - resident) / memory_bytes_per_s)


def _split_seconds(law: MenuCoefficients, rates: Rates, m: Floats, n: Floats, splits: ArrayLike) -> Floats:
    """Partial sums are written and read once in fp32."""
    return law.split_s + law.split_traffic * 8.0 * m * n * np.asarray(splits) / _l2_bytes_per_s(law, rates)


def _joined(law: MenuCoefficients, compute_s: Floats, memory_s: Floats) -> Floats:
    """(aᵖ + bᵖ)^(1/p), with the larger one taken out so that no power overflows."""
    longer = np.maximum(compute_s, memory_s)
    ratio = np.minimum(compute_s, memory_s) / longer
    return longer * (1.0 + ratio**law.overlap) ** (1.0 / law.overlap)
