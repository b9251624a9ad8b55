"""A grid crosses into configurations: what cannot be is left out of a product, a value that never can be is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.planner.study.grid import (
    MOST_CONFIGURATIONS,
    StudyAxes,
    cases_of,
    default_axes,
    parse_study,
    read_study,
)
from pyperf_suite.record.case import Case
from tests.commands import invoke

CPU = Device("cpu")
EXAMPLE = Path(__file__).parents[3] / "examples" / "study.toml"


def names(axes: StudyAxes) -> list[str]:
    return [case.parameters.name for case in cases_of(axes)]


def ranks_of(cases: list[Case]) -> set[int]:
    return {case.parameters.ranks for case in cases}


def crossed(**axes: Any) -> list[str]:
    return names(default_axes(CPU).given(axes))


def test_the_default_grid_has_each_way_of_cutting_on_1_to_4_ranks_with_one_model_and_batch() -> None:
    cases = cases_of(default_axes(CPU))
    assert {case.parameters.name for case in cases} == {
        *("1 rank flash", "1 rank math", "1 rank flash ckpt every:1", "dp2 flash", "dp4 flash"),
        *("dp2 zero1 flash", "dp2 zero2 flash", "dp2 zero3 flash", "tp2 flash", "pp2 flash", "pp2 v2 flash"),
    }
    assert ranks_of(cases) == {1, 2, 4}
    assert len({(case.parameters.dimensions, case.parameters.global_batch) for case in cases}) == 1
    assert len({case.case_id for case in cases}) == len(cases)


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 6, 8, 16])
def test_the_default_grid_of_a_gpu_machine_uses_no_more_gpus_than_there_are(gpus: int) -> None:
    cases = cases_of(default_axes(Device("cuda"), gpus))
    assert min(gpus, 8) / 2 < max(ranks_of(cases)) <= gpus
    assert {case.implementation for case in cases} == {"nccl"}


def test_cuts_of_ones_own_replace_the_default_configurations_and_other_axes_change_them() -> None:
    assert crossed(data=(2,)) == ["dp2 flash"]
    everywhere = crossed(attention=("explicit",))
    assert len(everywhere) == 10
    assert all("explicit" in name for name in everywhere)


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        ({"data": (3,)}, "A global batch of 8 cannot be cut into micro-batches of 2 on 3"),
        ({"data": (1, 2, 3)}, "data=3 combines with nothing else requested: A global batch of 8"),
        ({"data": (0,)}, "data=0 was requested, but data is at least 1"),
        ({"tensor": (3,)}, "cannot be cut over TP = 3 evenly"),
        ({"data": (2,), "zero_stage": (9,)}, "between 0 and 3"),
        ({"chunks": (2,)}, "2 chunks are of a pipeline, but there is one stage"),
        ({"zero_stage": (2,)}, "ZeRO stage 2 is shared by data-parallel ranks, and there is one"),
        ({"dtype": ("int4",)}, "dtype=int4 was requested: choose from"),
        ({"hidden": (130,)}, "hidden = 130 cannot be divided into 4 heads"),
        ({"data": ()}, "data is an empty list"),
        ({"data": tuple(range(1, MOST_CONFIGURATIONS + 2))}, "configurations, and a study takes 1000 at most"),
    ],
)
def test_a_value_that_can_never_be_is_refused_by_name(axes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        crossed(**axes)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_says_the_same_as_options() -> None:
    of_file, run = parse_study(
        {
            "model": {"hidden": 64, "gated": True},
            "grid": {"data": [1, 2], "attention": ["flash", "math"], "checkpointing": "every:2"},
            "run": {"steps": 7},
        }
    )
    axes = default_axes(CPU).given(of_file)
    assert names(axes) == [
        *("1 rank flash ckpt every:2", "dp2 flash ckpt every:2"),
        *("1 rank math ckpt every:2", "dp2 math ckpt every:2"),
    ]
    assert {(case.parameters.hidden, case.parameters.gated) for case in cases_of(axes)} == {(64, True)}
    assert (run.steps, run.experiments) == (7, 3)


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        ({"grids": {}}, "A study has no table 'grids': did you mean grid?"),
        ({"xyzzy": 1}, "A study has no table 'xyzzy': choose from model, grid, run, configuration."),
        ({"grid": 3}, "grid is 3, but is a table"),
        ({"model": {"hiden": 1}}, "[model] has no key 'hiden': did you mean hidden"),
        ({"grid": {"hidden": 2}}, "[grid] has no key 'hidden'"),
        ({"configuration": {"data": 2}}, "configuration is a list of tables"),
        ({"model": {"hidden": "wide"}}, "hidden=wide was requested, but hidden takes int"),
        ({"model": {"hidden": [64, 128]}}, "hidden of [model] is a list, but a study is of one model"),
        ({"grid": {"checkpointing": "some"}}, "There is no checkpointing 'some'"),
        ({"run": {"steps": "ten"}}, "steps is 'ten', but takes a whole number"),
        ({"run": {"steps": 1}}, "steps=1 was requested, but steps lies between 2 and 10000"),
    ],
)
def test_a_file_that_says_what_no_study_knows_is_refused_in_a_sentence(read: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_study(read)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "cannot be read: No such file"),
        (b"[grid", "is not TOML"),
        (b"a = " + b"[" * 5000, "is not TOML"),
        (b"#" * (1 << 21), "is larger than 1 MiB"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    if content:
        path.write_bytes(content)
    with pytest.raises(UserError, match=sentence) as refused:
        read_study(path)
    assert str(path) in str(refused.value)


def test_the_command_takes_its_own_defaults() -> None:
    listed = invoke("study", EXAMPLE, "--list", "--device", "cpu")
    assert (listed.exit_code, " 2  " in listed.output) == (0, True), listed.output
