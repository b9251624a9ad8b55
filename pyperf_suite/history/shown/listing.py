"""Series for the terminal: one line each with its trend, or one alone with every point, its breaks and steps."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pyperf_suite.errors import printable
from pyperf_suite.history.stored.foreign import FOREIGN_PROBES
from pyperf_suite.history.stored.series import BenchmarkSeries, SeriesPoint
from pyperf_suite.history.tracking import Step

_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


@dataclass(frozen=True)
class Scale:
    """What a value is multiplied with to be read in `unit`; `counted` quantities are written in whole digits."""

    factor: float
    unit: str
    counted: bool = False

    def number(self, value: float) -> str:
        scaled = value * self.factor
        if self.counted and scaled == round(scaled):
            return f"{scaled:.0f}"
        digits = max(0, 4 - len(f"{abs(int(scaled))}")) if abs(scaled) >= 1 else 4
        return f"{scaled:.{digits}f}" if 1e-3 <= abs(scaled) < 1e6 else f"{scaled:.4g}"

    def text(self, value: float) -> str:
        return f"{self.number(value)} {self.unit}".rstrip()


def scale_for(values: Sequence[float], unit_of_measure: str) -> Scale:
    """The scale in which a series' median has one to three digits before the point; only seconds are scaled."""
    if unit_of_measure not in ("s", "seconds") or not values:
        return Scale(1.0, unit_of_measure, counted=True)
    middle = statistics.median(values)
    for step, unit in _STEPS:
        if middle >= step:
            return Scale(1 / step, unit)
    return Scale(1 / _STEPS[-1][0], _STEPS[-1][1])


Item = TypeVar("Item")

_BARS = "▁▂▃▄▅▆▇█"
_INTERVAL, _BREAK = "│", "┊"
# Of the units of one identity each has its own mark, in the order of their first point.
MARKS = "●○◆◇■□▲△"

# Less of a spread than this is drawn flat: otherwise the eye takes noise for change.
LEAST_SPREAD = 0.05


@dataclass(frozen=True)
class ListColumn:
    """One or several neighbouring points of a series: their median, what their intervals span, and their unit."""

    value: float
    low: float
    high: float
    unit: int = 0


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The newest at the right, the lowest as the lowest bar; more values than `width` are put together by medians."""
    if not values:
        return ""
    heights = [statistics.median(part) for part in _parts(values, width)]
    bottom, top = _span(min(heights), max(heights))
    # With an even number of bars the middle lies between two: a quarter off, what is flat stays on one of them.
    bars = (max(0.0, (height - bottom) / (top - bottom) * (len(_BARS) - 1) - 0.25) for height in heights)
    return "".join(_BARS[round(bar)] for bar in bars)


def plot(
    columns: Sequence[ListColumn],
    breaks: Sequence[int],
    text: Callable[[float], str],
    width: int = 72,
    height: int = 11,
) -> list[str]:
    """Lines of characters with an axis at the left.

    Args:
        columns: The series, oldest first; where it is longer than `width`, neighbours between two breaks share a place.
        breaks: Indices of the points that a break stands before.
        text: How a value is written at the axis.
        width: Characters for the points, the axis not counted.
        height: Lines.
    """
    places = _places(columns, breaks, width)
    drawn = [place for place in places if place is not None]
    if not drawn:
        return []
    bottom, top = _span(min(place.low for place in drawn), max(place.high for place in drawn))

    def line_of(value: float) -> int:
        return round((top - value) / (top - bottom) * (height - 1))

    cells = [[" "] * len(places) for _ in range(height)]
    for column, place in enumerate(places):
        if place is None:
            for row in cells:
                row[column] = _BREAK
            continue
        for line in range(line_of(place.high), line_of(place.low) + 1):
            cells[line][column] = _INTERVAL
        cells[line_of(place.value)][column] = MARKS[place.unit % len(MARKS)]
    labels = [""] * height
    for line in (0, (height - 1) // 2, height - 1):
        labels[line] = text(top - (top - bottom) * line / (height - 1))
    widest = max(map(len, labels))
    gap = " " if len(places) * 2 <= width else ""
    return [f"{label:>{widest}} ┤{gap.join(row)}".rstrip() for label, row in zip(labels, cells, strict=True)]


def _places(columns: Sequence[ListColumn], breaks: Sequence[int], width: int) -> list[ListColumn | None]:
    """A column for each place of the plot, None for a break."""
    starts = [0, *sorted({index for index in breaks if 0 < index < len(columns)}), len(columns)]
    segments = [list(columns[start:end]) for start, end in itertools.pairwise(starts) if end > start]
    room = max(len(segments), width - len(segments) + 1)
    together = -(-len(columns) // room)
    places: list[ListColumn | None] = []
    for number, segment in enumerate(segments):
        places += [None] if number else []
        places += [_joined(part) for part in _parts(segment, -(-len(segment) // together))]
    return places


def _joined(part: Sequence[ListColumn]) -> ListColumn:
    return ListColumn(
        statistics.median(each.value for each in part),
        min(each.low for each in part),
        max(each.high for each in part),
        part[-1].unit,
    )


def _parts(values: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """`values` in at most `count` runs of neighbours, as equal in length as can be."""
    count = max(1, min(count, len(values)))
    edges = [round(number * len(values) / count) for number in range(count + 1)]
    return [values[start:end] for start, end in itertools.pairwise(edges)]


def _span(lowest: float, highest: float) -> tuple[float, float]:
    """The range to draw: what there is, widened about its middle where it is next to nothing."""
    middle = (lowest + highest) / 2
    half = max((highest - lowest) / 2, abs(middle) * LEAST_SPREAD / 2) or 0.5
    return middle - half, middle + half


_NEWEST = 20


def print_list(console: Console, listed: Sequence[BenchmarkSeries], left_out: Sequence[str]) -> None:
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
                scale.text(newest.value) if newest else "failed",
                newest.started_at[:10] if newest else "",
                shown(series.probe),
                shown(series.title),
            )
        _print_whole(console, table)
    for sentence in left_out:
        console.print(f"[yellow]note[/yellow] {shown(sentence)}", highlight=False, soft_wrap=True)


def print_series(console: Console, series: BenchmarkSeries, steps: Sequence[Step], show_all: bool) -> None:
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
        ListColumn(point.value, point.low, point.high, units.index(point.unit) if point.unit else 0)
        for point in series.points
    ]
    width = max(20, min(console.width - 14, 100))
    for line in plot(columns, [each.index for each in series.breaks], scale.text, width):
        console.print(line, highlight=False, markup=False, no_wrap=True, overflow="ignore", crop=False)
    if len(units) > 1:
        named = "  ".join(f"{MARKS[number % len(MARKS)]} {unit_name(unit)}" for number, unit in enumerate(units))
        console.print(f"units: {shown(named)}", highlight=False, soft_wrap=True)
    _print_changes(console, series, steps)
    _print_points(console, series, show_all)


def _print_changes(console: Console, series: BenchmarkSeries, steps: Sequence[Step]) -> None:
    for each in series.breaks:
        when = series.points[each.index].started_at[:10]
        console.print(f"[yellow]break[/yellow] {when}: {shown(each.what)}", highlight=False, soft_wrap=True)
    nominated = "" if series.kind == "static" else "; nominated, not confirmed"
    if nominated and series.probe not in FOREIGN_PROBES:  # what another project measures cannot be rerun here
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


def _print_points(console: Console, series: BenchmarkSeries, show_all: bool) -> None:
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


def unit_name(unit: str) -> str:
    """As much of a GPU's UUID as tells a handful of them apart."""
    return unit[:12] or "unnamed unit"


def short_commit(point: SeriesPoint) -> str:
    """The commit as git shortens it, with + where files were changed beside it; empty where it is not known."""
    return f"{point.commit[:9]}{'+' if point.dirty else ''}" if point.commit else ""


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
