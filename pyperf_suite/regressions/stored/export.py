"""A run's records as a CSV or Parquet table for other programs, written by pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.runner.record import Record


def table_of(records: Iterable[Record], suffix: str) -> bytes:
    """A row a record, a column a field, `metrics.time.value` for one within others; lists are JSON text.

    Raises UserError for a suffix other than .csv and .parquet, and where pyarrow is not installed.
    """
    if suffix not in (".csv", ".parquet"):
        raise UserError("Records are exported as CSV or Parquet: name a file that ends in .csv or .parquet.")
    try:
        import pyarrow
        from pyarrow import csv, parquet
    except ImportError:
        raise UserError("Tables are written by pyarrow, which is not installed: pip install pyarrow.") from None
    rows = [_flat(record.to_json()) for record in records]
    names = dict.fromkeys(name for row in rows for name in row)
    table = pyarrow.table({name: _column([row.get(name) for row in rows]) for name in names})
    sink = pyarrow.BufferOutputStream()
    (csv.write_csv if suffix == ".csv" else parquet.write_table)(table, sink)
    return bytes(sink.getvalue().to_pybytes())


def _flat(fields: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in fields.items():
        inner = _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {before + name: value}
        found |= {key: json.dumps(each) if isinstance(each, list | tuple) else each for key, each in inner.items()}
    return found


def _column(values: list[Any]) -> Any:
    """Of values of several types, text."""
    import pyarrow

    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
        return pyarrow.array([None if each is None else str(each) for each in values])
