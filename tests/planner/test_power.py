"""Joules of a token come from power that was measured, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyperf_suite.cli.main import main
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.planner.laws.calibration import Calibration, load_calibration
from pyperf_suite.planner.power import POWER, power_block, power_of
from pyperf_suite.planner.probes.calibration import PROBE
from tests.records import printed_lines, printed_values, records

MODEL = ("--layers", "2", "--hidden", "1024", "--heads", "8", "--ffn", "4096", "--vocab", "32000", "--not-gated")
PRODUCTS = [case for case in PROBE.cases("quick", Device("cuda")) if case.operator == "matmul"]


def watts(case) -> dict[str, float]:
    """Small products leave most of the GPU idle."""
    p = case.parameters
    return {"power": 600.0 if p.m * p.n * p.k > 1e9 else 200.0}


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    block = power_block(records(PRODUCTS, metrics=watts), "own run")
    assert block is not None
    return Calibration("H200 SXM").with_block(POWER, block).save(tmp_path / "own.npz")


def test_power_is_that_of_large_products_and_survives_its_file(calibration: Path) -> None:
    power = power_of(load_calibration(calibration))
    assert power is not None
    assert (power.watts, power.high, power.origin) == (600.0, 600.0, "own run")
    assert power.a_token(8, 1e-4).value == pytest.approx(8 * 600 * 1e-4)


def test_neither_a_data_sheet_nor_a_run_without_a_counter_has_power() -> None:
    gpu = find_gpu("H200")
    assert power_of(gpu) is power_of(Calibration(gpu.name)) is None
    assert power_block(records(PRODUCTS), "own run") is None
    attention = [case for case in PROBE.cases("quick", Device("cuda")) if case.operator == "attention"]
    assert power_block(records(attention, metrics={"power": 500.0}), "own run") is None


def answered(*words: str) -> dict:
    found = CliRunner().invoke(main, [*words, *MODEL, "--seq", "512", "--json"])
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def joules(found: dict) -> list[float]:
    return [values["joules"] for values in printed_values(found, "joules")]


@pytest.mark.slow
def test_size_and_layout_say_joules_with_such_a_calibration_alone(calibration: Path) -> None:
    requested = ("size", "--micro-batch", "4", "--vary", "heads")
    sized = answered(*requested, "--calibration", str(calibration))
    (time,) = (each["time"] for each in printed_values(sized, "time", "mfu"))
    assert joules(sized) == [pytest.approx(600 * time / (4 * 512))]
    assert joules(answered(*requested, "--gpu", "H200")) == []
    more = ("--gpus", "8", "--global-batch", "64", "--top", "1")
    laid = answered("layout", "--calibration", str(calibration), *more)
    (row,) = printed_lines(laid, "Fastest")
    assert joules(laid) == [pytest.approx(8 * 600 * row["iteration"] / (64 * 512))]
    assert joules(answered("layout", "--gpu", "H200", *more)) == []
