"""Axes are replaced by name, and what is not an axis, a value of it or within its limits is said in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

from pyperf_suite.errors import OneOf, UserError, Within
from pyperf_suite.findings import axes as module
from pyperf_suite.findings.axes import (
    AxisTable,
    Flag,
    Shape,
    Sizes,
    by,
    every_size,
    overrides_for,
    parse_overrides,
    replace_axes,
    size_name,
    size_ticks,
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


def test_what_is_left_out_of_a_table_is_quick_on_a_cpu_and_workers_and_ranks_are_those_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclass(frozen=True)
    class Table(AxisTable):
        k: tuple[int, ...] = by((1,), full=(3,), cuda=(5,))
        name: str = "usual"

    assert (Table(), Table.of("full", CPU)) == (Table((1,), "usual"), Table((3,), "usual"))
    monkeypatch.setattr(module.cpu, "detect", lambda: SimpleNamespace(usable_cores=6))
    monkeypatch.setattr(module, "gpus", lambda: [SimpleNamespace(multiprocessors=count) for count in (132, 144)])
    assert (module.all_cores(CPU), module.one_and_all_cores(CPU), module.multiprocessors(GPU)) == ((6,), (1, 6), (144,))
    assert (module.ranks_of(2, 4)(CPU), module.a_rank_a_gpu(GPU)) == ((2, 4), (2,))


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


def test_sizes_have_names_and_those_of_several_ladders_are_each_there_once() -> None:
    assert [size_name(size) for size in (3, 65536, 5 << 20)] == ["3 B", "64 KiB", "5 MiB"]
    assert size_ticks([1024]) == ((1024.0, "1 KiB"),)
    assert every_size([Sizes(1, 4), Sizes(2, 8, 4)]) == [1, 2, 4, 8]
    assert [Flag.parse(text) for text in ("true", " False ")] == [Flag(True), Flag(False)]
    assert (Shape.parse("1x2 x3"), str(Shape(1, 2, 3))) == (Shape(1, 2, 3), "1x2x3")


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
