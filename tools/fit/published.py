"""Reads the published tables, all of them or the sample that the tests keep.

A table is a parquet file, or a CSV file of the same name and columns as in the sample.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from tools.validate import read_table

Columns = dict[str, NDArray[Any]]

SAMPLE = Path(__file__).parents[2] / "tests" / "data" / "published"
GPUS = ("a100_sxm", "b200_sxm", "h100_sxm", "h200_sxm", "l40s")


def read_columns(folder: Path, name: str) -> Columns:
    """A table's columns; empty numbers are NaN. Raises UserError if the folder does not have it."""
    for path in (folder / f"{name}.parquet", folder / f"{name}.csv"):
        if path.is_file():
            return read_table(path)
    raise UserError(f"{folder} has no {name}.parquet: name the folder of the published tables.")


def tables_like(folder: Path, prefix: str) -> dict[str, str]:
    """The names of a folder's tables that begin so, by the GPU that follows in the name."""
    found = {path.stem for path in folder.glob(f"{prefix}*") if path.suffix in (".parquet", ".csv")}
    return {name.removeprefix(prefix): name for name in sorted(found)}


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    """The same row by row, in Python's own numbers."""
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]
