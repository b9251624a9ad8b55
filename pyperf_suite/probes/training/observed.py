"""What records tell beside time, gathered over processes: bytes, counts, shares."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from pyperf_suite.runner.record import Record


def observed(records: Iterable[Record], metric: str) -> dict[str, float]:
    """That metric's median over the processes that measured it, by case id; cases that lack it are left out."""
    return {case_id: told[metric] for case_id, told in all_observed(records).items() if metric in told}


def all_observed(records: Iterable[Record]) -> dict[str, Mapping[str, float]]:
    """By case id, the median over processes of every metric but time, in the unit of its record."""
    values: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record.outcome == "ok":
            seen = values.setdefault(record.case_id, {})
            for name, metric in record.metrics.items():
                if name != "time":
                    seen.setdefault(name, []).append(metric.value)
    return {case_id: {name: statistics.median(each) for name, each in seen.items()} for case_id, seen in values.items()}
