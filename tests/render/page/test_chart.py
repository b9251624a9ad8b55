"""Panels become charts that keep every extreme, leave out what is no number, and share what is read side by side."""

from __future__ import annotations

import math

from hypothesis import assume, given
from hypothesis import strategies as st

from pyperf_suite.report.html.chart import Chart, charts_of, colours_of
from pyperf_suite.report.html.static_chart import draw_chart
from pyperf_suite.report.html.thinning import kept, rule
from pyperf_suite.report.html.ticks import round_ticks
from pyperf_suite.spec.findings import Figure, Panel, Series

finite = st.floats(-1e9, 1e9)


def one_chart(*series: Series, **panel: object) -> Chart:
    figure = Figure("f", "t", "c", ((Panel("p", "N", "us", series, **panel),),))  # type: ignore[arg-type]
    return charts_of(figure)[0][0]


@given(st.lists(finite, min_size=1, max_size=300), st.integers(2, 50))
def test_thinning_keeps_the_lowest_and_the_highest_and_the_order(y: list[float], most: int) -> None:
    places = kept(y, most)
    assert len(places) <= max(most, min(len(y), most))
    assert places == sorted(set(places))
    assert {min(y), max(y)} <= {y[place] for place in places}


def test_what_is_left_out_is_said_and_nothing_is_said_where_all_is_drawn() -> None:
    assert rule(700, 600).startswith("Of 700 values 600 are drawn")
    assert rule(600, 600) == ""


def test_values_that_are_no_numbers_are_left_out_of_a_chart() -> None:
    chart = one_chart(Series("a", [1, 2, math.inf], [1.0, math.nan, 3.0], "points", [1, 1, 1], [2, 2, 2]))
    assert chart.traces[0].x == (1.0,)
    assert chart.traces[0].high == (2.0,)


def test_a_logarithmic_axis_has_no_place_for_zero() -> None:
    chart = one_chart(Series("a", [0, 1, 10], [1, 2, 3], "line"), x_ticks=((1.0, "one"), (10.0, "ten")))
    assert chart.log
    assert chart.traces[0].x == (1.0, 10.0)
    assert ">one</text>" in draw_chart(chart)


def test_charts_of_one_row_share_their_range_only_where_they_show_the_same_quantity() -> None:
    def panel(y_label: str, height: float) -> Panel:
        return Panel("", "N", y_label, (Series("a", [1], [height], "points"),))

    one, other, third = charts_of(Figure("f", "t", "c", ((panel("us", 1), panel("us", 9), panel("GB/s", 2)),)))[0]
    assert one.y_range == other.y_range
    assert other.y_range[1] >= 9
    assert third.y_range[1] < 3


def test_values_below_zero_are_inside_the_axis() -> None:
    chart = one_chart(Series("a", [1, 2], [-4.0, 2.0], "points"))
    assert chart.y_range[0] <= -4


def test_a_law_has_the_colour_of_its_points_where_there_are_several() -> None:
    names = ("one", "two")
    points = [Series(name, [1], [1], "points") for name in names]
    laws = [Series(f"law of {name}", [1], [1], "line") for name in names]
    colours = colours_of([Panel("", "", "", (*points, *laws, Series("torch", [1], [1], "beside")))])
    assert colours["law of one"] == colours["one"] != colours["two"] == colours["law of two"]
    assert colours["torch"] == "beside"


def test_an_empty_panel_is_drawn_as_empty_axes() -> None:
    assert draw_chart(one_chart()).startswith("<svg")
    assert draw_chart(one_chart(Series("a", [], [], "points"))).endswith("</svg>")


@given(finite, st.floats(1e-6, 1e9))
def test_ticks_lie_within_the_range_and_are_few(low: float, span: float) -> None:
    assume(span > 1e-6 * abs(low))  # narrower ranges have hardly more numbers than ticks
    ticks = round_ticks(low, low + span)
    assert len(ticks) <= 8
    assert all(low - span * 1e-3 <= tick <= low + span * 1.001 for tick in ticks)


def test_a_bound_a_little_beyond_all_values_is_in_sight_and_one_far_off_does_not_squeeze_them() -> None:
    def right(bound: float) -> float:
        return one_chart(Series("a", (1.0, 2.0), (1.0, 1.0), "points"), strong_edges=(bound,)).x_range[1]

    assert right(2.5) > 2.5
    assert right(0.5) == right(100.0) < 2.5
