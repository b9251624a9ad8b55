"""Records as a table: every record a row, nothing lost in the numbers; and files written for a user."""

from __future__ import annotations

import csv
import io
import json
import sys

import pytest

from pyperf_suite.cli.history import table_of
from pyperf_suite.errors import UserError
from pyperf_suite.files import write_for_user
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.runner.record import Case
from pyperf_suite.workloads.matmul import MatmulParameters
from tests.records import a_record, metric

CASE = Case("matmul", MatmulParameters(8, 8, 8, Schedule("library", 1)), "torch")
HOSTILE = 'a,"b"\nc=cmd|x'


@pytest.fixture
def records():
    """Two, whose fields differ in name and in type."""
    state = ({"turbo": "1", "packages": {"torch": "2.9.0"}}, {"turbo": True})
    return [
        a_record(CASE, metric(0.1 + 0.2), reason=HOSTILE, state=state[0]),
        a_record(CASE, metric(3e-9), state=state[1]),
    ]


def test_a_csv_has_a_row_a_record_and_loses_no_digit_whatever_the_text(records):
    pytest.importorskip("pyarrow")
    rows = list(csv.DictReader(io.StringIO(table_of(records, ".csv").decode(), newline="")))
    assert [float(row["metrics.time.value"]) for row in rows] == [0.1 + 0.2, 3e-9]
    assert [row["reason"] for row in rows] == [HOSTILE, ""]
    assert [row["case.operator"] for row in rows] == ["matmul", "matmul"]
    assert json.loads(rows[0]["metrics.time.samples"]) == records[0].metrics["time"].samples


def test_parquet_holds_numbers_as_numbers_and_of_several_types_text(records):
    pytest.importorskip("pyarrow")
    from pyarrow import BufferReader, parquet

    table = parquet.read_table(BufferReader(table_of(records, ".parquet")))
    assert table["metrics.time.value"].to_pylist() == [0.1 + 0.2, 3e-9]
    assert table["state.turbo"].to_pylist() == ["1", "True"]
    assert table["state.packages.torch"].to_pylist() == ["2.9.0", None]
    assert str(table.schema.field("process").type) == "int64"


def test_another_suffix_and_no_pyarrow_are_each_one_sentence(records, monkeypatch):
    with pytest.raises(UserError, match=r"\.csv or \.parquet"):
        table_of(records, ".json")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="pip install pyarrow"):
        table_of(records, ".csv")


def test_a_link_keeps_pointing_at_the_file_that_is_written(tmp_path):
    (tmp_path / "there").write_bytes(b"older")
    (tmp_path / "link").symlink_to("there")
    write_for_user(tmp_path / "link", b"newer")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_bytes() == b"newer"
