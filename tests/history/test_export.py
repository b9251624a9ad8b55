"""Exports: every point a row, nothing lost in the numbers, and the form that github-action-benchmark takes."""

from __future__ import annotations

import csv
import io
import json
import sys

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.files import write_for_user
from pyperf_suite.history.stored.export import (
    as_csv,
    as_github_action_benchmark,
    as_json,
    as_parquet,
    rows_of,
)
from pyperf_suite.history.stored.series import BenchmarkSeries, Break, SeriesPoint

MACHINE = "cpu-someones-2c"


def point(run: str, value: float = 0.1 + 0.2, **more: object) -> SeriesPoint:
    return SeriesPoint(f"{run}-0000", f"{run[:4]}-{run[4:6]}-{run[6:8]}T00:00:00+00:00", value, value, value, **more)


def series(*points: SeriesPoint, label: str = "matmul[native m=8]", **more: object) -> BenchmarkSeries:
    fields = {"machine": MACHINE, "probe": "tile_wave", "case_id": "aa", "unit_of_measure": "s"}
    return BenchmarkSeries(**{**fields, "label": label, "points": points, **more})


def test_a_csv_has_a_row_a_point_and_loses_no_digit_whatever_the_label():
    hostile = 'a,"b"\nc=cmd|x'
    exported = [series(point("20260101"), point("20260102", 3e-9), label=hostile)]
    rows = list(csv.DictReader(io.StringIO(as_csv(exported).decode(), newline="")))
    assert [float(row["value"]) for row in rows] == [0.1 + 0.2, 3e-9]
    assert {row["benchmark"] for row in rows} == {hostile}


def test_what_changed_before_a_point_is_told_in_its_row():
    exported = series(
        point("20260101"),
        point("20260102"),
        breaks=(Break(1, "driver 570.1 -> 580.2"), Break(1, "torch 2.9.0 -> 2.9.1")),
    )
    assert [row.breaks for row in rows_of([exported])] == ["", "driver 570.1 -> 580.2; torch 2.9.0 -> 2.9.1"]


def test_json_has_the_columns_of_the_csv():
    exported = [series(point("20260101", commit="abc", dirty=True))]
    (row,) = json.loads(as_json(exported))
    assert list(row) == next(csv.reader(io.StringIO(as_csv(exported).decode())))
    assert (row["commit"], row["dirty"], row["value"]) == ("abc", True, 0.1 + 0.2)


def test_parquet_holds_the_same_rows_with_their_types():
    pytest.importorskip("pyarrow")
    from pyarrow import BufferReader, parquet

    exported = [series(point("20260101", failed=1), point("20260102", 2.0, ok=3))]
    table = parquet.read_table(BufferReader(as_parquet(exported)))
    assert table.to_pylist() == json.loads(as_json(exported))
    assert {name: str(table.schema.field(name).type) for name in ("value", "processes", "dirty", "unit")} == {
        "value": "double",
        "processes": "int64",
        "dirty": "bool",
        "unit": "string",
    }


def test_a_parquet_of_nothing_still_has_its_columns():
    pytest.importorskip("pyarrow")
    from pyarrow import BufferReader, parquet

    assert "value" in parquet.read_table(BufferReader(as_parquet([]))).column_names


def test_without_pyarrow_one_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install pyarrow.*--format csv"):
        as_parquet([])


def test_github_action_benchmark_gets_name_unit_value_range_and_extra():
    measured = SeriesPoint("20260101-0000", "2026-01-01T00:00:00+00:00", 2.0, 1.5, 2.25, ok=3, commit="abc", dirty=True)
    (entry,) = json.loads(as_github_action_benchmark([series(measured)]))
    assert entry == {
        "name": "matmul[native m=8] (tile_wave) on cpu-someones-2c",
        "unit": "s",
        "value": 2.0,
        "range": "± 0.5",
        "extra": "run 20260101-0000, 3 processes, commit abc and changes",
    }


def test_github_action_benchmark_gets_of_each_machine_the_newest_run_only():
    exported = [
        series(point("20260101", 1.0), point("20260103", 2.0), label="still"),
        series(point("20260102", 3.0), label="gone"),
        series(point("20260101", 4.0), label="elsewhere", machine="cuda-nvidia-h200"),
    ]
    entries = json.loads(as_github_action_benchmark(exported))
    assert [(entry["name"].split()[0], entry["value"]) for entry in entries] == [("still", 2.0), ("elsewhere", 4.0)]


def test_of_a_kernels_figures_only_those_whose_growth_is_a_loss_go_to_github_action_benchmark():
    static = {"kind": "static", "unit_of_measure": "x"}
    exported = [
        series(point("20260101"), metric="local_memory", **static),
        series(point("20260101"), metric="resident_blocks", **static),
        series(point("20260101"), kind="sentinel"),
    ]
    (entry,) = json.loads(as_github_action_benchmark(exported))
    assert entry["name"].startswith("matmul[native m=8] local_memory")


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "history.csv"
    path.write_bytes(b"older")

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyperf_suite.files.os.fsync", full)
    with pytest.raises(UserError, match=r"No space left on device.*unchanged"):
        write_for_user(path, b"newer")
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_keeps_pointing_at_the_file_that_is_written(tmp_path):
    (tmp_path / "there").write_bytes(b"older")
    (tmp_path / "link").symlink_to("there")
    write_for_user(tmp_path / "link", b"newer")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_bytes() == b"newer"
