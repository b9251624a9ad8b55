"""Figures stand to the right, words that are long are broken into lines."""

from __future__ import annotations

from pyperf_suite.report.html.table import draw_table
from pyperf_suite.spec.findings import Table


def test_a_figure_with_its_interval_and_unit_in_any_order_stands_to_the_right() -> None:
    row = ("1.5", "37.8 [34.0, 42.0] %", "1.0 us [0.9, 1.1]", "-3 %", "a name")
    assert draw_table(Table("t", tuple("abcde"), (row,))).count('<td class="figure">') == 4


def test_long_words_may_be_broken_and_short_ones_and_figures_not() -> None:
    row = ("a name of many more characters than fit", "short", "1.0 [" + "0" * 40 + "]")
    assert draw_table(Table("t", tuple("abc"), (row,))).count('class="long"') == 1
