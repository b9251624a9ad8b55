"""A finished run told whole: every probe's findings from its records, printed, and kept beside them."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from pyperf_suite import files
from pyperf_suite.report.command import command_of
from pyperf_suite.report.markdown import page
from pyperf_suite.report.picture import draw
from pyperf_suite.report.terminal import cautions, print_findings, print_places
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.results import RunFolder
from pyperf_suite.spec.discovery import all_probes
from pyperf_suite.spec.findings import Findings
from pyperf_suite.spec.rows import readings


def findings_of(records: Sequence[Record]) -> dict[str, Findings]:
    """What each probe says about its own records, in the order of the registry."""
    by_probe: dict[str, list[Record]] = {}
    for record in records:
        by_probe.setdefault(record.probe, []).append(record)
    return {probe.name: probe.findings(by_probe[probe.name]) for probe in all_probes() if probe.name in by_probe}


def draw_all(findings: Mapping[str, Findings], folder: Path) -> list[Path]:
    """Every figure as a PNG in the run's folder; one that cannot be written is warned about, not fatal."""
    paths = []
    for found in findings.values():
        for figure in found.figures:
            try:
                paths.append(draw(figure, folder))
            except OSError as error:
                warnings.warn(f"The picture {figure.name} could not be written: {error.strerror}.", stacklevel=2)
    return paths


def write_all(findings: Mapping[str, Findings], records: Sequence[Record], folder: RunFolder) -> list[Path]:
    """The pictures, the page findings.md that shows them, and what the probes have as text in forms others know."""
    pictures = draw_all(findings, folder.path)
    title = f"{folder.run_id} on {folder.path.parent.name}"
    profiles = {record.probe: record.profile for record in records}
    commands = {name: command_of(name, folder.manifest, profiles.get(name, "")) for name in findings}
    texts = {"findings.md": page(title, findings, cautions(records), pictures, commands)}
    texts |= {document.name: document.text for found in findings.values() for document in found.documents}
    written = []
    for name, text in texts.items():
        path = folder.path / name
        try:
            files.write_whole(path, text)
            written.append(path)
        except OSError as error:
            warnings.warn(f"{name} could not be written: {error.strerror}.", stacklevel=2)
    return [*pictures, *written]


def report_run(console: Console, folder: RunFolder, records: Sequence[Record]) -> None:
    """Print the summary of a run, draw its pictures and write its page."""
    findings = findings_of(records)
    print_findings(console, findings, records)
    print_places(console, folder.records_path, write_all(findings, records, folder))


def run_as_json(folder: RunFolder, records: Sequence[Record], extra: Mapping[str, Any] | None = None) -> str:
    """The findings and every case's reading as JSON text, for other programs; all files are written as well.

    `extra` stands beside them.
    """
    findings = findings_of(records)
    written = write_all(findings, records, folder)
    cases = [
        {
            "case": reading.case.to_json(),
            "case_id": reading.case.case_id,
            "seconds": reading.seconds,
            "low_s": reading.low,
            "high_s": reading.high,
            "tflop_per_s": reading.tflop_per_s if reading.flop else None,
            "converged": reading.converged,
        }
        for reading in readings(records)
    ]
    return json.dumps(
        {
            "run": dict(folder.manifest),
            "records": str(folder.records_path),
            "pictures": [str(path) for path in written if path.suffix == ".png"],
            "texts": [str(path) for path in written if path.suffix != ".png"],
            "findings": {
                name: {"sentences": found.sentences, "tables": [dataclasses.asdict(table) for table in found.tables]}
                for name, found in findings.items()
            },
            "cautions": cautions(records),
            "cases": cases,
            **(extra or {}),
        },
        indent=2,
    )
