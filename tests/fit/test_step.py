"""The constants of training iterations found on published ones, and the error on iterations left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.laws.calibration import load_calibration, shipped_path
from pyperf_suite.laws.prices import Prices
from pyperf_suite.laws.training import step as law
from pyperf_suite.laws.training.step import StepConstants
from tools.fit.published import SAMPLE
from tools.fit.step import (
    MULTI_NODE,
    Remembered,
    fit_constants,
    fit_step,
    left_out_errors,
    read_iterations,
    relative_errors,
)


@pytest.fixture(scope="module")
def prices() -> Remembered:
    """The shipped laws of the A100, each shape asked for once."""
    return Remembered(Prices(law.MEASURED_GPU))


@pytest.mark.slow
def test_iterations_over_many_nodes_left_out_are_told_within_ten_percent(prices: Remembered) -> None:
    multi = read_iterations(SAMPLE, MULTI_NODE)
    errors = left_out_errors(multi, StepConstants(1.0, 0.9e-3, 10e9), prices)
    assert len(errors) == len(multi) > 50
    assert np.mean(errors) < 0.1
    assert np.median(errors) < 0.06


@pytest.mark.slow
def test_what_is_shipped_is_what_the_tables_give(prices: Remembered) -> None:
    [(gpu, block)] = fit_step(SAMPLE, prices).items()
    shipped = load_calibration(shipped_path(gpu)).block(law.BLOCK)
    for name, value in block.arrays.items():
        np.testing.assert_allclose(shipped.arrays[name], value, rtol=0.02)
    assert float(shipped.held_out["mape"]) == pytest.approx(float(block.held_out["mape"]), abs=0.3)
    assert float(shipped.held_out["mape_in_one_node"]) < 12


def test_constants_that_made_up_iterations_were_made_of_are_found_again(prices: Remembered) -> None:
    truth = StepConstants(1.3, 0.5e-3, 8e9)
    made = [
        replace(one, seconds=law.step_time(law.MEASURED_GPU, one.model, one.plan, truth, prices).seconds)
        for one in read_iterations(SAMPLE, MULTI_NODE)[::4]
    ]
    found = fit_constants(made, (), prices)
    assert found.slowdown == pytest.approx(1.3, rel=0.02)
    assert found.network == pytest.approx(8e9, rel=0.1)
    assert np.max(relative_errors(made, replace(found, host_s_per_layer=0.5e-3), prices)) < 0.03


def test_a_folder_without_the_tables_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no train_iteration_multi_node_a100"):
        fit_step(tmp_path)
