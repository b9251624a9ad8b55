"""Predictions of a study are judged by the order and size of times, and by the bytes of every rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.operators.training.parallel.parameters import ParallelStepParameters
from pyperf_suite.probes.study.agreement import Agreement, agreement_of
from pyperf_suite.probes.study.findings import explain
from pyperf_suite.probes.study.grid import OPERATOR
from pyperf_suite.probes.study.results import Prediction, Result, results_of
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.rows import Reading

COUNTED = {
    "parameter_bytes": [100.0, 50.0],
    "gradient_bytes": [100.0, 50.0],
    "optimizer_bytes": [192.0, 96.0],
    "counter_bytes": [8.0, 4.0],
    "saved_activation_bytes": [50.0, 40.0],
}
FORETOLD = (
    {"weights": 100.0, "gradients": 100.0, "optimizer": 200.0, "activations": 50.0},
    {"weights": 50.0, "gradients": 50.0, "optimizer": 100.0, "activations": 40.0},
)


def result(predicted_s: float | None, measured_s: float | None) -> Result:
    case = Case(OPERATOR, ParallelStepParameters(vocab=32, tied=False), "gloo")
    reading = (
        None if measured_s is None else Reading(case, measured_s, measured_s, measured_s, 0, True, {}, {0: measured_s})
    )
    prediction = None if predicted_s is None else Prediction(predicted_s)
    return Result(case, None, reading, (), "ok", "", 0, 1, "", prediction)


def agreed(pairs: Sequence[tuple[float | None, float | None]]) -> Agreement:
    found = agreement_of([result(*pair) for pair in pairs])
    assert found is not None
    return found


@given(st.lists(st.floats(1, 1e4), min_size=3, max_size=8, unique=True), st.floats(0.2, 5))
def test_order_and_error_are_told_apart(times: list[float], factor: float) -> None:
    found = agreed([(factor * each, each) for each in times])
    assert found.rank_correlation == pytest.approx(1)
    assert found.median_error == pytest.approx(abs(factor - 1), abs=1e-9)
    assert agreed([(factor / each, each) for each in times]).rank_correlation == pytest.approx(-1)


def test_what_failed_or_was_not_foretold_counts_for_nothing() -> None:
    found = agreed([(1.0, 1.0), (2.0, None), (None, 2.0), (3.0, 3.0), (4.0, 8.0)])
    assert (found.configurations, found.median_error, found.worst_error) == (3, 0, 0.5)
    assert agreement_of([result(2.0, None), result(None, 2.0)]) is None


@pytest.mark.parametrize("pairs", [[(1.0, 1.0), (2.0, 2.0)], [(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]])
def test_too_few_and_those_all_alike_have_no_order_but_an_error(pairs: list[tuple[float, float]]) -> None:
    found = agreed(pairs)
    assert found.rank_correlation is None
    assert "configurations: no order to compare, step times off by" in next(found.sentences)


def weighed(
    layout: Callable[..., Case], visits: Callable[..., list[Record]], foretold: tuple[Mapping[str, float], ...]
) -> tuple[Agreement, str, dict[str, str]]:
    """The agreement on memory of a single configuration, the sentence about it, and its row."""

    def predict(cases: Sequence[Case], records: Sequence[Record]) -> Mapping[str, Prediction]:
        return {case.case_id: Prediction(0.1, foretold) for case in cases}

    records = visits(layout(data=2), [0.1], {"rank_bytes": COUNTED})
    found = agreement_of(results_of(records, predict))
    assert found is not None
    told = explain(records, predict)
    table: Any = told.tables[0]
    (sentence,) = (each for each in told.sentences if each.startswith("Predicted memory"))
    return found, sentence, dict(zip(table.columns, table.rows[0], strict=True))


def test_memory_foretold_to_the_byte_is_told_as_exact(layout: Any, visits: Any) -> None:
    found, sentence, row = weighed(layout, visits, FORETOLD)
    assert set(found.memory_errors.values()) == {0.0}
    assert sentence == (
        "Predicted memory of every rank, 1 configuration: weights, gradients, optimizer and activations exact to the "
        "byte."
    )
    assert row["MB off"] == "+0.0 %"


def test_the_worst_rank_of_each_part_is_what_is_told(layout: Any, visits: Any) -> None:
    off = ({**FORETOLD[0], "activations": 52.0}, {**FORETOLD[1], "activations": 30.0})
    found, sentence, row = weighed(layout, visits, off)
    assert found.memory_errors["activations"] == pytest.approx(0.25)
    assert found.memory_errors["in all"] == pytest.approx(10 / 240)
    assert "weights, gradients and optimizer exact to the byte" in sentence
    assert sentence.endswith("activations within 25.0 %, all of it within 4.2 %.")
    assert row["MB off"] == "+0.4 %"


def test_bytes_foretold_where_none_are_have_no_bound(layout: Any, visits: Any) -> None:
    records = visits(layout(), [0.1], {"rank_bytes": {"parameter_bytes": [4.0], "gradient_bytes": [0.0]}})
    law = Prediction(0.1, ({"weights": 4.0, "gradients": 4.0},))
    found = agreement_of(results_of(records, lambda cases, _: {case.case_id: law for case in cases}))
    assert found is not None
    assert math.isinf(found.memory_errors["gradients"])
    assert "gradients within no bound" in list(found.sentences)[1]
