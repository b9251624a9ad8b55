"""Fitting the law of attention to the published tables: what is shipped comes out again, with the error it states."""

from __future__ import annotations

import numpy as np
import pytest

from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.planner.laws.attention import PLAIN, TableLaw, pack_tables, unpack_tables
from pyperf_suite.planner.laws.calibration import Band, CalibrationBlock, ResidualGrid, shipped_calibration
from tools.fit.attention import fit_block, fit_grid, held_band, read_tables

rng = np.random.default_rng(0)
SIZES = (2 ** rng.uniform(0, 7, 3000), 2 ** rng.uniform(0, 4, 3000))


@pytest.mark.slow
def test_the_tables_give_what_is_shipped_again(measured_tables):
    gpu, name = find_gpu("A100 SXM"), f"{PLAIN}.trtllm"
    shipped = shipped_calibration(gpu.name).block(name)
    rows, origin = read_tables(measured_tables, gpu.slug)[name]
    fitted = fit_block(rows, gpu, origin)
    assert fitted.held_out == pytest.approx(shipped.held_out)
    assert (fitted.fitted_range, fitted.origin) == (shipped.fitted_range, shipped.origin)
    for array, values in shipped.arrays.items():
        np.testing.assert_allclose(fitted.arrays[array], values, rtol=1e-3, atol=1.1 if array == "grid" else 1e-3)


def test_what_no_row_tells_of_follows_its_neighbours():
    seen = tuple(size[SIZES[0] < 16] for size in SIZES)
    grid = fit_grid(np.full(seen[0].size, 0.3), seen, (8, 5), smoothness=0.03)
    np.testing.assert_allclose(grid, 0.3, atol=0.02)


def test_a_function_straight_over_octaves_is_read_back_and_hardly_moved_by_a_few_wild_rows():
    truth = 0.1 * np.log2(SIZES[0]) - 0.05 * np.log2(SIZES[1])
    grid = fit_grid(truth, SIZES, (8, 5), smoothness=1e-6)
    np.testing.assert_allclose(ResidualGrid.octaves(grid)(*SIZES), truth, atol=1e-3)
    wild = truth + 3.0 * (np.arange(truth.size) % 50 == 0)
    grid = fit_grid(wild, SIZES, (8, 5), smoothness=0.03)
    assert np.abs(ResidualGrid.octaves(grid)(*SIZES) - truth).max() < 0.1
    with pytest.raises(ValueError, match="no rows"):
        fit_grid(np.zeros(0), (np.zeros(0),), (4,), 1.0)


def test_the_band_covers_nine_of_ten_rows_of_sites_that_it_did_not_see():
    sites, scatter = np.arange(3000) % 50, rng.normal(0, 0.05, 3000) + rng.normal(0, 0.05, 50)[np.arange(3000) % 50]
    band, inside = held_band(scatter, SIZES[0], sites)
    assert 0.87 < inside.mean() < 0.93
    low, high = np.log(band.around(1.0, SIZES[0]))
    assert 0.9 <= ((low < scatter) & (scatter < high)).mean() < 0.95


def test_packed_laws_come_back_within_a_step():
    grids = rng.normal(0, 0.3, (2, 3, 3, 3))
    bands = [Band(*(np.linspace(1.0, 2.0, knots) * sign for sign in (1, -1, 1))) for knots in (1, 3)]
    laws = {(64, i): TableLaw(np.array([1.0, i]), ResidualGrid.octaves(grids[i]), bands[i]) for i in range(2)}
    back = unpack_tables(CalibrationBlock(pack_tables(laws), {}))
    assert back.keys() == laws.keys()
    for kind, law in laws.items():
        np.testing.assert_allclose(back[kind].grid.values, law.grid.values, atol=0.006)
        np.testing.assert_allclose(back[kind].band.around(1.0, [1.0, 1.7]), law.band.around(1.0, [1.0, 1.7]))
        assert back[kind].costs.tolist() == law.costs.tolist()
