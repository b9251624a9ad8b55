"""Findings of any probe as HTML: sentences first, then figures, then tables. Nothing here knows any single probe."""

from __future__ import annotations

from collections.abc import Sequence

from pyperf_suite.report.html.escape import text
from pyperf_suite.report.html.figure import draw_figure
from pyperf_suite.report.html.provenance import Source
from pyperf_suite.report.html.sentence import draw_sentence
from pyperf_suite.report.html.table import draw_table
from pyperf_suite.spec.findings import Findings

# Sentences that are read at once, and figures that a section shows; further ones are a click, or a command, away.
_SENTENCES = 6
MOST_FIGURES = 24


def draw_findings(findings: Findings, source: Source) -> str:
    """What a probe has to say, whole: what is folded away is opened by a click and by printing."""
    figures = findings.figures[:MOST_FIGURES]
    left_out = len(findings.figures) - len(figures)
    return "".join(
        (
            draw_sentences(findings.sentences),
            *(draw_figure(figure, source) for figure in figures),
            f'<p class="quiet">{left_out} more figures are not shown: '
            f"<code>{text(source.command)}</code> draws every one.</p>"
            if left_out
            else "",
            *(draw_table(table) for table in findings.tables),
            source.drawn() if findings.tables else "",
        )
    )


def draw_sentences(sentences: Sequence[str]) -> str:
    """A list; from the seventh on folded."""
    if not sentences:
        return ""
    shown, more = sentences[:_SENTENCES], sentences[_SENTENCES:]
    if len(more) == 1:
        shown, more = sentences, ()
    drawn = f'<ul class="said">{"".join(map(draw_sentence, shown))}</ul>'
    if not more:
        return drawn
    return (
        f"{drawn}<details><summary>{len(more)} more findings</summary>"
        f'<ul class="said">{"".join(map(draw_sentence, more))}</ul></details>'
    )
