"""A study says which way is fastest and by how much, what each costs and leaves, and how far predictions are off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from pyperf_suite.findings.data import Bars, Findings, Remark
from pyperf_suite.planner import study as message
from pyperf_suite.planner.study import PROBE
from pyperf_suite.planner.study.grid import OPERATOR
from pyperf_suite.planner.study.results import StudyResult, results_of
from pyperf_suite.planner.workloads.parallel_layout import ParallelStepParameters
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Metric, Record
from pyperf_suite.workloads.training import Checkpointing
from tests.records import cells as rows
from tests.records import remarks

Layout = Callable[..., Case]
Visits = Callable[..., list[Record]]


def found(records: Sequence[Record]) -> Findings:
    return PROBE.findings(records)


def value(remark: Remark, name: str) -> float:
    return remark.values[name].value  # type: ignore[union-attr]


def bars_of(findings: Findings) -> Bars:
    panel = findings.figures[0].rows[0][0]
    assert isinstance(panel, Bars)
    return panel


def test_a_visit_that_was_resumed_stands_for_the_one_that_failed(layout: Layout, visits: Visits) -> None:
    (result,) = results_of([*visits(layout(), [None]), *visits(layout(), [0.5])])
    assert (len(result.timed), len(result.lost)) == (1, 0)


@pytest.mark.parametrize(
    ("slow", "fast", "claim"),
    [
        ({"attention": "math"}, {}, message.FLASH),
        ({"data": 2, "zero_stage": 2}, {"data": 2, "zero_stage": 1}, message.ZERO_2),
        ({"data": 2, "zero_stage": 3}, {"data": 2, "zero_stage": 2}, message.ZERO_3),
        ({"pipeline": 2}, {"data": 2}, message.PIPELINE),
        ({"checkpointing": Checkpointing("every")}, {}, message.CHECKPOINTING),
    ],
    ids=lambda value: getattr(value, "text", ""),
)
def test_each_step_of_the_published_order_is_judged_by_the_pair_that_differs_in_it(
    slow: dict[str, Any], fast: dict[str, Any], claim: Any, layout: Layout, visits: Visits
) -> None:
    """On a machine where it is so, and on one where it is the other way round."""
    for slow_s, outcome, ratio in ((0.2, "holds", 2.0), (0.05, "does not hold here", 0.5)):
        records = [*visits(layout(**slow), [slow_s] * 3), *visits(layout(**fast), [0.1] * 3)]
        (verdict,) = found(records).verdicts
        assert (verdict.claim, verdict.outcome) == (claim, outcome)
        assert (verdict.measured.low, verdict.measured.value, verdict.measured.high) == pytest.approx((ratio,) * 3)


def test_a_single_experiment_decides_nothing_and_has_no_error(layout: Layout, visits: Visits) -> None:
    findings = found([*visits(layout(attention="math"), [0.2]), *visits(layout(), [0.1])])
    (verdict,) = findings.verdicts
    assert (verdict.outcome, verdict.remedy) == ("undecided", "--experiments 3 has three")
    cautions = [each for each in findings.remarks if isinstance(each, Remark) and each.kind == "caution"]
    assert len(cautions) == 1
    (table,) = findings.tables
    assert rows(table)[0]["± error"] is None
    shown = [verdict.measured, rows(table)[0]["median"]]
    assert not any(each.has_interval for each in shown)
    assert math.isnan(bars_of(findings).bars[0].error)


def result_of(samples: int, experiments: Sequence[Sequence[float]]) -> StudyResult:
    """Result of experiments whose steps of `samples` take these seconds."""
    case = Case(OPERATOR, ParallelStepParameters(vocab=32, tied=False, batch=samples), "gloo")
    made = partial(Record, "made-up", "timing", case.to_json(), case.case_id, position=0, started_at="", outcome="ok")
    times = [Metric("s", *[1.0] * 5, list(steps)) for steps in experiments]
    return StudyResult(tuple(made(process=number, metrics={"time": time}) for number, time in enumerate(times)))


def test_mean_and_standard_error_are_those_of_the_experiments_and_not_of_their_steps() -> None:
    # Samples over time: 8 samples a step, 2 steps in 0.4 s, in 0.5 s and in 0.8 s.
    result = result_of(8, [[0.1, 0.3], [0.25, 0.25], [0.4, 0.4]])
    assert result.rates == pytest.approx([40.0, 32.0, 20.0])
    assert result.rate == pytest.approx(92 / 3)
    squares = (40 - 92 / 3) ** 2 + (32 - 92 / 3) ** 2 + (20 - 92 / 3) ** 2
    assert result.error == pytest.approx(math.sqrt(squares / 2 / 3))
    assert result_of(8, [[0.1, 0.1]]).error is None


def test_the_median_is_of_each_experiments_usual_step_and_its_interval_says_how_sure_it_is() -> None:
    median, confidence = result_of(10, [[0.1, 0.1, 9.0], [0.2, 0.2, 0.2], [0.5, 0.5, 0.5]]).median
    assert (median.low, median.value, median.high) == pytest.approx((20.0, 50.0, 100.0))
    assert confidence == pytest.approx(0.75)
    _, of_six = result_of(1, [[0.1 + 0.01 * number] for number in range(6)]).median
    assert of_six >= 0.95


MIB = 2**20


def holding(used: int, capacity: int, activations: int) -> dict[str, Any]:
    bytes_ = {"parameter_bytes": [MIB], "peak_bytes": [(activations + 1) * MIB]}
    return {"rank_bytes": {**bytes_, "resident_bytes": [used * MIB], "capacity_bytes": [capacity * MIB]}}


def headroom(records: list[Record]) -> list[Remark]:
    return remarks(PROBE.findings(records), "limit")


@pytest.fixture
def two(layout: Layout, visits: Visits) -> Visits:
    """two(0.5): micro-batches of 2 in a second, and of 8 in `seconds`; 400 MiB, of which 100 are activations."""

    def made(seconds: float, capacity: int = 1000, **otherwise: Any) -> list[Record]:
        small = visits(layout(batch=2), [1.0, 1.0, 1.0], holding(400, capacity, 100), **otherwise)
        return small + visits(layout(batch=8), [seconds] * 3, holding(700, capacity, 400), **otherwise)

    return made


def test_the_micro_batch_that_would_fit_is_named_with_what_it_was_measured_to_gain_if_it_was(two: Any) -> None:
    (said,) = headroom(two(1.25))
    assert (said.values["own"], said.values["batch"]) == (2, 8)
    assert said.values["unused"].value == 600 * MIB
    assert said.values["gain"].value == pytest.approx(0.8)
    (said,) = headroom([each for each in two(2.0) if each.parsed_case().parameters.batch == 2])
    assert (said.values["batch"], said.values["gain"]) == (8, None)


def test_no_larger_one_is_offered_than_stays_clear_of_the_limit(two: Any) -> None:
    # 4 sequences hold 500 MiB, 8 hold 700: more than 95 % of 720.
    assert [each.values["batch"] for each in headroom(two(2.0, capacity=720))] == [4]


def test_within_five_percent_of_the_limit_is_a_caution(two: Any) -> None:
    (near,) = headroom(two(0.5, capacity=720))
    assert (near.kind, near.values["used"].value) == ("caution", 700 * MIB)


@pytest.mark.parametrize("changes", [{"micro_batches": 8}, {"vocab": 1024}])
def test_configurations_of_two_models_or_batches_are_never_ranked_against_each_other(
    changes: dict[str, Any], layout: Layout, visits: Visits
) -> None:
    findings = found([*visits(layout(), [0.1, 0.1]), *visits(layout(**changes), [0.1, 0.1])])
    assert len(findings.tables) == 2
    assert [figure.name for figure in findings.figures] == ["study_1", "study_2"]
