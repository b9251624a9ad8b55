"""Axes are replaced by name, and what is not an axis, a value of it or within its limits is said in one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from pyperf_suite.errors import OneOf, UserError, Within
from pyperf_suite.findings.axes import crossed, overrides_for, parse_overrides, replace_axes
from pyperf_suite.laws.tiling import Tile


@dataclass(frozen=True)
class SomeAxes:
    k: Annotated[tuple[int, ...], Within(1)] = (1,)
    tile: tuple[Tile, ...] = ()
    dtype: Annotated[tuple[str, ...], OneOf(("float32", "bfloat16"))] = ("float32",)
    share: Annotated[tuple[float, ...], Within(0, 1)] = (0.5,)


def test_values_are_parsed_as_the_axis_is_typed_and_others_stay() -> None:
    axes = replace_axes(SomeAxes(), parse_overrides(["k=3,4", "tile=1x2x3,4x5x6", " share = 1 "]))
    assert axes == SomeAxes(k=(3, 4), tile=(Tile(1, 2, 3), Tile(4, 5, 6)), share=(1.0,))


def test_axes_are_crossed_by_name_and_the_last_varies_fastest() -> None:
    axes = SomeAxes(k=(1, 2), share=(0.5, 1.0), tile=(Tile(1, 2, 3),))
    assert [tuple(each.items()) for each in crossed(axes, "k", "share")] == [
        (("k", k), ("share", share)) for k in (1, 2) for share in (0.5, 1.0)
    ]
    assert [list(each) for each in crossed(axes)] == 4 * [["k", "tile", "dtype", "share"]]


def test_an_override_with_a_probes_name_speaks_to_that_probe_alone() -> None:
    overrides = parse_overrides(["baseline.k=3", "dtype=bfloat16"])
    assert overrides_for("baseline", overrides) == {"k": "3", "dtype": "bfloat16"}
    assert overrides_for("tile_wave", overrides) == {"dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        *((text, f"'{text}' is not an axis") for text in ("k", "k=", "")),
        ("=3", "''.*k, tile, dtype"),
        ("k=three", "k=three was requested, but k takes int values"),
        ("tile=9", "'9'"),
        ("colour=red", "'colour'.*k, tile, dtype"),
        ("k=1,0", "k=0 was requested, but k is at least 1"),
        ("k=-3", "k=-3 was requested, but k is at least 1"),
        ("dtype=int8", "dtype=int8 was requested: choose from float32, bfloat16"),
        ("dtype=float32,", "dtype= was requested: choose from"),
        ("share=1.5", "share=1.5 was requested, but share lies between 0 and 1"),
        ("share=nan", "share=nan was requested, but share lies between 0 and 1"),
    ],
)
def test_what_is_no_axis_or_a_value_that_does_not_fit_is_named_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as refused:
        replace_axes(SomeAxes(), parse_overrides([text]))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("limit", "allowed", "refused", "bound"),
    [
        (Within(1), (1, 7, math.inf), (0.99, math.nan), "is at least 1"),
        (Within(most=4), (4, -7), (5, math.nan), "is at most 4"),
        (Within(-1, 1), (-1, 0, 1), (-1.01, 1.01, math.nan), "lies between -1 and 1"),
        (OneOf({"a": 1, "b": 2}), ("a", "b"), ("", "A", "ab"), "choose from a, b"),
    ],
)
def test_a_limit_has_its_bounds_in_it_and_names_them(
    limit: Any, allowed: tuple[Any, ...], refused: tuple[Any, ...], bound: str
) -> None:
    for value in allowed:
        limit.check("axis", value)
    for value in refused:
        with pytest.raises(UserError, match=f"axis={value} was requested.*{bound}"):
            limit.check("axis", value)
