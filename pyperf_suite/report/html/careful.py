"""A box of sentences that should make a reader careful."""

from __future__ import annotations

from collections.abc import Sequence

from pyperf_suite.report.html.escape import text


def draw_careful(title: str, sentences: Sequence[str]) -> str:
    """The box; nothing where there is nothing to say."""
    if not sentences:
        return ""
    items = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences)
    return f'<div class="careful"><h4>{text(title)}</h4><ul>{items}</ul></div>'
