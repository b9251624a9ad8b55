"""Fitting the law of attention to the published tables: what is shipped comes out again, with the error it states."""

from __future__ import annotations

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.attention import (
    BLOCK,
    ERROR_PERCENT_OTHER_ARCHITECTURE,
    ERROR_PERCENT_SAME_ARCHITECTURE,
    SOFTMAX_COLUMNS,
    unpack_attention,
)
from pyperf_suite.laws.calibration import ResidualGrid, shipped_calibration
from tools.fit.attention import (
    fit_attention,
    fit_block,
    fit_grid,
    fit_kernels,
    held_out_error,
    left_out_error,
    predicted_by,
    read_prefill,
    truth,
)

GPUS = ("A100 SXM", "B200 SXM", "H100 SXM", "H200 SXM", "L40S")
WORST_PERCENT = 8.0


@pytest.fixture(scope="module")
def tables(measured_tables):
    return {gpu: read_prefill(measured_tables, find_gpu(gpu).slug) for gpu in GPUS}


@pytest.fixture(scope="module")
def shipped():
    return {gpu: shipped_calibration(gpu).block(BLOCK) for gpu in GPUS}


@pytest.mark.parametrize("gpu", GPUS)
def test_what_is_shipped_states_an_error_of_head_shapes_left_out(shipped, gpu):
    assert 0 < shipped[gpu].held_out["mape"] < WORST_PERCENT
    assert "held out" in shipped[gpu].held_out["how"]


@pytest.mark.slow
def test_the_tables_give_what_is_shipped_again(tables, shipped):
    gpu = "A100 SXM"
    fitted = fit_block(tables[gpu], find_gpu(gpu))
    assert fitted.held_out == pytest.approx(shipped[gpu].held_out)
    assert fitted.fitted_range == shipped[gpu].fitted_range
    for name, array in shipped[gpu].arrays.items():
        if array.dtype.kind in "if":
            np.testing.assert_allclose(fitted.arrays[name], array, rtol=1e-3, atol=1.1 if name == "grid" else 0)
        else:
            np.testing.assert_array_equal(fitted.arrays[name], array)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", GPUS)
def test_single_rows_left_out_are_told_within_eight_percent(tables, gpu):
    few = tables[gpu].take(tables[gpu].head_dim == 128)
    assert held_out_error(few, find_gpu(gpu).sms, by_head_shape=False).mape < WORST_PERCENT


@pytest.mark.slow
@pytest.mark.parametrize("gpu", GPUS)
def test_what_is_shipped_tells_the_whole_table_as_well_as_it_says(tables, shipped, gpu):
    wanted = truth(tables[gpu])
    apart = np.abs(predicted_by(unpack_attention(shipped[gpu], find_gpu(gpu)), wanted) / wanted.seconds - 1) * 100
    assert apart.mean() < 1.05 * shipped[gpu].held_out["mape"]


@pytest.mark.slow
def test_a_gpu_left_out_is_told_from_the_others_with_the_error_that_is_stated(tables, shipped):
    errors = {gpu: left_out_error(shipped, tables[gpu], gpu).mape for gpu in tables}
    hopper = [errors.pop(gpu) for gpu in ("H100 SXM", "H200 SXM")]
    assert max(hopper) == pytest.approx(ERROR_PERCENT_SAME_ARCHITECTURE, abs=0.5)
    assert max(errors.values()) == pytest.approx(ERROR_PERCENT_OTHER_ARCHITECTURE, abs=1.0)


def test_the_softmax_costs_the_columns_that_the_rates_of_an_h200_say(shipped):
    kernels = unpack_attention(shipped["H200 SXM"], find_gpu("H200")).by_head_dim
    widths = [64, 128, 192, 256]
    pairs = [next(k.costs.pair_s / k.resident for k in kernels[w] if k.library == "trtllm") for w in widths]
    slope, start = np.polyfit(widths, pairs, 1)
    assert start / slope == pytest.approx(SOFTMAX_COLUMNS, abs=5)


@pytest.mark.slow
def test_a_library_that_knows_few_head_shapes_has_no_law_of_its_own(tables):
    few = tables["H200 SXM"].take(tables["H200 SXM"].head_dim == 64)
    assert set(few.library.tolist()) == {0, 1}
    assert [kernel.library for kernel in fit_kernels(few, 132)] == ["trtllm"]


def test_a_folder_without_tables_is_told_in_one_sentence(tmp_path):
    with pytest.raises(UserError, match="has no table of attention"):
        fit_attention(tmp_path)


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
