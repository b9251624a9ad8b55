"""Pictures of series: what they refuse, and that what must be seen in them is drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pyperf_suite.errors import UserError
from pyperf_suite.regressions.stored.series import BenchmarkSeries, Break, SeriesPoint
from pyperf_suite.regressions.tracking import Step
from pyperf_suite.render.series import (
    MOST_PANELS,
    draw_series,
    print_list,
    print_series,
    series_chart,
    series_figure,
    sparkline,
)


def series(values: list[float], units: str = "", breaks: tuple[Break, ...] = ()) -> BenchmarkSeries:
    points = tuple(
        SeriesPoint(f"run{index}", f"2026-01-{index + 1:02}T00:00:00", value, 0.9 * value, 1.1 * value,
              unit=f"GPU-{units[index]}" if units else "", commit=f"{index:040x}")
        for index, value in enumerate(values)
    )  # fmt: skip
    return BenchmarkSeries("cpu-someones-2c", "tile_wave", "aa", "matmul[native m=8]", "s", points, breaks)


@pytest.fixture
def written_words(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All text that the figures of a test hold when they are saved."""
    import matplotlib.text
    from matplotlib.figure import Figure

    words: list[str] = []
    save = Figure.savefig

    def saved(figure: Figure, *arguments: object, **options: object) -> None:
        save(figure, *arguments, **options)
        words.extend(text.get_text() for text in figure.findobj(matplotlib.text.Text))

    monkeypatch.setattr(Figure, "savefig", saved)
    return words


def test_a_picture_names_benchmark_machine_breaks_commits_units_and_the_size_of_a_step(tmp_path, written_words):
    drawn = series([2.0, 3.0, 2.0, 4.0], units="abaa", breaks=(Break(1, "driver 570.1 -> 580.2"),))
    draw_series([drawn], tmp_path / "series.png", [[Step(3, 2.0, 4.0)]])
    assert (tmp_path / "series.png").read_bytes().startswith(b"\x89PNG")
    words = "\n".join(written_words)
    message = (
        *("tile_wave: matmul[native m=8]", "on cpu-someones-2c", "driver 570.1 -> 580.2", "+100.0%"),
        *("GPU-a", "GPU-b", "2026-01-01\n000000000"),
    )
    assert [each for each in message if each not in words] == []


def test_runs_of_one_day_are_labelled_with_their_times(tmp_path, written_words):
    points = tuple(SeriesPoint(f"run{hour}", f"2026-01-01T0{hour}:30:00", 1.0, 1.0, 1.0) for hour in range(3))
    draw_series([BenchmarkSeries("m", "p", "aa", "label", "s", points)], tmp_path / "day.png", [()])
    assert "01-01 02:30" in written_words


def test_the_levels_of_a_unit_are_those_of_its_own_points():
    drawn = series([2.0, 8.0, 2.0, 8.0, 4.0, 8.0], units="ababab")
    chart = series_chart(drawn, series_figure(drawn, [Step(4, 2.0, 4.0)]))
    scale = chart.traces[0].y[0] / 2.0
    levels = {trace.label: (trace.x, tuple(y / scale for y in trace.y)) for trace in chart.traces}
    across = (-0.5, 3.5, 3.5, 5.5)
    assert levels["law of GPU-a"] == (across, (2.0, 2.0, 4.0, 4.0))
    assert levels["law of GPU-b"] == (across, (8.0, 8.0, 8.0, 8.0))


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [1e-9, 1.0], [5e-10] * 30])
def test_single_equal_and_far_apart_values_can_be_drawn(tmp_path: Path, values: list[float]) -> None:
    draw_series([series(values)], tmp_path / "series.png", [()])
    assert (tmp_path / "series.png").stat().st_size > 1000


def test_a_label_that_looks_like_mathematics_is_drawn_as_it_is(tmp_path, written_words):
    odd = BenchmarkSeries("m", "p", "aa", "cost in $\\frac{$ \N{SNOWMAN}\N{BANANA}", "s", series([1.0, 2.0]).points)
    draw_series([odd], tmp_path / "odd.png", [()])
    assert any(r"\$\frac{\$" in word for word in written_words)


def test_nothing_to_draw_and_too_much_to_draw_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="nothing to draw"):
        draw_series([series([])], tmp_path / "series.png", [()])
    with pytest.raises(UserError, match=f"takes {MOST_PANELS} series, but 13 match"):
        draw_series([series([1.0])] * 13, tmp_path / "series.png", [()] * 13)


def test_a_picture_that_cannot_be_written_leaves_the_older_one(tmp_path, monkeypatch):
    picture = tmp_path / "series.png"
    picture.write_bytes(b"older")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyperf_suite.files.os.fsync", full)
    with pytest.raises(UserError, match="No space left"):
        draw_series([series([1.0])], picture, [()])
    assert picture.read_bytes() == b"older"


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        draw_series([series([1.0])], tmp_path / "absent" / "series.png", [()])


def test_a_sparkline_rises_from_the_lowest_bar_to_the_highest():
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8]) == "▁▂▃▄▅▆▇█"


def test_a_thousandth_of_noise_is_drawn_flat():
    assert len(set(sparkline([1.0, 1.001, 0.999, 1.0]))) == 1


def test_a_long_series_keeps_its_step_in_a_short_sparkline():
    drawn = sparkline([1.0] * 500 + [2.0] * 500, width=10)
    assert drawn == "▁▁▁▁▁█████"


@given(st.lists(st.floats(-1e300, 1e300), max_size=200), st.integers(1, 50))
def test_a_sparkline_is_never_wider_than_asked(values, width):
    assert len(sparkline(values, width)) == min(len(values), width)


def test_each_point_is_a_row_with_its_place_between_the_extremes_and_the_mark_of_its_unit(capsys):
    drawn = series([1e-3, 3e-3, 2e-3], units="abb", breaks=(Break(1, "driver 570.1 -> 580.2"),))
    print_series(Console(width=200), drawn, [], show_all=False)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("run")][1:]
    lanes = [next(word for word in row.split() if "·" in word) for row in rows]
    assert [(lane.find("●"), lane.find("○")) for lane in lanes] == [(1, -1), (-1, 17), (-1, 9)]
    assert [lane.count("─") for lane in lanes] == [2, 5, 3]
    assert ["1 [0.9, 1.1]" in rows[0], "after a break" in rows[1], "after a break" in rows[2]] == [True, True, False]


def test_exact_figures_are_shown_as_they_are_counted(capsys):
    static = replace(series([182.0, 40960.0]), metric="shared", unit_of_measure="bytes", kind="static")
    print_series(Console(width=200), static, [], show_all=True)
    assert "40960" in capsys.readouterr().out
    print_list(Console(width=200), [static], [])
    assert "40960 bytes" in capsys.readouterr().out
