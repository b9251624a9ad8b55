"""What records say beside time: the quantities that a workload observed, gathered over processes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from pyperf_suite.runner.record import Record


def observed(records: Iterable[Record]) -> dict[str, Mapping[str, float]]:
    """By case, the median over processes of every metric but time, in the unit of its record."""
    values: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record.outcome == "ok":
            for name, metric in record.metrics.items():
                if name != "time":
                    values.setdefault(record.case_id, {}).setdefault(name, []).append(metric.value)
    return {
        case_id: {name: statistics.median(each) for name, each in named.items()} for case_id, named in values.items()
    }
