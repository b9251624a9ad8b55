"""Fits the law of matrix products to published tables: the menu's coefficients, then a coarse grid of what is left.

The error that is stored with a fit is that of the same fit to 70 % of the sites (n, k) on the other 30 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.advise.calibrate.cross_validation import site_numbers, summary
from pyperf_suite.errors import UserError
from pyperf_suite.laws.calibration import POOLED, Block, ResidualGrid
from pyperf_suite.laws.gemm import TILES, MenuCoefficients, Rates, menu_seconds
from tools.fit.gemm_residual import library_residual
from tools.fit.gemm_tables import ORIGIN, GemmTable, gemm_tables

Floats = NDArray[np.float64]

SEED = 0
HELD_OUT = 0.3
# Of a table's rows so many, drawn at random, fix the few coefficients as well as all of them.
ROWS = 3000
ROWS_POOLED = 1000
# Errors in log seconds beyond this count linearly.
USUAL_ERROR = 0.1
# How firmly coefficients stay near where they start, in log seconds per factor of e: what the rows do not tell apart
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


def fit_gemm(tables_folder: Path) -> dict[str, dict[str, Block]]:
    """The blocks gemm_bf16 and gemm_fp8 of each GPU with a table, by its name, and of `POOLED` for all without.

    Raises UserError where the folder has no such table.
    """
    tables = gemm_tables(tables_folder)
    if not tables:
        raise UserError(f"There is no gemm_*.parquet in {tables_folder}: name the folder of the published tables.")
    blocks: dict[str, dict[str, Block]] = {}
    for table in tables:
        blocks.setdefault(table.gpu.name, {})[f"gemm_{table.dtype}"] = fit_block(table)
    for dtype in dict.fromkeys(table.dtype for table in tables):
        alike = [table for table in tables if table.dtype == dtype]
        if len(alike) > 1:
            blocks.setdefault(POOLED, {})[f"gemm_{dtype}"] = pooled_block(alike)
    return blocks


def fit_block(table: GemmTable) -> Block:
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
    return Block({**coefficients.as_arrays(), **residual.as_arrays()}, errors.to_json(), _range([table]), table.origin)


def pooled_block(tables: Sequence[GemmTable]) -> Block:
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
    return Block(fit_coefficients(tables).as_arrays(), held_out, _range(tables), origin)


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
