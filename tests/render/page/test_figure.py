"""A figure on the page says what it shows, where it came from, and what of it nobody measured."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from pyperf_suite.report.html.figure import draw_figure
from pyperf_suite.report.html.provenance import Source
from pyperf_suite.report.html.sentence import draw_sentence, judged
from pyperf_suite.report.html.table import MOST_ROWS, draw_table
from pyperf_suite.spec.findings import Bar, Bars, Figure, HeatMap, Panel, Series, Table

SOURCE = Source("pyperf-suite run made_up", "machine/run/records.jsonl")
MEASURED = Series("measured", [1, 2], [3.0, 4.0], "points", [2.9, 3.9], [3.1, 4.1])
LAW = Series("a law", [1, 2], [3.0, 4.0], "line")
MAP = HeatMap("", "heads", "hidden", "work", (1, 2), (3, 4), ((1.0, 1.5), (math.nan, 0.5)), here=(0, 0))


@dataclass(frozen=True)
class Radar:
    """A kind of panel that no presenter knows."""

    title: str
    names: tuple[str, ...]
    lengths: tuple[float, ...]


def drawn(*panels: Any, caption: str = "A caption.") -> str:
    return draw_figure(Figure("name", "A title", caption, (panels,)), SOURCE)


def data_of(html: str) -> list[dict[str, Any]]:
    return [json.loads(found) for found in re.findall(r'class="data">(.*?)</script>', html)]


def test_a_figure_has_its_title_caption_command_and_records() -> None:
    html = drawn(Panel("a panel", "N", "us", (MEASURED, LAW)))
    for said in ("A title", "A caption.", "pyperf-suite run made_up", "machine/run/records.jsonl"):
        assert said in html


def test_a_chart_tells_in_words_what_one_sees_and_which_of_it_is_a_prediction() -> None:
    [words] = re.findall(r'role="img" aria-label="([^"]*)"', drawn(Panel("a panel", "N", "us", (MEASURED, LAW))))
    assert "us over N" in words
    assert "measured (measured), 2 values from 3 at 1 to 4 at 2" in words
    assert "a law (law, predicted)" in words


def test_a_figures_values_stand_in_a_table_and_in_the_data_of_the_script() -> None:
    html = drawn(Panel("a panel", "N", "us", (MEASURED, LAW)))
    [data] = data_of(html)
    assert data["traces"][0]["y"] == [3, 4]
    assert "<td>measured</td>" in html
    assert '<td class="figure">2.9</td>' in html


def test_every_series_has_a_button_that_says_whether_it_is_shown() -> None:
    html = drawn(Panel("one", "N", "us", (MEASURED, LAW)), Panel("two", "N", "us", (MEASURED,)))
    assert re.findall(r'aria-pressed="true" data-series="([^"]*)"', html) == ["measured", "a law"]


def test_a_heat_map_names_its_best_and_worst_cell_and_leaves_none_for_what_there_is_not() -> None:
    html = drawn(MAP)
    assert "Highest 1.50 at heads 2, hidden 3; lowest 0.50 at heads 2, hidden 4." in html
    assert data_of(html)[0]["values"] == [[1, 1.5], [None, 0.5]]
    assert html.count('class="none"') == 1


def test_a_map_of_predictions_is_marked_and_a_measured_one_is_not() -> None:
    assert "predicted, not measured" in drawn(MAP, caption="Predicted; all else as asked.")
    assert "predicted, not measured" not in drawn(MAP, caption="Measured.")
    bars = Bars("", "TFLOP/s", (Bar("TP 2", 3.5),), "measured", "predicted")
    assert "predicted, not measured" not in drawn(bars, caption="Bars: measured; line: predicted.")


def test_bars_are_drawn_with_their_values_and_the_reason_where_there_is_none() -> None:
    bars = Bars(
        "study", "TFLOP/s", (Bar("TP 2", 3.5, 0.5, 4.0), Bar("TP 4", math.nan, note="out of memory")), "measured"
    )
    html = drawn(bars)
    [data] = data_of(html)
    assert data["kind"] == "bars"
    assert data["values"] == [3.5, None]
    assert html.count("out of memory") >= 2
    assert "Longest: TP 2, 3.5" in html


def test_a_panel_of_an_unknown_kind_becomes_its_table() -> None:
    html = drawn(Radar("a radar", ("north", "south"), (1.25, 2.5)))
    assert "<td>north</td>" in html
    assert '<td class="figure">1.25</td>' in html


def test_a_table_of_very_many_rows_says_how_many_it_leaves_out() -> None:
    html = draw_table(Table("long", ("n",), tuple((str(n),) for n in range(MOST_ROWS + 5))))
    assert html.count("<tr><td") == MOST_ROWS
    assert "5 more rows are not shown" in html


def test_figures_stand_at_the_right_and_words_that_begin_with_one_at_the_left() -> None:
    html = draw_table(Table("t", ("a", "b"), (("1.5 GB/s", "1 x 256 tokens"), ("-", "2 heads of 64"))))
    assert '<td class="figure">1.5 GB/s</td><td>1 x 256 tokens</td>' in html


def test_a_claims_sentence_is_taken_apart_and_its_verdict_set_in_front() -> None:
    sentence = "fused is 3.1 [2.9, 3.3] x faster; claim does not hold here (it is slow: a source (2020): A Guide)."
    found = judged(sentence)
    assert found is not None
    assert (found.verdict, found.claim, found.source) == (
        "claim does not hold here",
        "it is slow: a source (2020)",
        "A Guide",
    )
    assert draw_sentence(sentence).startswith('<li><span class="chip v1">does not hold here</span> fused')


def test_every_claim_that_claims_py_words_is_recognised() -> None:
    from pyperf_suite.measure.ratio import Ratio
    from pyperf_suite.probes.training.claims import Claim

    claim = Claim("twice as fast", "A Guide", 1.9, 2.1)
    for ratio, verdict in (
        (Ratio(2.0, 1.95, 2.05, 3), "claim holds"),
        (Ratio(3.0, 2.9, 3.1, 3), "claim does not hold here"),
        (Ratio(2.0, 2.0, 2.0, 1), "undecided"),
    ):
        found = judged(claim.sentence("x is", ratio))
        assert found is not None
        assert (found.verdict, found.claim, found.source) == (verdict, "twice as fast", "A Guide")


def test_panels_below_each_other_stay_so_where_a_row_is_shorter() -> None:
    panel = Panel("", "N", "us", (MEASURED,))
    html = draw_figure(Figure("name", "title", "caption", ((panel,), (panel, panel), (panel,))), SOURCE)
    order = re.findall(r'class="(filler|picture)"', html)
    assert order == ["picture", "filler", "picture", "picture", "picture"]
