"""What records tell beside time, gathered over processes: bytes, counts, shares."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from pyperf_suite.runner.record import Record


def observed(records: Iterable[Record], metric: str) -> dict[str, float]:
    """That metric's median over the processes that measured it, by case id; cases that lack it are left out."""
    values: dict[str, list[float]] = {}
    for record in records:
        if record.outcome == "ok" and metric in record.metrics:
            values.setdefault(record.case_id, []).append(record.metrics[metric].value)
    return {case_id: statistics.median(seen) for case_id, seen in values.items()}
