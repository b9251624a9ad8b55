"""Series of runs as figures and in the terminal: what must be seen in them is there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from pyperf_suite.record.interval import Ratio
from pyperf_suite.regressions.changepoints import Change
from pyperf_suite.render.series import (
    print_list,
    print_series,
    series_chart,
    series_figure,
)
from tests.core.series import a_series


def doubled(index: int) -> Change:
    return Change(index, 2.0, 4.0, Ratio(2.0, 2.0, 2.0), index, 1)


def test_a_figure_names_benchmark_breaks_and_commits_and_the_size_of_a_step():
    drawn = a_series([2.0, 3.0, 2.0, 4.0], units="abaa", drivers=["570.1", "580.2", "580.2", "580.2"])
    figure = series_figure(drawn, [replace(doubled(3), commit_before="0" * 40, commit_after="1" * 40)])
    assert figure.title == "tile_wave: matmul[native m=8]"
    assert "2026-01-02: driver 570.1 -> 580.2" in figure.caption
    assert f"2026-01-04: +100.0% ({'0' * 9} to {'1' * 9})" in figure.caption


def test_runs_of_one_day_are_labelled_with_their_times():
    days = a_series([1.0] * 3)
    points = tuple(point._replace(started_at=f"2026-01-01T0{hour}:30:00") for hour, point in enumerate(days.points))
    drawn = replace(days, points=points)
    assert (2.0, "01-01 02:30") in series_chart(drawn, series_figure(drawn, [])).ticks


def test_the_levels_of_a_unit_are_those_of_its_own_points():
    drawn = a_series([2.0, 8.0, 2.0, 8.0, 4.0, 8.0], units="ababab")
    chart = series_chart(drawn, series_figure(drawn, [doubled(4)]))
    scale = chart.traces[0].y[0] / 2.0
    levels = {trace.label: (trace.x, tuple(y / scale for y in trace.y)) for trace in chart.traces}
    across = (-0.5, 3.5, 3.5, 5.5)
    assert levels["law of GPU-a"] == (across, (2.0, 2.0, 4.0, 4.0))
    assert levels["law of GPU-b"] == (across, (8.0, 8.0, 8.0, 8.0))


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [1e-9, 1.0], [5e-10] * 30])
def test_around_single_equal_and_far_apart_values_there_is_room(values: list[float]) -> None:
    drawn = a_series(values)
    chart = series_chart(drawn, series_figure(drawn, []))
    (low, high), points = chart.y_range, chart.traces[0].y
    assert low < min(points) <= max(points) < high


def test_each_point_is_a_row_with_its_unit_and_what_broke_before_it(capsys):
    drawn = a_series([1e-3, 3e-3, 2e-3], units="abb", drivers=["570.1", "580.2", "580.2"])
    print_series(Console(width=200), drawn, [], show_all=False)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("run")][1:]
    assert [[unit in row for unit in ("GPU-a", "GPU-b")] for row in rows] == [[True, False], *[[False, True]] * 2]
    assert ["1 [0.9, 1.1]" in rows[0], "after a break" in rows[1], "after a break" in rows[2]] == [True, True, False]


def test_exact_figures_are_shown_as_they_are_counted(capsys):
    static = replace(a_series([182.0, 40960.0]), metric="shared", unit_of_measure="bytes", kind="static")
    print_series(Console(width=200), static, [], show_all=True)
    assert "40960" in capsys.readouterr().out
    print_list(Console(width=200), [static], [])
    assert "40960 bytes" in capsys.readouterr().out
