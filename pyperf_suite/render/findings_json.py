"""findings.json: everything that a run found, as data for dashboards and notebooks; docs/findings.md has every field.

It is derived from the records and the laws of the version that wrote it: it may be deleted, and made again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyperf_suite.render import strict, text
from pyperf_suite.spec.findings import (
    UNITS,
    Bars,
    Document,
    Findings,
    HeatMap,
    Panel,
    Quantity,
    Remark,
    Series,
    Verdict,
)
from pyperf_suite.spec.rows import Reading, readings
from pyperf_suite.spec.summary import Point, cautions_of, summary_of

if TYPE_CHECKING:
    from pyperf_suite.runner.record import Record

FILE = "findings.json"
SCHEMA, VERSION = "pyperf-suite findings", 1
_KINDS = {Panel: "panel", HeatMap: "heat map", Bars: "bars"}
# Fields that name a unit: what the values are counted in, and what they are shown in.
_UNITS = ("unit", "x_unit", "y_unit")


def document(
    machine: str,
    run_id: str,
    manifest: Mapping[str, Any],
    findings: Mapping[str, Findings],
    records: Sequence[Record],
) -> dict[str, Any]:
    """The whole document as plain data; numbers that are not finite are for `as_text` to leave out."""
    of_the_run, of_probes = cautions_of(records, findings)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "run_id": run_id,
        "machine": machine,
        "run": dict(manifest),
        **_effort(records),
        "summary": as_data(summary_of(findings)),
        "cautions": as_data(of_the_run),
        "probes": [
            {
                **_probe(name, [record for record in records if record.probe == name], manifest),
                **findings_as_data(Findings(tuple(of_probes[name])) + found),
            }
            for name, found in findings.items()
        ],
    }


def as_text(told: Mapping[str, Any]) -> str:
    """The file's content."""
    return strict.dumps(told) + "\n"


def answer(findings: Mapping[str, Findings], details: Mapping[str, Any]) -> str:
    """What a command that measures nothing prints: findings by name as `probes` have them, and its own `details`."""
    parts = [{"name": name, **findings_as_data(found)} for name, found in findings.items()]
    summary = as_data(summary_of(findings))
    return as_text({"schema": SCHEMA, "version": VERSION, "summary": summary, "probes": parts, **details})


def findings_as_data(found: Findings) -> dict[str, Any]:
    """Remarks, verdicts, tables and figures."""
    remarks = [each for each in found.remarks if isinstance(each, Remark)]
    return {
        "cautions": as_data([each for each in remarks if each.kind == "caution"]),
        "remarks": as_data([each for each in remarks if each.kind != "caution"]),
        "verdicts": as_data(found.verdicts),
        "tables": as_data(found.tables),
        "figures": as_data(found.figures),
        "documents": as_data(found.documents),
    }


def as_data(value: Any) -> Any:
    """What was found as plain data: of each object its fields, and what a reader would have to work out."""
    if isinstance(value, Quantity):
        told = vars(value)
        return {"value": told["value"], "unit": value.base, "shown": value.unit} | dict(list(told.items())[2:])
    if isinstance(value, Document):
        return value.name
    if isinstance(value, Point):
        return {"kind": value.kind, "probe": value.probe or None, "text": text.point(value)}
    if isinstance(value, Mapping):
        return {name: as_data(each) for name, each in value.items()}
    if isinstance(value, list | tuple | range):
        return [as_data(each) for each in value]
    if not dataclasses.is_dataclass(value):
        return value
    fields = {name: _unit(each) if name in _UNITS else as_data(each) for name, each in vars(value).items()}
    if isinstance(value, Remark):
        return {"text": text.sentence(value), **fields, "noise": value.is_noise}
    if isinstance(value, Verdict):
        return {"text": text.sentence(value), **fields}
    if isinstance(value, Series):
        return {**fields, "predicted": value.predicted}
    return {"kind": _KINDS[type(value)], **fields} if type(value) in _KINDS else fields


def _unit(unit: str) -> dict[str, str]:
    return {"base": UNITS[unit][0], "shown": unit}


def _probe(name: str, records: Sequence[Record], manifest: Mapping[str, Any]) -> dict[str, Any]:
    from pyperf_suite.render.command import command_of
    from pyperf_suite.spec.discovery import find_probe

    probe, effort = find_probe(name), _effort(records)
    return {
        "name": name,
        "title": probe.heading,
        "question": probe.question,
        "topic": probe.topic,
        "command": command_of(name, manifest, effort["profile"]),
        **effort,
        "cases": [_case(each) for each in readings(records)],
    }


def _effort(records: Iterable[Record]) -> dict[str, Any]:
    timed = [record for record in records if record.kind == "timing" and record.outcome == "ok"]
    profiles = dict.fromkeys(record.profile for record in records if record.profile)
    return {"profile": ", ".join(profiles), "processes": len({record.process for record in timed})}


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
