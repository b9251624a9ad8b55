"""Axes are replaced by name, and what is not an axis, a value of it or within its limits is said in one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from pyperf_suite.errors import OneOf, UserError, Within
from pyperf_suite.findings.axes import (
    Flag,
    Shape,
    Sizes,
    by,
    overrides_for,
    parse_overrides,
    replace_axes,
    sizes,
)
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiling import Tile

CPU, GPU = Device("cpu"), Device("cuda", 1)


@dataclass(frozen=True)
class SomeAxes:
    k: Annotated[tuple[int, ...], Within(1)] = (1,)
    tile: tuple[Tile, ...] = ()
    dtype: Annotated[tuple[str, ...], OneOf(("float32", "bfloat16"))] = ("float32",)
    share: Annotated[tuple[float, ...], Within(0, 1)] = (0.5,)


def test_values_are_parsed_as_the_axis_is_typed_and_others_stay() -> None:
    axes = replace_axes(SomeAxes(), parse_overrides(["k=3,4", "tile=1x2x3,4x5x6", " share = 1 "]))
    assert axes == SomeAxes(k=(3, 4), tile=(Tile(1, 2, 3), Tile(4, 5, 6)), share=(1.0,))


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
        (Within(upper=4), (4, -7), (5, math.nan), "is at most 4"),
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


@pytest.mark.parametrize(
    ("axis", "on_cpu", "on_gpu"),
    [
        (by((1,), (2,), (3,)), [1, 2, 3, 1], [1, 2, 3, 1]),
        (by((1,), full=(3,)), [1, 1, 3, 1], [1, 1, 3, 1]),
        (by((1,), (2,), cuda=(7,)), [1, 2, 2, 1], [7, 7, 7, 7]),
        (by((1,), (2,), cuda=by((7,), full=(9,))), [1, 2, 2, 1], [7, 7, 9, 7]),
        (by(lambda device: [device.index]), [0, 0, 0, 0], [1, 1, 1, 1]),
    ],
)
def test_a_profile_has_its_own_values_or_those_before_it_and_a_gpu_may_have_others(
    axis: Any, on_cpu: list[int], on_gpu: list[int]
) -> None:
    for device, expected in ((CPU, on_cpu), (GPU, on_gpu)):
        found = [axis.of(profile, device) for profile in ("quick", "standard", "full", "of a command")]
        assert found == [(each,) for each in expected]


@pytest.mark.parametrize(
    ("text", "ladder", "written"),
    [
        *((text, (3,), "3") for text in ("3", " 3 b ", "3B")),
        *((f"5{unit}", (5 * 1024,), "5KiB") for unit in ("K", "kib")),
        *((f"5{unit}", (5 * 1024**2,), "5MiB") for unit in ("m", "MiB")),
        *((f"5{unit}", (5 * 1024**3,), "5GiB") for unit in ("G", "gib")),
        ("1536", (1536,), "1536"),
        ("1KiB..4096", (1024, 2048, 4096), "1KiB..4KiB:2"),
        ("1..100:4", (1, 4, 16, 64), "1..100:4"),
        ("1KiB..1MiB:32", (2**10, 2**15, 2**20), "1KiB..1MiB:32"),
    ],
)
def test_a_ladder_of_sizes_is_in_powers_of_1024_bytes(text: str, ladder: tuple[int, ...], written: str) -> None:
    assert (Sizes.parse(text).ladder(), str(Sizes.parse(text))) == (ladder, written)
    assert sizes(text, "7") == (Sizes.parse(written), Sizes(7, 7))


@pytest.mark.parametrize(
    ("parse", "text", "sentence"),
    [
        *((Sizes.parse, text, "is not a size") for text in ("", "0K", "1X", "KiB", "1..2:x")),
        *((Sizes.parse, text, "do not grow") for text in ("4..2", "1..4:1")),
        (Flag.parse, "yes", "write true or false"),
        *((Shape.parse, text, "write MxNxK") for text in ("1x2", "1x2x3x4", "1x2x-3")),
    ],
)
def test_what_is_no_value_of_an_axis_is_refused_in_one_sentence(parse: Any, text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse(text)
