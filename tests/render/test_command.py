"""The command named under a figure measures the very cases that the figure shows."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from pyperf_suite.cli import _plan, main
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.hardware.machine import identity
from pyperf_suite.render.command import command_of
from pyperf_suite.render.run_report import write_all
from pyperf_suite.runner.results import create_run, open_run
from pyperf_suite.spec.findings import Findings, remark


def planned_by(command: str) -> str:
    """The plan_id of `pyperf-suite run ...`."""
    program, name, *arguments = shlex.split(command)
    assert (program, name) == ("pyperf-suite", "run")
    asked = main.commands["run"].make_context(name, arguments).params
    return _plan(asked["probes"], asked["profile"], asked["device"], asked["axes"], asked["seed"]).plan_id


def test_a_runs_command_asks_for_the_same_plan_with_its_replaced_axes_and_seed(tmp_path: Path) -> None:
    axes = ("tile=64x64x256", "workers=1", "schedule=data_parallel,stream_k")
    plan = _plan(("tile_wave",), "quick", "cpu", axes, 7)
    run = open_run(create_run(tmp_path, identity(plan.device), plan).path)
    command = command_of("tile_wave", run.manifest)
    assert planned_by(command) == plan.plan_id
    assert planned_by(command.replace("-a workers=1", "")) != plan.plan_id


def test_an_axis_of_one_probe_is_not_given_to_another(tmp_path: Path) -> None:
    plan = _plan(("baseline", "tile_wave"), "quick", "cpu", ("baseline.shape=64x64x64", "workers=1"), 0)
    manifest = create_run(tmp_path, identity(plan.device), plan).manifest
    assert "shape" not in command_of("tile_wave", manifest)
    assert command_of("baseline", manifest) == (
        "pyperf-suite run baseline -a shape=64x64x64 -a workers=1 --profile quick --device cpu"
    )


def test_what_was_asked_is_no_part_of_what_makes_plans_equal() -> None:
    default = _plan(("baseline",), "quick", "cpu", (), 0)
    (layout,) = {planned.case.parameters.layout for planned in default.cases}
    assert _plan(("baseline",), "quick", "cpu", (f"layout={layout}",), 0).plan_id == default.plan_id


def test_a_study_is_named_by_its_own_command_and_not_by_the_profile_made_from_it() -> None:
    manifest = {"profile": "2 steps after 1", "device": "cpu", "seed": 4, "asked": ["--data=1,2", "--seed=4"]}
    assert command_of("study", manifest) == "pyperf-suite study --data=1,2 --seed=4 --device cpu"
    assert command_of("study", {"profile": "quick"}) == "pyperf-suite run study --profile quick"


def test_products_of_size_are_named_by_size() -> None:
    assert command_of("sizing", {"profile": "standard", "device": "cuda:0"}) == (
        "pyperf-suite size --measure --profile standard --device cuda:0"
    )


@pytest.mark.parametrize("asked", [None, "tile=8", 3, [1, None, "no axis"], {"a": 1}])
def test_manifests_of_before_or_of_strangers_name_the_sweep_without_axes(asked) -> None:
    manifest = {"profile": "quick", "device": ["cpu"], "seed": "x", "asked": asked}
    assert command_of("baseline", manifest) == "pyperf-suite run baseline --profile quick"
    assert command_of("baseline", {}, "full") == "pyperf-suite run baseline --profile full"


def test_the_page_beside_the_records_names_the_command(tmp_path: Path) -> None:
    plan = _plan(("topology",), "quick", "cpu", ("part=host",), 0)
    run = create_run(tmp_path, identity(resolve("cpu")), plan)
    write_all({"topology": Findings((remark("Seen."),))}, [], run)
    page = (run.path / "findings.md").read_text()
    assert "    pyperf-suite run topology -a part=host --profile quick --device cpu\n" in page
    assert json.loads((run.path / "run.json").read_text())["asked"] == ["part=host"]
