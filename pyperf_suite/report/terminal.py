"""Findings printed so that they read by themselves: sentences first, then tables, then where the results lie."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from pyperf_suite.probes.findings import Findings, Table
from pyperf_suite.runner.record import Record

# Two sentinels of an idle machine differ by less; seen on two virtual cores.
STEADY_MACHINE = 0.05


def print_findings(console: Console, findings: Mapping[str, Findings], records: Sequence[Record]) -> None:
    """Every probe's sentences and tables, then what should make a reader careful."""
    for name, found in findings.items():
        console.print(f"\n[bold]{escape(name)}[/bold]")
        for sentence in found.sentences:
            console.print(f"  [cyan]•[/cyan] {escape(sentence)}", highlight=False, soft_wrap=True)
        for table in found.tables:
            _print_table(console, table)
    for caution in cautions(records):
        console.print(f"[yellow]note[/yellow] {escape(caution)}", highlight=False, soft_wrap=True)


def print_places(console: Console, records_path: Path, pictures: Sequence[Path]) -> None:
    """Where the records and the pictures of a run lie."""
    console.print(f"\nrecords   {escape(str(records_path))}", highlight=False, soft_wrap=True)
    for picture in pictures:
        console.print(f"picture   {escape(str(picture))}", highlight=False, soft_wrap=True)


def cautions(records: Sequence[Record]) -> list[str]:
    """One sentence for each thing that makes these figures less sure than they look."""
    found = []
    timing = [record for record in records if record.kind == "timing"]
    for outcome in ("failed", "unsupported"):
        reasons = [record for record in timing if record.outcome == outcome]
        if reasons:
            visits = "visit" if len(reasons) == 1 else "visits"
            found.append(f"{len(reasons)} {visits} {outcome}, the first {reasons[0].label}: {reasons[0].reason}")
    measured = [record for record in timing if record.outcome == "ok"]
    loose = sum(not record.quality["converged"] for record in measured)
    if loose:
        found.append(
            f"{loose} of {len(measured)} measurements reached their time cap before the interval of the median was as "
            "narrow as the profile asks: a longer profile, or an idler machine, would narrow it."
        )
    sentinels = [r.seconds for r in records if r.kind == "sentinel" and r.outcome == "ok"]
    if len(sentinels) > 1:
        drift = max(sentinels) / min(sentinels) - 1
        if drift > STEADY_MACHINE:
            found.append(
                f"The sentinel kernel moved by {drift:.0%} between the start and the end of the run: the machine "
                "itself changed speed, so small differences between cases mean little."
            )
    stolen = [share for record in measured if (share := record.quality.get("steal_share")) is not None]
    if stolen and statistics.median(stolen) > 0.02:
        found.append(f"The hypervisor took {statistics.median(stolen):.0%} of the processor away at the median.")
    return found


def _print_table(console: Console, table: Table) -> None:
    """At its natural width even in a narrow terminal: a figure that is cut is worse than a line that is wrapped."""
    rich_table = _rich_table(table)
    natural = Console(width=1000).measure(rich_table).maximum
    Console(file=console.file, width=max(console.width, natural)).print(rich_table)


def _rich_table(table: Table) -> RichTable:
    rich_table = RichTable(
        title=table.title, title_justify="left", title_style="italic", box=None, padding=(0, 2, 0, 0)
    )
    for position, column in enumerate(table.columns):
        is_figure = all(row[position][:1] in "+-0123456789" for row in table.rows)
        rich_table.add_column(column, justify="right" if is_figure else "left", no_wrap=True)
    for row in table.rows:
        rich_table.add_row(*(escape(cell) for cell in row))
    return rich_table
