"""Numbers as text: three significant digits and the unit, whatever the value is."""

from __future__ import annotations

import math

import pytest

from pyperf_suite.findings.data import Claim, remark
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import UNITS, Quantity
from pyperf_suite.render.text import bare, cell, quantity_text, sentence


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.25, "x", "1.25 ×"),
        (0.0, "x", "0.00 ×"),
        (-0.5, "x", "-0.50 ×"),
        (1234.5, "x", "1234 ×"),
        (0.00314, "ms", "3.14 ms"),
        (3.14e-9, "ms", "3.14e-06 ms"),
        (0.0, "ms", "0 ms"),
        (12345.0, "", "12345"),
        (2.5e9, "GB", "2.5 GB"),
        (-1.59e6, "MB", "-1.59 MB"),
        (3e12, "TFLOP/s", "3 TFLOP/s"),
        (0.5, "%", "50 %"),
        (0.012, "%", "1.2 %"),
        (0.0, "%", "0 %"),
        (0.39, "+%", "+39 %"),
        (-0.39, "+%", "-39 %"),
        (-1.0, "+%", "-100 %"),
        (7.0, "count", "7"),
        (2.5, "duration", "2.5 s"),
        (0.0025, "duration", "2.5 ms"),
        (2.5e-6, "duration", "2.5 us"),
        (2.5e-9, "duration", "0.0025 us"),
        (0.0, "duration", "0 us"),
        (-0.0025, "duration", "-2.5 ms"),
        (1 << 30, "size", "1 GiB"),
        (1023, "size", "1023 B"),
        (1536, "size", "1.5 KiB"),
        (0, "size", "0 B"),
    ],
)
def test_a_value_is_told_with_its_unit(value, unit, text):
    assert quantity_text(Quantity(value, unit)) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.0123, 0.0125, "12.35 ms [12.3, 12.5]"),
        (0.005, 0.02, "12.35 ms [5, 20]"),  # four times: still three digits and more
        (0.003, 0.0345, "12 ms [3, 34]"),
        (0.001, 0.2, "10 ms noisy"),
    ],
)
def test_digits_follow_the_interval(low, high, text):
    assert quantity_text(Quantity(0.01235, "ms", low, high, 3)) == text


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_not_known_is_a_dash_without_a_unit(unit):
    unknown = Quantity(math.nan, unit, processes=3)
    assert (quantity_text(unknown), bare(unknown), cell(unknown)) == ("-", "-", "-")


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300, -1e300, 1e-300, 5e-324, -0.0])
def test_any_value_has_a_short_text_in_any_unit(unit, value):
    for text in (quantity_text(Quantity(value, unit, value, value, 3)), bare(Quantity(value, unit))):
        assert 0 < len(text) < 60
        assert "nan" not in text
        assert "inf" not in text


def test_gaps_of_a_remark_are_filled_by_name_and_names_cannot_fill_gaps_or_steer_a_terminal():
    values = {"way": "loop", "faster": Ratio(2, 1.9, 2.1, 3), "layers": 4, "lost": None}
    message = remark("{way} is {faster} as fast on {layers} layers, {lost}", **values)
    assert sentence(message) == "loop is 2.00 × [1.90, 2.10] as fast on 4 layers, -"
    assert sentence(remark("{way} runs", way="{secret}\x1b[2J")) == "{secret}\ufffd[2J runs"


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (Ratio(2.0, 1.9, 2.1, 3), ("2.00 × [1.90, 2.10]", "claim holds", "is faster: a guide")),
        (Ratio(0.5, 0.4, 0.6, 3), ("0.50 × [0.40, 0.60]", "does not hold here")),
        (Ratio(1.1, 0.9, 1.3, 3), ("undecided",)),
        (Ratio(2.0, 1.9, 2.1, 1), ("undecided", "one process", "--profile standard")),
    ],
)
def test_a_verdict_is_told_with_its_outcome_and_the_claim(measured, words):
    text = sentence(Claim("is faster", "a guide", 1.0).judge("It is {measured} as fast", measured))
    assert all(each in text for each in words), text
