"""Series of runs as figures and in the terminal: what must be seen in them is there."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from pyperf_suite.record.interval import Ratio
from pyperf_suite.regressions.changepoints import Change
from pyperf_suite.render.series import (
    print_list,
    print_series,
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


def test_exact_figures_are_shown_as_they_are_counted(capsys):
    static = replace(a_series([182.0, 40960.0]), metric="shared", unit_of_measure="bytes", kind="static")
    print_series(Console(width=200), static, [], show_all=True)
    assert "40960" in capsys.readouterr().out
    print_list(Console(width=200), [static], [])
    assert "40960 bytes" in capsys.readouterr().out
