"""findings.json: everything that a run found, as data for dashboards and notebooks; docs/findings.md has every field.

It is derived from the records and the laws of the version that wrote it: it may be deleted, and made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyperf_suite.render import strict, text
from pyperf_suite.render.command import command_of
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.cautions import cautions_of
from pyperf_suite.spec.discovery import find_probe
from pyperf_suite.spec.findings import Bars, Cell, Claim, Figure, Findings, HeatMap, Remark, Series, Table, Verdict
from pyperf_suite.spec.quantity import UNITS, Quantity
from pyperf_suite.spec.rows import Reading, readings
from pyperf_suite.spec.summary import summary_of

FILE = "findings.json"
SCHEMA, VERSION = "pyperf-suite findings", 1


def document(
    machine: str,
    run_id: str,
    manifest: Mapping[str, Any],
    findings: Mapping[str, Findings],
    records: Sequence[Record],
) -> dict[str, Any]:
    """The whole document as plain data; numbers that are not finite are for `as_text` to leave out."""
    by_probe = {name: [record for record in records if record.probe == name] for name in findings}
    of_the_run, of_probes = cautions_of(records, findings)
    points = summary_of(findings)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "run_id": run_id,
        "machine": machine,
        "run": dict(manifest),
        "profile": _profile(records),
        "processes": _processes(records),
        "summary": [{"kind": each.kind, "probe": each.probe or None, "text": text.point(each)} for each in points],
        "cautions": [_remark(each) for each in of_the_run],
        "probes": [
            _probe(name, Findings(tuple(of_probes[name])) + found, by_probe[name], manifest)
            for name, found in findings.items()
        ],
    }


def as_text(told: Mapping[str, Any]) -> str:
    """The file's content."""
    return strict.dumps(told) + "\n"


def findings_as_data(found: Findings) -> dict[str, Any]:
    """Remarks, verdicts, tables and figures: what a command that measures nothing has of the schema as well."""
    remarks = [each for each in found.remarks if isinstance(each, Remark)]
    return {
        "cautions": [_remark(each) for each in remarks if each.kind == "caution"],
        "remarks": [_remark(each) for each in remarks if each.kind != "caution"],
        "verdicts": [_verdict(each) for each in found.verdicts],
        "tables": [_table(each) for each in found.tables],
        "figures": [_figure(each) for each in found.figures],
        "documents": [each.name for each in found.documents],
    }


def _probe(name: str, found: Findings, records: Sequence[Record], manifest: Mapping[str, Any]) -> dict[str, Any]:
    probe = find_probe(name)
    profile = _profile(records)
    return {
        "name": name,
        "title": getattr(probe, "heading", name),
        "question": probe.question,
        "topic": getattr(probe, "topic", ""),
        "command": command_of(name, manifest, profile),
        "profile": profile,
        "processes": _processes(records),
        **findings_as_data(found),
        "cases": [_case(each) for each in readings(records)],
    }


def _profile(records: Iterable[Record]) -> str:
    return ", ".join(dict.fromkeys(record.profile for record in records if record.profile))


def _processes(records: Iterable[Record]) -> int:
    return len({record.process for record in records if record.kind == "timing" and record.outcome == "ok"})


def _cell(value: Cell) -> Any:
    if not isinstance(value, Quantity):
        return value
    return {
        "value": value.value,
        "unit": value.base,
        "shown": value.unit,
        "low": value.low,
        "high": value.high,
        "processes": value.processes,
        "predicted": value.predicted,
    }


def _remark(remark: Remark) -> dict[str, Any]:
    return {
        "text": text.sentence(remark),
        "template": remark.template,
        "values": {name: _cell(value) for name, value in remark.values.items()},
        "kind": remark.kind,
        "effect": remark.effect or None,
        "noise": remark.is_noise,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "text": text.sentence(verdict),
        "claim": _claim(verdict.claim),
        "measured": _cell(verdict.measured),
        "outcome": verdict.outcome,
        "why": verdict.why or None,
        "remedy": verdict.remedy or None,
        "template": verdict.told.template,
        "values": {name: _cell(value) for name, value in verdict.told.values.items()},
    }


def _claim(claim: Claim) -> dict[str, Any]:
    return {"text": claim.text, "source": claim.source, "low": claim.low, "high": claim.high}


def _unit(unit: str) -> dict[str, str]:
    return {"unit": UNITS[unit][0], "shown": unit}


def _table(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": [{"name": each.name, **_unit(each.unit), "priority": each.priority} for each in table.columns],
        "rows": [[_cell(value) for value in row] for row in table.rows],
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "panels": [[_panel(panel) for panel in row] for row in figure.rows],
    }


def _panel(panel: Any) -> dict[str, Any]:
    if isinstance(panel, HeatMap):
        return {
            "kind": "heat map",
            "title": panel.title,
            "x": {"label": panel.x_label, "values": panel.x},
            "y": {"label": panel.y_label, "values": panel.y},
            "value_label": panel.value_label,
            "values": panel.values,
            "here": panel.here,
        }
    if isinstance(panel, Bars):
        return {
            "kind": "bars",
            "title": panel.title,
            "x": {"label": panel.x_label, **_unit(panel.unit)},
            "label": panel.label,
            "mark_label": panel.mark_label,
            "bars": [vars(bar) for bar in panel.bars],
        }
    return {
        "kind": "panel",
        "title": panel.title,
        "x": {"label": panel.x_label, **_unit(panel.x_unit)},
        "y": {"label": panel.y_label, **_unit(panel.y_unit)},
        "x_ticks": panel.x_ticks,
        "strong_edges": panel.strong_edges,
        "weak_edges": panel.weak_edges,
        "series": [_series(each) for each in panel.series],
    }


def _series(series: Series) -> dict[str, Any]:
    return {
        "label": series.label,
        "style": series.style,
        "predicted": series.predicted,
        "x": series.x,
        "y": series.y,
        "low": series.low,
        "high": series.high,
    }


def _case(reading: Reading) -> dict[str, Any]:
    return {
        "case": reading.case.to_json(),
        "case_id": reading.case.case_id,
        "label": reading.case.label,
        "seconds": reading.seconds,
        "low_s": reading.low,
        "high_s": reading.high,
        "tflop_per_s": reading.tflop_per_s if reading.flop else None,
        "processes": len(reading.by_process),
        "converged": reading.converged,
    }
