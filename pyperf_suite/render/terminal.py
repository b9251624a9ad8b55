"""Findings in a terminal: never wider than it, what makes them doubtful before them, the tables after the remarks."""

from __future__ import annotations

import itertools
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import markup
from rich.console import Console

from pyperf_suite.errors import printable
from pyperf_suite.findings.data import Claim, ClaimVerdict, Findings, Remark, Table
from pyperf_suite.findings.rows import grouped
from pyperf_suite.findings.summary import SummaryPoint, cautions_of
from pyperf_suite.render import text

if TYPE_CHECKING:
    from pyperf_suite.runner.record import Record

# No line is broken and no column left out: for `--wide`, and if output goes into a file.
WIDE = 100_000
_GAP = "  "
# Of a summary, its heading among them.
MOST_LINES = 7
# Verdicts of one outcome on one claim; findings.md and the page have all.
_MOST_VERDICTS = 3
# As narrow as a column of words becomes before columns are left out, and after.
_NARROW, _NARROWEST = 24, 10
_STYLES = {"holds": "green", "does not hold here": "red", "undecided": "yellow"}
_POINTS = {"failed": "bold red", "effect": "cyan", "fails": "red", "undecided": "yellow"}
_CAUTION = "[yellow]caution[/yellow]"


def console_for(wide: bool = False) -> Console:
    """Standard output, as wide as its terminal or as COLUMNS says; without either of them nothing is left out."""
    known = Console().is_terminal or os.environ.get("COLUMNS")
    return Console(emoji=False, width=None if known and not wide else WIDE)


def print_findings(console: Console, findings: Mapping[str, Findings], records: Sequence[Record]) -> None:
    """What makes the run doubtful, then every probe's cautions, remarks, verdicts and tables."""
    of_the_run, of_probes = cautions_of(records, findings)
    for caution in of_the_run:
        say(console, _CAUTION, text.sentence(caution))
    for name, found in findings.items():
        console.print(f"\n[bold]{escape(name)}[/bold]")
        print_remarks_and_tables(console, Findings(tuple(of_probes[name])) + found)


def print_summary(console: Console, points: Sequence[SummaryPoint]) -> None:
    """What failed, and at most seven lines of the rest: if points take several each, the weakest are left out."""
    failed = [each for each in points if each.kind == "failed"]
    shown = [each for each in points if each.kind != "failed"]
    many = len({point.probe for point in shown if point.probe}) > 1

    def said(point: SummaryPoint) -> str:
        named = many and point.probe and point.kind != "failed"  # which names its cases
        return f"{point.probe}: {text.point(point)}" if named else text.point(point)

    while len(shown) > 1 and 1 + sum(len(_wrapped(console, "  •", said(each))) for each in shown) > MOST_LINES:
        of_kind = grouped(shown, lambda point: point.kind)
        shown.remove(max(of_kind.values(), key=len)[-1])
    if failed or shown:
        console.print("[bold]Summary[/bold]")
    for point in (*failed, *shown):
        say(console, f"  [{_POINTS[point.kind]}]•[/]", said(point))


def print_remarks_and_tables(console: Console, found: Findings, more: str = "--wide shows all") -> None:
    """Cautions, remarks, the verdicts on one claim below it, and tables; `more` says where all their columns are."""
    for each in text.by_claim(found.remarks):
        if isinstance(each, Remark):
            mark = _CAUTION if each.kind == "caution" else "[cyan]•[/cyan]"
            say(console, f"  {mark}", text.sentence(each))
        else:
            _print_claim(console, *each)
    for table in found.tables:
        print_table(console, table, more)


def _print_claim(console: Console, claim: Claim, verdicts: Sequence[ClaimVerdict]) -> None:
    say(console, "  [cyan]•[/cyan]", f"Claim: {text.in_words(claim)}")
    for outcome, held in grouped(verdicts, lambda verdict: verdict.outcome).items():
        most = len(held) if console.width == WIDE or len(held) == _MOST_VERDICTS + 1 else _MOST_VERDICTS
        for verdict in held[:most]:
            say(console, f"      [{_STYLES[outcome]}]{outcome}:[/]", text.measured(verdict))
        if held[most:]:
            say(console, "      [dim]…[/]", f"{outcome} in {len(held) - most} more cases: --wide shows all")


def print_places(console: Console, records_path: Path, written: Sequence[Path], no_energy: str = "") -> None:
    """Where the records, the pictures and the texts of a run lie; why no energy was measured, if none was."""
    console.print()
    if no_energy:
        _line(console, f"energy    not measured: {escape(no_energy)}")
    for kind, path in (("records", records_path), *(("picture" if p.suffix == ".png" else "text", p) for p in written)):
        _line(console, f"{kind:9} {escape(str(path))}")


def escape(said: str) -> str:
    """Text for rich as it stands: neither rich nor the terminal finds an order in it."""
    return markup.escape(printable(said))


def note(console: Console, said: str) -> None:
    """A sentence about the findings."""
    say(console, "[yellow]note[/yellow]", said)


def say(console: Console, mark: str, said: str, style: str = "") -> None:
    """The mark and the words in lines of the console's width; paragraphs of the words become one."""
    first, *others = _wrapped(console, markup.render(mark).plain, said)
    _line(console, f"{mark} {markup.escape(first)}" if mark else markup.escape(first), style)
    for line in others:
        _line(console, markup.escape(line), style)


def _line(console: Console, line: str, style: str = "") -> None:
    """One line of rich's markup, neither coloured nor broken by rich."""
    console.print(line, style=style, highlight=False, soft_wrap=True)


def _wrapped(console: Console, mark: str, said: str) -> list[str]:
    """The words in lines, the first with room for the mark before it, the others set in."""
    indent = " " * (len(mark) - len(mark.lstrip()) + 2)
    lines = textwrap.wrap(
        printable(said),
        max(20, console.width),
        initial_indent=" " * (len(mark) + 1 if mark else 0),
        subsequent_indent=indent if mark else "",
        break_on_hyphens=False,
    )
    return [lines[0].strip(), *map(str.rstrip, lines[1:])] if lines else [""]


def print_table(console: Console, table: Table, more: str = "--wide shows all") -> None:
    """At most as wide as the console: words are broken into lines, then columns of least priority are left out."""
    shown = text.written(table)
    if not shown.rows or not shown.columns:
        return
    widths = _widths(shown, console.width - len(_GAP))
    for line in textwrap.wrap(shown.title, max(20, console.width - 2)):
        _line(console, f"{_GAP}[italic]{markup.escape(line)}[/italic]")
    for line in _lines(shown.headings, widths, shown.numeric, bottom=True):
        _line(console, f"[bold]{markup.escape(line)}[/bold]")
    for row in shown.rows:
        for line in _lines(row, widths, shown.numeric):
            _line(console, markup.escape(line))
    if missing := [name for place, name in enumerate(shown.headings) if place not in widths]:
        columns = "column is" if len(missing) == 1 else "columns are"
        say(console, "  [dim]…[/dim]", f"{len(missing)} {columns} left out ({'; '.join(missing)}): {more}")


def _widths(table: text.WrittenTable, room: int) -> dict[int, int]:
    """Columns that are shown, by place, and how wide each is; names of columns break at words, numbers never."""
    needed = [max(map(len, cells)) for cells in zip(*table.rows, strict=True)]
    words = [max(map(len, name.split()), default=0) for name in table.headings]

    def least(place: int, narrow: int) -> int:
        if table.numeric[place]:
            return max(needed[place], words[place])
        return max(min(needed[place], narrow), min(words[place], narrow))

    def total(widths: Mapping[int, int]) -> int:
        return sum(widths.values()) + len(_GAP) * (len(widths) - 1)

    # The first column says which row it is, and stays. Words break only once what may go first is gone.
    order = sorted(range(1, len(needed)), key=lambda place: (table.columns[place].priority, -place))
    shown = {place: least(place, room) for place in range(len(needed))}
    for place in order:
        if table.columns[place].priority > 0:
            shown = {place: least(place, _NARROW) for place in shown}
        if total(shown) <= room:
            break
        del shown[place]
    while total(shown) > room and max(shown.values()) > _NARROWEST:
        shown[max(shown, key=shown.__getitem__)] -= 1
    for place in shown:
        wanted = max(needed[place], len(table.headings[place]))
        shown[place] = min(wanted, shown[place] + max(0, room - total(shown)))
    return shown


def _lines(
    cells: Sequence[str], widths: Mapping[int, int], numeric: Sequence[bool], bottom: bool = False
) -> Iterable[str]:
    parts = [textwrap.wrap(cells[place], width, break_on_hyphens=False) or [""] for place, width in widths.items()]
    if bottom:
        height = max(map(len, parts))
        parts = [[""] * (height - len(lines)) + lines for lines in parts]
    for line in itertools.zip_longest(*parts, fillvalue=""):
        padded = (
            part.rjust(width) if numeric[place] else part.ljust(width)
            for part, (place, width) in zip(line, widths.items(), strict=True)
        )
        yield (_GAP + _GAP.join(padded)).rstrip()
