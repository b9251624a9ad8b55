"""What a GPU's library makes of the menu's time by its table: smoothed, and told at each n, k and m of the table."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.advise.calibrate.cross_validation import folds, site_numbers
from pyperf_suite.laws.calibration import ResidualGrid
from tools.fit.gemm_tables import GemmTable
from tools.fit.site_kriging import Alike, Likeness, SiteKriging

Floats = NDArray[np.float64]

# Constants of the smoothing are the same for all GPUs. Those of `LIBRARY` were chosen for the least error on held-out
# sites of the five bf16 tables together, on two splits; those of `TRUTH` with the fp8 tables beside, on a third.
LIBRARY = Likeness(
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
# one of these that tells left out sites of the fit best.
TRUTH = Likeness(
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
    values = SiteKriging.fit(sites, m, shared - menu, LIBRARY, NOISE).at(nodes)
    departs = truth - shared
    if np.nanmax(np.abs(departs)) > 0:
        noise = min(NOISES_OF_TRUTH, key=lambda each: _left_out_error(sites, m, departs, each))
        values = values + SiteKriging.fit(sites, m, departs, TRUTH, noise).at(nodes)
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
        told = SiteKriging.fit(sites[~unseen], m, residual[~unseen], TRUTH, noise).at(sites[unseen])
        missed[unseen] = np.abs(told - residual[unseen])
    return float(np.nanmean(missed))


def _by_site(table: GemmTable, sites: Floats, m: Floats, values: Floats) -> Floats:
    """One value a row of the table as a matrix of sites and m, NaN where there is no row."""
    matrix = np.full((len(sites), len(m)), np.nan)
    matrix[site_numbers(table.n, table.k), np.searchsorted(m, table.m)] = values
    return matrix
