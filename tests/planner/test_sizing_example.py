"""The section of sizing that the planner adds to a machine's page."""

from __future__ import annotations

import pytest

from pyperf_suite.extensions import extensions
from pyperf_suite.planner.sizing.example import STAND_IN, section
from pyperf_suite.render.results import read_results


def test_a_machine_without_a_gpu_gets_the_example_for_a_stand_in_that_is_named(pytestconfig: pytest.Config) -> None:
    runs = read_results(next((pytestconfig.rootpath / "bench_results").glob("cpu-intel*/2*/"))).runs
    found = section(runs)
    assert found.figures
    assert STAND_IN in found.command
    assert "no GPU was measured here" in str(found.found.remarks[0].values["where"])


def test_the_page_finds_it_by_its_entry_point() -> None:
    assert extensions("page")["sizing"].load() is section
