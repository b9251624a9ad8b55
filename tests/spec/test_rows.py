"""Rows of timed and of counted cases, cells of columns, and points of pictures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.operators.training.saved_memory import TrainingMemoryParameters
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Metric, Record
from pyperf_suite.spec.findings import Claim
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import Column, rows_of, series


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


def test_a_row_tells_of_itself_and_of_what_it_is_given():
    (row,) = rows_of([counted()])
    told = row.remark("{batch} of {implementation}: {measured}, {model}", measured=2.0, model="gpt", unused=1)
    assert told.values == {"batch": 2, "implementation": "storages", "measured": Quantity(2.0), "model": "gpt"}
    verdict = row.judge(Claim("is 2", "a guide", 2.0, 2.0), "batch {batch}: {measured}", 2.0)
    assert (verdict.outcome, verdict.told.values) == ("holds", {"batch": 2, "measured": verdict.measured})


def test_points_keep_their_intervals_and_leave_out_what_is_unknown():
    ys = {1: Ratio(2, 1.5, 2.5, 3), 2: None, 3: Quantity(5.0, "s", 4.0, 6.0, 3)}
    timed = series("a", ys, float, ys.__getitem__)
    assert (timed.label, timed.x, timed.y, timed.low, timed.high) == ("a", [1, 3], [2, 5], [1.5, 4], [2.5, 6])
    exact = series("b", (1, 2), float, float)
    assert (exact.y, exact.low, exact.high) == ([1, 2], [], [])
