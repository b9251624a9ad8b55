"""Findings in a terminal: a table, the sentences of all that is not simply as before, notes, and what it comes to."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pyperf_suite.history.finding import Finding
from pyperf_suite.history.outputs.words import by_urgency, change, outcome_sentence, percent
from pyperf_suite.printable import printable
from pyperf_suite.spec.findings import Table as Told

_STYLES = {"slower": "bold red", "failed": "red", "undecided": "yellow", "faster": "green", "equivalent": "dim"}


def print_findings(
    console: Console, heading: str, findings: Sequence[Finding], notes: Sequence[str], code: int, fail_on: str
) -> None:
    """Print the table, one sentence for each finding but the equivalent, the notes, and the outcome."""
    ordered = by_urgency(findings)
    console.print(f"\n[bold]{shown(heading)}[/bold]", highlight=False, soft_wrap=True)
    if ordered:
        _print_table(console, ordered)
    for finding in ordered:
        if finding.verdict != "equivalent":
            _say(console, "[cyan]•[/cyan]", finding.sentence, indent="  ")
    for note in notes:
        _say(console, "[yellow]note[/yellow]", note)
    console.print(shown(outcome_sentence(findings, code, fail_on)), highlight=False, soft_wrap=True)


def shown(text: str) -> str:
    """Text for rich as it stands: neither rich nor the terminal finds an order in it."""
    return escape(printable(text))


def _say(console: Console, mark: str, sentence: str, indent: str = "") -> None:
    console.print(f"{indent}{mark} {shown(sentence)}", highlight=False, soft_wrap=True)


def _print_table(console: Console, findings: Sequence[Finding]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("verdict", no_wrap=True)
    table.add_column("change of time", justify="right", no_wrap=True)
    table.add_column("margin", justify="right", no_wrap=True)
    table.add_column("benchmark", no_wrap=True)
    for finding in findings:
        verdict = f"[{_STYLES[finding.verdict]}]{finding.verdict}[/]"
        table.add_row(verdict, change(finding.ratio), percent(finding.margin), shown(finding.benchmark))
    _print_at_natural_width(console, table)


def print_table(console: Console, told: Told) -> None:
    """A titled table of cells that are text already; a column of figures is set to the right."""
    table = Table(title=shown(told.title), title_justify="left", title_style="italic", box=None, padding=(0, 2, 0, 0))
    for position, column in enumerate(told.columns):
        is_figure = all(row[position][:1] in "+-0123456789" for row in told.rows)
        table.add_column(column, justify="right" if is_figure else "left", no_wrap=True)
    for row in told.rows:
        table.add_row(*map(shown, row))
    _print_at_natural_width(console, table)


def _print_at_natural_width(console: Console, table: Table) -> None:
    """Even in a narrow terminal: a figure that is cut is worse than a line that is wrapped."""
    natural = Console(width=10_000).measure(table).maximum
    wide = Console(file=console.file, width=max(console.width, natural), force_terminal=console.is_terminal)
    wide.print(table, highlight=False)
