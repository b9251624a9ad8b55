"""Rows of the index made into a series: processes into points, and changes of state between them into breaks."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyperf_suite.history.stored.conditions import changes, commit_of, settings, unit_of
from pyperf_suite.history.stored.series import Benchmark, Break, Point, Series


class Row(NamedTuple):
    """One process's observation as the index holds it; `value` and its interval are None where it failed."""

    run_id: str
    visit: int
    started_at: str
    outcome: str
    value: float | None
    low: float | None
    high: float | None
    samples: int
    clock_hz: float | None
    condition: int


def build_series(benchmark: Benchmark, rows: Sequence[Row], states: Mapping[int, str]) -> Series:
    """The series of these rows, which are in the order measured; `states` are JSON text by condition."""
    runs: dict[str, dict[int, Row]] = {}
    for row in rows:
        visits = runs.setdefault(row.run_id, {})
        # Measured again after a resume: what measured stands for what failed, the later for the earlier.
        if row.visit not in visits or row.outcome == "ok" or visits[row.visit].outcome != "ok":
            visits[row.visit] = row
    parsed = {condition: json.loads(state) for condition, state in states.items()}
    points, failed = [], []
    for run_id, visits in runs.items():
        rows_of_run = list(visits.values())
        good = [row for row in rows_of_run if row.outcome == "ok"]
        if good:
            points.append(_point(run_id, good, rows_of_run, parsed))
        elif any(row.outcome == "failed" for row in rows_of_run):
            failed.append(run_id)
    points.sort(key=lambda point: (point.started_at, point.run_id))
    return Series(
        *(benchmark.machine, benchmark.probe, benchmark.case_id, benchmark.label, benchmark.unit_of_measure),
        points=tuple(points),
        breaks=tuple(breaks_of(points, benchmark.kind)),
        metric=benchmark.metric,
        kind=benchmark.kind,
        failed_runs=tuple(failed),
    )


def breaks_of(points: Sequence[Point], kind: str = "timing") -> list[Break]:
    """Where the machine's condition differs from what was last told of it."""
    found, known = [], dict[str, str]()
    previous: Mapping[str, Any] | None = None
    for index, point in enumerate(points):
        if point.state is previous:  # the usual case: nothing changed for a hundred runs
            continue
        told = settings(point.state, kind)
        if changed := changes(known, told):
            found.append(Break(index, ", ".join(changed)))
        known |= told
        previous = point.state
    return found


def _point(run_id: str, good: list[Row], every: list[Row], states: Mapping[int, Mapping[str, Any]]) -> Point:
    medians = tuple(row.value for row in good if row.value is not None)
    low, high = (good[0].low, good[0].high) if len(good) == 1 else (min(medians), max(medians))
    state = states[good[-1].condition]
    commits = {commit_of(states[condition]) for condition in {row.condition for row in good}}
    commit, dirty = commit_of(state)
    clocks = [row.clock_hz for row in good if row.clock_hz is not None]
    return Point(
        run_id=run_id,
        started_at=min(row.started_at for row in good),
        value=statistics.median(medians),
        low=medians[0] if low is None else low,
        high=medians[0] if high is None else high,
        medians=medians,
        ok=len(good),
        failed=sum(row.outcome == "failed" for row in every),
        unsupported=sum(row.outcome == "unsupported" for row in every),
        commit=commit,
        dirty=dirty or len(commits) > 1,
        unit=unit_of(state),
        clock_hz=statistics.median(clocks) if clocks else None,
        state=state,
    )
