"""A study before it runs: its grid as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.planner.study.grid import StudyAxes, cases_of, default_axes, worlds_of
from pyperf_suite.planner.study.planning import parse_study, read_study

CPU = Device("cpu")
EXAMPLE = Path(__file__).parents[2] / "examples" / "study.toml"


def names(axes: StudyAxes) -> list[str]:
    return [case.parameters.name for case in cases_of(axes)]


def test_a_file_says_the_same_as_options() -> None:
    read = parse_study(
        {
            "model": {"hidden": 64, "gated": True},
            "grid": {"data": [1, 2], "attention": ["flash", "math"], "checkpointing": "every:2"},
            "run": {"steps": 7},
        }
    )
    axes = read.over(default_axes(CPU))
    assert names(axes) == [
        *("1 rank flash ckpt every:2", "dp2 flash ckpt every:2"),
        *("1 rank math ckpt every:2", "dp2 math ckpt every:2"),
    ]
    assert {(case.parameters.hidden, case.parameters.gated) for case in cases_of(axes)} == {(64, True)}
    assert (read.run.steps, read.run.experiments) == (7, 3)


def test_configurations_of_a_file_are_each_a_product_with_the_grids_other_axes() -> None:
    read = parse_study(
        {"grid": {"attention": ["flash", "math"]}, "configuration": [{"data": 2}, {"pipeline": 2, "attention": "math"}]}
    )
    assert names(read.over(default_axes(CPU))) == ["dp2 flash", "dp2 math", "pp2 math"]


def test_a_file_of_a_model_alone_keeps_the_default_ways_of_cutting_it() -> None:
    assert names(parse_study({"model": {"layers": 8}}).over(default_axes(CPU))) == names(default_axes(CPU))


def test_the_example_file_is_a_study() -> None:
    cases = cases_of(read_study(EXAMPLE).over(default_axes(CPU)))
    assert len(cases) >= 8
    assert worlds_of(cases)[-1] <= 4


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        ({"grids": {}}, "A study has no table 'grids': did you mean grid?"),
        ({"modle": {}}, "A study has no table 'modle': did you mean model?"),
        ({"xyzzy": 1}, "A study has no table 'xyzzy': choose from model, grid, run, configuration."),
        ({"grid": 3}, "grid is 3, but is a table"),
        ({"model": [1]}, "model is [1], but is a table"),
        ({"model": {"hiden": 1}}, "[model] has no key 'hiden': did you mean hidden"),
        ({"model": {"data": 2}}, "[model] has no key 'data'"),
        ({"grid": {"zero": 2}}, "[grid] has no key 'zero': choose from global_batch, "),
        ({"grid": {"hidden": 2}}, "[grid] has no key 'hidden'"),
        ({"run": {"step": 2}}, "[run] has no key 'step': did you mean steps"),
        ({"configuration": [{"dta": 2}]}, "[configuration] has no key 'dta': did you mean data"),
        ({"configuration": {"data": 2}}, "configuration is a list of tables"),
        ({"configuration": [3]}, "configuration is 3, but is a table"),
        ({"model": {"hidden": "wide"}}, "hidden is 'wide', but takes a whole number."),
        ({"model": {"hidden": [64, 128]}}, "hidden of [model] is a list, but a study is of one model"),
        ({"model": {"hidden": 64.0}}, "hidden is 64.0, but takes a whole number"),
        ({"model": {"gated": 1}}, "gated is 1, but takes true or false"),
        ({"grid": {"data": True}}, "data is True, but takes a whole number"),
        ({"grid": {"data": [1, "2"]}}, "data is '2', but takes a whole number"),
        ({"grid": {"data": [[1]]}}, "data is [1], but takes a whole number"),
        ({"grid": {"attention": 1}}, "attention is 1, but takes a word"),
        ({"grid": {"checkpointing": "some"}}, "There is no checkpointing 'some'"),
        ({"run": {"steps": "ten"}}, "steps is 'ten', but takes a whole number"),
        ({"run": {"steps": 1}}, "steps=1 was requested, but steps lies between 2 and 10000"),
        ({"run": {"steps": 10**9}}, "steps=1000000000 was requested"),
        ({"run": {"warm_up": 0}}, "warm_up=0 was requested, but warm_up lies between 1"),
        ({"run": {"experiments": 0}}, "experiments=0 was requested, but experiments lies between 1"),
        ({"run": {"experiments": True}}, "experiments is True, but takes a whole number"),
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
        (b"\xff\xfe", "is not TOML"),
        (b"a = " + b"[" * 5000, "is not TOML"),
        (b"#" * (1 << 21), "is larger than 1 MiB"),
        (b"[grid]\ndata = 1\ndata = 2\n", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    if content:
        path.write_bytes(content)
    with pytest.raises(UserError, match=sentence) as refused:
        read_study(path)
    assert str(path) in str(refused.value)
