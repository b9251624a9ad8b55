"""A run's findings as one page of Markdown, to be read in a browser or pasted into a ticket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyperf_suite.printable import printable
from pyperf_suite.spec.findings import Findings, Table


def page(
    title: str,
    findings: Mapping[str, Findings],
    cautions: Sequence[str],
    pictures: Sequence[Path],
    commands: Mapping[str, str] | None = None,
) -> str:
    """Sentences, tables and pictures of every probe; the pictures are named by their file alone, as they lie beside.

    `commands` names for a probe what measures it again.
    """
    drawn = {picture.stem: picture.name for picture in pictures}
    lines = [f"# {title}", ""]
    for name, found in findings.items():
        lines += [f"## {name}", ""]
        if commands and name in commands:
            lines += [f"    {printable(commands[name])}", ""]
        lines += [*(f"- {escape(sentence)}" for sentence in found.sentences), ""]
        for figure in found.figures:
            if figure.name in drawn:
                lines += [f"![{escape(figure.title)}]({drawn[figure.name]})", ""]
        for table in found.tables:
            lines += [f"**{escape(table.title)}**", "", *_rows(table), ""]
    if cautions:
        lines += ["## To be careful about", "", *(f"- {escape(caution)}" for caution in cautions), ""]
    return "\n".join(lines)


def escape(text: str) -> str:
    """Plain text that Markdown would take for its own."""
    return "".join(f"\\{character}" if character in "\\`*[]<>|" else character for character in printable(text))


def _rows(table: Table) -> list[str]:
    """Figures to the right, words to the left."""
    figures = [all(row[place][:1] in "+-0123456789" for row in table.rows) for place in range(len(table.columns))]
    return [
        f"| {' | '.join(map(escape, table.columns))} |",
        f"| {' | '.join('---:' if figure else '---' for figure in figures)} |",
        *(f"| {' | '.join(map(escape, row))} |" for row in table.rows),
    ]
