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
from pyperf_suite.laws.calibration import shipped_calibration
from tools.fit.attention import (
    fit_attention,
    fit_block,
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


def test_a_library_that_knows_few_head_shapes_has_no_law_of_its_own(tables):
    few = tables["H200 SXM"].take(tables["H200 SXM"].head_dim == 64)
    assert set(few.library.tolist()) == {0, 1}
    assert [kernel.library for kernel in fit_kernels(few, 132)] == ["trtllm"]


def test_a_folder_without_tables_is_told_in_one_sentence(tmp_path):
    with pytest.raises(UserError, match="has no table of attention"):
        fit_attention(tmp_path)
