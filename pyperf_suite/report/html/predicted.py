"""The mark on what a law says and nobody measured."""

from __future__ import annotations

import re

MARK = '<span class="mark predicted">predicted, not measured</span>'
_WORDS = re.compile(r"\bpredicted\b|\bby the law\b", re.IGNORECASE)


def is_predicted(said: str) -> bool:
    """Whether the words of a probe say so themselves."""
    return bool(_WORDS.search(said))


def mark_if_predicted(said: str) -> str:
    """The mark, where the words say so."""
    return f" {MARK}" if is_predicted(said) else ""
