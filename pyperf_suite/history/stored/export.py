"""Series as files for other programs: CSV, JSON and Parquet with a row a point, and github-action-benchmark's JSON.

A file is written whole beside its name and then moved there, so that an older export survives a full disk.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.history.stored.series import BenchmarkSeries
from pyperf_suite.history.verdict import MORE_IS_WORSE


@dataclass(frozen=True)
class ExportRow:
    """The columns of an export, in their order: one point of one series.

    `value`, `low` and `high` are in `unit_of_measure`; `unit` is the UUID of the GPU, empty without one; `breaks` names
    what of the machine's state changed since the point before, empty where nothing did.
    """

    machine: str
    probe: str
    case_id: str
    benchmark: str
    metric: str
    kind: str
    run_id: str
    started_at: str
    value: float
    low: float
    high: float
    unit_of_measure: str
    processes: int
    failed: int
    unsupported: int
    commit: str
    dirty: bool
    unit: str
    breaks: str


def rows_of(exported: Iterable[BenchmarkSeries]) -> list[ExportRow]:
    """A row for every point of every series, in their order."""
    rows = []
    for series in exported:
        breaks: dict[int, list[str]] = {}
        for each in series.breaks:
            breaks.setdefault(each.index, []).append(each.what)
        for index, point in enumerate(series.points):
            rows.append(
                ExportRow(
                    *(series.machine, series.probe, series.case_id, series.label, series.metric, series.kind),
                    *(point.run_id, point.started_at, point.value, point.low, point.high, series.unit_of_measure),
                    *(point.processes, point.failed, point.unsupported, point.commit, point.dirty, point.unit),
                    breaks="; ".join(breaks.get(index, ())),
                )
            )
    return rows


def as_csv(exported: Sequence[BenchmarkSeries]) -> bytes:
    """RFC 4180 with a line of column names, UTF-8; numbers as Python writes them, so that none loses a digit."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    names = [column.name for column in fields(ExportRow)]
    writer.writerow(names)
    writer.writerows([getattr(row, name) for name in names] for row in rows_of(exported))
    return text.getvalue().encode()


def as_json(exported: Sequence[BenchmarkSeries]) -> bytes:
    """A list of objects with the columns of `ExportRow`."""
    rows = [dataclasses.asdict(row) for row in rows_of(exported)]
    return (json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def as_parquet(exported: Sequence[BenchmarkSeries]) -> bytes:
    """One Parquet table of the columns of `ExportRow`. Raises UserError where pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            "Parquet is written by pyarrow, which is not installed: install it (pip install pyarrow), or export with "
            "--format csv."
        ) from None
    kinds = {"str": pyarrow.string(), "float": pyarrow.float64(), "int": pyarrow.int64(), "bool": pyarrow.bool_()}
    schema = pyarrow.schema([(column.name, kinds[str(column.type)]) for column in fields(ExportRow)])
    rows = rows_of(exported)
    table = pyarrow.table({name: [getattr(row, name) for row in rows] for name in schema.names}, schema=schema)
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


def as_github_action_benchmark(exported: Sequence[BenchmarkSeries]) -> bytes:
    """What github-action-benchmark takes as `customSmallerIsBetter`: of each machine the newest run's benchmarks.

    That action adds what it is given as the values of the commit at hand, so benchmarks that the newest run did not
    measure are left out; so are exact figures of which less is not better.
    """
    newest: dict[str, str] = {}
    for series in exported:
        for point in series.points:
            newest[series.machine] = max(newest.get(series.machine, ""), point.started_at)
    runs = {
        (series.machine, point.run_id)
        for series in exported
        for point in series.points
        if point.started_at == newest[series.machine]
    }
    entries = []
    for series in exported:
        points = [point for point in series.points if (series.machine, point.run_id) in runs]
        if not points or not _smaller_is_better(series):
            continue
        point = points[-1]
        entry: dict[str, Any] = {
            "name": f"{series.title} ({series.probe}) on {series.machine}",
            "unit": series.unit_of_measure,
            "value": point.value,
            "extra": f"run {point.run_id}, {point.processes} {'process' if point.processes == 1 else 'processes'}"
            + (f", commit {point.commit}{' and changes' if point.dirty else ''}" if point.commit else ""),
        }
        if point.high > point.low:
            entry["range"] = f"± {max(point.value - point.low, point.high - point.value):.3g}"
        entries.append(entry)
    return (json.dumps(entries, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _smaller_is_better(series: BenchmarkSeries) -> bool:
    return all(math.isfinite(point.value) for point in series.points) and (
        series.kind == "timing" or (series.kind == "static" and series.metric in MORE_IS_WORSE)
    )


FORMATS: dict[str, Callable[[Sequence[BenchmarkSeries]], bytes]] = {
    "csv": as_csv,
    "json": as_json,
    "parquet": as_parquet,
    "github-action-benchmark": as_github_action_benchmark,
}
