"""Fits the laws of matrix products to published tables, one a library: the menu's coefficients, then a coarse grid.

The error and the band that are stored with a fit are those of the same fit in five folds, whole sites (n, k) left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.planner.calibrate import error_percent, folds, site_numbers, summary
from pyperf_suite.planner.laws.calibration import LIBRARIES, POOLED, CalibrationBlock, ResidualGrid
from pyperf_suite.planner.laws.gemm import SIMILAR_GPU, MenuCoefficients, Rates, menu_seconds
from tools.fit import fitting
from tools.fit.fitting import Blocks, fit_band
from tools.fit.published import read_columns, tables_like

Floats = NDArray[np.float64]
# Noises: variances, relative to the likeness, of the part that columns share, and of the true column's own part.
Noises = tuple[float, float]

ORIGIN = "ai-dynamo/aiconfigurator 095f58a5 (Apache-2.0, NVIDIA)"
# The newest re-measurement of each library, and the older one on the A100. vLLM's had weights that were never set,
# which draw less power and run faster; its column of a second a point is a sustained figure, not a burst.
TRUTHS = {
    "trtllm": ("trtllm_1.3.0rc20", "trtllm_1.0.0"),
    "sglang": ("sglang_0.5.14", "sglang_0.5.10"),
    "vllm": ("vllm_0.24.0", "vllm_0.14.0"),
}
UNSET_WEIGHTS = "vllm"


@dataclass(frozen=True)
class GemmTable:
    """The products of one dtype and library on one GPU: sizes, and the seconds of the column held for true.

    `other_columns_s` has a column for each other re-measurement: their levels are those of other versions and
    libraries, but they repeat what a product has of its own.
    """

    gpu: GpuSpec
    dtype: str
    truth: str
    m: Floats
    n: Floats
    k: Floats
    seconds: Floats
    other_columns_s: Floats

    @property
    def library(self) -> str:
        return self.truth.split("_")[0]

    @property
    def sites(self) -> NDArray[np.intp]:
        return site_numbers(self.n, self.k)

    @property
    def origin(self) -> str:
        """The table and the columns taken from it."""
        others_s = ", steadied by its other columns" if self.other_columns_s.shape[1] else ""
        unset = " (weights not initialised)" if self.library == UNSET_WEIGHTS and self.dtype == "bf16" else ""
        return f"{ORIGIN}, {self.dtype} on {self.gpu.name}, {self.truth}{unset}{others_s}"

    def rows(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> GemmTable:
        return GemmTable(
            *(self.gpu, self.dtype, self.truth),
            *(column[chosen] for column in (self.m, self.n, self.k, self.seconds, self.other_columns_s)),
        )


def gemm_tables(folder: Path) -> list[GemmTable]:
    """The tables of every library in a folder, by dtype and GPU. Raises UserError for one of an unknown GPU."""
    return [
        table
        for dtype in ("bf16", "fp8")
        for gpu, name in tables_like(folder, f"gemm_{dtype}_").items()
        for table in read_gemm_tables(folder, name, dtype, find_gpu(gpu))
    ]


def read_gemm_tables(folder: Path, name: str, dtype: str, gpu: GpuSpec) -> list[GemmTable]:
    """One table a library; rows without tokens (the H100's has some) and without its column are left out."""
    columns = read_columns(folder, name)
    times = [column for column in columns if column not in ("m", "n", "k")]
    m, n, k = (columns[size].astype(np.float64) for size in "mnk")
    tables = []
    for library in LIBRARIES:
        truth = next((column for column in TRUTHS[library] if column in columns), None)
        if truth is not None:
            seconds, *others = (columns[each].astype(np.float64) * 1e-6 for each in sorted(times, key=truth.__ne__))
            others_s = np.stack(others, axis=1) if others else np.empty((m.size, 0))
            table = GemmTable(gpu, dtype, truth, m, n, k, seconds, others_s)
            tables.append(table.rows((m >= 1) & np.isfinite(seconds)))
    return tables


# Rows of a table, drawn at random, that fix the few coefficients as well as all of them.
ROWS = 3000
ROWS_POOLED = 1000
HOLD, EVALUATIONS = 0.3, 60

START = MenuCoefficients(
    tile_rates=np.array([0.4, 0.5, 0.5, 0.6, 0.55, 0.55, 0.65, 0.65, 0.7, 0.7]),
    launch_s=2e-6,
    prologue_clocks=1000.0,
    wave_smoothing=0.5,
    overlap=3.0,
    memory_share=0.85,
    l2_share=0.3,
    resident_share=0.2,
    resident_steepness=4.0,
    split_s=2e-6,
    split_traffic=0.5,
)
# Knots of a band along m: one for each m of the tables, of which one is another kernel's than the next.
KNOTS = 75


def fit_gemm(tables_folder: Path) -> Blocks:
    """The blocks gemm_bf16.LIBRARY and gemm_fp8.LIBRARY of each GPU with a table, and of `POOLED` for all without.

    Raises UserError where the folder has no such table.
    """
    tables = gemm_tables(tables_folder)
    if not tables:
        raise UserError(f"{tables_folder} has no gemm_*.parquet: name the folder of the published tables.")
    blocks: Blocks = {}
    for table in tables:
        blocks.setdefault(table.gpu.name, {})[f"gemm_{table.dtype}.{table.library}"] = fit_block(table)
    for dtype, library in dict.fromkeys((table.dtype, table.library) for table in tables):
        similar = [table for table in tables if (table.dtype, table.library) == (dtype, library)]
        if len(similar) > 1:
            name = f"gemm_{dtype}.{library}"
            pooled = pooled_block(similar, {gpu: known.get(name) for gpu, known in blocks.items()})
            blocks.setdefault(POOLED, {})[name] = pooled
    return blocks


def fit_block(table: GemmTable) -> CalibrationBlock:
    """The law of one table, with its error and its band on sites left out in five folds."""
    coefficients = fit_coefficients([table])
    noises, missed = left_out(table, coefficients)
    residual = library_residual(table, predict(table, coefficients), noises)
    arrays = {**coefficients.as_arrays(), **residual.as_arrays(), **fit_band(missed, table.m, KNOTS).as_arrays()}
    held_out = summary(
        np.exp(-missed), np.ones_like(missed), np.unique(table.sites).size, "5-fold, whole sites (n, k) held out"
    ).to_json()
    # Errors that lie in the band of other sites' errors.
    inside = np.zeros(missed.size, dtype=bool)
    for out in folds(table.sites, seed=fitting.SEED + 1):
        low, high = fit_band(missed[~out], table.m[~out], KNOTS).around(1.0, table.m[out])
        inside[out] = (np.log(low) <= missed[out]) & (missed[out] <= np.log(high))
    held_out["coverage"] = round(100 * float(inside.mean()), 1)
    return CalibrationBlock(arrays, held_out, _range([table]), table.origin)


def pooled_block(tables: Sequence[GemmTable], blocks: Mapping[str, CalibrationBlock | None]) -> CalibrationBlock:
    """One law for several GPUs by their data sheets, with the error on each when it was fitted to the others.

    Its band is that of a GPU whose architecture was left out; `alike_` names that of a GPU that has the law of another
    of its architecture, of those in `blocks`.
    """
    # Errors and m of rows by laws of the same architecture (True) and of others.
    missed: dict[bool, list[tuple[Floats, Floats]]] = {True: [], False: []}
    parts = []
    for table in tables:
        others = [other for other in tables if other.gpu.architecture != table.gpu.architecture]
        predicted = {False: predict(table, fit_coefficients(others))}
        for other in tables:
            block = blocks.get(other.gpu.name)
            if other.gpu != table.gpu and other.gpu.architecture == table.gpu.architecture and block is not None:
                law = MenuCoefficients.from_arrays(block.arrays), ResidualGrid.from_arrays(block.arrays)
                predicted[True] = predict(table, *law)
        for similar, seconds in predicted.items():
            missed[similar].append((np.log(table.seconds / seconds), table.m))
            of = "its architecture" if similar else "other architectures"
            parts.append(f"{table.gpu.name} by {of} {error_percent(seconds, table.seconds).mean():.1f} %")
    (errors, m), (errors_similar, m_similar) = (
        np.concatenate(missed[similar] or [np.zeros((2, 1))], axis=1) for similar in (False, True)
    )
    arrays = {**fit_coefficients(tables).as_arrays(), **fit_band(errors, m, KNOTS).as_arrays()}
    if missed[True]:
        band = fit_band(errors_similar, m_similar, KNOTS).as_arrays()
        arrays |= {f"{SIMILAR_GPU}{name}": values for name, values in band.items()}
    percent = error_percent(np.exp(-errors), 1.0)
    held_out: dict[str, float | int | str] = {
        "mape": round(float(percent.mean()), 3),
        "median": round(float(np.median(percent)), 3),
        f"{SIMILAR_GPU}mape": round(float(error_percent(np.exp(-errors_similar), 1.0).mean()), 3),
        "sites": len(tables),
        "how": f"whole GPUs left out: {', '.join(parts)}",
    }
    origin = f"{ORIGIN}, {tables[0].dtype} on {', '.join(table.gpu.name for table in tables)}, {tables[0].library}"
    return CalibrationBlock(arrays, held_out, _range(tables), origin)


def left_out(table: GemmTable, coefficients: MenuCoefficients) -> tuple[Noises, Floats]:
    """log(measured / predicted) of every row by the fit to the sites of other folds, and the noises it is least at.

    The 21 coefficients are those of all rows: so few know none of 25,000 rows by heart.
    """
    m, menu_s = np.unique(table.m), predict(table, coefficients)
    measured, column = np.log(table.seconds / menu_s), np.searchsorted(m, table.m)
    missed = {noises: measured.copy() for noises in product(NOISES, NOISES_OF_TRUTH)}
    for unseen in folds(table.sites):
        rest = table.rows(unseen)
        sites = np.unique(np.stack([rest.n, rest.k], axis=1), axis=0)
        at = [
            {noise: smooth.at(sites)[rest.sites, column[unseen]] for noise, smooth in by_noise.items()}
            for by_noise in _smoothed(table.rows(~unseen), menu_s[~unseen], NOISES, NOISES_OF_TRUTH)
        ]
        for noise, other in missed:
            missed[noise, other][unseen] -= at[0][noise] + at[1][other]
    best = min(missed, key=lambda noises: float(np.abs(missed[noises]).mean()))
    return best, missed[best]


def fit_coefficients(tables: Sequence[GemmTable]) -> MenuCoefficients:
    """The menu's coefficients with the least error in log seconds over all tables, each with as many rows.

    Far rows count less. Constants stay near where they start by HOLD, in log seconds per factor of e: what the rows
    cannot separate must not run away.
    """
    from scipy.optimize import least_squares

    rows = ROWS if len(tables) == 1 else ROWS_POOLED
    drawn = [table.rows(np.random.default_rng(fitting.SEED).permutation(table.m.size)[:rows]) for table in tables]

    # Numbers without bounds: logarithms; of the wave_smoothing its odds, of the overlap what exceeds 1.
    odds = START.wave_smoothing / (1 - START.wave_smoothing)
    free = replace(START, wave_smoothing=odds, overlap=START.overlap - 1).as_arrays()
    origin = np.log(np.concatenate([np.ravel(array) for array in free.values()]))

    def law_of(vector: Floats) -> MenuCoefficients:
        parts = np.split(np.exp(vector), np.cumsum([array.size for array in free.values()])[:-1])
        shaped = {name: part.reshape(array.shape) for part, (name, array) in zip(parts, free.items(), strict=True)}
        law = MenuCoefficients.from_arrays(shaped)
        return replace(law, wave_smoothing=law.wave_smoothing / (1 + law.wave_smoothing), overlap=law.overlap + 1)

    def residuals(vector: Floats) -> Floats:
        law = law_of(vector)
        missed = [np.log(predict(table, law) / table.seconds) for table in drawn]
        return np.concatenate([*missed, HOLD * (vector - origin)])

    found = least_squares(residuals, origin, loss="soft_l1", f_scale=fitting.USUAL_ERROR, max_nfev=EVALUATIONS)
    return law_of(found.x)


def predict(table: GemmTable, law: MenuCoefficients, residual: ResidualGrid | None = None) -> Floats:
    """Seconds of a table's products by the menu, times the library's factor where there is one."""
    seconds = menu_seconds(law, Rates.of(table.gpu, table.dtype), table.m, table.n, table.k)
    return seconds if residual is None else seconds * np.exp(residual(table.m, table.n, table.k))


def _range(tables: Sequence[GemmTable]) -> dict[str, tuple[float, float]]:
    sizes = {name: np.concatenate([getattr(table, name) for table in tables]) for name in "mnk"}
    return {name: (float(size.min()), float(size.max())) for name, size in sizes.items()}


# Constants of the smoothing are the same for all GPUs. Those of `LIBRARY_LIKENESS` were chosen for the least error on
# held-out sites of the five bf16 tables, on two splits; those of `TRUTH_LIKENESS` with the fp8 tables, on a third.
LIBRARY_LIKENESS = fitting.Likeness(
    same_n=(3.3, 0.09),
    same_k=(1.4, 2.3),
    near=(23.0, 0.95, 3.1),
    same_weights=(3.0, 6.2),
    m_length=2.1,
    m_its_own=0.48,
    similar=(
        *(
            fitting.SimilarProducts(variance, tile, "k", (1.2, 7.2), (0.1, 1.0))
            for variance, tile in ((6.6, (16, 128)), (9.0, (64, 64)), (2.5, (128, 256)), (4.0, (256, 128)))
        ),
        fitting.SimilarProducts(1.2, None, "m", (0.65, 3.2), (0.25, 1.0)),
    ),
)
# How noisy differs from table to table: the ones of these that predict left out sites best.
NOISES = (0.9, 3.0, 10.0, 30.0)
# The true column's own part is smoother than that course.
TRUTH_LIKENESS = fitting.Likeness(
    same_n=(2.0, 0.15),
    same_k=(1.7, 4.2),
    near=(23.0, 1.3, 3.4),
    same_weights=(3.2, 3.7),
    m_length=4.0,
    m_its_own=0.1,
    similar=(fitting.SimilarProducts(2.6, None, "k", (1.5, 3.0), (0.25, 1.0)),),
)
# On an L40S operands are found in L2 or not, by how many copies of them fill it: that doubles or halves the time.
IN_COPIES = {"L40S": fitting.SimilarProducts(40.0, None, "m", (0.06, 8.0), (0.02, 1.0))}
NOISES_OF_TRUTH = (1.5, 5.0, 15.0, 45.0)
# A column that departs from the first by more, in log seconds and apart from a factor for each m, is of other kernels.
SAME_KERNELS = 0.1


def library_residual(
    table: GemmTable, menu_s: Floats, noises: Noises = (NOISES[0], NOISES_OF_TRUTH[1])
) -> ResidualGrid:
    """The logarithm of measured over `menu_s`, the menu's seconds of each row, at every n and k that the table has.

    First the course that all columns of like kernels share, which knows most of the noise of single measurements from
    what repeats; then, smoother, how the one held for true departs from it. Raises ValueError for a single site.
    """
    m, n, k = (np.unique(size) for size in (table.m, table.n, table.k))
    nodes = np.array([(outputs, inputs) for outputs in n for inputs in k])
    shared, departs = _smoothed(table, menu_s, noises[:1], noises[1:])
    values = shared[noises[0]].at(nodes) + departs[noises[1]].at(nodes)
    return ResidualGrid((m, n, k), values.reshape(n.size, k.size, m.size).transpose(2, 0, 1))


def _smoothed(
    table: GemmTable, menu_s: Floats, noises: Sequence[float], noises_of_truth: Sequence[float]
) -> tuple[dict[float, fitting.SiteKriging], dict[float, fitting.SiteKriging]]:
    """The course that columns share beyond `menu_s`, and how the table's own departs from it, by noise."""
    m, sites = np.unique(table.m), np.unique(np.stack([table.n, table.k], axis=1), axis=0)
    menu, truth = (_by_site(table, sites, m, np.log(seconds)) for seconds in (menu_s, table.seconds))
    shared, departing = _shared(table, sites, m), TRUTH_LIKENESS
    if table.gpu.name in IN_COPIES:
        copies = replace(
            IN_COPIES[table.gpu.name], cycled=table.gpu.l2_bytes / Rates.of(table.gpu, table.dtype).operand_bytes
        )
        departing = replace(departing, similar=(*departing.similar, copies))
    return (
        {noise: fitting.SiteKriging.fit(sites, m, shared - menu, LIBRARY_LIKENESS, noise) for noise in noises},
        {noise: fitting.SiteKriging.fit(sites, m, truth - shared, departing, noise) for noise in noises_of_truth},
    )


def _shared(table: GemmTable, sites: Floats, m: Floats) -> Floats:
    """Log seconds [S, M] that columns agree on: the median of each, moved to the level of the first at each m."""
    course = _by_site(table, sites, m, np.log(table.seconds))
    columns = [course]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN")  # a column, and few sites, may lack an m
        for seconds in table.other_columns_s.T:
            column = _by_site(table, sites, m, np.log(seconds))
            moved = column - np.nanmedian(column - course, axis=0)
            if np.nanmedian(np.abs(moved - course)) <= SAME_KERNELS:
                columns.append(moved)
        return np.where(np.isfinite(course), np.nanmedian(columns, axis=0), np.nan)


def _by_site(table: GemmTable, sites: Floats, m: Floats, values: Floats) -> Floats:
    """One value a row of the table as a matrix of sites and m, NaN where there is no row."""
    matrix = np.full((len(sites), len(m)), np.nan)
    matrix[table.sites, np.searchsorted(m, table.m)] = values
    return matrix
