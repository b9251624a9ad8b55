"""Findings are presented whole: nothing cut, nothing taken for markup, pictures that are pictures."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from pyperf_suite.render.picture import _draw_panel, _line_colour, draw
from pyperf_suite.render.run_report import draw_all
from pyperf_suite.render.terminal import cautions, print_findings
from pyperf_suite.runner.record import Metric, Record
from pyperf_suite.spec.findings import Figure, Findings, HeatMap, Panel, Series, Table

POINTS = Series("measured", [1, 2, 3], [1.0, 2.0, 3.0], "points", [0.9, 1.9, 2.9], [1.1, 2.1, 3.3])
FIGURE = Figure(
    "a_figure",
    "Title",
    "A caption that is long enough to be wrapped over more than one line of the picture. " * 3,
    (
        (
            Panel("one", "N", "us", (POINTS, Series("law", [1, 3], [1.0, 3.0], "line")), (2.0,), (1.5,)),
            Panel("two", "N", "us", (POINTS, Series("torch", [1, 3], [2.0, 2.0], "beside"))),
        ),
        (Panel("three", "N", "us", (POINTS,)),),
    ),
)

POINTS_PANEL = Panel("one", "N", "us", (POINTS,))

BUSY = {"elapsed_s": 1.0, "process_cpu_s": 0.5, "cpu_busy_s": 2.0}


def a_record(
    kind: str = "timing", outcome: str = "ok", seconds: float = 1.0, converged: bool = True, **quality: object
) -> Record:
    case = {
        "operator": "matmul",
        "parameters": {"m": 1, "n": 2, "k": 3, "schedule": "library@1"},
        "implementation": "torch",
    }
    metric = Metric("s", seconds, seconds, seconds, seconds, seconds, [seconds])
    return Record(
        "run",
        kind,
        case,
        "0",
        0,
        0,
        "",
        outcome,
        "because" if outcome != "ok" else "",  # type: ignore[arg-type]
        metrics={"time": metric} if outcome == "ok" else {},
        quality={"converged": converged} | quality,
    )


def printed(findings: Findings, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_findings(console, {"a_probe": findings}, [])
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_sentences_and_cells_are_printed_as_they_are_even_if_they_look_like_markup() -> None:
    table = Table("title", ("a", "b"), (("[red]x[/red]", "1"),))
    text = printed(Findings(("a [bold]sentence[/bold] that goes on",), (table,)))
    assert "a [bold]sentence[/bold] that goes on" in text
    assert "[red]x[/red]" in text


def test_no_cell_of_a_table_is_cut_in_a_narrow_terminal() -> None:
    table = Table("title", tuple("abcdef"), (tuple(f"cell-{name}-of-some-length" for name in "abcdef"),))
    text = printed(Findings((), (table,)), width=60).replace("\n", "")
    assert "…" not in text
    for name in "abcdef":
        assert f"cell-{name}-of-some-length" in text


def test_a_figure_becomes_a_png(tmp_path: Path) -> None:
    path = draw(FIGURE, tmp_path)
    assert path.name == "a_figure.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_heat_map_paints_better_and_worse_in_different_colours_and_stands_beside_panels(tmp_path: Path) -> None:
    from matplotlib import pyplot

    def red_beyond_blue(value: float) -> float:
        cells = HeatMap("map", "x", "y", "ratio", (1, 2), (3, 4), ((1.0, value), (value, float("nan"))), here=(0, 0))
        path = draw(Figure(f"map_{value}", "title", "caption", ((cells, POINTS_PANEL),)), tmp_path)
        pixels = pyplot.imread(path)[..., :3].reshape(-1, 3)
        saturated = pixels[pixels.max(axis=1) - pixels.min(axis=1) > 0.25]
        return float((saturated[:, 0] > saturated[:, 2]).mean())

    assert red_beyond_blue(0.8) > red_beyond_blue(1.2)


def test_a_cell_of_a_heat_map_without_a_value_is_not_taken_for_one_that_is_as_now(tmp_path: Path) -> None:
    from matplotlib import pyplot

    cells = HeatMap("map", "x", "y", "ratio", (1, 2), (3, 4), ((1.0, float("nan")), (float("nan"),) * 2), here=(0, 0))
    pixels = pyplot.imread(draw(Figure("map", "title", "caption", ((cells,),)), tmp_path))[..., :3].reshape(-1, 3)
    greys = pixels[pixels.max(axis=1) - pixels.min(axis=1) < 0.01, 0]
    assert ((greys > 0.7) & (greys < 0.85)).mean() > 0.15, "three cells of four"


def test_each_set_of_points_has_a_colour_of_its_own(tmp_path: Path) -> None:
    def colours(labels: int) -> int:
        sets = tuple(Series(f"set {n}", [n], [1.0], "points", [0.9], [1.1]) for n in range(labels))
        path = draw(Figure(f"{labels}", "title", "caption", ((Panel("panel", "x", "y", sets),),)), tmp_path)
        pixels = pyplot.imread(path)[..., :3].reshape(-1, 3)
        saturated = pixels[pixels.max(axis=1) - pixels.min(axis=1) > 0.6]
        return len({tuple((pixel * 4).round()) for pixel in saturated})

    from matplotlib import pyplot

    assert 0 < colours(1) < colours(4)


def test_of_several_sets_of_points_a_law_has_the_colour_of_its_own() -> None:
    marks = {"ours": ("blue", "o"), "theirs": ("orange", "s")}
    assert [_line_colour(f"law of {name}", marks) for name in marks] == ["blue", "orange"]
    assert _line_colour("law of ours", {"ours": ("blue", "o")}) != "blue"
    assert _line_colour("wave law", marks) not in ("blue", "orange")


def test_a_picture_that_cannot_be_written_is_a_warning_and_not_the_end(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="a_figure could not be written"):
        assert draw_all({"a_probe": Findings(figures=(FIGURE,))}, tmp_path / "absent") == []


def test_a_sound_run_needs_no_caution() -> None:
    idle = BUSY | {"cpu_busy_s": 0.55}
    records = [a_record("sentinel"), a_record(**idle, cpu_steal_s=0.01), a_record("sentinel", seconds=1.01)]
    assert cautions(records) == []


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([a_record(outcome="failed")], "1 visit.* failed.*because"),
        ([a_record(outcome="unsupported")], "1 visit.* unsupported.*because"),
        ([a_record(converged=False)], "1 of 1 measurements"),
        ([a_record("sentinel"), a_record("sentinel", seconds=1.2)], "moved by 20%"),
        ([a_record(**BUSY, cpu_steal_s=0.0)], "Other processes kept 1.5 cores"),
        ([a_record(**BUSY | {"cpu_busy_s": 0.5}, cpu_steal_s=0.6)], "gave 0.6 cores"),
    ],
)
def test_what_makes_figures_doubtful_is_said(records: list[Record], words: str) -> None:
    (caution,) = cautions(records)
    assert re.search(words, caution)


@pytest.mark.parametrize(("places", "whole"), [([0, 1, 2], True), ([0.0, 0.5, 1.0], False)])
def test_what_comes_in_whole_numbers_has_no_quarters_on_its_axis(places: list[float], whole: bool) -> None:
    axes = pytest.importorskip("matplotlib.figure").Figure().add_subplot()
    panel = Panel("loaders", "loaders", "iterations/s", (Series("measured", places, [1.0, 2.0, 3.0], "line"),))
    _draw_panel(axes, panel, {}, first=True, titled=True, last=True)
    assert all(float(place).is_integer() for place in axes.get_xticks()) is whole
