"""A figure on the page says what it shows, where it came from, and what of it nobody measured; its values are there."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.measure.estimates import Ratio
from pyperf_suite.render.page import _environment, island
from pyperf_suite.render.plot import shown
from pyperf_suite.spec.findings import Bar, Bars, Claim, Figure, Heading, HeatMap, Panel, Series, Table, remark
from pyperf_suite.spec.quantity import Quantity

MEASURED = Series("measured", [1, 2], [3e-6, 4e-6], "points", [2.9e-6, 3.9e-6], [3.1e-6, 4.1e-6])
LAW = Series("a law", [1, 2], [3e-6, 4e-6], "line")
MAP = HeatMap("", "heads", "hidden", "work", (1, 2), (3, 4), ((1.0, 1.5), (math.nan, 0.5)), here=(0, 0))


class Source:
    """Where the figure is from, as a section says it."""

    command, place = "pyperf-suite run made_up", "machine/run/records.jsonl"


def macro(name: str, *arguments: Any) -> str:
    """What a macro of the page's template makes of these."""
    return str(getattr(macros(), name)(*arguments))


@cache
def macros() -> Any:
    """The page's template, of no machine."""
    empty = {"machines": [], "passed_over": [], **dict.fromkeys(("title", "policy", "version", "plotly"), "")}
    return _environment().get_template("page.html").make_module(empty)


def panel(*series: Series, title: str = "a panel") -> Panel:
    return Panel(title, "N", "time", series, y_unit="us")


def drawn(*panels: Any, caption: str = "A caption.") -> str:
    return macro("figure", shown(Figure("name", "A title", caption, (panels,))), Source)


def data_of(html: str) -> list[dict[str, Any]]:
    return [json.loads(found) for found in re.findall(r'class="data">(.*?)</script>', html)]


def test_a_figure_has_its_title_caption_command_and_records() -> None:
    html = drawn(panel(MEASURED, LAW))
    for said in ("A title", "A caption.", "pyperf-suite run made_up", "machine/run/records.jsonl"):
        assert said in html


def test_a_picture_tells_in_words_what_one_sees_and_which_of_it_is_a_prediction() -> None:
    [words] = re.findall(r'role="img" aria-label="([^"]*)"', drawn(panel(MEASURED, LAW)))
    assert words == "time, us over N: measured (measured), a law (law, predicted)"


def test_a_figures_values_stand_in_a_table_and_in_the_data_of_the_script_in_the_unit_shown() -> None:
    html = drawn(panel(MEASURED, LAW))
    [data] = data_of(html)
    assert data["traces"][0]["y"] == [3, 4]
    assert (data["x_label"], data["y_label"]) == ("N", "time, us")
    assert "<td>measured</td>" in html
    assert ">2.9</td>" in html


def test_every_series_has_a_button_that_says_whether_it_is_shown() -> None:
    html = drawn(panel(MEASURED, LAW), panel(MEASURED, title="two"))
    assert re.findall(r'aria-pressed="true" data-series="([^"]*)"', html) == ["measured", "a law"]


def test_a_heat_map_leaves_none_for_what_there_is_not() -> None:
    [data] = data_of(drawn(MAP))
    assert data["values"] == [[1, 1.5], [None, 0.5]]
    assert data["here"] == [0, 0]


def test_a_map_of_predictions_is_marked_and_a_measured_one_is_not() -> None:
    assert "predicted, not measured" in drawn(MAP, caption="Predicted; all else as asked.")
    assert "predicted, not measured" not in drawn(MAP, caption="Measured.")
    bars = Bars("", "TFLOP/s", (Bar("TP 2", 3.5),), "measured", "predicted")
    assert "predicted, not measured" not in drawn(bars, caption="Bars: measured; line: predicted.")


def test_bars_are_in_the_unit_shown_with_the_reason_where_there_is_no_value() -> None:
    held = (Bar("TP 2", 3.5e12, 0.5e12, 4e12), Bar("TP 4", math.nan, note="out of memory"))
    html = drawn(Bars("study", "rate", held, "measured", unit="TFLOP/s"))
    [data] = data_of(html)
    assert (data["kind"], data["values"], data["errors"], data["marks"]) == (
        "bars",
        [3.5, None],
        [0.5, None],
        [4, None],
    )
    assert data["x_label"] == "rate, TFLOP/s"
    assert html.count("out of memory") >= 2


def test_panels_below_each_other_stay_so_where_a_row_is_shorter() -> None:
    one = panel(MEASURED)
    html = macro("figure", shown(Figure("name", "title", "caption", ((one,), (one, one)))), Source)
    assert re.findall(r'class="(filler|picture)"', html) == ["picture", "filler", "picture", "picture"]


def test_a_table_of_very_many_rows_says_how_many_it_leaves_out() -> None:
    html = macro("table", Table("long", (Heading("n"),), tuple((n,) for n in range(1005))))
    assert html.count("<tr><td") == 1000
    assert "5 more rows are not shown" in html


def test_numbers_stand_at_the_right_with_the_value_that_they_are_sorted_by_and_words_at_the_left() -> None:
    columns = (Heading("a"), Heading("time", "ms"), Heading("count"))
    html = macro("table", Table("t", columns, (("1 x 256 tokens", Quantity(1.5e-3, "ms"), 7), ("b", None, 1))))
    assert "<td>1 x 256 tokens</td>" in html
    assert '<td class="figure" data-value="0.0015">1.5</td>' in html
    assert '<td class="figure" data-value="7">7</td>' in html


def test_long_words_may_be_broken_and_short_ones_and_numbers_not() -> None:
    row = ("a name of many more characters than fit", "short", Quantity(1.0, "x", 0.123456789, 1.23456789, 3))
    assert macro("table", Table("t", tuple(map(Heading, "abc")), (row,))).count('class="long"') == 1


def test_verdicts_stand_below_their_claim_with_their_outcome_and_noise_is_left_out() -> None:
    claim = Claim("twice as fast", "A Guide", 1.9, 2.1)
    verdicts = [claim.judge("{name} is {measured}", Ratio(v, v - 0.05, v + 0.05, 3), name="<x>") for v in (2.0, 3.0)]
    noise = remark("{faster}", effect="faster", faster=Ratio(1, 0.9, 1.1, 3))
    html = macro("said", (*verdicts, noise))
    assert html.count("A Guide") == 1
    assert '<span class="chip holds">holds</span> &lt;x&gt; is 2.00' in html
    assert '<span class="chip does">does not hold here</span>' in html
    assert "0.9" not in html


@given(st.text())
def test_no_text_becomes_markup_or_turns_the_direction_of_writing(said: str) -> None:
    html = macro("careful", "t", [said + "\u202e"])
    inner = html.partition("<li>")[2].partition("</li>")[0]
    assert not set("<>\"'\u202e\u2066\x00") & set(inner)


@given(st.recursive(st.text() | st.floats() | st.none() | st.integers(), st.lists))
def test_an_island_is_json_that_ends_no_script_and_opens_no_comment(data: object) -> None:
    told = island({"data": data})
    json.loads(told)
    assert not set("<>&\u2028\u2029") & set(told)
    assert told.isascii()


def test_numbers_that_json_has_no_word_for_are_null() -> None:
    assert json.loads(island([float("nan"), float("inf"), 1 / 3, "a\u202eb"])) == [None, None, 0.333333, "a\ufffdb"]
