"""Findings of comparisons, old against new: in a terminal, as Markdown and as JSON; what needs a reader comes first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from pyperf_suite.history.finding import VERDICTS, Finding, Verdict
from pyperf_suite.measure.estimates import Ratio
from pyperf_suite.render import findings_json, markdown
from pyperf_suite.render.terminal import note, print_table, say
from pyperf_suite.spec.findings import Findings, Heading, Table
from pyperf_suite.spec.quantity import Quantity, quantity

# What needs a reader comes first; within a verdict, what moved most.
URGENCY: tuple[Verdict, ...] = ("slower", "failed", "undecided", "faster", "equivalent")
# A job's summary may hold 1 MiB; a row with a long label and a long sentence is about 500 bytes.
MOST_ROWS = 400
_MARKS = {"slower": "🔴", "failed": "⚫", "undecided": "🟡", "faster": "🟢", "equivalent": "⚪"}


def by_urgency(findings: Sequence[Finding]) -> list[Finding]:
    """Slower first, equivalent last; within a verdict by how much the time changed."""

    def rank(finding: Finding) -> tuple[int, float, str]:
        moved = abs(math.log(finding.ratio.value)) if finding.ratio is not None and finding.ratio.value > 0 else 0.0
        return URGENCY.index(finding.verdict), -moved if math.isfinite(moved) else -math.inf, finding.benchmark

    return sorted(findings, key=rank)


def change(ratio: Ratio | None) -> Quantity | None:
    """How much longer the new takes, as a share of the old's time; None where it is not known."""
    if ratio is None or math.isnan(ratio.value):
        return None
    return Quantity(ratio.value - 1, "+%", ratio.low - 1, ratio.high - 1, max(1, ratio.processes))


def counted(findings: Sequence[Finding]) -> str:
    """`1 slower, 2 undecided, 5 equivalent of 8 benchmarks`."""
    if not findings:
        return "no benchmark to compare"
    counts = Counter(finding.verdict for finding in findings)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in URGENCY if counts[verdict])
    return f"{told} of {len(findings)} benchmark{'s' if len(findings) > 1 else ''}"


def print_comparisons(
    console: Console, heading: str, findings: Sequence[Finding], notes: Sequence[str], code: int, fail_on: str
) -> None:
    """The table, a sentence for each finding but the equivalent, the notes, and the exit code with its meaning."""
    ordered = by_urgency(findings)
    console.print()
    say(console, "", heading, style="bold")
    print_table(console, _table(ordered))
    for finding in ordered:
        if finding.verdict != "equivalent":
            named = finding.benchmark in finding.sentence
            said = finding.sentence if named else f"{finding.benchmark}: {finding.sentence}"
            say(console, "  [cyan]•[/cyan]", said)
    for each in notes:
        note(console, each)
    meaning = {0: "fine", 1: "regression", 3: "undecided or failed"}[code]
    say(console, "", f"{counted(findings)}; exit code {code}, {meaning} (--fail-on {fail_on})")


def summary(heading: str, findings: Sequence[Finding], notes: Sequence[str]) -> str:
    """As GitHub shows it on a job's page: what changed or stayed open, the equivalent folded away, and the notes."""
    ordered = by_urgency(findings)
    as_before = [finding for finding in ordered if finding.verdict == "equivalent"]
    open_or_moved = ordered[: len(ordered) - len(as_before)]
    lines = [f"## {markdown.escape(heading)}", "", f"{markdown.escape(counted(findings))}.", ""]
    if open_or_moved:
        lines += [*_rows(open_or_moved, MOST_ROWS), ""]
    if as_before:
        shown = _rows(as_before, max(0, MOST_ROWS - len(open_or_moved)))
        lines += [f"<details><summary>{len(as_before)} equivalent</summary>", "", *shown, "", "</details>", ""]
    lines += [*(f"- {markdown.escape(each)}" for each in notes), ""] if notes else []
    return "\n".join(lines)


def comparisons_as_json(
    heading: str,
    findings: Sequence[Finding],
    notes: Sequence[str],
    code: int,
    extra: Mapping[str, Any] | None = None,
) -> str:
    """One object: heading, exit_code, counts by verdict, findings (most urgent first), notes, and `extra` beside them.

    What JSON has no number for (nan, infinity) is null.
    """
    counts = Counter(finding.verdict for finding in findings)
    told = {
        "heading": heading,
        "exit_code": code,
        "counts": {verdict: counts[verdict] for verdict in VERDICTS},
        "findings": [asdict(finding) for finding in by_urgency(findings)],
        "notes": list(notes),
        **(extra or {}),
    }
    return findings_json.answer({"comparison": Findings(tables=(_table(by_urgency(findings)),))}, told).rstrip()


def _table(findings: Sequence[Finding], marked: bool = False) -> Table:
    """With marks and sentences where there is room for them."""
    columns = (
        Heading("verdict", priority=2),
        Heading("change of time", "+%", priority=2),
        Heading("margin", "%", priority=0),
        Heading("benchmark", priority=2),
    )
    rows = [
        (
            f"{_MARKS[finding.verdict]} {finding.verdict}" if marked else finding.verdict,
            change(finding.ratio),
            quantity(finding.margin, "%"),
            finding.benchmark,
            *([finding.sentence] if marked else []),
        )
        for finding in findings
    ]
    return Table("", (*columns, *([Heading("why")] if marked else [])), tuple(rows))


def _rows(findings: Sequence[Finding], most: int) -> list[str]:
    left_out = len(findings) - most
    more = ["", f"{left_out} more are left out here; the JSON output has them all."] if left_out > 0 else []
    return [*markdown.table(_table(findings[:most], marked=True)), *more]
