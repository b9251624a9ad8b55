"""Panels become charts in the units shown that keep every extreme, pictures that show them, and panels of the page."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyperf_suite.findings.data import Bar, Bars, Claim, Figure, Heading, HeatMap, Panel, Series, Table, remark
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.render.charts import (
    Chart,
    charts_of,
    colours_of,
    draw,
    kept,
    page_figure,
)
from pyperf_suite.render.page import environment, island

NAN = math.nan


def figure(*panels: Any, name: str = "f", caption: str = "A caption.") -> Figure:
    return Figure(name, "A title", caption, (panels,))


def panel(*series: Series, x_label: str = "N", y_label: str = "time", **more: Any) -> Panel:
    return Panel("", x_label, y_label, series, **more)


def points(x: Any, y: Any, low: Any = (), high: Any = (), label: str = "a") -> Series:
    return Series(label, x, y, "points", low, high)


def one_chart(*series: Series, **more: Any) -> Chart:
    return charts_of(figure(panel(*series, **more)))[0][0]  # type: ignore[no-any-return]


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=300), st.integers(2, 50))
def test_thinning_keeps_the_lowest_and_the_highest_and_the_order(y: list[float], max_points: int) -> None:
    places = kept(y, max_points)
    assert len(places) <= max(max_points, min(len(y), max_points))
    assert places == sorted(set(places))
    assert {min(y), max(y)} <= {y[place] for place in places}


def test_values_are_in_the_unit_shown_and_the_label_names_it() -> None:
    chart = one_chart(
        points([2**20], [2e-3], [1e-3], [3e-3]), x_unit="size", y_unit="ms", strong_edges=(2**19, math.inf)
    )
    [trace] = chart.traces
    assert (trace.x, trace.y, trace.low, trace.high) == ((1.0,), (2.0,), (1.0,), (3.0,))
    assert (chart.x_label, chart.x_title, chart.y_label) == ("N, MiB", "N, MiB", "time, ms")
    assert chart.strong_edges == (0.5,)
    for unit, shown in (("%", 25.0), ("x", 0.25), ("", 0.25)):
        assert one_chart(points([1], [0.25]), y_unit=unit).traces[0].y == (shown,)
    panels = (panel(points([1], [y]), y_unit="duration") for y in (2e-6, 2.0))
    assert {chart.y_label for chart in charts_of(figure(*panels))[0]} == {"time, s"}, "one unit for both"


def test_a_law_has_the_colour_of_its_points_where_there_are_several() -> None:
    names = ("one", "two")
    measured = [points([1], [1], label=name) for name in names]
    laws = [Series(f"law of {name}", [1], [1], "line") for name in names]
    colours = colours_of([panel(*measured, *laws, Series("torch", [1], [1], "baseline"))])
    assert colours["law of one"] == colours["one"] != colours["two"] == colours["law of two"]
    assert colours["torch"] == "baseline"
    alone = colours_of([panel(measured[0], laws[0])])
    assert alone["law of one"] != alone["one"]
    assert len(set(colours_of([panel(*(points([n], [1.0], label=str(n)) for n in range(8)))]).values())) == 8


@pytest.mark.parametrize("series", [(), (points([], []),)])
def test_an_empty_panel_has_axes(series: tuple[Series, ...]) -> None:
    chart = one_chart(*series)
    assert chart.x_range[0] < chart.x_range[1]
    assert chart.y_range[0] < chart.y_range[1]


# Pictures.

POINTS = points([1, 2, 3], [1.0, 2.0, 3.0], [0.9, 1.9, 2.9], [1.1, 2.1, 3.3], "measured")
LINE = Series("law", [1, 3], [1.0, 3.0], "line")
MAP = HeatMap("", "heads", "hidden", "work", (1, 2), (3, 4), ((1.0, 1.5), (NAN, 0.5)))
BARS = Bars(
    "one",
    "rate",
    (Bar("first", 3.0e9, 0.2e9, 3.5e9), Bar("second", 2.0e9), Bar("third", NAN, note="failed: $rank_1 died")),
    "measured",
    "predicted",
    "GB/s",
)
TWO_ROWS = ((panel(POINTS, LINE, strong_edges=(2.0,), weak_edges=(1.5,)), panel(POINTS)), (panel(POINTS),))


def pixels(*panels: Any, folder: Path) -> Any:
    from matplotlib import pyplot

    return pyplot.imread(draw(figure(*panels), folder))[..., :3]


@pytest.mark.slow
@pytest.mark.parametrize(
    "drawn",
    [
        Figure("rows", "Title", "A caption that is wrapped over more than one line of the picture. " * 5, TWO_ROWS),
        figure(MAP, panel(POINTS, Series("torch", [1, 3], [2.0, 2.0], "baseline"))),
        *(figure(Bars("", "samples/s", bars, "measured")) for bars in (BARS.bars, BARS.bars[2:], BARS.bars * 20)),
        figure(panel(points([1], [1.0], label="$s_{"), x_ticks=((1.0, "$2^{"),), y_label="$y"), name="$a_{"),
    ],
)
def test_every_kind_of_figure_becomes_a_png(drawn: Figure, tmp_path: Path) -> None:
    assert draw(drawn, tmp_path).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_heat_map_paints_better_and_worse_differently_and_nothing_in_grey(tmp_path: Path) -> None:
    def red_beyond_blue(value: float) -> float:
        cells = HeatMap("", "x", "y", "ratio", (1, 2), (3, 4), ((1.0, value), (value, NAN)))
        drawn = pixels(cells, folder=tmp_path).reshape(-1, 3)
        saturated = drawn[np.ptp(drawn, axis=1) > 0.25]
        greys = drawn[np.ptp(drawn, axis=1) < 0.01, 0]
        assert ((greys > 0.7) & (greys < 0.85)).mean() > 0.05, "the cell without a value"
        return float((saturated[:, 0] > saturated[:, 2]).mean())

    assert red_beyond_blue(0.8) > red_beyond_blue(1.2)


# Figures and tables of the page.


class Source:
    """Source of the figure, as a section has it."""

    command, place = "pyperf-suite run made_up", "machine/run/records.jsonl"


@cache
def macros() -> Any:
    """The page's template, of no machine."""
    empty = {
        "machines": [],
        "elsewhere": [],
        "passed_over": [],
        **dict.fromkeys(("title", "policy", "version", "plotly"), ""),
    }
    return environment().get_template("page.html.j2").make_module(empty)


def drawn(*panels: Any, caption: str = "A caption.") -> tuple[str, list[dict[str, Any]]]:
    """The figure as HTML, and the data that it gives to the script."""
    html = str(macros().figure(page_figure(figure(*panels, caption=caption)), Source))
    return html, [json.loads(found) for found in re.findall(r'class="data">(.*?)</script>', html)]


def test_a_map_of_predictions_is_marked_and_what_was_measured_is_not() -> None:
    for shown, caption, marked in (
        (MAP, "Predicted; all else as asked.", True),
        (MAP, "Measured.", False),
        (BARS, "Bars: measured; line: predicted.", False),
    ):
        assert ("predicted, not measured" in drawn(shown, caption=caption)[0]) == marked


def test_a_table_sorts_numbers_by_value_breaks_long_words_and_says_how_many_rows_it_leaves_out() -> None:
    columns = (Heading("a"), Heading("time", "ms"), Heading("count"))
    rows = (("1 x 256 tokens", Quantity(1.5e-3, "ms"), 7), ("a name of many more characters than fit", None, 1))
    html = str(macros().table(Table("t", columns, rows)))
    assert '<td class="short">1 x 256 tokens</td>' in html
    assert '<td class="figure" data-value="0.0015">1.5</td>' in html
    assert '<td class="figure" data-value="7">7</td>' in html
    assert html.count('class="long"') == 1
    html = str(macros().table(Table("long", (Heading("n"),), tuple((n,) for n in range(1005)))))
    assert html.count("<tr><td") == 1000
    assert "5 more rows left out" in html


def test_verdicts_stand_below_their_claim_with_their_outcome_and_noise_is_left_out() -> None:
    claim = Claim("twice as fast", "A Guide", 1.9, 2.1)
    verdicts = [claim.judge("{name} is {measured}", Ratio(v, v - 0.05, v + 0.05, 3), name="<x>") for v in (2.0, 3.0)]
    noise = remark("{faster}", effect="faster", faster=Ratio(1, 0.9, 1.1, 3))
    html = str(macros().said((*verdicts, noise)))
    assert html.count("A Guide") == 1
    assert '<span class="chip holds">holds</span> &lt;x&gt; is 2.00' in html
    assert '<span class="chip does">does not hold here</span>' in html
    assert "0.9" not in html


@given(st.text())
@example("`<b>`")
def test_no_text_becomes_markup_or_turns_the_direction_of_writing(words: str) -> None:
    html = str(macros().careful("t", [words + "\u202e"]))
    inner = html.partition("<li>")[2].partition("</li>")[0]
    as_text = inner.replace("<code>", "").replace("</code>", "")  # of what stands between backticks
    assert not set("<>\"'\u202e\u2066\x00") & set(as_text)


@given(st.recursive(st.text() | st.floats() | st.none() | st.integers(), st.lists))
def test_an_island_is_json_that_ends_no_script_and_opens_no_comment(data: object) -> None:
    text = island({"data": data})
    json.loads(text)
    assert not set("<>&\u2028\u2029") & set(text)
    assert text.isascii()
    assert json.loads(island([NAN, math.inf, 1 / 3, "a\u202eb"])) == [None, None, 0.333333, "a\ufffdb"]
