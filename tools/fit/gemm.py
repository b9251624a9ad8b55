"""Fits the law of matrix products to published tables: the menu's coefficients, then a coarse grid of what is left.

The error that is stored with a fit is that of the same fit to 70 % of the sites (n, k) on the other 30 %.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.advise.calibrate_laws import folds, site_numbers, summary
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.calibration import POOLED, CalibrationBlock, ResidualGrid
from pyperf_suite.laws.gemm import TILES, MenuCoefficients, Rates, menu_seconds
from tools.fit.published import read_columns, tables_like
from tools.fit.site_kriging import Alike, Likeness, SiteKriging

Floats = NDArray[np.float64]

ORIGIN = "ai-dynamo/aiconfigurator 095f58a5 (Apache-2.0, NVIDIA)"
# Re-measurements with random weights, the quietest first: others had weights that were never set, which draw less
# power and run faster. The A100 has but one.
TRUTHS = ("trtllm_1.3.0rc20", "sglang_0.5.14")
TRUTHS_WITHOUT_THESE = ("sglang_0.5.10",)


@dataclass(frozen=True)
class GemmTable:
    """The products of one dtype on one GPU: sizes, and seconds of each column held for true, NaN where it has none.

    `columns_s` has a row for each product and a column for each of the `truths`; `seconds` is their median. `beside_s`
    has the columns that are not held for true: their levels are wrong, but they repeat what a product has of its own.
    """

    gpu: GpuSpec
    dtype: str
    truths: tuple[str, ...]
    m: NDArray[np.float64]
    n: NDArray[np.float64]
    k: NDArray[np.float64]
    columns_s: NDArray[np.float64]
    beside_s: NDArray[np.float64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Of each product the median of what is held for true."""
        return np.asarray(np.nanmedian(self.columns_s, axis=1))

    @property
    def origin(self) -> str:
        """The table and the columns taken from it."""
        beside = ", steadied by its other columns" if self.beside_s.shape[1] else ""
        return f"{ORIGIN}, {self.dtype} on {self.gpu.name}, {', '.join(self.truths)}{beside}"

    def rows(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> GemmTable:
        """The products chosen by mask or number."""
        return GemmTable(
            *(self.gpu, self.dtype, self.truths),
            *(column[chosen] for column in (self.m, self.n, self.k, self.columns_s, self.beside_s)),
        )


def gemm_tables(folder: Path) -> list[GemmTable]:
    """Every table of products in a folder, by name. Raises UserError for one of an unknown GPU."""
    return [
        read_gemm_table(folder, name, dtype, find_gpu(gpu.replace("_", " ")))
        for dtype in ("bf16", "fp8")
        for gpu, name in tables_like(folder, f"gemm_{dtype}_").items()
    ]


def read_gemm_table(folder: Path, name: str, dtype: str, gpu: GpuSpec) -> GemmTable:
    """One table; rows without tokens (the H100's has some) and without a column held for true are left out."""
    columns = read_columns(folder, name)
    truths = TRUTHS if all(name in columns for name in TRUTHS) else TRUTHS_WITHOUT_THESE
    beside = [name for name in columns if name not in ("m", "n", "k", *truths)]
    m, n, k, *times = (columns[name].astype(np.float64) for name in ("m", "n", "k", *truths, *beside))
    columns_s, beside_s = np.split(np.stack(times, axis=1) * 1e-6, [len(truths)], axis=1)
    table = GemmTable(gpu, dtype, truths, m, n, k, columns_s, beside_s)
    return table.rows((m >= 1) & np.isfinite(columns_s).any(axis=1))


SEED = 0
HELD_OUT = 0.3
# Of a table's rows so many, drawn at random, fix the few coefficients as well as all of them.
ROWS = 3000
ROWS_POOLED = 1000
# Errors in log seconds beyond this count linearly.
USUAL_ERROR = 0.1
# How firmly coefficients stay near where they start, in log seconds per factor of e: what the rows cannot separate
# must not run away.
HOLD = 0.3
EVALUATIONS = 60

START = MenuCoefficients(
    tile_rates=np.array([0.4, 0.5, 0.5, 0.6, 0.55, 0.55, 0.65, 0.65, 0.7, 0.7]),
    launch_s=2e-6,
    prologue_clocks=1000.0,
    softness=0.5,
    overlap=3.0,
    memory_share=0.85,
    l2_share=0.3,
    resident_share=0.2,
    resident_steepness=4.0,
    split_s=2e-6,
    split_traffic=0.5,
)
SCALARS = tuple(name for name in START.as_arrays() if name != "tile_rates")


def fit_gemm(tables_folder: Path) -> dict[str, dict[str, CalibrationBlock]]:
    """The blocks gemm_bf16 and gemm_fp8 of each GPU with a table, by its name, and of `POOLED` for all without.

    Raises UserError where the folder has no such table.
    """
    tables = gemm_tables(tables_folder)
    if not tables:
        raise UserError(f"There is no gemm_*.parquet in {tables_folder}: name the folder of the published tables.")
    blocks: dict[str, dict[str, CalibrationBlock]] = {}
    for table in tables:
        blocks.setdefault(table.gpu.name, {})[f"gemm_{table.dtype}"] = fit_block(table)
    for dtype in dict.fromkeys(table.dtype for table in tables):
        alike = [table for table in tables if table.dtype == dtype]
        if len(alike) > 1:
            blocks.setdefault(POOLED, {})[f"gemm_{dtype}"] = pooled_block(alike)
    return blocks


def fit_block(table: GemmTable) -> CalibrationBlock:
    """The law of one table, with its error on held-out sites."""
    unseen = held_out_rows(table)
    coefficients, residual = fit_law(table.rows(~unseen))
    errors = summary(
        predict(table.rows(unseen), coefficients, residual),
        table.rows(unseen).seconds,
        np.unique(site_numbers(table.n[unseen], table.k[unseen])).size,
        f"{HELD_OUT:.0%} of the sites (n, k) held out whole",
    )
    coefficients, residual = fit_law(table)
    return CalibrationBlock(
        {**coefficients.as_arrays(), **residual.as_arrays()}, errors.to_json(), _range([table]), table.origin
    )


def pooled_block(tables: Sequence[GemmTable]) -> CalibrationBlock:
    """One law for several GPUs by their data sheets, with the error on each when it was fitted to the others."""
    errors = {
        left_out.gpu.name: np.abs(
            predict(left_out, fit_coefficients([table for table in tables if table is not left_out])) / left_out.seconds
            - 1
        )
        * 100
        for left_out in tables
    }
    each = {name: round(float(error.mean()), 1) for name, error in errors.items()}
    held_out: dict[str, float | int | str] = {
        "mape": round(float(np.mean([error.mean() for error in errors.values()])), 3),
        "median": round(float(np.mean([np.median(error) for error in errors.values()])), 3),
        "sites": len(tables),
        "how": "whole GPUs left out: " + ", ".join(f"{name} {error} %" for name, error in each.items()),
    }
    origin = f"{ORIGIN}, {tables[0].dtype} on {', '.join(errors)}"
    return CalibrationBlock(fit_coefficients(tables).as_arrays(), held_out, _range(tables), origin)


def held_out_rows(table: GemmTable, share: float = HELD_OUT, seed: int = SEED) -> NDArray[np.bool_]:
    """A mask of the rows of sites drawn at random, all rows of a site together."""
    sites = site_numbers(table.n, table.k)
    drawn = np.random.default_rng(seed).permutation(np.unique(sites))
    return np.isin(sites, drawn[: round(share * drawn.size)])


def fit_law(table: GemmTable, start: MenuCoefficients = START) -> tuple[MenuCoefficients, ResidualGrid]:
    """Coefficients and residual of one table, the latter at every n and k that the table has anywhere."""
    coefficients = fit_coefficients([table], start)
    return coefficients, library_residual(table, predict(table, coefficients))


def fit_coefficients(tables: Sequence[GemmTable], start: MenuCoefficients = START) -> MenuCoefficients:
    """The menu's coefficients with the least error in log seconds over all tables, each with as many rows."""
    from scipy.optimize import least_squares

    rows = ROWS if len(tables) == 1 else ROWS_POOLED
    drawn = [table.rows(np.random.default_rng(SEED).permutation(table.m.size)[:rows]) for table in tables]
    seconds = [table.seconds for table in drawn]
    origin = _to_vector(start)

    def residuals(vector: Floats) -> Floats:
        law = _from_vector(vector)
        errors = [np.log(predict(table, law) / measured) for table, measured in zip(drawn, seconds, strict=True)]
        return np.concatenate([*errors, HOLD * (vector - origin)])

    solved = least_squares(residuals, origin, loss="soft_l1", f_scale=USUAL_ERROR, max_nfev=EVALUATIONS)
    return _from_vector(solved.x)


def predict(table: GemmTable, law: MenuCoefficients, residual: ResidualGrid | None = None) -> Floats:
    """Seconds of a table's products by the menu, times the library's factor where there is one."""
    seconds = menu_seconds(law, Rates.of(table.gpu, table.dtype), table.m, table.n, table.k)
    return seconds if residual is None else seconds * np.exp(residual(table.m, table.n, table.k))


def _to_vector(law: MenuCoefficients) -> Floats:
    """Numbers without bounds: logarithms; of the softness its odds, of the overlap what exceeds 1."""
    values: Mapping[str, Floats] = law.as_arrays()
    bounded = {"softness": law.softness / (1 - law.softness), "overlap": law.overlap - 1}
    return np.log(np.concatenate([[bounded.get(name, values[name]) for name in SCALARS], law.tile_rates]))


def _from_vector(vector: Floats) -> MenuCoefficients:
    scalars = dict(zip(SCALARS, np.exp(vector[: len(SCALARS)]).tolist(), strict=True))
    scalars["softness"] = scalars["softness"] / (1 + scalars["softness"])
    scalars["overlap"] += 1
    return MenuCoefficients(tile_rates=np.exp(vector[-len(TILES) :]), **scalars)


def _range(tables: Sequence[GemmTable]) -> dict[str, tuple[float, float]]:
    limits = {}
    for name in ("m", "n", "k"):
        sizes = [getattr(table, name) for table in tables]
        limits[name] = (float(min(size.min() for size in sizes)), float(max(size.max() for size in sizes)))
    return limits


# Constants of the smoothing are the same for all GPUs. Those of `LIBRARY_LIKENESS` were chosen for the least error on
# held-out sites of the five bf16 tables, on two splits; those of `TRUTH_LIKENESS` with the fp8 tables, on a third.
LIBRARY_LIKENESS = Likeness(
    same_n=(3.3, 0.09),
    same_k=(1.4, 2.3),
    near=(23.0, 0.95, 3.1),
    same_weights=(3.0, 6.2),
    m_length=2.1,
    m_its_own=0.48,
    alike=(
        *(
            Alike(variance, tile, "k", (1.2, 7.2), (0.1, 1.0))
            for variance, tile in ((6.6, (16, 128)), (9.0, (64, 64)), (2.5, (128, 256)), (4.0, (256, 128)))
        ),
        Alike(1.2, None, "m", (0.65, 3.2), (0.25, 1.0)),
    ),
)
NOISE = 0.9
# What the columns held for true depart from that course is smoother, and how noisy differs from table to table: the
# one of these that predicts left out sites of the fit best.
TRUTH_LIKENESS = Likeness(
    same_n=(2.0, 0.15),
    same_k=(1.7, 4.2),
    near=(23.0, 1.3, 3.4),
    same_weights=(3.2, 3.7),
    m_length=4.0,
    m_its_own=0.1,
    alike=(Alike(2.6, None, "k", (1.5, 3.0), (0.25, 1.0)),),
)
NOISES_OF_TRUTH = (1.5, 5.0, 15.0, 45.0)
INNER_FOLDS = 4
# A column that departs from the first by more, in log seconds and beside a factor for each m, is of other kernels.
SAME_KERNELS = 0.1


def library_residual(table: GemmTable, menu_s: Floats) -> ResidualGrid:
    """The logarithm of measured over `menu_s`, the menu's seconds of each row, at every n and k that the table has.

    First the course that all columns of like kernels share, which knows most of the noise of single measurements from
    what repeats; then, smoother, how those held for true depart from it. Raises ValueError for a single site.
    """
    m, n, k = (np.unique(size) for size in (table.m, table.n, table.k))
    sites = np.unique(np.stack([table.n, table.k], axis=1), axis=0)
    nodes = np.array([(outputs, inputs) for outputs in n for inputs in k])
    menu, truth = (_by_site(table, sites, m, np.log(seconds)) for seconds in (menu_s, table.seconds))
    shared = _shared(table, sites, m)
    values = SiteKriging.fit(sites, m, shared - menu, LIBRARY_LIKENESS, NOISE).at(nodes)
    departs = truth - shared
    if np.nanmax(np.abs(departs)) > 0:
        noise = min(NOISES_OF_TRUTH, key=lambda each: _left_out_error(sites, m, departs, each))
        values = values + SiteKriging.fit(sites, m, departs, TRUTH_LIKENESS, noise).at(nodes)
    return ResidualGrid((m, n, k), values.reshape(n.size, k.size, m.size).transpose(2, 0, 1))


def _shared(table: GemmTable, sites: Floats, m: Floats) -> Floats:
    """Log seconds [S, M] that columns agree on: the median of each, moved to the level of the first at each m."""
    first = np.where(np.isfinite(table.columns_s[:, 0]), table.columns_s[:, 0], table.seconds)
    course = _by_site(table, sites, m, np.log(first))
    columns = [course]
    for seconds in table.beside_s.T:
        column = _by_site(table, sites, m, np.log(seconds))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN")  # a column may lack an m
            moved = column - np.nanmedian(column - course, axis=0)
            if np.nanmedian(np.abs(moved - course)) <= SAME_KERNELS:
                columns.append(moved)
    return np.where(np.isfinite(course), _median(columns), np.nan)


def _median(columns: list[Floats]) -> Floats:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN")  # few sites lack a few m
        return np.asarray(np.nanmedian(columns, axis=0))


def _left_out_error(sites: Floats, m: Floats, residual: Floats, noise: float) -> float:
    """The mean of what is missed at sites that were left out, within the sites that the fit may see."""
    missed = np.empty_like(residual)
    for unseen in folds(np.arange(len(sites)), INNER_FOLDS):
        predicted = SiteKriging.fit(sites[~unseen], m, residual[~unseen], TRUTH_LIKENESS, noise).at(sites[unseen])
        missed[unseen] = np.abs(predicted - residual[unseen])
    return float(np.nanmean(missed))


def _by_site(table: GemmTable, sites: Floats, m: Floats, values: Floats) -> Floats:
    """One value a row of the table as a matrix of sites and m, NaN where there is no row."""
    matrix = np.full((len(sites), len(m)), np.nan)
    matrix[site_numbers(table.n, table.k), np.searchsorted(m, table.m)] = values
    return matrix
