"""Findings printed so that they read by themselves: sentences first, then tables, then where the results lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import markup
from rich.console import Console
from rich.table import Table as RichTable

from pyperf_suite.printable import printable
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings, Table

# Two sentinels of an idle machine differ by less; seen on two virtual cores.
STEADY_MACHINE = 0.05

# Cores that others may keep busy, on average over a run, before figures suffer.
BUSY_CORES = 0.1


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


def print_places(console: Console, records_path: Path, written: Sequence[Path]) -> None:
    """Where the records, the pictures and the texts of a run lie."""
    console.print(f"\nrecords   {escape(str(records_path))}", highlight=False, soft_wrap=True)
    for path in written:
        kind = "picture" if path.suffix == ".png" else "text"
        console.print(f"{kind:9} {escape(str(path))}", highlight=False, soft_wrap=True)


def escape(text: str) -> str:
    """Text for rich as it stands: neither rich nor the terminal finds an order in it."""
    return markup.escape(printable(text))


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
    found += _others_on_the_machine(measured)
    return found


def _others_on_the_machine(measured: Sequence[Record]) -> list[str]:
    """Time that other processes and the hypervisor took, over all samples together; the kernel counts it in ticks."""
    told = [record.quality for record in measured if "cpu_busy_s" in record.quality]
    elapsed_s = sum(quality["elapsed_s"] for quality in told)
    if not elapsed_s:
        return []
    found = []
    others = sum(quality["cpu_busy_s"] - quality["process_cpu_s"] for quality in told) / elapsed_s
    if others > BUSY_CORES:
        found.append(
            f"Other processes kept {others:.1f} cores busy while cases were timed; a worker that shares a core waits "
            "for whole scheduler ticks, so measure again on an idle machine."
        )
    stolen = sum(quality["cpu_steal_s"] for quality in told) / elapsed_s
    if stolen > BUSY_CORES:
        found.append(f"The hypervisor gave {stolen:.1f} cores' time to other machines while cases were timed.")
    return found


def _print_table(console: Console, table: Table) -> None:
    """At its natural width even in a narrow terminal: a figure that is cut is worse than a line that is wrapped."""
    rich_table = _rich_table(table)
    natural = Console(width=1000).measure(rich_table).maximum
    Console(file=console.file, width=max(console.width, natural), force_terminal=console.is_terminal).print(rich_table)


def _rich_table(table: Table) -> RichTable:
    rich_table = RichTable(
        title=escape(table.title), title_justify="left", title_style="italic", box=None, padding=(0, 2, 0, 0)
    )
    for position, column in enumerate(table.columns):
        is_figure = all(row[position][:1] in "+-0123456789" for row in table.rows)
        rich_table.add_column(escape(column), justify="right" if is_figure else "left", no_wrap=True)
    for row in table.rows:
        rich_table.add_row(*(escape(cell) for cell in row))
    return rich_table
