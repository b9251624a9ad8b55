"""Effect of its sizes on a matrix product: tiles, waves and the busiest worker, and the divisors of its sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError

POLICIES = ("data_parallel", "persistent", "split_k", "stream_k", "library")

# No size of a tile has more digits, and Python converts no number of thousands of them.
_SIZE = "([0-9]{1,9})"
_TILE = re.compile(f"{_SIZE}x{_SIZE}x{_SIZE}(?::s{_SIZE})?(?::c{_SIZE}(?:x{_SIZE})?)?")
_SCHEDULE = re.compile(rf"([a-z_]+)(?:\({_SIZE}\))?@{_SIZE}")


@dataclass(frozen=True, order=True)
class Tile:
    """The piece of C that one worker computes at a time, `m × n`, in steps of `k` elements of K.

    `stages` is the depth of the operand pipeline. `cluster` CTAs along M share their part of B and `cluster_n` CTAs
    along N share their part of A. All three are 1 on CPUs. Written `128x256x64:s4:c2`, parts at 1 left out; clusters
    along N have both numbers, as in `256x128x64:c1x2`.
    """

    m: int
    n: int
    k: int
    stages: int = 1
    cluster: int = 1
    cluster_n: int = 1

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k, self.stages, self.cluster, self.cluster_n) < 1:
            raise UserError(f"A tile has sizes of at least 1, but {self} was requested.")

    def __str__(self) -> str:
        pipeline = f":s{self.stages}" if self.stages != 1 else ""
        cluster = f":c{self.cluster}" if self.ctas != 1 else ""
        if self.cluster_n != 1:
            cluster += f"x{self.cluster_n}"
        return f"{self.m}x{self.n}x{self.k}{pipeline}{cluster}"

    @property
    def ctas(self) -> int:
        return self.cluster * self.cluster_n

    @classmethod
    def parse(cls, text: str) -> Tile:
        """The inverse of `str`. Raises UserError for anything else."""
        match = _TILE.fullmatch(text.strip())
        if match is None:
            raise UserError(f"{text[:80]!r} is not a tile: write MxNxK, as in 128x128x256.")
        return cls(*(int(part) for part in match.groups(default="1")))


@dataclass(frozen=True, order=True)
class Schedule:
    """How tiles go to workers, as in `split_k(4)@2`; `library` leaves tile and order to it and bounds its threads."""

    policy: str
    workers: int
    splits: int = 1

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UserError(f"Unknown schedule {self.policy!r}: choose from {', '.join(POLICIES)}.")
        if self.workers < 1:
            raise UserError(f"A schedule needs at least 1 worker, but {self.workers} were requested.")
        if self.splits < 1 or (self.splits > 1 and self.policy != "split_k"):
            raise UserError(
                f"{self.splits} slices of K were requested of {self.policy}: only split_k takes more than one, "
                "as in split_k(4)@2."
            )

    def __str__(self) -> str:
        splits = f"({self.splits})" if self.policy == "split_k" else ""
        return f"{self.policy}{splits}@{self.workers}"

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """The inverse of `str`. Raises UserError for anything else."""
        match = _SCHEDULE.fullmatch(text.strip())
        if match is None:
            raise UserError(
                f"{text[:80]!r} is not a schedule: write POLICY@WORKERS, as in data_parallel@2 or split_k(4)@2."
            )
        policy, splits, workers = match.groups()
        return cls(policy, int(workers), int(splits or 1))


def ceil_div(numerator: ArrayLike, denominator: ArrayLike) -> NDArray[np.int64]:
    """⌈numerator / denominator⌉ in exact integer arithmetic."""
    return -(-np.asarray(numerator, dtype=np.int64) // np.asarray(denominator, dtype=np.int64))


def cluster_count(m: ArrayLike, n: ArrayLike, tile: Tile) -> NDArray[np.int64]:
    """Tiles of a cluster, which are what a schedule counts: as many as output tiles where a cluster is one CTA."""
    return ceil_div(m, tile.m * tile.cluster) * ceil_div(n, tile.n * tile.cluster_n)


def tile_count(m: ArrayLike, n: ArrayLike, tile: Tile) -> NDArray[np.int64]:
    """Output tiles C = ⌈M/Tm⌉·⌈N/Tn⌉ (NVIDIA, Matrix Multiplication Background User's Guide), of whole clusters."""
    return cluster_count(m, n, tile) * tile.ctas


def visiting_group(m: int, n: int, tile: Tile, workers: int, splits: int = 1) -> int:
    """How many rows of tiles are scheduled together: those with which the tiles that run at once read the least.

    W tiles at once, in bands of g rows, read the operands of g rows and ⌈W/g⌉ columns of tiles: g·Tm + ⌈W/g⌉·Tn is
    least, the rule of DeepGEMM's heuristics. Where that many columns are not there, the tiles at once take more rows.
    Tiles are a cluster's, W is `workers` in clusters. Of groups that read the same the one whose last band is fullest.
    """
    rows, columns = tile.m * tile.cluster, tile.n * tile.cluster_n
    tiles_m, tiles_n = -(-m // rows), -(-n // columns)
    at_once = max(1, min(workers // tile.ctas // splits, tiles_m * tiles_n))

    def cost(group: int) -> tuple[int, int, int]:
        across = min(-(-at_once // group), tiles_n)
        down = min(max(group, -(-at_once // tiles_n)), tiles_m)
        return down * rows + across * columns, -tiles_m % group, group

    return min(range(1, min(at_once, tiles_m) + 1), key=cost)


def wave_count(units: ArrayLike, slots: ArrayLike) -> NDArray[np.int64]:
    """Waves W = ⌈units/slots⌉ (same guide); slots are workers that run at once: cores, or SMs × co-resident CTAs."""
    return ceil_div(units, slots)


def tile_efficiency(m: ArrayLike, n: ArrayLike, tile: Tile) -> NDArray[np.float64]:
    """Share of the computed tile area that is C: MN / (C·Tm·Tn), in (0, 1]."""
    area = np.asarray(m, dtype=np.float64) * np.asarray(n, dtype=np.float64)
    return area / (tile_count(m, n, tile) * float(tile.m * tile.n))


# Sides of a Hopper tile of cuBLAS, which generates its kernels when they are asked for: one is a multiple of 64, the
# other of 8, and the accumulators of the largest fill the registers of two warpgroups.
LIBRARY_TILES = tuple(
    sorted(
        {shape for m in (64, 128, 192, 256) for n in range(8, 257, 8) for shape in ((m, n), (n, m)) if m * n <= 40960}
    )
)


def library_area(m: int, n: int, slots: int) -> int:
    """Elements of C that the busiest of `slots` computes in the tile that keeps it least busy: waves · Tm · Tn.

    It is what a library does that widens its tile before it opens another wave.
    """
    return min(-(-(-(-m // tile_m) * -(-n // tile_n)) // slots) * tile_m * tile_n for tile_m, tile_n in LIBRARY_TILES)


@dataclass(frozen=True)
class CriticalPath:
    """Work of the busiest worker for one product; each an array over the cases.

    `k_extent` is in elements of K summed over its tiles, `tiles` counts the output tiles it works on, `partials` those
    whose result is a partial sum that is written, read back and added.
    """

    k_extent: NDArray[np.float64]
    tiles: NDArray[np.float64]
    partials: NDArray[np.float64]


def critical_path(m: ArrayLike, n: ArrayLike, k: ArrayLike, tile: Tile, schedule: Schedule) -> CriticalPath:
    """The busiest worker's share under a schedule; the closed form of what `kernels/cuda/schedule.cuh` enumerates.

    data_parallel and persistent give it ⌈C/S⌉ whole tiles. split_k(s) gives it ⌈C·s/S⌉ slices of ⌈k-tiles/s⌉. stream_k
    gives it whole tiles for all waves but the last full one, and an even share of the k-tiles of the rest (the two-tile
    hybrid of Osama et al. 2023). The K edge is not padded. In clusters, a worker is a cluster and a tile is its tiles.
    Raises UserError for the library's own schedule.
    """
    tiles = cluster_count(m, n, tile)
    depth = np.broadcast_to(np.asarray(k, dtype=np.float64), tiles.shape)
    workers = max(1, schedule.workers // tile.ctas)
    waves = wave_count(tiles, workers)
    if schedule.policy in ("data_parallel", "persistent"):
        return CriticalPath(waves * depth, waves.astype(np.float64), np.zeros(tiles.shape))
    if schedule.policy == "split_k":
        visits = wave_count(tiles * schedule.splits, workers)
        k_tiles = ceil_div(depth.astype(np.int64), tile.k)
        slice_extent = np.minimum(ceil_div(k_tiles, schedule.splits) * tile.k, depth)
        shared = visits if schedule.splits > 1 else np.zeros(tiles.shape)
        # Slices of a tile are handed out one after the other, so a worker meets long and short ones.
        extent = np.where(visits > 1, visits * depth / schedule.splits, slice_extent)
        return CriticalPath(extent, visits.astype(np.float64), np.asarray(shared, dtype=np.float64))
    if schedule.policy == "stream_k":
        return _busiest_of_stream_k(tiles, depth, ceil_div(depth.astype(np.int64), tile.k), workers)
    raise UserError(f"The schedule {schedule} is the library's own: its critical path is not known.")


PARTIAL_IN_K_TILES = 8  # cost of writing or reading a partial result, in k-tiles: it decides which unit is the busiest


def _busiest_of_stream_k(
    tiles: NDArray[np.int64], depth: NDArray[np.float64], k_tiles: NDArray[np.int64], workers: int
) -> CriticalPath:
    """Find the unit with most k-tiles and partial results, as `next` of schedule.cuh deals them out.

    A unit whose last tile is another's to finish writes a partial result; one that finishes a tile which others began
    reads one from each of them.
    """
    whole_tiles = np.where(tiles % workers == 0, tiles // workers, np.maximum(tiles // workers - 1, 0))
    share, rest = np.divmod((tiles - whole_tiles * workers) * k_tiles, workers)
    of_tile, unit = k_tiles[..., None], np.arange(workers)
    begin, end = (n * share[..., None] + n * rest[..., None] // workers for n in (unit, unit + 1))
    first, last = begin // of_tile, np.maximum(end - 1, begin) // of_tile
    # The unit that began the tile: units before it have begun no later k-tile than the tile's first.
    rows = (each.reshape(-1, workers) for each in (begin, first * of_tile))
    starter = np.array([np.searchsorted(row, at, "right") - 1 for row, at in zip(*rows, strict=True)])
    finishes = (begin > first * of_tile) & (end >= (first + 1) * of_tile)
    partials = (end > (last * of_tile)) * (end % of_tile > 0) + finishes * (unit - starter.reshape(begin.shape))
    busiest = np.argmax(end - begin + PARTIAL_IN_K_TILES * partials, axis=-1)[..., None]
    chosen = (
        np.take_along_axis(each, busiest, -1)[..., 0] for each in (end - begin, last - first + (end > begin), partials)
    )
    computed, visits, partials = chosen
    extent = whole_tiles * depth + computed * depth / k_tiles
    return CriticalPath(extent, (whole_tiles + visits).astype(np.float64), partials.astype(np.float64))


@dataclass(frozen=True)
class StaircaseLaw:
    """seconds = overhead + per_k·k_extent + per_tile·tiles + per_partial·partials, for one tile on one machine.

    With data_parallel this is waves × (per_k·K + per_tile) + overhead: time = waves × tile time + overhead.
    """

    overhead_s: float
    per_k_s: float
    per_tile_s: float
    per_partial_s: float

    def seconds(self, path: CriticalPath) -> NDArray[np.float64]:
        return _features(path) @ np.array([self.overhead_s, self.per_k_s, self.per_tile_s, self.per_partial_s])

    def tile_seconds(self, k: float) -> float:
        """Predicted seconds of one whole tile of depth `k`: the height of one step of the staircase."""
        return self.per_k_s * k + self.per_tile_s

    @classmethod
    def fit(cls, path: CriticalPath, seconds: ArrayLike) -> StaircaseLaw:
        """Fit to measured seconds, one per critical path. Raises ValueError where there are none."""
        return cls(*nonnegative_fit(_features(path), seconds))


@dataclass(frozen=True)
class JudgedLaw:
    """A law, on how many cases it was fitted, and its relative errors on the others.

    `noise` is the median error that would be left on those if the law were right: what their times are uncertain by.
    """

    law: StaircaseLaw
    fitted_on: int
    held_out: tuple[float, ...]
    noise: float = math.nan


MAD_OF_NORMAL = 0.6744897501960817  # the median absolute deviation of a normal variable, in standard deviations

# Error of a law of a few constants, as a share of a kernel's time: no measurement counts for more than this.
_LAW_ERROR = 0.02


def judged_by_waves(
    paths: Sequence[CriticalPath], seconds: ArrayLike, waves: ArrayLike, errors: ArrayLike | None = None
) -> JudgedLaw | None:
    """Fit on odd numbers of waves and judge on even ones, which the fit has never seen a neighbour of.

    One path, time and number of waves for each case; `errors` are the times' relative standard errors, and say how much
    each counts. None where either part is empty.
    """
    measured, odd = np.asarray(seconds, dtype=np.float64), np.asarray(waves, dtype=np.int64) % 2 == 1
    if odd.all() or not odd.any():
        return None
    features = np.stack([_features(path) for path in paths])
    known = np.zeros(measured.size) if errors is None else np.asarray(errors, dtype=np.float64)
    law = StaircaseLaw(*nonnegative_fit(features[odd], measured[odd], np.hypot(known[odd], _LAW_ERROR)))
    predicted = np.array([law.seconds(path) for path in paths])
    held_out = tuple(relative_error(predicted[~odd], measured[~odd]).tolist())
    return JudgedLaw(law, int(odd.sum()), held_out, MAD_OF_NORMAL * float(np.median(known[~odd])))


def nonnegative_fit(features: NDArray[np.float64], seconds: ArrayLike, errors: ArrayLike | None = None) -> list[float]:
    """Costs of features [cases, costs], none negative, by least squares of relative residuals.

    `errors` are relative standard errors of the seconds, equal by default. Raises ValueError for no measurements.
    """
    from scipy.optimize import nnls

    measured = np.asarray(seconds, dtype=np.float64)
    if measured.size == 0:
        raise ValueError("A law cannot be fitted to no measurements.")
    weights = np.ones(measured.size) if errors is None else 1 / np.asarray(errors, dtype=np.float64)
    relative = features * (weights / measured)[:, None]
    # Columns differ by ten orders of magnitude; scaled ones keep the solver's tolerance meaningful.
    scale = np.maximum(np.abs(relative).max(axis=0), np.finfo(np.float64).tiny)
    solution, _ = nnls(relative / scale, weights)
    return [float(constant) for constant in solution / scale]


def relative_error(predicted: ArrayLike, measured: ArrayLike) -> NDArray[np.float64]:
    """|predicted − measured| / measured, element by element."""
    measured = np.asarray(measured, dtype=np.float64)
    return np.abs(np.asarray(predicted, dtype=np.float64) - measured) / measured


def _features(path: CriticalPath) -> NDArray[np.float64]:
    return np.stack([np.ones_like(path.k_extent), path.k_extent, path.tiles, path.partials], axis=-1)


Size = TypeVar("Size", int, NDArray[np.int64])  # one size, or an array of them, each answered for itself


def largest_power_of_two(size: Size) -> Size:
    """The largest power of two that divides a size of at least 1: 1 for odd sizes, 8 for 1000, 1024 for 1024."""
    return size & -size


def round_up(size: Size, multiple: int) -> Size:
    """The smallest multiple that is not less than the size."""
    return -(-size // multiple) * multiple


def nearest_with(divisor: int, size: int) -> int:
    """The size nearest to `size` whose largest power of two is exactly `divisor`; of two as near the smaller one."""
    below = (size // divisor - 1) // 2 * 2 + 1
    candidates = [odd * divisor for odd in (below, below + 2) if odd >= 1]
    return min(candidates, key=lambda candidate: (abs(candidate - size), candidate))


def elements_in(line_bytes: int, element_bytes: int) -> int:
    """How many elements fill a line of memory: a row of a multiple of them ends where a line does."""
    return max(1, line_bytes // element_bytes)
