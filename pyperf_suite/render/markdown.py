"""Findings as Markdown, to be read in a browser or pasted into a ticket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from pyperf_suite.errors import printable
from pyperf_suite.findings.data import ClaimVerdict, Findings, Remark, Table
from pyperf_suite.findings.summary import cautions_of
from pyperf_suite.render import text
from pyperf_suite.runner.record import Record


def page(
    title: str,
    findings: Mapping[str, Findings],
    records: Sequence[Record],
    pictures: Sequence[Path],
    commands: Mapping[str, str] = MappingProxyType({}),
    summary: Iterable[str] = (),
) -> str:
    """Findings of every probe, below what measures it again (`commands`); pictures are named as files in one folder."""
    drawn = {picture.stem: picture.name for picture in pictures}
    of_the_run, of_probes = cautions_of(records, findings)
    lines = [f"# {escape(title)}", "", *_listed(summary)]
    lines += _listed(f"Caution: {text.sentence(each)}" for each in of_the_run)
    for name, found in findings.items():
        lines += [f"## {escape(name)}", ""]
        if name in commands:
            lines += [f"    {printable(commands[name])}", ""]
        lines += markdown_of(Findings(tuple(of_probes[name])) + found, drawn)
    return "\n".join(lines)


def markdown_of(found: Findings, drawn: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Lines of remarks, pictures (`drawn` has the file by the figure's name) and tables."""
    lines = [*remarks(found.remarks), ""]
    for figure in found.figures:
        if figure.name in drawn:
            lines += [f"![{escape(figure.title)}]({drawn[figure.name]})", ""]
    for each in found.tables:
        lines += [*table(each), ""]
    return lines


def remarks(of: Iterable[Remark | ClaimVerdict]) -> Iterator[str]:
    """A list; the verdicts on one claim below it."""
    for each in text.by_claim(of):
        if isinstance(each, Remark):
            yield f"- {'Caution: ' if each.kind == 'caution' else ''}{escape(text.sentence(each))}"
        else:
            claim, verdicts = each
            yield f"- Claim: {escape(text.in_words(claim))}"
            yield from (f"  - **{verdict.outcome}**: {escape(text.measured(verdict))}" for verdict in verdicts)


def table(whole: Table) -> list[str]:
    """Lines of a table."""
    shown = text.written(whole)
    rule = ["---:" if numeric else "---" for numeric in shown.numeric]
    rows = [[escape(word) for word in row] for row in (shown.headings, *shown.rows)]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])]
    return [f"**{escape(shown.title)}**", "", *lines] if shown.title else lines


def escape(said: str) -> str:
    """Plain text that Markdown or HTML would take for its own, on one line; what cannot be encoded is replaced."""
    one_line = " ".join(printable(said).split())
    harmless = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{character}" if character in "\\`*[]|#~" else character for character in harmless)


def _listed(sentences: Iterable[str]) -> list[str]:
    items = [f"- {escape(each)}" for each in sentences]
    return [*items, ""] if items else []
