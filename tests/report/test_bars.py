"""Bars are drawn in the order given, with errors and second marks where they are known, and words where nothing is."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pyperf_suite.render.picture import draw
from pyperf_suite.report.bars import draw_bars
from pyperf_suite.spec.findings import Bar, Bars, Figure

BARS = Bars(
    "one",
    "samples/s",
    (
        Bar("first", 3.0, 0.2, 3.5),
        Bar("second", 2.0, math.nan, math.nan),
        Bar("third", math.nan, note="failed: $rank_1 died"),
    ),
    "measured",
    "predicted",
)


@pytest.fixture
def axes():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    canvas, axes = pyplot.subplots()
    yield axes
    pyplot.close(canvas)


def test_the_first_is_on_top_and_bars_are_as_long_as_their_values(axes) -> None:
    draw_bars(axes, BARS)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "second", "third"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    assert [patch.get_width() for patch in axes.patches] == [3.0, 2.0]


def test_marks_stand_at_their_values_and_nothing_reaches_the_frame(axes) -> None:
    draw_bars(axes, BARS)
    marks = [line for line in axes.lines if line.get_label() == "predicted"]
    assert [list(mark.get_xdata()) for mark in marks] == [[3.5]]
    assert axes.get_xlim()[1] > 3.5


def test_what_has_no_value_has_words(axes) -> None:
    draw_bars(axes, BARS)
    assert [text.get_text() for text in axes.texts] == ["failed: $rank_1 died"]


@pytest.mark.parametrize("bars", [BARS.bars, BARS.bars[2:], BARS.bars * 20])
def test_a_figure_of_bars_is_a_picture_however_many_there_are(bars: tuple[Bar, ...], tmp_path: Path) -> None:
    panel = Bars("", "samples/s", bars, "measured")
    path = draw(Figure("study", "Title", "Caption", ((panel,),)), tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
