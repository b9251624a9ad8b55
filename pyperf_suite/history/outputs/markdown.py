"""Findings as a summary in Markdown, as GitHub shows it on a job's page."""

from __future__ import annotations

from collections.abc import Sequence

from pyperf_suite.history.finding import Finding
from pyperf_suite.history.outputs.words import by_urgency, change, counted, percent
from pyperf_suite.printable import printable

# A job's summary may hold 1 MiB; a row with a long label and a long sentence is about 500 bytes.
MOST_ROWS = 400

_MARKS = {"slower": "🔴", "failed": "⚫", "undecided": "🟡", "faster": "🟢", "equivalent": "⚪"}


def summary(heading: str, findings: Sequence[Finding], notes: Sequence[str]) -> str:
    """A heading, the counts, a table of what changed or stayed open, the equivalent folded away, and the notes."""
    ordered = by_urgency(findings)
    open_or_moved = [finding for finding in ordered if finding.verdict != "equivalent"]
    as_before = [finding for finding in ordered if finding.verdict == "equivalent"]
    lines = [f"## {escape(heading)}", "", f"{escape(counted(findings))}.", ""]
    if open_or_moved:
        lines += [*_table(open_or_moved, MOST_ROWS), ""]
    if as_before:
        title = f"{len(as_before)} equivalent"
        shown = _table(as_before, max(0, MOST_ROWS - len(open_or_moved)))
        lines += [f"<details><summary>{title}</summary>", "", *shown, "", "</details>", ""]
    lines += [*(f"- {escape(note)}" for note in notes), ""] if notes else []
    return "\n".join(lines)


def _table(findings: Sequence[Finding], most: int) -> list[str]:
    rows = [
        f"| {_MARKS[finding.verdict]} {finding.verdict} | {change(finding.ratio)} | {percent(finding.margin)} | "
        f"{escape(finding.benchmark)} | {escape(finding.sentence)} |"
        for finding in findings[:most]
    ]
    left_out = len(findings) - len(rows)
    more = ["", f"{left_out} more are left out here; the JSON output has them all."] if left_out else []
    return ["| verdict | change of time | margin | benchmark | |", "| --- | ---: | ---: | --- | --- |", *rows, *more]


def escape(text: str) -> str:
    """Plain text that Markdown or HTML would take for its own, on one line; what cannot be encoded is replaced."""
    one_line = " ".join(printable(text).split())
    harmless = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{character}" if character in "\\`*_[]|#~" else character for character in harmless)
