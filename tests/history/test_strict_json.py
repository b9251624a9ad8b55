"""JSON from anybody."""

from __future__ import annotations

import pytest

from pyperf_suite.history.stored import journals

HOSTILE = {
    "empty": ("", "is not JSON"),
    "cut off": ('{"a": [1, 2', "is not JSON"),
    "no text": (b"\xff\xfe\x00", "UTF-8"),
    "NaN": ('{"a": NaN}', "NaN"),
    "infinity": ('{"a": -Infinity}', "-Infinity"),
    "a key twice": ('{"a": {"b": 1, "c": 2, "b": 3}}', "'b' twice"),
    "deep nesting": ("[" * 200_000, "nested too deeply"),
    "deep objects": ('{"a":' * 200_000, "nested too deeply"),
}


@pytest.mark.parametrize(("text", "why"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_json_is_refused_in_a_sentence(text, why):
    with pytest.raises(ValueError, match=why):
        journals.loads(text)


def test_an_integer_of_thousands_of_digits_is_refused():
    with pytest.raises(ValueError, match="it holds an integer of 100000 digits"):
        journals.loads("1" * 100_000)


def test_plain_json_is_read_as_ever():
    assert journals.loads('\ufeff{"a": [1, 2.5, null, {"a": "ä"}]}'.encode()) == {"a": [1, 2.5, None, {"a": "ä"}]}
