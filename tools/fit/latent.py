"""Fits the law of the prefill of latent attention to the published tables, library by library.

Errors and bands are those of whole sites (heads, length) left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.planner.calibrate import cross_predicted, folds, site_numbers
from pyperf_suite.planner.laws.calibration import COVERED, LIBRARIES, Band, CalibrationBlock, ResidualGrid
from pyperf_suite.planner.laws.latent_attention import GRIDS, LAW, SummedLaw, latent_sizes, latent_work, pack_law
from tools.fit.fitting import (
    Blocks,
    by_gpu,
    conjugate_gradients,
    fit_costs,
    huber_weights,
    limits_of,
    reading,
    roughness,
)
from tools.fit.published import Columns, read_columns, tables_like, versions

if TYPE_CHECKING:
    from scipy import sparse

Floats = NDArray[np.float64]
Sizes = Mapping[str, Floats]

ORIGIN = "latent prefill attention as published by ai-dynamo/aiconfigurator (095f58a5, Apache-2.0), {}"
SIZES = ("batch_size", "isl", "num_heads")
# Rows of a whole module, whose products have a law of their own, are left out, and those with a cache in fp8: only
# inference has one.
SCOPE, CACHE = "kernel", "bfloat16"
# Rows that nothing near agrees with are held to less and less (Huber's weights), in so many rounds; each ends when the
# residual of its system is this part of what was given, or after so many steps.
ROUNDS, STEPS, ENOUGH = 3, 400, 1e-4
# A cost is at least this part of one that would take all of the median row's time.
LEAST_COST = 1e-4
# How much stiffer grids may be where a table is noisy: as whole sites left out show.
STIFFNESS = (1.0, 5.0, 25.0)
KNOTS = 10


def octaves(low: int, high: int) -> Floats:
    """Powers of two."""
    return np.power(2.0, np.arange(low, high + 1))


NODES = {
    "streams": octaves(0, 17),
    "batch": octaves(0, 10),
    "length": octaves(0, 17),
    "heads": octaves(0, 7),
    "tokens": octaves(0, 18),
}


# What a squared step along each size of a grid costs over a row's squared residual, in the order of the law's grids.
SMOOTH = ((0.03, 0.03, 0.1), (0.03, 0.03), (0.03, 0.03))
# What memory is paid for its bytes: no less than its bandwidth says, and what takes longer waits for multiprocessors.
# So a law stays right on a GPU with the same ones and other memory.
LIMITS = {"cache": (1.0, 1.4), "bytes": (0.0, 2.0)}


@dataclass(frozen=True)
class Rows:
    """Measured rows of one law: counted work and sizes by name, seconds, and the site of each row."""

    work: Sizes
    sizes: Sizes
    seconds: Floats
    site: NDArray[np.intp]

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Rows:
        work, sizes = ({name: each[rows] for name, each in held.items()} for held in (self.work, self.sizes))
        return Rows(work, sizes, self.seconds[rows], self.site[rows])

    def predicted(self, law: SummedLaw) -> Floats:
        return law.explained(self.work, self.sizes)[0]


def fit_law(rows: Rows, stiffness: float = 1.0) -> SummedLaw:
    """Costs, and grids of what they miss, so much stiffer; the band is left to held-out errors."""
    limits = np.array([LIMITS.get(name, (0.0, np.inf)) for name in rows.work])
    costs = _costs(np.stack(list(rows.work.values()), axis=-1), rows.seconds, limits)
    counted = sum(cost * each for cost, each in zip(costs, rows.work.values(), strict=True))
    grids = fit_grids(np.log(rows.seconds / counted), rows.sizes, stiffness)
    return SummedLaw(costs, grids, Band(*np.zeros((3, 1))))


def fit_grids(values: Floats, sizes: Sizes, stiffness: float) -> tuple[ResidualGrid, ...]:
    """Grids whose sum reads `values` at the sizes."""
    from scipy import sparse

    axes = [tuple(NODES[name] for name in names) for names in GRIDS]
    shapes = [[axis.size for axis in on] for on in axes]
    reads = [reading(on, [sizes[name] for name in names]) for on, names in zip(axes, GRIDS, strict=True)]
    forms = [
        roughness(shape, [stiffness * step for step in steps]) for shape, steps in zip(shapes, SMOOTH, strict=True)
    ]
    nodes = _solved(sparse.hstack(reads).tocsr(), sparse.block_diag(forms).tocsr(), values)
    parts = np.split(nodes, np.cumsum([read.shape[1] for read in reads])[:-1])
    return tuple(ResidualGrid(on, part.reshape(shape)) for on, part, shape in zip(axes, parts, shapes, strict=True))


def _costs(work: Floats, seconds: Floats, limits: Floats) -> Floats:
    """Costs of counted work [rows, kinds], each between its `limits` [kinds, 2]; 0 of work that no row has."""
    from scipy.optimize import nnls

    there = work.any(axis=0)
    own = work[:, there]
    least = np.array([LEAST_COST * np.median(seconds[each > 0] / each[each > 0]) for each in own.T])
    least, most = np.maximum(least, limits[there, 0]), np.maximum(1.1 * least, limits[there, 1])
    start = np.clip(nnls(own / seconds[:, None], np.ones(seconds.size))[0], 1.01 * least, 0.99 * most)
    costs = np.zeros(work.shape[1])
    costs[there] = fit_costs(own, seconds, start, (least, most))
    return costs


def _solved(read: sparse.csr_matrix, form: sparse.csr_matrix, values: Floats) -> Floats:
    """Nodes with the least squared residuals and roughness: conjugate gradients, preconditioned by the diagonal."""
    from scipy import sparse

    weights, nodes = np.ones(values.size), np.zeros(read.shape[1])
    for _ in range(ROUNDS):
        system = (read.T @ sparse.diags(weights) @ read + form).tocsr()
        diagonal = system.diagonal()
        nodes = conjugate_gradients(
            lambda course, system=system: system @ course,
            lambda left, diagonal=diagonal: left / diagonal,
            read.T @ (weights * values),
            nodes,
            ENOUGH,
            STEPS,
        )
        weights = huber_weights(read @ nodes - values)
    return nodes


@dataclass(frozen=True)
class HeldOut:
    """How rows of sites left out were predicted: errors in %, and how many % lay in the band of other sites."""

    mape: float
    median: float
    coverage: float


def held_out(rows: Rows, knots: int, stiffness: float = 1.0) -> tuple[HeldOut, Band]:
    """The errors on whole sites left out, and the band of all of them."""

    def fit(seen: NDArray[np.intp]):  # type: ignore[no-untyped-def]
        law = fit_law(rows.take(seen), stiffness)
        return lambda unseen: rows.take(unseen).predicted(law)

    predicted = cross_predicted(fit, rows.site)
    missed = np.log(rows.seconds / predicted)
    # How far off in half widths of the band of other sites: few sites make it too narrow, so it is widened to cover.
    off = np.empty(missed.size)
    for out in folds(rows.site):
        low, high = np.log(Band.fit(missed[~out], predicted[~out], knots).around(predicted[out]) / predicted[out])
        off[out] = np.abs(2 * missed[out] - low - high) / (high - low)
    wider = _widening(off)
    inside = np.concatenate([off[out] <= _widening(off[~out]) for out in folds(rows.site)])
    band = Band.fit(missed, predicted, knots)
    middle, half = (band.low + band.high) / 2, wider * (band.high - band.low) / 2
    errors = 100 * np.abs(predicted / rows.seconds - 1)
    figures = HeldOut(float(errors.mean()), float(np.median(errors)), 100 * float(inside.mean()))
    return figures, Band(band.at, middle - half, middle + half)


def _widening(off: Floats) -> float:
    """How many half widths of a band cover as many rows as they should; not less than one."""
    return max(1.0, float(np.quantile(off, COVERED)))


def fit_block(rows: Rows, origin: str) -> CalibrationBlock:
    """The block of one library's law on one GPU."""
    tried = [(times, *held_out(rows, KNOTS, times)) for times in STIFFNESS]
    best, errors, band = min(tried, key=lambda each: each[1].mape)
    law = replace(fit_law(rows, best), band=band)
    arrays = pack_law(law) | {name: np.array([error]).round(2) for name, error in vars(errors).items()}
    how = {"rows": rows.seconds.size, "sites": np.unique(rows.site).size, "how": "5-fold, whole sites held out"}
    sizes = {"batch": rows.sizes["batch"], "heads": rows.sizes["heads"]}
    limits = limits_of(sizes | dict.fromkeys(("seq_q", "seq_k"), rows.sizes["length"]))
    return CalibrationBlock(arrays, vars(errors) | how, limits, origin)


def latent_rows(columns: Columns, spec: GpuSpec, library: str) -> tuple[Rows, str] | None:
    """A library's rows and the column of their times, the newest version's; None where it has none."""
    usable = (columns["scope"] == SCOPE) & (columns["kv_cache_dtype"] == CACHE)
    for times in versions(columns, library):
        there = usable & np.isfinite(columns[times])
        if there.any():
            batch, length, heads = (columns[name][there].astype(np.float64) for name in SIZES)
            work = latent_work(spec, batch, length, length, heads)
            sizes = latent_sizes(batch, length, length, heads)
            return Rows(work, sizes, columns[times][there] * 1e-6, site_numbers(heads, length)), times
    return None


def fit_latent(folder: Path) -> Blocks:
    """Blocks of latent attention by GPU and name. Raises UserError where the folder has no table of it."""

    def blocks() -> Iterator[tuple[str, str, CalibrationBlock]]:
        for gpu, table in tables_like(folder, f"{LAW}_").items():
            columns, spec = read_columns(folder, table), find_gpu(gpu)
            for library in LIBRARIES:
                if found := latent_rows(columns, spec, library):
                    rows, times = found
                    yield spec.name, f"{LAW}.{library}", fit_block(rows, ORIGIN.format(times.replace("_", " ")))

    return by_gpu(blocks(), folder, "table of latent attention")
