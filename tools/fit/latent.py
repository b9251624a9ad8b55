"""Fits the law of the prefill of latent attention to the published tables, library by library.

Errors and bands are those of whole sites (heads, length) left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.planner.calibrate import cross_predicted, folds, site_numbers
from pyperf_suite.planner.laws import latent_attention as latent
from pyperf_suite.planner.laws.calibration import COVERED, LIBRARIES, Band, CalibrationBlock, ResidualGrid
from pyperf_suite.planner.laws.latent_attention import GRIDS, LAW, SummedLaw
from tools.fit import fitting
from tools.fit.fitting import Blocks
from tools.fit.published import Columns, read_columns, tables_like, versions

if TYPE_CHECKING:
    from scipy import sparse

Floats = NDArray[np.float64]
Sizes = Mapping[str, Floats]

ORIGIN = "latent prefill attention as published by ai-dynamo/aiconfigurator (095f58a5, Apache-2.0), {}"
# What a row's kind is made of, and its sizes.
KIND, SIZES = ("scope", "gemm_type", "kv_cache_dtype"), ("batch_size", "isl", "num_heads")
# Rows with a cache in fp8 are left out: only inference has one.
CACHE = "bfloat16"
# Rows that nothing near agrees with are held to less and less (Huber's weights), in so many rounds; each ends when the
# residual of its system is this part of what was given, or after so many steps.
ROUNDS, STEPS, ENOUGH = 3, 400, 1e-4
# A cost is at least this part of one that would take all of the median row's time.
LEAST_COST = 1e-4
# How much stiffer grids may be where a table is noisy: as whole sites left out show.
STIFFNESS = (1.0, 5.0, 25.0)
# Knots of a band of the only law of a block, and where several laws share it.
KNOTS, SHARED_KNOTS = 10, 3


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
LIMITS = {"cache": (1.0, 1.4), "bytes": (0.0, 2.0), "weights": (1.0, 1.6), "activations": (0.0, 3.0)}


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
    reads = [fitting.reading(on, [sizes[name] for name in names]) for on, names in zip(axes, GRIDS, strict=True)]
    forms = [
        fitting.roughness(shape, [stiffness * step for step in steps])
        for shape, steps in zip(shapes, SMOOTH, strict=True)
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
    costs[there] = fitting.fit_costs(own, seconds, start, (least, most))
    return costs


def _solved(read: sparse.csr_matrix, form: sparse.csr_matrix, values: Floats) -> Floats:
    """Nodes with the least squared residuals and roughness: conjugate gradients, preconditioned by the diagonal."""
    from scipy import sparse

    weights, nodes = np.ones(values.size), np.zeros(read.shape[1])
    for _ in range(ROUNDS):
        system = (read.T @ sparse.diags(weights) @ read + form).tocsr()
        diagonal = system.diagonal()
        nodes = fitting.conjugate_gradients(
            lambda course, system=system: system @ course,
            lambda left, diagonal=diagonal: left / diagonal,
            read.T @ (weights * values),
            nodes,
            ENOUGH,
            STEPS,
        )
        weights = fitting.huber_weights(read @ nodes - values)
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


def fit_block(kinds: Mapping[str, Rows], limits: Mapping[str, Floats], origin: str) -> CalibrationBlock:
    """The block of one library's laws on one GPU, by kind; `limits` are the sizes that the range is stated of."""
    knots = KNOTS if len(kinds) == 1 else SHARED_KNOTS
    laws, errors = {}, {}
    for kind, rows in kinds.items():
        tried = [(times, *held_out(rows, knots, times)) for times in STIFFNESS]
        best, errors[kind], band = min(tried, key=lambda each: each[1].mape)
        law = fit_law(rows, best)
        laws[kind] = SummedLaw(law.costs, law.grids, band)
    counts = [rows.seconds.size for rows in kinds.values()]
    means = {
        name: float(np.average([getattr(each, name) for each in errors.values()], weights=counts))
        for name in ("mape", "median", "coverage")
    }
    by_kind = {name: np.array([getattr(each, name) for each in errors.values()]).round(2) for name in means}
    sites = sum(np.unique(rows.site).size for rows in kinds.values())
    how = {"rows": sum(counts), "sites": sites, "how": "5-fold, whole sites held out"}
    return CalibrationBlock(latent.pack_laws(laws) | by_kind, means | how, fitting.limits_of(limits), origin)


def latent_rows(columns: Columns, spec: GpuSpec, library: str) -> tuple[dict[str, Rows], Sizes, list[str]]:
    """The rows with a cache in bf16 by kind, of the newest version that has it; all their sizes; versions."""
    kinds: dict[str, Rows] = {}
    requested_of_all, used = [], []
    of_row = np.array(["|".join(map(str, row)) for row in zip(*(columns[name] for name in KIND), strict=True)])
    for each in np.unique(of_row):
        scope, gemm, cache = each.split("|")
        if cache != CACHE:
            continue
        gemm = latent.GEMM_NAMES.get(gemm, "")
        for times in versions(columns, library):
            there = (of_row == each) & np.isfinite(columns[times])
            if there.any():
                break
        else:
            continue
        batch, length, heads = (columns[name][there].astype(np.float64) for name in SIZES)
        requested = (batch, length, length, heads)
        kinds[latent.kind_of(scope, gemm)] = Rows(
            latent.latent_work(spec, gemm, *requested),
            latent.latent_sizes(*requested),
            columns[times][there] * 1e-6,
            site_numbers(heads, length),
        )
        requested_of_all.append(np.stack(requested))
        used.append(times)
    sizes = np.concatenate(requested_of_all, axis=1) if used else np.empty((4, 0))
    return kinds, dict(zip(("batch", "seq_q", "seq_k", "heads"), sizes, strict=True)), sorted(set(used))


def fit_latent(folder: Path) -> Blocks:
    """Blocks of latent attention by GPU and name. Raises UserError where the folder has no table of it."""

    def found() -> Iterator[tuple[str, str, CalibrationBlock]]:
        for gpu, table in tables_like(folder, f"{LAW}_").items():
            columns, spec = read_columns(folder, table), find_gpu(gpu)
            for library in LIBRARIES:
                kinds, requested, used = latent_rows(columns, spec, library)
                if kinds:
                    origin = ORIGIN.format(", ".join(used).replace("_", " "))
                    yield spec.name, f"{LAW}.{library}", fit_block(kinds, requested, origin)

    return fitting.by_gpu(found(), folder, "table of latent attention")
