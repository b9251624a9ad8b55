"""Findings as JSON, for dashboards and notebooks; docs/findings.md has every field."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from pyperf_suite.errors import printable
from pyperf_suite.findings.data import (
    UNITS,
    Bars,
    ClaimVerdict,
    Document,
    Findings,
    HeatMap,
    Panel,
    Quantity,
    Remark,
    Series,
)
from pyperf_suite.findings.summary import SummaryPoint, summary_of
from pyperf_suite.render import text

SCHEMA, VERSION = "pyperf-suite findings", 1
_KINDS = {Panel: "panel", HeatMap: "heat map", Bars: "bars"}
# Fields that name a unit: what the values are counted in, and what they are shown in.
_UNITS = ("unit", "x_unit", "y_unit")


def as_text(content: Mapping[str, Any]) -> str:
    """The file's content: ASCII, and strict JSON whatever a producer put in."""
    return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"


def plain(value: Any, digits: int = 17) -> Any:
    """The same with only what JSON has: numpy scalars become numbers, what is not finite null, all else its text."""
    if isinstance(value, Mapping):
        return {printable(str(key)): plain(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, digits) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | float) else printable(str(value))


def answer(findings: Mapping[str, Findings], details: Mapping[str, Any] | None = None) -> str:
    """What a command that measures nothing prints: findings by name as `probes` have them, and its own `details`."""
    parts = [{"name": name, **findings_as_data(found)} for name, found in findings.items()]
    summary = as_data(summary_of(findings))
    return as_text({"schema": SCHEMA, "version": VERSION, "summary": summary, "probes": parts, **(details or {})})


def findings_as_data(found: Findings) -> dict[str, Any]:
    """Remarks, verdicts, tables and figures."""
    remarks = [each for each in found.remarks if isinstance(each, Remark)]
    return {
        "cautions": as_data([each for each in remarks if each.kind == "caution"]),
        "remarks": as_data([each for each in remarks if each.kind != "caution"]),
        **{name: as_data(getattr(found, name)) for name in ("verdicts", "tables", "figures", "documents")},
    }


def as_data(value: Any) -> Any:
    """What was found as plain data: of each object its fields, and what a reader would have to work out."""
    if isinstance(value, Quantity):
        held = vars(value)
        return {"value": held["value"], "unit": value.base, "shown": value.unit} | dict(list(held.items())[2:])
    if isinstance(value, Document):
        return value.name
    if isinstance(value, SummaryPoint):
        return {"kind": value.kind, "probe": value.probe or None, "text": text.point(value)}
    if isinstance(value, Mapping):
        return {name: as_data(each) for name, each in value.items()}
    if isinstance(value, list | tuple | range):
        return [as_data(each) for each in value]
    if not dataclasses.is_dataclass(value):
        return value
    fields = {
        name: {"base": UNITS[each][0], "shown": each} if name in _UNITS else as_data(each)
        for name, each in vars(value).items()
    }
    if isinstance(value, Remark):
        return {"text": text.sentence(value), **fields, "noise": value.is_noise}
    if isinstance(value, ClaimVerdict):
        return {"text": text.sentence(value), **fields}
    if isinstance(value, Series):
        return {**fields, "predicted": value.predicted}
    return {"kind": _KINDS[type(value)], **fields} if type(value) in _KINDS else fields
