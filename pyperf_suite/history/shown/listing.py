"""Series for the terminal: one line each with its trend, or one alone with every point, its breaks and steps."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pyperf_suite.errors import printable
from pyperf_suite.history.changes.steps import Step
from pyperf_suite.history.shown.drawing import short_commit, unit_name
from pyperf_suite.history.shown.quantities import scale_for
from pyperf_suite.history.shown.terminal_plot import MARKS, Column, plot, sparkline
from pyperf_suite.history.stored.foreign import PROBE as FOREIGN_PROBE
from pyperf_suite.history.stored.series import Series

_NEWEST = 20


def print_list(console: Console, listed: Sequence[Series], left_out: Sequence[str]) -> None:
    """A table for each machine: benchmark, runs, newest value and trend; then what is not listed."""
    for machine in dict.fromkeys(series.machine for series in listed):
        console.print(f"\n[bold]{shown(machine)}[/bold]")
        own = [series for series in listed if series.machine == machine]
        table = _table("trend", ">runs", ">newest", "on", "probe", "benchmark")
        for series in own:
            scale = scale_for(series.values, series.unit_of_measure)
            newest = series.points[-1] if series.points else None
            table.add_row(
                sparkline(series.values),
                str(len(series.points)),
                scale.told(newest.value) if newest else "failed",
                newest.started_at[:10] if newest else "",
                shown(series.probe),
                shown(series.title),
            )
        _print_whole(console, table)
    for sentence in left_out:
        console.print(f"[yellow]note[/yellow] {shown(sentence)}", highlight=False, soft_wrap=True)


def print_series(console: Console, series: Series, steps: Sequence[Step], show_all: bool) -> None:
    """One series: its name, a plot, what changed in it, and its newest points."""
    for line in (
        f"\n[bold]{shown(series.title)}[/bold]",
        f"{shown(series.probe)}, case {shown(series.case_id)}, on {shown(series.machine)}\n",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    if not series.points:
        failed = len(series.failed_runs)
        console.print(f"No run measured it; it failed in {failed}.", highlight=False, soft_wrap=True)
        return
    scale = scale_for(series.values, series.unit_of_measure)
    units = list(series.units)
    columns = [
        Column(point.value, point.low, point.high, units.index(point.unit) if point.unit else 0)
        for point in series.points
    ]
    width = max(20, min(console.width - 14, 100))
    for line in plot(columns, [each.index for each in series.breaks], scale.told, width):
        console.print(line, highlight=False, markup=False, no_wrap=True, overflow="ignore", crop=False)
    if len(units) > 1:
        named = "  ".join(f"{MARKS[number % len(MARKS)]} {unit_name(unit)}" for number, unit in enumerate(units))
        console.print(f"units: {shown(named)}", highlight=False, soft_wrap=True)
    _print_changes(console, series, steps)
    _print_points(console, series, show_all)


def _print_changes(console: Console, series: Series, steps: Sequence[Step]) -> None:
    """A sentence for every break, and for every step."""
    for each in series.breaks:
        when = series.points[each.index].started_at[:10]
        console.print(f"[yellow]break[/yellow] {when}: {shown(each.what)}", highlight=False, soft_wrap=True)
    nominated = "" if series.kind == "static" else "; nominated, not confirmed"
    if nominated and series.probe != FOREIGN_PROBE:  # what another project measures cannot be rerun here
        nominated += ": `pyperf-suite track --confirm`"
    for step in steps:
        known = step.commit_before and step.commit_after
        commits = f" (commits {step.commit_before[:9]} to {step.commit_after[:9]})" if known else ""
        point = series.points[step.index]
        unit = f" on {unit_name(point.unit)}" if len(series.units) > 1 else ""
        console.print(
            f"[magenta]step[/magenta]  {point.started_at[:10]}: {step.effect}{shown(unit + commits)}{nominated}",
            highlight=False,
            soft_wrap=True,
        )


def _print_points(console: Console, series: Series, show_all: bool) -> None:
    scale = scale_for(series.values, series.unit_of_measure)
    first = 0 if show_all else max(0, len(series.points) - _NEWEST)
    broken = {each.index for each in series.breaks}
    table = _table("run", "begun", f">{scale.unit}", "interval", ">processes", "commit", "unit", "")
    for index, point in enumerate(series.points[first:], first):
        table.add_row(
            shown(point.run_id),
            point.started_at[:16].replace("T", " "),
            scale.number(point.value),
            f"[{scale.number(point.low)}, {scale.number(point.high)}]".replace("[", r"\["),
            f"{point.processes}" + (f" of {point.processes + point.failed}" if point.failed else ""),
            shown(short_commit(point)),
            shown(unit_name(point.unit)) if point.unit else "",
            "after a break" if index in broken else "",
        )
    _print_whole(console, table)
    if first:
        console.print(
            f"[yellow]note[/yellow] {first} earlier points are not listed: --all lists them.", highlight=False
        )
    if series.failed_runs:
        runs = "run" if len(series.failed_runs) == 1 else "runs"
        console.print(
            f"[yellow]note[/yellow] It failed in {len(series.failed_runs)} {runs}, the last "
            f"{shown(series.failed_runs[-1])}.",
            highlight=False,
            soft_wrap=True,
        )


def shown(text: str) -> str:
    """Text for rich as it stands: neither rich nor the terminal finds an order in it."""
    return escape(printable(text))


def _table(*columns: str) -> Table:
    """Columns without lines between them; a name that begins with > is of figures and stands at the right."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", no_wrap=True)
    return table


def _print_whole(console: Console, table: Table) -> None:
    """At its natural width even in a narrow terminal: a figure that is cut is worse than a line that is wrapped."""
    natural = Console(emoji=False, width=1000).measure(table).maximum
    Console(
        emoji=False, file=console.file, width=max(console.width, natural), force_terminal=console.is_terminal
    ).print(table)
