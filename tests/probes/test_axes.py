"""Axes are replaced by name, and what is not an axis or a value of it is said in one sentence."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.laws.matmul.tiling import Tile
from pyperf_suite.spec.axes import overrides_for, parse_overrides, replace_axes


@dataclass(frozen=True)
class SomeAxes:
    k: tuple[int, ...] = (1,)
    tile: tuple[Tile, ...] = ()
    dtype: tuple[str, ...] = ("float32",)


def test_values_are_parsed_as_the_axis_is_typed_and_others_stay() -> None:
    axes = replace_axes(SomeAxes(), parse_overrides(["k=3,4", "tile=1x2x3,4x5x6"]))
    assert axes == SomeAxes(k=(3, 4), tile=(Tile(1, 2, 3), Tile(4, 5, 6)), dtype=("float32",))


def test_an_override_with_a_probes_name_speaks_to_that_probe_alone() -> None:
    overrides = parse_overrides(["baseline.k=3", "dtype=bfloat16"])
    assert overrides_for("baseline", overrides) == {"k": "3", "dtype": "bfloat16"}
    assert overrides_for("tile_wave", overrides) == {"dtype": "bfloat16"}


@pytest.mark.parametrize("text", ["k", "k=", "=3", ""])
def test_what_is_not_an_axis_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        replace_axes(SomeAxes(), parse_overrides([text]))


@pytest.mark.parametrize(
    ("text", "named"), [("k=three", "k=three"), ("tile=9", "'9'"), ("colour=red", "'colour'.*k, tile, dtype")]
)
def test_a_value_that_does_not_fit_is_named(text: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        replace_axes(SomeAxes(), parse_overrides([text]))
