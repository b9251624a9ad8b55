"""Figures become pictures with what they are described by: colours, marks, words, and panels of a size of their own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.render.charts import draw, draw_bars
from pyperf_suite.render.run_report import draw_all
from pyperf_suite.spec.findings import Bar, Bars, Figure, Findings, HeatMap, Panel, Series

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

BARS = Bars(
    "one",
    "rate",
    (
        Bar("first", 3.0e9, 0.2e9, 3.5e9),
        Bar("second", 2.0e9, math.nan, math.nan),
        Bar("third", math.nan, note="failed: $rank_1 died"),
    ),
    "measured",
    "predicted",
    "GB/s",
)


@pytest.fixture
def axes() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    canvas, axes = pyplot.subplots()
    yield axes
    pyplot.close(canvas)


def test_a_figure_becomes_a_png(tmp_path: Path) -> None:
    path = draw(FIGURE, tmp_path)
    assert path.name == "a_figure.png"
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
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


def test_a_picture_that_cannot_be_written_is_a_warning_and_not_the_end(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="a_figure could not be written"):
        assert draw_all({"a_probe": Findings(figures=(FIGURE,))}, tmp_path / "absent") == []


def test_bars_are_as_long_as_their_values_in_the_unit_shown_and_the_first_is_on_top(axes: Any) -> None:
    draw_bars(axes, BARS)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "second", "third"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    assert [patch.get_width() for patch in axes.patches] == [3.0, 2.0]
    assert axes.get_xlabel() == "rate, GB/s"


def test_marks_stand_at_their_values_and_nothing_reaches_the_frame(axes: Any) -> None:
    draw_bars(axes, BARS)
    marks = [line for line in axes.lines if line.get_label() == "predicted"]
    assert [list(mark.get_xdata()) for mark in marks] == [[3.5]]
    assert axes.get_xlim()[1] > 3.5


def test_a_bar_without_a_value_has_words(axes: Any) -> None:
    draw_bars(axes, BARS)
    assert [text.get_text() for text in axes.texts] == [r"failed: \$rank_1 died"]


@pytest.mark.slow
@pytest.mark.parametrize("bars", [BARS.bars, BARS.bars[2:], BARS.bars * 20])
def test_a_figure_of_bars_is_a_picture_however_many_there_are(bars: tuple[Bar, ...], tmp_path: Path) -> None:
    path = draw(Figure("study", "Title", "Caption", ((Bars("", "samples/s", bars, "measured"),),)), tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_long_legend_makes_the_picture_higher_and_leaves_the_panel_its_size(tmp_path: Path) -> None:
    from matplotlib import pyplot

    def size(names: int) -> tuple[int, float]:
        series = tuple(Series(f"{'long name ' * 6}{n}", [1, 2], [n, n], "points") for n in range(names))
        path = draw(Figure(f"legend_{names}", "title", "caption", ((Panel("", "x", "y", series),),)), tmp_path)
        pixels = pyplot.imread(path)[..., :3]
        left = next(column for column in pixels.transpose(1, 0, 2) if (column < 0.1).all(axis=1).mean() > 0.2)
        return len(pixels), float((left < 0.1).all(axis=1).sum())

    (few, panel), (many, with_many) = size(1), size(8)
    assert many > few + 80
    assert with_many > 0.85 * panel


def test_words_with_dollars_are_no_formulas(tmp_path: Path) -> None:
    panel = Panel("$one_{", "$x^", "$y", (Series("$s_{", [1], [1.0], "points"),), x_ticks=((1.0, "$2^{"),))
    assert draw(Figure("dollars", "$a_{", "$b", ((panel,),)), tmp_path).exists()
