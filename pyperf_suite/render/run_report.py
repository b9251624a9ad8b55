"""Report of a finished run: every probe's findings from its records, printed, and kept beside them."""

from __future__ import annotations

import warnings
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from pyperf_suite import files
from pyperf_suite.render import findings_json, markdown, text
from pyperf_suite.render.command import command_of
from pyperf_suite.render.picture import draw
from pyperf_suite.render.terminal import print_findings, print_places, print_summary
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.results import RunFolder
from pyperf_suite.spec.discovery import all_probes, find_probe, is_users
from pyperf_suite.spec.findings import Findings
from pyperf_suite.spec.rows import grouped
from pyperf_suite.spec.summary import summary_of


def findings_of(records: Sequence[Record]) -> dict[str, Findings]:
    """What each probe finds in its own records, by topic."""
    by_probe = grouped(records, lambda record: record.probe)
    theirs = [find_probe(name) for name in sorted(filter(is_users, by_probe))]
    return {
        probe.name: probe.findings(by_probe[probe.name]) for probe in [*all_probes(), *theirs] if probe.name in by_probe
    }


def draw_all(findings: Mapping[str, Findings], folder: Path) -> list[Path]:
    """Every figure as a PNG in the run's folder; one that cannot be written is warned about, not fatal."""
    paths = []
    for figure in (figure for found in findings.values() for figure in found.figures):
        try:
            paths.append(draw(figure, folder))
        except OSError as error:
            warnings.warn(f"The picture {figure.name} could not be written: {error.strerror}.", stacklevel=2)
    return paths


def write_all(findings: Mapping[str, Findings], records: Sequence[Record], folder: RunFolder) -> list[Path]:
    """The pictures, findings.md that shows them, findings.json, and what probes have in forms that others know."""
    pictures = draw_all(findings, folder.path)
    title = f"{folder.run_id} on {folder.path.parent.name}"
    profiles = {record.probe: record.profile for record in records}
    commands = {name: command_of(name, folder.manifest, profiles.get(name, "")) for name in findings}
    summary = [text.point(point) for point in summary_of(findings)]
    texts = {"findings.md": markdown.page(title, findings, records, pictures, commands, summary)}
    texts[findings_json.FILE] = findings_json.as_text(as_document(findings, records, folder))
    texts |= {document.name: document.text for found in findings.values() for document in found.documents}
    written = []
    for name, content in texts.items():
        path = folder.path / name
        try:
            files.write_whole(path, content)
            written.append(path)
        except OSError as error:
            warnings.warn(f"{name} could not be written: {error.strerror}.", stacklevel=2)
    return [*pictures, *written]


def as_document(findings: Mapping[str, Findings], records: Sequence[Record], folder: RunFolder) -> dict[str, Any]:
    """What findings.json of that run holds."""
    return findings_json.document(folder.path.parent.name, folder.run_id, folder.manifest, findings, records)


def run_as_json(folder: RunFolder, records: Sequence[Record], extra: Mapping[str, Any] | None = None) -> str:
    """The content of findings.json, with `extra` beside it; all files are written as well."""
    findings = findings_of(records)
    write_all(findings, records, folder)
    return findings_json.as_text({**as_document(findings, records, folder), **(extra or {})})


def report_run(
    console: Console, folder: RunFolder, records: Sequence[Record], probes: Container[str] | None = None
) -> None:
    """Print the summary of a run and its findings, those of `probes` alone if given; write its pictures and files."""
    findings = findings_of(records)
    printed = {name: found for name, found in findings.items() if probes is None or name in probes}
    print_summary(console, summary_of(printed))
    print_findings(console, printed, records)
    print_places(console, folder.records_path, write_all(findings, records, folder))
