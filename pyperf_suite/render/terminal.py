"""Findings in a terminal: never wider than it, and what a command ends with on one screen; all of them on request."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    from pyperf_suite.record.record import Record

# No line is broken and no column left out: for `--all`, and if output goes into a file.
WIDE = 100_000
_GAP = "  "
# Lines at the end of a command, unless all is requested, where no height is known; of these a table's rows, and lines
# of a summary with its heading. The line of the command itself and the next prompt are left on a terminal.
SCREEN_LINES, PROMPT_LINES = 25, 2
PLACES_LINES = 3
_MOST_ROWS, MOST_LINES = 8, 7
# Probes of a run whose tables come before that.
_MOST_PROBES = 2
SHOW_ALL = "--all"
# Verdicts of one outcome on one claim; findings.md and the page have all.
_MOST_VERDICTS = 3
# As narrow as a column of words becomes before columns are left out, and after.
_NARROW, _NARROWEST = 24, 10
_STYLES = {"holds": "green", "does not hold here": "red", "undecided": "yellow"}
_POINTS = {
    "slow": "bold yellow",
    "failed": "bold red",
    "subject": "cyan",
    "effect": "cyan",
    "fails": "red",
    "undecided": "yellow",
}
_CAUTION = "[yellow]caution[/yellow]"


def console_for(everything: bool = False) -> Console:
    """Standard output, as wide as its terminal or as COLUMNS says; without either of them no column is left out."""
    known = Console().is_terminal or os.environ.get("COLUMNS")
    return Console(emoji=False, width=None if known and not everything else WIDE)


@contextlib.contextmanager
def said_meanwhile(activity: str, after_s: float = 1.0, every_s: float = 5.0) -> Iterator[None]:
    """Say on standard error what is being done once that takes longer than a second, and then how long it has taken."""
    console, begun_s, is_over = Console(stderr=True, emoji=False), time.monotonic(), threading.Event()

    def speak() -> None:
        wait_s = after_s
        while not is_over.wait(wait_s):
            say(console, "", f"{activity}: {time.monotonic() - begun_s:.0f} s so far")
            wait_s = every_s

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        is_over.set()
        speaker.join()


def print_findings(console: Console, findings: Mapping[str, Findings], records: Sequence[Record]) -> None:
    """Print cautions on the run, then every probe's cautions, remarks, verdicts and tables."""
    of_the_run, of_probes = cautions_of(records, findings)
    for caution in of_the_run:
        say(console, _CAUTION, text.sentence(caution))
    for name, found in findings.items():
        console.print(f"\n[bold]{escape(name)}[/bold]")
        print_remarks_and_tables(console, Findings(tuple(of_probes[name])) + found, most_verdicts=None)


def print_first_tables(console: Console, findings: Mapping[str, Findings], more: str = SHOW_ALL) -> None:
    """The first table of each of a few probes; of more, none."""
    for name, found in findings.items() if len(findings) <= _MOST_PROBES else ():
        for table in found.tables[:1]:
            console.print(f"\n[bold]{escape(name)}[/bold]")
            print_table(console, table, more, most_rows=2 * _MOST_ROWS)


def print_answer(console: Console, shown: Findings, more: str = SHOW_ALL, besides: int = 0) -> None:
    """Print one screen, less `besides` lines: cautions, the first finding and table, then others, and how many more."""

    def one(item: Remark | tuple[Claim, list[ClaimVerdict]]) -> None:
        print_remarks_and_tables(console, Findings((item,) if isinstance(item, Remark) else tuple(item[1])), more)

    parts: list[tuple[str, Callable[[], None]]] = [
        ("finding", functools.partial(one, each)) for each in text.by_claim(shown.remarks) if each not in shown.cautions
    ]
    tables: list[tuple[str, Callable[[], None]]] = [
        ("table", functools.partial(print_table, console, table, more, most_rows=_MOST_ROWS)) for table in shown.tables
    ]
    parts = [*parts[:1], *tables[:1], *parts[1:], *tables[1:]]
    cautions = functools.partial(print_cautions, console, shown.cautions, more)
    cautions()
    room, left = (
        screen_lines(console) - besides - 1 - height_of(console, cautions),
        dict.fromkeys(("finding", "table"), 0),
    )
    for place, (name, draw) in enumerate(parts):
        height = height_of(console, draw)
        if height > room and place > 1:
            left[name] += 1
            continue
        draw()
        room -= height
    counted = " and ".join(f"{count} more {name}{'s' * (count > 1)}" for name, count in left.items() if count)
    if counted:
        say(console, "  [dim]…[/dim]", f"{counted}: {more} shows all")


def screen_lines(console: Console) -> int:
    """Lines that a command may end with: those of the terminal, or of LINES, less a prompt."""
    known = console.is_terminal or os.environ.get("LINES")
    return max(SCREEN_LINES // 2, console.height - PROMPT_LINES) if known else SCREEN_LINES


def height_of(console: Console, draw: Callable[[], None]) -> int:
    """How many lines that is."""
    with console.capture() as captured:
        draw()
    return len(captured.get().splitlines())


def print_cautions(console: Console, cautions: Sequence[Remark], more: str = SHOW_ALL) -> None:
    """The first, and how many more there are."""
    if cautions:
        left = len(cautions) - 1
        counted = f" {left} more caution{'s' * (left > 1)}: {more} shows all." if left else ""
        say(console, _CAUTION, text.sentence(cautions[0]).rstrip(".") + "." + counted)


def print_fitness(console: Console, fitness: Remark | None) -> None:
    """Print if the figures are fit for use."""
    if fitness is not None:
        say(console, _CAUTION if fitness.kind == "caution" else "", text.sentence(fitness))


def print_summary(console: Console, points: Sequence[SummaryPoint]) -> None:
    """Print what failed, a line a subject, and of the rest what the screen holds: the weakest are left out."""
    kept = [each for each in points if each.kind in ("slow", "failed", "subject")]
    shown = [each for each in points if each not in kept]
    many = len({point.probe for point in points if point.probe}) > 1

    def said(point: SummaryPoint) -> str:
        named = many and point.probe and point.kind != "failed"  # which names its cases
        return f"{point.probe}: {text.point(point)}" if named else text.point(point)

    def lines(points: Sequence[SummaryPoint]) -> int:
        return sum(len(_wrapped(console, "  •", said(each))) for each in points)

    most = max(MOST_LINES, screen_lines(console) - PLACES_LINES - MOST_LINES - lines(kept))
    while len(shown) > 1 and 1 + lines(shown) > most:
        shown.remove(max(grouped(shown, lambda point: point.kind).values(), key=len)[-1])
    if kept or shown:
        console.print("[bold]Summary[/bold]")
    for point in (*kept, *shown):
        say(console, f"  [{_POINTS[point.kind]}]•[/]", said(point))


def print_remarks_and_tables(
    console: Console, shown: Findings, more: str = SHOW_ALL, most_verdicts: int | None = _MOST_VERDICTS
) -> None:
    """Cautions, remarks, the verdicts on one claim below it, and tables; `more` says what shows all of them."""
    for each in text.by_claim(shown.remarks):
        if isinstance(each, Remark):
            mark = _CAUTION if each.kind == "caution" else "[cyan]•[/cyan]"
            say(console, f"  {mark}", text.sentence(each))
        else:
            claim, verdicts = each
            say(console, "  [cyan]•[/cyan]", f"Claim: {text.in_words(claim)}")
            for outcome, same in grouped(verdicts, lambda verdict: verdict.outcome).items():
                most = len(same) if most_verdicts is None or len(same) == most_verdicts + 1 else most_verdicts
                for verdict in same[:most]:
                    say(console, f"      [{_STYLES[outcome]}]{outcome}:[/]", text.measured(verdict))
                if same[most:]:
                    say(console, "      [dim]…[/]", f"{outcome} in {len(same) - most} more cases: {more} shows all")
    for table in shown.tables:
        print_table(console, table, more)


def print_places(console: Console, records_path: Path, written: Sequence[Path], more: str = SHOW_ALL) -> None:
    """Print the places of a run's records, and next to them its pictures and texts."""
    pictures = sum(path.suffix == ".png" for path in written)
    names = [path.name for path in written if path.suffix != ".png"]
    names += [f"{pictures} picture{'s' * (pictures > 1)}"] * (pictures > 0)
    _line(console, f"records  {escape(str(records_path))}")
    if names:
        say(console, "", f"with {', '.join(names)}; {more} prints all findings and tables")


def escape(words: str) -> str:
    """Text for rich as it stands: neither rich nor the terminal finds an order in it."""
    return markup.escape(printable(words))


def note(console: Console, words: str) -> None:
    """A sentence about the findings."""
    say(console, "[yellow]note[/yellow]", words)


def say(console: Console, mark: str, words: str, style: str = "") -> None:
    """The mark and the words in lines of the console's width; paragraphs of the words become one."""
    first, *others = _wrapped(console, markup.render(mark).plain, words)
    _line(console, f"{mark} {markup.escape(first)}" if mark else markup.escape(first), style)
    for line in others:
        _line(console, markup.escape(line), style)


def _line(console: Console, line: str, style: str = "") -> None:
    """One line of rich's markup, neither coloured nor broken by rich."""
    console.print(line, style=style, highlight=False, soft_wrap=True)


def _wrapped(console: Console, mark: str, words: str) -> list[str]:
    """The words in lines, the first with room for the mark before it, the others set in."""
    indent = " " * (len(mark) - len(mark.lstrip()) + 2)
    lines = textwrap.wrap(
        printable(words),
        max(20, console.width),
        initial_indent=" " * (len(mark) + 1 if mark else 0),
        subsequent_indent=indent if mark else "",
        break_on_hyphens=False,
    )
    return [lines[0].strip(), *map(str.rstrip, lines[1:])] if lines else [""]


def print_table(console: Console, table: Table, more: str = SHOW_ALL, most_rows: int | None = None) -> None:
    """At most as wide as the console: words break, then columns of least priority go; of many rows the first stay."""
    shown = text.written(table)
    if not shown.rows or not shown.columns:
        return
    rows = shown.rows if most_rows is None or len(shown.rows) <= most_rows + 1 else shown.rows[:most_rows]
    widths = _widths(shown, console.width - len(_GAP))
    for line in textwrap.wrap(shown.title, max(20, console.width - 2)):
        _line(console, f"{_GAP}[italic]{markup.escape(line)}[/italic]")
    for line in _lines(shown.headings, widths, shown.numeric, bottom=True):
        _line(console, f"[bold]{markup.escape(line)}[/bold]")
    for row in rows:
        for line in _lines(row, widths, shown.numeric):
            _line(console, markup.escape(line))
    if shown.legend:
        say(console, " ", shown.legend)
    left = len(shown.rows) - len(rows)
    said = [f"{left} rows"] if left else []
    if missing := [name for place, name in enumerate(shown.headings) if place not in widths]:
        said.append(f"{len(missing)} column{'s' * (len(missing) > 1)} ({'; '.join(missing)})")
    if said:
        are = "is" if left + len(missing) == 1 else "are"
        say(console, "  [dim]…[/dim]", f"{' and '.join(said)} {are} left out: {more} shows all")


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
