"""Text of strangers made harmless for terminals and files: names and reasons may come from anybody's records."""

from __future__ import annotations

import re

# What a terminal obeys instead of showing, what turns the direction of writing, and what UTF-8 and XML have no
# character for.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def printable(text: str) -> str:
    """The text with U+FFFD for every character that no terminal, UTF-8 file or XML should get."""
    return _UNPRINTABLE.sub("\ufffd", text)
