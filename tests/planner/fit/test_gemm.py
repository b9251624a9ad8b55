"""The fit of products: sites held out whole, a smoothing that follows what is there, and the errors promised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.planner.laws.calibration import POOLED, Band, ResidualGrid, shipped_calibration
from pyperf_suite.planner.laws.gemm import Rates, gemm_law, menu_seconds
from tools.fit.fitting import SiteKriging
from tools.fit.gemm import (
    LIBRARY_LIKENESS,
    GemmTable,
    fit_block,
    library_residual,
    pooled_block,
    read_gemm_tables,
)

M = np.array([1.0, 16.0, 128.0, 129.0, 1024.0, 8192.0])
EDGES = 2.0 ** np.arange(6, 15)
SITES = np.array([(n, k) for n in EDGES for k in EDGES])


def made_up_table(seed: int = 0, noise: float = 0.0) -> GemmTable:
    """Measurements by the shipped law of the A100, with a smooth factor and noise on top."""
    gpu = find_gpu("A100")
    n, k = np.repeat(SITES, len(M), axis=0).T
    m = np.tile(M, len(SITES))
    truth = menu_seconds(gemm_law(gpu).coefficients, Rates.of(gpu, "bf16"), m, n, k)
    factor = 0.1 * np.sin(np.log2(n) / 2) + np.random.default_rng(seed).normal(0, noise, m.size)
    return GemmTable(gpu, "bf16", "trtllm_0", m, n, k, truth * np.exp(factor), np.empty((m.size, 0)))


@pytest.mark.slow
def test_a_block_states_its_error_on_left_out_sites_and_a_band_as_wide():
    block = fit_block(made_up_table(noise=0.05))
    assert 3 < block.held_out["mape"] < 9
    assert 82 <= block.held_out["coverage"] <= 95
    low, high = Band.from_arrays(block.arrays).around(np.ones(1), np.array([128.0]))
    assert 1.1 < high[0] / low[0] < 1.6


@pytest.mark.slow
def test_a_pooled_block_has_a_band_for_gpus_of_a_known_architecture_and_a_wider_one_for_others():
    law = shipped_calibration(POOLED).block("gemm_bf16.trtllm")
    similar = Band.from_arrays({name[6:]: values for name, values in law.arrays.items() if name.startswith("alike_")})
    other = Band.from_arrays(law.arrays)
    assert (np.mean(other.high - other.low)) > 2 * np.mean(similar.high - similar.low)
    assert "H200 SXM by its architecture" in law.held_out["how"]
    own = made_up_table()
    single = pooled_block([own, replace(own, gpu=find_gpu("L40S"))], {})
    assert not any(name.startswith("alike_") for name in single.arrays)


def test_kriging_follows_what_neighbouring_sites_share_and_not_one_outlier():
    residual = np.tile(0.05 * np.log2(SITES[:, :1] / 512), (1, len(M)))
    outlier = residual.copy()
    outlier[40] += 1.0
    at = np.array([[700.0, 3000.0]])
    clean, disturbed = (
        SiteKriging.fit(SITES, M, values, LIBRARY_LIKENESS, 0.5).at(at) for values in (residual, outlier)
    )
    np.testing.assert_allclose(clean, 0.05 * np.log2(700 / 512), atol=0.02)
    np.testing.assert_allclose(disturbed, clean, atol=0.05)
    lacking = np.full((len(SITES), len(M)), 0.2)
    lacking[3, 2] = np.nan
    np.testing.assert_allclose(SiteKriging.fit(SITES, M, lacking, LIBRARY_LIKENESS, 0.5).at(SITES), 0.2, atol=1e-9)


def test_other_columns_steady_the_fit_but_do_not_move_its_level():
    quiet, noisy = made_up_table(), made_up_table(noise=0.1)
    rng = np.random.default_rng(1)
    beside = 0.7 * quiet.seconds[:, None] * np.exp(rng.normal(0, 0.05, (quiet.m.size, 4)))
    steadied = replace(noisy, other_columns_s=beside)
    menu_s = menu_seconds(gemm_law("A100").coefficients, Rates.of(quiet.gpu, "bf16"), quiet.m, quiet.n, quiet.k)
    truth = np.log(quiet.seconds / menu_s)
    off = [library_residual(each, menu_s)(quiet.m, quiet.n, quiet.k) - truth for each in (noisy, steadied)]
    assert np.abs(off[1]).mean() < np.abs(off[0]).mean()
    assert abs(off[1].mean()) < 0.01
    other = quiet.seconds[:, None] * np.exp(rng.normal(0, 0.5, (quiet.m.size, 3)))  # of other kernels
    with_them, without = (library_residual(each, menu_s) for each in (replace(quiet, other_columns_s=other), quiet))
    np.testing.assert_array_equal(with_them.values, without.values)


def test_a_grid_says_at_its_nodes_what_it_was_given_and_between_them_goes_straight():
    values = np.random.default_rng(0).normal(size=(3, 2, 4)).transpose(2, 1, 0)
    grid = ResidualGrid((np.array([1.0, 2, 4, 8]), np.array([64.0, 128]), np.array([32.0, 64, 512])), values)
    assert grid(4, 64, 32) == pytest.approx(values[2, 0, 0])
    assert grid(np.sqrt(8), 64, 512) == pytest.approx((values[1, 0, 2] + values[2, 0, 2]) / 2)
    assert grid(1e6, 1, 1e6) == pytest.approx(values[3, 0, 2])
    read = ResidualGrid.from_arrays(grid.as_arrays())
    np.testing.assert_allclose(read.values, values, atol=np.abs(values).max() / 250)


def test_rows_without_tokens_or_measurement_are_left_out(measured_tables):
    tables = read_gemm_tables(measured_tables, "gemm_bf16_h100_sxm", "bf16", find_gpu("H100"))
    assert min(table.m.min() for table in tables) == 1
    assert all(np.all(np.isfinite(table.seconds)) for table in tables)
    assert [table.truth for table in tables] == ["trtllm_1.3.0rc20", "sglang_0.5.14", "vllm_0.24.0"]
