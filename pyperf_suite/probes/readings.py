"""Records of several processes gathered into one reading a case, with medians over processes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record


@dataclass(frozen=True)
class Reading:
    """One case over all its processes, in seconds a launch.

    `low` and `high` span the processes' medians; with a single process they are that process's interval of the median.
    `by_process` has the median of each process by its number.
    """

    case: Case
    seconds: float
    low: float
    high: float
    flop: int
    converged: bool
    kernel: dict[str, Any]
    by_process: dict[int, float]

    @property
    def tflop_per_s(self) -> float:
        """Useful work in units of 1e12 FLOP a second: padding of tiles is work done but does not count."""
        return self.flop / self.seconds / 1e12


def readings(records: Iterable[Record]) -> list[Reading]:
    """One reading for each case that was measured; failed and unsupported visits take no part."""
    by_case: dict[str, list[Record]] = {}
    for record in records:
        if record.kind == "timing" and record.outcome == "ok":
            by_case.setdefault(record.case_id, []).append(record)
    return [_reading(visits) for visits in by_case.values()]


def _reading(visits: list[Record]) -> Reading:
    # A resumed run may hold a second visit of the same process; the later one stands.
    latest = list({record.process: record for record in visits}.values())
    times = [record.metrics["time"] for record in latest]
    medians = [time.value for time in times]
    alone = len(times) == 1
    return Reading(
        case=latest[0].parsed_case(),
        seconds=statistics.median(medians),
        low=times[0].low if alone else min(medians),
        high=times[0].high if alone else max(medians),
        flop=latest[0].work["flop"],
        converged=all(record.quality["converged"] for record in latest),
        kernel=dict(latest[0].kernel),
        by_process={record.process: record.metrics["time"].value for record in latest},
    )
