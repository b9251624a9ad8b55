"""Panels become charts in the units shown that keep every extreme and share what is read side by side."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.render.charts import Chart, bars_range, caption_of, charts_of, colours_of, kept
from pyperf_suite.spec.findings import Bar, Bars, Figure, Panel, Series

finite = st.floats(-1e9, 1e9)


def figure(*panels: Panel) -> Figure:
    return Figure("f", "t", "A caption.", (panels,))


def one_chart(*series: Series, **panel: object) -> Chart:
    return charts_of(figure(Panel("p", "N", "time", series, **panel)))[0][0]  # type: ignore[arg-type]


@given(st.lists(finite, min_size=1, max_size=300), st.integers(2, 50))
def test_thinning_keeps_the_lowest_and_the_highest_and_the_order(y: list[float], most: int) -> None:
    places = kept(y, most)
    assert len(places) <= max(most, min(len(y), most))
    assert places == sorted(set(places))
    assert {min(y), max(y)} <= {y[place] for place in places}


def test_the_caption_says_what_is_left_out_and_nothing_where_all_is_drawn() -> None:
    many = figure(Panel("", "N", "us", (Series("a", range(700), [float(n) for n in range(700)], "points"),)))
    few = figure(Panel("", "N", "us", (Series("a", [1, 2], [0.0, 1.0], "points"),)))
    assert "Of 700 values 600 are drawn" in caption_of(many, charts_of(many))
    assert caption_of(few, charts_of(few)) == "A caption."


def test_values_are_in_the_unit_shown_and_the_label_names_it() -> None:
    chart = one_chart(
        Series("a", [2**20], [2e-3], "points", [1e-3], [3e-3]), x_unit="size", y_unit="ms", strong_edges=(2**19,)
    )
    [trace] = chart.traces
    assert (trace.x, trace.y, trace.low, trace.high) == ((1.0,), (2.0,), (1.0,), (3.0,))
    assert (chart.x_label, chart.y_label) == ("N, MiB", "time, ms")
    assert chart.strong_edges == (0.5,)


def test_panels_that_show_the_same_quantity_have_one_unit() -> None:
    panels = (Panel("", "N", "time", (Series("a", [1], [y], "points"),), y_unit="duration") for y in (2e-6, 2.0))
    assert {chart.y_label for chart in charts_of(figure(*panels))[0]} == {"time, s"}


@pytest.mark.parametrize(("unit", "shown"), [("%", 25.0), ("x", 0.25), ("", 0.25)])
def test_shares_are_shown_in_percent_and_ratios_as_they_are(unit: str, shown: float) -> None:
    assert one_chart(Series("a", [1], [0.25], "points"), y_unit=unit).traces[0].y == (shown,)


def test_values_that_are_no_numbers_are_left_out_of_a_chart() -> None:
    chart = one_chart(Series("a", [1, 2, math.inf], [1.0, math.nan, 3.0], "points", [1, 1, 1], [2, 2, 2]))
    assert chart.traces[0].x == (1.0,)
    assert chart.traces[0].high == (2.0,)


def test_a_logarithmic_axis_has_no_place_for_zero() -> None:
    chart = one_chart(Series("a", [0, 1, 10], [1, 2, 3], "line"), x_ticks=((1.0, "one"), (10.0, "ten")))
    assert chart.log
    assert chart.traces[0].x == (1.0, 10.0)
    assert chart.x_range[0] > 0


def test_charts_of_one_row_share_their_range_only_where_they_show_the_same_quantity() -> None:
    def panel(y_label: str, height: float) -> Panel:
        return Panel("", "N", y_label, (Series("a", [1], [height], "points"),))

    one, other, third = charts_of(figure(panel("us", 1), panel("us", 9), panel("GB/s", 2)))[0]
    assert one.y_range == other.y_range
    assert other.y_range[1] >= 9
    assert third.y_range[1] < 3


def test_charts_below_each_other_share_their_x_range_only_where_they_have_the_same_axis() -> None:
    rows = [
        (Panel("", label, "us", (Series("a", [x], [1.0], "points"),)),) for label, x in (("N", 1), ("N", 9), ("K", 5))
    ]
    one, other, third = (row[0] for row in charts_of(Figure("f", "t", "c", tuple(rows))))
    assert one.x_range == other.x_range
    assert third.x_range[1] < 9


def test_values_below_zero_are_inside_the_axis() -> None:
    assert one_chart(Series("a", [1, 2], [-4.0, 2.0], "points")).y_range[0] <= -4


def test_a_whisker_that_would_squash_the_panel_is_cut_and_the_caption_says_so() -> None:
    series = Series("a", range(9), [1.0] * 9, "points", [0.0] * 9, [1.1] * 8 + [50.0])
    wide = figure(Panel("", "N", "us", (series,)))
    [[chart]] = charts_of(wide)
    assert 1.1 < chart.y_range[1] < 2
    assert chart.cut == 1
    assert "1 whisker reaches beyond the panel" in caption_of(wide, [[chart]])
    assert chart.traces[0].high[-1] == 50.0


def test_few_values_that_are_alike_do_not_begin_at_zero_and_the_caption_says_so() -> None:
    def chart_from(y: list[float]) -> tuple[float, str]:
        drawn = figure(Panel("", "N", "us", (Series("a", range(len(y)), y, "points"),)))
        rows = charts_of(drawn)
        return rows[0][0].y_range[0], caption_of(drawn, rows)

    low, said = chart_from([10.0, 10.5, 11.0])
    assert 9 < low < 10
    assert "does not begin at 0" in said
    for values in ([10.0, 1.0, 11.0], [10.0] * 20):
        assert chart_from(values) == (0.0, "A caption.")


def test_a_law_has_the_colour_of_its_points_where_there_are_several() -> None:
    names = ("one", "two")
    points = [Series(name, [1], [1], "points") for name in names]
    laws = [Series(f"law of {name}", [1], [1], "line") for name in names]
    colours = colours_of([Panel("", "", "", (*points, *laws, Series("torch", [1], [1], "beside")))])
    assert colours["law of one"] == colours["one"] != colours["two"] == colours["law of two"]
    assert colours["torch"] == "beside"
    alone = colours_of([Panel("", "", "", (points[0], laws[0]))])
    assert alone["law of one"] != alone["one"]


@pytest.mark.parametrize("series", [(), (Series("a", [], [], "points"),)])
def test_an_empty_panel_has_axes(series: tuple[Series, ...]) -> None:
    chart = one_chart(*series)
    assert chart.x_range[0] < chart.x_range[1]
    assert chart.y_range[0] < chart.y_range[1]


def test_a_bound_a_little_beyond_all_values_is_in_sight_and_one_far_off_does_not_squeeze_them() -> None:
    def right(bound: float) -> float:
        return one_chart(Series("a", (1.0, 2.0), (1.0, 1.0), "points"), strong_edges=(bound,)).x_range[1]

    assert right(2.5) > 2.5
    assert right(0.5) == right(100.0) < 2.5


def test_bars_begin_at_zero_and_have_room_for_errors_and_marks() -> None:
    low, high = bars_range(Bars("", "x", (Bar("a", 3.0, 1.0), Bar("b", 1.0, mark=5.0)), "measured"))
    assert low == 0
    assert 5 < high < 6
    assert bars_range(Bars("", "x", (Bar("a", math.nan),), "measured")) == (0.0, 1.0)
