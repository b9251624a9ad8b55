"""Findings as JSON for other programs: strict JSON, whatever a producer put into the details."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pyperf_suite.history.finding import VERDICTS, Finding
from pyperf_suite.history.outputs.words import by_urgency


def findings_as_json(
    heading: str,
    findings: Sequence[Finding],
    notes: Sequence[str],
    code: int,
    extra: Mapping[str, Any] | None = None,
) -> str:
    """One object: heading, exit_code, counts by verdict, findings (most urgent first), notes, and `extra` beside them.

    What JSON has no number for (nan, infinity) is null.
    """
    told = {
        "heading": heading,
        "exit_code": code,
        "counts": {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in VERDICTS},
        "findings": [_finding(finding) for finding in by_urgency(findings)],
        "notes": list(notes),
        **(extra or {}),
    }
    return json.dumps(_strict(told), indent=2, allow_nan=False)


def _finding(finding: Finding) -> dict[str, Any]:
    ratio = finding.ratio
    return {
        "benchmark": finding.benchmark,
        "probe": finding.probe,
        "case_id": finding.case_id,
        "verdict": finding.verdict,
        "ratio": None if ratio is None else {"value": ratio.value, "low": ratio.low, "high": ratio.high},
        "margin": finding.margin,
        "sentence": finding.sentence,
        "details": dict(finding.details),
    }


def _strict(value: Any) -> Any:
    """The same with only what JSON has: numpy scalars become numbers, what is not finite null, all else its text."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_strict(item) for item in value]
    if hasattr(value, "tolist"):
        return _strict(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
