"""Rows of timed and of counted cases, cells of columns, and points of pictures."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.operators.training.saved_memory import TrainingMemoryParameters
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Metric, Record
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import Column, rows_of, series_by


def counted(outcome="ok", batch=2):
    case = Case("training_memory", TrainingMemoryParameters(batch=batch), "storages")
    return Record(
        run_id="made-up",
        kind="static",
        case=case.to_json(),
        case_id=case.case_id,
        process=0,
        position=0,
        started_at="",
        outcome=outcome,
        metrics={"peak": Metric("B", *5 * (7.0,), [7.0])} if outcome == "ok" else {},
        kernel={"path": "cpu"},
    )


def test_counted_cases_have_rows_without_a_time():
    (row,) = rows_of([counted(), counted(), counted("unsupported", batch=4)])
    assert (row.batch, row.seen, row.kernel, row.by_process) == (2, {"peak": 7.0}, {"path": "cpu"}, {})
    assert math.isnan(row.seconds)
    assert row.faster_than(row) is None


@pytest.mark.parametrize(
    ("value", "unit", "cell"),
    [
        (2.0, "ms", Quantity(2.0, "ms")),
        (2, "B", Quantity(2.0, "B")),
        (np.int64(2), "B", Quantity(2.0, "B")),
        (np.float32(2), "", Quantity(2.0)),
        (2, "", 2),
        (np.int64(2), "", 2),
        (Ratio(2, 1, 3, 3), "", Quantity(2, "x", 1, 3, 3)),
        (Quantity(2.0, "s"), "ms", Quantity(2.0, "s")),
        ("loop", "ms", "loop"),
        (True, "", "True"),
        (None, "ms", None),
    ],
)
def test_a_cell_is_a_quantity_a_name_or_unknown(value, unit, cell):
    found = Column("c", lambda item: item, unit).cell(value)
    assert (found.value, found.unit) == (cell.value, cell.unit) if isinstance(cell, Quantity) else found == cell
    assert type(found) is type(cell)


def test_numbers_of_a_laws_column_are_predicted():
    assert Column("c", float, "GB", predicted=True).cell(3).predicted
    assert not Column("c", float, "GB").cell(3).predicted


def test_points_of_a_label_keep_their_intervals_and_leave_out_what_is_unknown():
    items = [SimpleNamespace(way=way, x=x) for way, x in (("a", 1), ("b", 1), ("a", 2), ("b", 2))]
    ys = {("a", 1): Ratio(2, 1.5, 2.5, 3), ("a", 2): 4.0, ("b", 1): None, ("b", 2): Quantity(5.0, "s")}
    first, second = series_by(items, lambda item: item.way, lambda item: item.x, lambda item: ys[item.way, item.x])
    assert (first.label, first.x, first.y, first.low, first.high) == ("a", [1, 2], [2, 4], [1.5, 4], [2.5, 4])
    assert (second.label, second.x, second.y) == ("b", [2], [5])
