"""Grids over powers of two: they read what they were fitted to, keep still beyond it, and shrug off outliers."""

from __future__ import annotations

import numpy as np
import pytest

from pyperf_suite.laws.calibration import ResidualGrid
from tools.fit.attention import fit_grid

rng = np.random.default_rng(0)
SIZES = (2 ** rng.uniform(0, 7, 3000), 2 ** rng.uniform(0, 4, 3000))


def smooth(sizes):
    return 0.1 * np.log2(sizes[0]) - 0.05 * np.log2(sizes[1])


def test_a_function_straight_over_octaves_is_read_back_between_them():
    grid = fit_grid(smooth(SIZES), SIZES, (8, 5), smoothness=1e-6)
    np.testing.assert_allclose(ResidualGrid.octaves(grid)(*SIZES), smooth(SIZES), atol=1e-3)


def test_beyond_its_edge_a_grid_stays_at_its_edge():
    grid = rng.normal(size=(8, 5))
    far, edge = (np.array([2.0**20]), np.array([2.0**30])), (np.array([128.0]), np.array([16.0]))
    assert ResidualGrid.octaves(grid)(*far) == ResidualGrid.octaves(grid)(*edge) == grid[-1, -1]


def test_what_no_row_tells_of_follows_its_neighbours():
    seen = tuple(size[SIZES[0] < 16] for size in SIZES)
    grid = fit_grid(np.full(seen[0].size, 0.3), seen, (8, 5), smoothness=0.03)
    np.testing.assert_allclose(grid, 0.3, atol=0.02)


def test_a_few_wild_rows_hardly_move_the_grid():
    values = smooth(SIZES)
    values[::50] += 3.0
    grid = fit_grid(values, SIZES, (8, 5), smoothness=0.03)
    assert np.abs(ResidualGrid.octaves(grid)(*SIZES) - smooth(SIZES)).max() < 0.1


def test_no_rows_make_no_grid():
    with pytest.raises(ValueError, match="no rows"):
        fit_grid(np.zeros(0), (np.zeros(0),), (4,), 1.0)
