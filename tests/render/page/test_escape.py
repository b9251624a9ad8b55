"""Strings of others cannot leave the place that they are put in."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.report.html.escape import json_island, text


@given(st.text())
def test_text_holds_nothing_that_html_takes_for_its_own(said: str) -> None:
    assert not set("<>\"'") & set(text(said))


@given(st.recursive(st.text() | st.floats() | st.none() | st.integers(), st.lists))
def test_an_island_is_json_that_ends_no_script_and_opens_no_comment(data: object) -> None:
    island = json_island({"data": data})
    json.loads(island)
    assert not set("<>&\u2028\u2029") & set(island)
    assert island.isascii()


def test_what_turns_the_direction_of_writing_is_replaced() -> None:
    assert text("a\u202eb\u2066c\x00") == "a\ufffdb\ufffdc\ufffd"
    assert "\u202e" not in json.loads(json_island(["a\u202eb"]))[0]


def test_numbers_that_json_has_no_word_for_are_null() -> None:
    assert json.loads(json_island([float("nan"), float("inf"), 1 / 3])) == [None, None, 0.333333]
