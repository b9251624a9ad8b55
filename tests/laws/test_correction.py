"""What a law misses on one machine is a smooth factor of its sizes, held at the edge of what was measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.laws.calibration import (
    Block,
    Calibration,
    correction,
    correction_name,
    correction_of,
    fit_correction,
    stated,
)

RANDOM = np.random.default_rng(0)
SIZES = {name: np.exp(RANDOM.uniform(np.log(64), np.log(16384), 60)) for name in ("m", "n", "k")}


def block_of(log_ratio: np.ndarray, degree: int) -> Block:
    arrays, limits = fit_correction(log_ratio, SIZES, degree)
    return Block(arrays, {}, limits)


def test_a_machine_that_is_slower_throughout_gets_one_factor() -> None:
    block = block_of(np.full(60, np.log(1.2)), 0)
    np.testing.assert_allclose(correction(block, SIZES), 1.2)


def test_slopes_in_the_sizes_are_found() -> None:
    log_ratio = 0.1 + 0.05 * np.log(SIZES["m"]) - 0.02 * np.log(SIZES["k"])
    found = correction(block_of(log_ratio, 1), SIZES)
    np.testing.assert_allclose(found, np.exp(log_ratio), rtol=0.01)


def test_a_bend_takes_the_second_degree() -> None:
    log_ratio = 0.03 * (np.log(SIZES["n"]) - 7) ** 2
    straight, bent = (
        np.abs(np.log(correction(block_of(log_ratio, degree), SIZES)) - log_ratio).max() for degree in (1, 2)
    )
    assert bent < 0.2 * straight


@pytest.mark.parametrize("degree", [0, 1, 2])
def test_beyond_what_was_measured_the_factor_stays_as_at_the_edge(degree: int) -> None:
    block = block_of(0.1 * np.log(SIZES["m"]), degree)
    edge = {name: size.max() for name, size in SIZES.items()}
    beyond = {name: 1000 * size.max() for name, size in SIZES.items()}
    assert correction(block, beyond) == correction(block, edge)


def test_sizes_broadcast_together() -> None:
    block = block_of(0.1 * np.log(SIZES["m"]), 2)
    grid = correction(block, {"m": np.array([[64], [512]]), "n": np.array([1024, 2048, 4096]), "k": 4096})
    assert grid.shape == (2, 3)
    one = correction(block, {"m": 512, "n": 2048, "k": 4096})
    assert grid[1, 1] == pytest.approx(float(one))


def test_where_nothing_was_measured_the_law_stays_as_it_is() -> None:
    assert (
        correction_of(Calibration("H200 SXM"), "gemm_bf16", {"m": np.arange(1, 4), "n": 8, "k": 8}).tolist() == [1] * 3
    )


def test_a_calibration_corrects_the_law_that_was_measured_and_no_other() -> None:
    own = Calibration("H200 SXM").with_block(correction_name("gemm_bf16"), block_of(np.full(60, np.log(2)), 0))
    assert correction_of(own, "gemm_bf16", SIZES)[0] == pytest.approx(2)
    assert correction_of(own, "gemm_fp8", SIZES)[0] == 1


def test_error_and_origin_stated_are_those_of_the_correction_where_there_is_one() -> None:
    corrected = Block({}, {"mape": 3.5}, origin="run 1 on this machine")
    own = Calibration("H200 SXM").with_block(correction_name("gemm_bf16"), corrected)
    assert stated(own, "gemm_bf16", 9.0, "tables") == (3.5, "tables; corrected by run 1 on this machine")
    assert stated(own, "gemm_fp8", 9.0, "tables") == (9.0, "tables")


@pytest.mark.parametrize(("rows", "degree"), [(0, 1), (60, 3), (60, -1)])
def test_what_cannot_be_fitted_is_refused(rows: int, degree: int) -> None:
    with pytest.raises(ValueError, match="cannot be fitted"):
        fit_correction(np.zeros(rows), {"m": np.ones(rows)}, degree)


@given(st.integers(1, 5), st.floats(-1, 1))
def test_few_points_of_one_size_give_their_mean(count: int, level: float) -> None:
    arrays, limits = fit_correction(np.full(count, level), {"m": np.full(count, 512.0)}, 2)
    assert correction(Block(arrays, {}, limits), {"m": 512}) == pytest.approx(np.exp(level))
