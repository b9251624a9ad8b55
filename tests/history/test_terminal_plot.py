"""Series drawn with characters: what rises is seen to rise, and noise is not drawn as if it were change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.history.shown.listing import ListColumn, plot, scale_for, sparkline


def columns(*values: float) -> list[ListColumn]:
    return [ListColumn(value, value, value) for value in values]


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


def test_a_plot_shows_the_highest_point_on_top_and_names_the_ends_of_its_axis():
    lines = plot(columns(1.0, 3.0, 2.0), (), str, height=3)
    assert lines == ["3.0 ┤  ●", "2.0 ┤    ●", "1.0 ┤●"]


def test_an_interval_is_drawn_from_its_low_to_its_high_end():
    lines = plot([ListColumn(2.0, 1.0, 3.0)], (), str, height=3)
    assert [line[-1] for line in lines] == ["│", "●", "│"]


def test_a_break_is_a_line_between_the_points_that_it_parts():
    lines = plot(columns(1.0, 1.0, 2.0), [2], str, height=2)
    assert lines == ["2.0 ┤    ┊ ●", "1.0 ┤● ● ┊"]


def test_units_have_marks_of_their_own():
    lines = plot([ListColumn(1.0, 1.0, 1.0, unit) for unit in (0, 1, 0)], (), lambda value: "", height=1 + 2)
    assert lines[1] == " ┤● ○ ●"


@given(
    st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=300),
    st.sets(st.integers(0, 320), max_size=5),
    st.integers(20, 80),
)
def test_a_plot_is_as_wide_and_high_as_asked_whatever_the_series(values, breaks, width):
    lines = plot(columns(*values), sorted(breaks), lambda value: "", width, height=7)
    assert len(lines) == 7
    assert max(map(len, lines)) <= width + len(" ┤")


def test_no_points_give_no_lines():
    assert plot([], (), str) == []
    assert sparkline([]) == ""


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(2.5, "2.500 s"), (1.2345e-3, "1.234 ms"), (0.00015, "150.0 us"), (3.2e-9, "3.200 ns"), (5e-12, "0.0050 ns")],
)
def test_seconds_are_told_in_the_unit_that_suits_them(seconds, told):
    assert scale_for([seconds], "s").text(seconds) == told


def test_counts_are_told_as_they_are():
    assert scale_for([182.0, 40960.0], "bytes").text(40960.0) == "40960 bytes"
