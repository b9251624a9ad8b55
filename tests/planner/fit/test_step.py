"""Constants of frameworks found on published runs, and the errors on runs left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pyperf_suite.planner.laws.calibration import POOLED, shipped_calibration
from pyperf_suite.planner.laws.training.framework import StepConstants, found_constants
from pyperf_suite.planner.laws.training.step import prices_of
from tools.fit.published import SAMPLE
from tools.fit.step import (
    PRIORS,
    PricedRun,
    fit_constants,
    left_out,
    predicted,
    price_runs,
    stacked,
    training_runs,
)


@pytest.fixture(scope="module")
def runs() -> list[PricedRun]:
    return price_runs(training_runs(SAMPLE), prices_of)


def of(runs: list[PricedRun], framework: str, generation: str) -> list[PricedRun]:
    own = [run for run in runs if (run.framework, run.generation) == (framework, generation)]
    assert len(own) > 10
    return own


@pytest.mark.slow
def test_grids_of_runs_take_as_long_as_each_run_alone(runs: list[PricedRun]) -> None:
    constants = StepConstants(
        1.1, 1e-3, nvfp4=1.2, send=0.2, nodes=0.01, micro_batch_s=0.02, accumulate=2.0, step_s=0.1
    )
    alone = [run.predicted(constants) for run in runs]
    np.testing.assert_allclose(predicted(stacked(runs), constants, len(runs)), alone, rtol=1e-12)


def test_constants_that_made_up_runs_were_made_of_are_found_again(runs: list[PricedRun]) -> None:
    usual = StepConstants(**{name: mean for name, (mean, _) in PRIORS.items()})
    truth = replace(usual, slowdown=1.08, attention=1.3, gather=4.0)
    made = [replace(run, seconds=run.predicted(truth)) for run in of(runs, "fsdp1", "Ampere")]
    found, deviations = fit_constants(made, "ddp")
    assert found.slowdown == pytest.approx(1.08, rel=0.03)
    assert found.attention == pytest.approx(1.3, rel=0.05)
    assert found.gather == pytest.approx(4.0, rel=0.2)
    assert 0 < deviations["slowdown"] < PRIORS["slowdown"][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "generation", "worst"),
    [("fsdp1", "Ampere", 0.08), ("fsdp1", "Hopper", 0.08), ("deepspeed", "Ampere", 0.08)],
)
def test_runs_of_models_left_out_are_predicted_within_the_target(
    runs: list[PricedRun], framework: str, generation: str, worst: float
) -> None:
    own = of(runs, framework, generation)
    errors = left_out(own, framework, lambda run: run.run.name)
    assert np.mean(np.abs(np.expm1(-errors))) < worst


@pytest.mark.slow
def test_iterations_of_vtrain_left_out_by_layout_are_predicted_within_nine_percent(runs: list[PricedRun]) -> None:
    own = [run for run in of(runs, "megatron", "Ampere") if run.run.source == "vTrain"]
    assert len(own) > 70
    layouts = {run: f"{run.run.name} {run.run.plan.tensor} {run.run.plan.pipeline}" for run in own}
    errors = left_out(own, "megatron", lambda run: str(sorted(set(layouts.values())).index(layouts[run]) % 5))
    assert np.mean(np.abs(np.expm1(-errors))) < 0.09
    shipped = found_constants("A100").constants
    now = np.array([run.predicted(shipped) / run.seconds - 1 for run in own])
    assert np.mean(np.abs(now)) < 0.08


@pytest.mark.slow
def test_dense_runs_of_megatron_on_hopper_left_out_by_model_are_predicted_within_five_percent(
    runs: list[PricedRun],
) -> None:
    own = [run for run in of(runs, "megatron", "Hopper") if run.kind == "16 bits"]
    errors = left_out(own, "megatron", lambda run: run.run.name)
    assert np.mean(np.abs(np.expm1(-errors))) < 0.055


def test_what_is_shipped_states_its_errors_and_deviations() -> None:
    pooled = shipped_calibration(POOLED)
    assert pooled is not None
    blocks = {name: block for name, block in pooled.blocks.items() if name.startswith("step.")}
    assert set(blocks) == {f"step.{name}" for name in ("megatron", "fsdp1", "fsdp2", "torchtitan", "deepspeed")}
    assert "mape" not in blocks["step.fsdp2"].held_out
    for name, block in blocks.items():
        assert name == "step.fsdp2" or 0 < block.held_out["mape"] < 15
        assert (block.arrays["low"] < 0).all()
        assert (block.arrays["high"] > 0).all()
        assert (block.arrays["slowdown_deviation"] > 0).all()
