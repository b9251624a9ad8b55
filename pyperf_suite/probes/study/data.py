"""A study's results as plain JSON values, for other programs: all that the table and the sentences are made of."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from pyperf_suite.probes.study.agreement import agreement_of
from pyperf_suite.probes.study.results import Result


def as_data(found: Sequence[Result]) -> dict[str, Any]:
    """Every configuration in the order of the table, and how predictions agree where there are any."""
    agreed = agreement_of(found)
    return {
        "configurations": [_configuration(each) for each in found],
        "agreement": _plain(dataclasses.asdict(agreed)) if agreed else None,
    }


def _configuration(result: Result) -> dict[str, Any]:
    p, reading, law = result.parameters, result.reading, result.prediction
    told = {
        "name": p.name,
        "case_id": result.case.case_id,
        "implementation": result.case.implementation,
        "parameters": result.case.to_json()["parameters"],
        "ranks": p.ranks,
        "global_batch": p.global_batch,
        "outcome": result.outcome,
        "reason": result.reason,
        "experiments_without_time": result.failed,
        "samples_per_s": dataclasses.asdict(result.rate) if result.rate else None,
        "step_s": {"median": reading.seconds, "low": reading.low, "high": reading.high} if reading else None,
        "tokens_per_s": result.tokens_per_s,
        "flop_per_s": result.flop_per_s,
        "mfu": result.mfu,
        "memory_bytes": [dict(parts) for parts in result.rank_memory],
        "predicted": {"step_s": law.seconds, "memory_bytes": [dict(parts) for parts in law.rank_memory]}
        if law
        else None,
    }
    plain: dict[str, Any] = _plain(told)
    return plain


def _plain(value: Any) -> Any:
    """JSON has no NaN, so null stands for what is not known."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
