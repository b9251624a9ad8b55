"""Constants of frameworks found on published runs, and the errors on runs left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pyperf_suite.planner.laws.calibration import POOLED, shipped_calibration
from pyperf_suite.planner.laws.training.framework import CONSTANTS, StepConstants, generation_of
from pyperf_suite.planner.laws.training.step import prices_of
from tools.fit.published import SAMPLE
from tools.fit.step import (
    LEAST_END,
    PRIORS,
    PricedRun,
    ends_of,
    errors_left_out,
    fit_constants,
    price_runs,
    stated_constants,
    training_runs,
)


@pytest.fixture(scope="module")
def runs() -> list[PricedRun]:
    priced, refused = price_runs(training_runs(SAMPLE)[0], prices_of)
    assert all("was published of MI" in reason for reason in refused)
    return priced


@pytest.fixture(scope="module")
def left_out(runs: list[PricedRun]) -> dict[str, Any]:
    """Errors of all runs by constants of all others, by what was left out."""
    return {how: errors_left_out(runs, how) for how in ("model", "source")}


def of(runs: list[PricedRun], framework: str, generation: str) -> list[PricedRun]:
    own = [run for run in runs if (run.framework, generation_of(run.run.gpu)) == (framework, generation)]
    assert len(own) > 10
    return own


@pytest.mark.slow
def test_constants_that_made_up_runs_were_made_of_are_found_again_inside_of_their_ranges(
    runs: list[PricedRun],
) -> None:
    usual = StepConstants(**{name: mean for name, (mean, _) in PRIORS.items()})
    truth = replace(usual, slowdown=1.08)
    made = [replace(run, seconds=run.predicted(truth)) for run in of(runs, "fsdp1", "Ampere")]
    found, deviations = fit_constants(made)
    assert found.slowdown == pytest.approx(1.08, rel=0.03)
    assert 0 < deviations["slowdown"] < PRIORS["slowdown"][1]
    slow = [replace(run, seconds=3 * run.seconds) for run in made]
    beyond, _ = fit_constants(slow)
    assert all(each.low <= getattr(beyond, name) <= each.high for name, each in CONSTANTS.items())


def test_without_runs_a_constant_is_what_physics_says() -> None:
    found, deviations = fit_constants([])
    assert {name: (getattr(found, name), deviations[name]) for name in PRIORS} == PRIORS
    assert all(CONSTANTS[name].low <= mean <= CONSTANTS[name].high for name, (mean, _) in PRIORS.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "generation", "how", "worst"),
    [
        ("fsdp1", "Ampere", "model", 0.07),
        ("fsdp1", "Ampere", "source", 0.08),
        ("fsdp1", "Hopper", "source", 0.07),
        ("deepspeed", "Ampere", "source", 0.16),
        ("megatron", "Hopper", "source", 0.14),
    ],
)
def test_runs_left_out_are_predicted_as_well_as_measured(
    runs: list[PricedRun], left_out: dict[str, Any], framework: str, generation: str, how: str, worst: float
) -> None:
    own = np.array([(run.framework, generation_of(run.run.gpu)) == (framework, generation) for run in runs])
    assert own.sum() > 10
    assert np.mean(np.abs(np.expm1(-left_out[how][own]))) < worst


def test_an_interval_is_as_wide_as_sources_left_out_say_by_how_near_they_are() -> None:
    def run(source: str, framework: str = "megatron") -> Any:
        return SimpleNamespace(kind="16 bits", framework=framework, source=source)

    runs = [run(source) for source in "a" * 20 + "b" * 2]
    errors = np.array([0.1] * 20 + [0.3] * 2)
    # Each source counts the same, however many runs it has; a run's own is left out.
    assert ends_of(runs, errors, runs[0])[0] == 0.3
    assert ends_of(runs, errors, runs[-1], lambda each: each.source)[0] == 0.1
    assert ends_of(runs, 0 * errors, runs[0])[0] == LEAST_END
    # Runs of another framework count half: too little to be one in ten.
    others = [run(source) for source in "abcde"] + [run("f", "fsdp2")]
    errors = np.array([0.1] * 5 + [0.5])
    assert [ends_of(others, errors, like)[0] for like in (others[0], others[-1])] == [0.1, 0.5]


def test_what_is_shipped_states_its_errors_by_what_was_left_out_and_lies_within_physics() -> None:
    pooled = shipped_calibration(POOLED)
    assert pooled is not None
    block = pooled.block("step")
    # Figures of `python -m tools.fit TABLES --judge-steps`.
    for name, most in {"mape": 8.8, "mape_by_model": 8.6, "mape_by_engine": 8.8, "mape_by_generation": 9.5}.items():
        assert block.held_out[name] < most, name
    assert block.held_out["coverage"] > 86
    assert (block.arrays["unseen_ends"] >= block.arrays["ends"]).all()
    for constant, meaning in CONSTANTS.items():
        assert block.arrays[f"{constant}_deviation"] > 0
        assert meaning.low <= block.arrays[constant] <= meaning.high, constant


def test_the_documents_table_of_constants_is_that_of_what_is_shipped() -> None:
    written = (Path(__file__).parents[3] / "docs" / "layout.md").read_text(encoding="utf-8").splitlines()
    lines = list(stated_constants())
    assert len(lines) == 2 + len(CONSTANTS)
    assert [line for line in lines if line not in written] == []
