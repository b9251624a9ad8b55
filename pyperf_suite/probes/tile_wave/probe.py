"""Tile and wave quantization: what one element more costs at the edges of tiles and of waves.

Sweeps cross every edge by construction (k·tile − 1, k·tile, k·tile + 1); the wave law is fitted on part of the cases
and judged on the rest, and the library's own staircase on the same shapes stands beside.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.matmul.tiling import Schedule, Tile
from pyperf_suite.operators.matmul import MatmulParameters
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.tile_wave.findings import explain
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings
from pyperf_suite.spec.rows import readings


@dataclass(frozen=True)
class TileWaveAxes:
    """What the probe varies.

    `schedule` is written without its workers, which are an axis of their own; `across` is how many tiles the dimension
    holds that is not varied; `waves` is how many are crossed.
    """

    implementation: tuple[str, ...]
    library: tuple[str, ...]
    tile: tuple[Tile, ...]
    schedule: tuple[str, ...]
    workers: tuple[int, ...]
    k: tuple[int, ...]
    dtype: tuple[str, ...]
    layout: tuple[str, ...]
    along: tuple[str, ...]
    across: tuple[int, ...]
    waves: tuple[int, ...]
    offset: tuple[int, ...]
    mode: tuple[str, ...] = ("burst",)

    def __post_init__(self) -> None:
        """Raise UserError for a direction there is not, or for counts that no sweep can have."""
        unknown = set(self.along) - {"m", "n"}
        if unknown:
            raise UserError(f"along={', '.join(sorted(unknown))} was asked for, but a sweep goes along m or n.")
        for name, most in (("workers", MOST_WORKERS), ("across", MOST_TILES), ("waves", MOST_WAVES)):
            for value in getattr(self, name):
                if not 1 <= value <= most:
                    raise UserError(f"{name}={value} was asked for, but {name} lies between 1 and {most}.")


SCHEDULES = ("data_parallel", "persistent", "split_k(2)", "stream_k")

# Up to here every tile count is visited; beyond, only those beside a wave edge.
EVERY_TILE_COUNT = 16

# Beyond these a sweep is not a measurement any more but a mistake in typing.
MOST_WORKERS = 100_000
MOST_TILES = 10_000
MOST_WAVES = 1_000

# Elements of 2 bytes that TMA needs between one row length and the next: one element more would be another kernel's.
TMA_STEP = 8

# So many rows of tiles share what they read in L2.
MOST_ROWS_ACROSS = 16


class TileWave(Probe):
    """One row (or column) of tiles that grows through several waves."""

    name = "tile_wave"
    question = "Where are this machine's tile and wave cliffs, what do they cost, and does the wave law explain them?"

    def axes(self, profile: str, device: Device) -> TileWaveAxes:
        """One tile along N in the quick profile; several tiles, dtypes and both directions in the others."""
        return _cuda_axes(profile, device) if device.kind == "cuda" else _cpu_axes(profile)

    def sweep(self, axes: TileWaveAxes) -> list[Case]:
        """Every tile, schedule and direction; the library runs the same shapes once, whatever our schedule."""
        cases: dict[str, Case] = {}
        for product in _products(axes):
            for schedule in axes.schedule:
                parameters = product.parameters(Schedule.parse(f"{schedule}@{product.workers}"), product.tile)
                _add(cases, parameters, axes.implementation, axes.mode)
            _add(cases, product.parameters(Schedule("library", product.workers), None), axes.library, axes.mode)
        return list(cases.values())

    def findings(self, records: Sequence[Record]) -> Findings:
        """A sentence for every sweep, the law with its held-out error, and a picture of both."""
        return explain(readings(records))

    def group(self, case: Case) -> str:
        """One table a sweep."""
        tile = case.parameters.tile
        return f"tile_wave {case.implementation} {case.parameters.schedule}" + (f" {tile}" if tile else "")


def _cpu_axes(profile: str) -> TileWaveAxes:
    """One row of tiles: with as few workers as a CPU has, its few tiles are many waves."""
    cores = cpu.detect().usable_cores
    quick = TileWaveAxes(
        implementation=("native",),
        library=("torch",),
        tile=(Tile(128, 128, 256),),
        schedule=SCHEDULES,
        workers=(cores,),
        k=(1024,),
        dtype=("float32",),
        layout=("NN",),
        along=("n",),
        across=(1,),
        waves=(3,),
        offset=(-64, -1, 0, 1),
    )
    if profile == "quick":
        return quick
    standard = replace(quick, tile=(Tile(64, 128, 256), *quick.tile), along=("n", "m"), offset=(-1, 0, 1))
    if profile == "standard":
        return standard
    return replace(standard, tile=(*standard.tile, Tile(192, 256, 256)), dtype=("float32", "bfloat16"))


def _cuda_axes(profile: str, device: Device) -> TileWaveAxes:
    """As many rows of tiles as divide the multiprocessors, so that columns of tiles meet the edges of waves.

    A single row would read its operands at the speed of memory and show that instead.
    """
    gpu = gpus()[device.index]
    multiprocessors = gpu.multiprocessors
    across = max(rows for rows in range(1, MOST_ROWS_ACROSS + 1) if multiprocessors % rows == 0)
    hopper = gpu.compute_capability == (9, 0)
    own = "cuda_sm90" if hopper else "cuda_sm80"
    quick = TileWaveAxes(
        implementation=(own,),
        library=("cublas",),
        tile=(Tile(128, 128, 64 if hopper else 32),),
        schedule=("data_parallel", "stream_k"),
        workers=(multiprocessors,),
        k=(2048,),
        dtype=("bfloat16",),
        layout=("TN",),
        along=("n",),
        across=(across,),
        waves=(2,),
        offset=(0, TMA_STEP),
    )
    if profile == "quick":
        return quick
    standard = replace(
        quick,
        implementation=(own, "triton"),
        schedule=SCHEDULES,
        k=(4096,),
        waves=(3,),
        offset=(-TMA_STEP, 0, TMA_STEP),
    )
    if profile == "standard":
        return standard
    # Fewer workers than multiprocessors, as if a collective held the others.
    fewer = max(1, multiprocessors - 16)
    return replace(
        standard,
        tile=(*quick.tile, Tile(128, 256, 64 if hopper else 32)),
        workers=(multiprocessors, fewer),
        along=("n", "m"),
        dtype=("bfloat16", "float16"),
    )


@dataclass(frozen=True)
class _Product:
    m: int
    n: int
    k: int
    dtype: str
    layout: str
    tile: Tile
    workers: int

    def parameters(self, schedule: Schedule, tile: Tile | None) -> MatmulParameters:
        return MatmulParameters(self.m, self.n, self.k, schedule, tile=tile, dtype=self.dtype, layout=self.layout)


def _products(axes: TileWaveAxes) -> list[_Product]:
    products = []
    for tile, workers, along, across in itertools.product(axes.tile, axes.workers, axes.along, axes.across):
        other = "m" if along == "n" else "n"
        for size in _sizes_across_edges(getattr(tile, along), across, workers, max(axes.waves), axes.offset):
            shape = {along: size, other: across * getattr(tile, other)}
            products += [
                _Product(**shape, k=k, dtype=dtype, layout=layout, tile=tile, workers=workers)
                for k, dtype, layout in itertools.product(axes.k, axes.dtype, axes.layout)
            ]
    return products


def _sizes_across_edges(width: int, across: int, workers: int, waves: int, offsets: Sequence[int]) -> list[int]:
    """Sizes at the offsets from each edge, from the first tile to the last of the last wave.

    One tile more in this dimension is `across` tiles more in all.
    """
    last = waves * workers // across
    if last <= EVERY_TILE_COUNT:
        counts = set(range(1, last + 1))
    else:
        edges = (workers * wave // across for wave in range(waves + 1))
        counts = {edge + beside for edge in edges for beside in (-1, 0, 1) if 1 <= edge + beside <= last}
    return sorted({size for count in counts for offset in offsets if (size := count * width + offset) >= 1})


def _add(
    cases: dict[str, Case], parameters: MatmulParameters, implementations: Sequence[str], modes: Sequence[str]
) -> None:
    for implementation, mode in itertools.product(implementations, modes):
        case = Case("matmul", parameters, implementation, mode=mode)
        cases.setdefault(case.case_id, case)
