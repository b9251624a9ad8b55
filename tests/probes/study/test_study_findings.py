"""A study says which way is fastest and by how much, what each way costs, and loses no configuration that failed."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from pyperf_suite.operators.training.shape import Checkpointing
from pyperf_suite.probes.study.data import as_data
from pyperf_suite.probes.study.findings import explain
from pyperf_suite.probes.study.results import Prediction, results_of
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.discovery import find_probe
from pyperf_suite.spec.findings import Bars, Findings

Layout = Callable[..., Case]
Visits = Callable[..., list[Record]]


def told(records: Sequence[Record]) -> str:
    return "\n".join(explain(records).sentences)


def ranks(**columns: list[float]) -> dict[str, Any]:
    """Details as the engine leaves them: each figure of every rank."""
    return {"rank_bytes": columns}


def bars_of(findings: Findings) -> Bars:
    panel = findings.figures[0].rows[0][0]
    assert isinstance(panel, Bars)
    return panel


@pytest.fixture
def studied(layout: Layout, visits: Visits) -> list[Record]:
    """Six ways of three experiments each, one of which never ran and one that failed once."""
    return [
        *visits(layout(), [0.2, 0.21, 0.22]),
        *visits(layout(data=2), [0.1, 0.11, 0.12], ranks(parameter_bytes=[4e6, 4e6], optimizer_bytes=[7e6, 8e6])),
        *visits(
            layout(data=2, zero_stage=3),
            [0.3, None, 0.33],
            ranks(parameter_bytes=[2e6, 2e6], optimizer_bytes=[3e6, 2e6], counter_bytes=[1e6, 1e6]),
        ),
        *visits(layout(pipeline=2), [None, None, None]),
        *visits(layout(attention="math"), [0.4, 0.42, 0.44]),
        *visits(layout(tensor=2), [], None),
    ]


def test_the_fastest_comes_first_with_its_rate_error_and_lead_over_the_next(studied: list[Record]) -> None:
    first = explain(studied).sentences[0]
    assert "with dp2 flash, fastest of 5 configurations" in first
    assert "73.13 ± 3.9 samples/s" in first
    assert "1.91 [1.72, 2.13] x the next, 1 rank flash" in first
    assert "4 layers, hidden 128" in first
    assert "global batch 8" in first


def test_rows_are_sorted_by_mean_and_those_without_a_time_stand_below_with_the_reason(studied: list[Record]) -> None:
    timed, lost = explain(studied).tables
    assert [row[0] for row in timed.rows] == ["dp2 flash", "1 rank flash", "dp2 zero3 flash", "1 rank math"]
    assert lost.rows == (("pp2 flash", "failed", "rank 1 died"),)


def test_memory_is_told_by_part_and_as_a_sum_and_a_dash_where_nobody_counted(studied: list[Record]) -> None:
    table = explain(studied).tables[0]
    places = [table.columns.index(name) for name in ("weights MB", "optimizer MB", "all MB")]
    by_name = {row[0]: [row[place] for place in places] for row in table.rows}
    assert by_name["dp2 flash"] == ["4.00", "8.00", "12.00"]
    assert by_name["1 rank math"] == ["-", "-", "-"]
    assert "Least memory a rank: dp2 zero3 flash with 6.0 MB, 0.50 x that of the fastest, at 0.35 x its rate." in told(
        studied
    )


def test_a_peak_is_of_all_parts_together(layout: Layout, visits: Visits) -> None:
    counted = ranks(parameter_bytes=[4e6, 5e6], saved_activation_bytes=[1e6, 1e6], peak_bytes=[9e6, 8e6])
    (result,) = results_of(visits(layout(data=2), [0.1], counted))
    assert result.memory_bytes == {"weights": 4e6, "activations": 1e6, "peak": 9e6}
    assert result.memory_total_bytes == 9e6
    assert as_data([result])["configurations"][0]["memory_bytes"][1]["weights"] == 5e6
    assert "all MB" not in explain(visits(layout(data=2), [0.1], counted)).tables[0].columns


def test_a_configuration_that_failed_once_keeps_its_other_experiments_and_says_so(studied: list[Record]) -> None:
    assert "dp2 zero3 flash failed in 1 of 3 experiments: rank 1 died" in told(studied)
    found = next(each for each in results_of(studied) if each.parameters.zero_stage == 3)
    assert found.rate is not None
    assert len(found.rate.experiments) == 2


def test_a_visit_that_was_resumed_stands_for_the_one_that_failed(layout: Layout, visits: Visits) -> None:
    (result,) = results_of([*visits(layout(), [None]), *visits(layout(), [0.5])])
    assert (result.outcome, result.failed, result.visits) == ("ok", 0, 1)


@pytest.mark.parametrize(
    ("slow", "fast", "sentence"),
    [
        ({"attention": "math"}, {}, "Flash attention trains 2.00 [2.00, 2.00] x as fast"),
        (
            {"data": 2, "zero_stage": 2},
            {"data": 2, "zero_stage": 1},
            "ZeRO 1 trains 2.00 [2.00, 2.00] x",
        ),
        (
            {"data": 2, "zero_stage": 3},
            {"data": 2, "zero_stage": 2},
            "ZeRO 2 trains 2.00 [2.00, 2.00] x",
        ),
        ({"pipeline": 2}, {"data": 2}, "Data parallelism trains 2.00 [2.00, 2.00] x as fast as a pipeline"),
        ({"checkpointing": Checkpointing("every")}, {}, "Keeping activations trains 2.00 [2.00, 2.00] x as fast"),
    ],
)
def test_each_step_of_the_published_order_is_judged_by_the_pair_that_differs_in_it(
    slow: dict[str, Any], fast: dict[str, Any], sentence: str, layout: Layout, visits: Visits
) -> None:
    """On a machine where it is so, and on one where it is the other way round."""
    here = told([*visits(layout(**slow), [0.2, 0.2, 0.2]), *visits(layout(**fast), [0.1, 0.1, 0.1])])
    assert sentence in here
    assert "; claim holds (" in here
    turned = told([*visits(layout(**slow), [0.1, 0.1, 0.1]), *visits(layout(**fast), [0.2, 0.2, 0.2])])
    assert "0.50 [0.50, 0.50] x" in turned
    assert "; claim does not hold here (" in turned


@pytest.mark.parametrize(
    ("one", "other", "sentence"),
    [
        ({"data": 2, "zero_stage": 1}, {"data": 2}, "ZeRO 1 trains at 0.50 [0.50, 0.50] x the rate of DDP"),
        ({"tensor": 2}, {"data": 2}, "Data parallelism trains 2.00 [2.00, 2.00] x as fast as tensor parallelism"),
        ({"pipeline": 2}, {"pipeline": 2, "chunks": 2}, "The interleaved schedule trains 2.00 [2.00, 2.00] x as fast"),
    ],
)
def test_what_nobody_claimed_is_told_without_a_verdict(
    one: dict[str, Any], other: dict[str, Any], sentence: str, layout: Layout, visits: Visits
) -> None:
    said = told([*visits(layout(**one), [0.2, 0.2]), *visits(layout(**other), [0.1, 0.1])])
    assert sentence in said
    assert all("claim" not in line for line in said.splitlines() if sentence in line)


def test_a_single_experiment_decides_nothing_and_has_no_error(layout: Layout, visits: Visits) -> None:
    said = told([*visits(layout(attention="math"), [0.2]), *visits(layout(), [0.1])])
    assert "undecided by one process, --experiments 3 has three" in said
    assert "so that no error is known" in said
    assert "nan" not in said


def predictor(factor: float) -> Any:
    """Predicts each configuration at that multiple of its usual step."""

    def predict(cases: Sequence[Case], records: Sequence[Record]) -> Mapping[str, Prediction]:
        times: dict[str, list[float]] = {}
        for record in records:
            if record.outcome == "ok":
                times.setdefault(record.case_id, []).append(record.seconds)
        usual = {case_id: statistics.median(each) for case_id, each in times.items()}
        memory = {case.case_id: ({"weights": 1e6},) * case.parameters.ranks for case in cases}
        return {case_id: Prediction(factor * seconds, memory[case_id]) for case_id, seconds in usual.items()}

    return predict


def test_predictions_stand_beside_each_row_and_are_judged_in_a_sentence(studied: list[Record]) -> None:
    found = explain(studied, predictor(1.1))
    said = "\n".join(found.sentences)
    assert "Predicted against measured, 4 configurations: rank correlation 1.00 (Spearman)" in said
    columns = found.tables[0].columns
    row = found.tables[0].rows[0]
    assert "predicted" in columns
    assert row[columns.index("predicted MB")] == "1.00"
    assert row[columns.index("predicted MB") + 1] == "-75.0 %"
    panel = bars_of(found)
    assert [math.isfinite(bar.mark) for bar in panel.bars] == [True, True, True, True, False]
    assert "predicted" not in explain(studied).tables[0].columns


def test_the_bars_are_the_tables_rows_with_the_standard_error_and_the_reasons(studied: list[Record]) -> None:
    panel = bars_of(explain(studied))
    assert [bar.name for bar in panel.bars][:2] == ["dp2 flash", "1 rank flash"]
    assert panel.bars[0].value == pytest.approx((80 + 8 / 0.11 + 8 / 0.12) / 3)
    assert panel.bars[0].error > 0
    assert math.isnan(panel.bars[-1].value)
    assert panel.bars[-1].note == "failed: rank 1 died"


def test_configurations_of_two_batches_are_never_ranked_against_each_other(layout: Layout, visits: Visits) -> None:
    records = [*visits(layout(), [0.1, 0.1]), *visits(layout(micro_batches=8), [0.1, 0.1])]
    found = explain(records)
    assert len(found.tables) == len(found.figures) == 2
    assert len({figure.name for figure in found.figures}) == 2
    assert "only configuration" in found.sentences[0]


def test_a_study_in_which_nothing_ran_still_says_why(layout: Layout, visits: Visits) -> None:
    found = explain(visits(layout(), [None], outcome="unsupported", reason="no room\nat all " + "x" * 900))
    assert found.sentences == ("1 of 1 configurations unsupported: 1 rank flash; the reasons are at the table's end.",)
    (lost,) = found.tables
    assert lost.rows[0][2].startswith("no room at all xxx")
    assert len(lost.rows[0][2]) <= 160
    assert found.figures == ()


def test_a_study_without_records_says_nothing() -> None:
    assert find_probe("study").findings([]) == Findings()


def test_everything_is_json_without_a_nan(studied: list[Record]) -> None:
    data = as_data(results_of(studied, predictor(0.9)))
    again = json.loads(json.dumps(data, allow_nan=False))
    assert again["configurations"][0]["name"] == "dp2 flash"
    assert again["configurations"][-1]["reason"] == "rank 1 died"
    assert again["agreement"]["median_error"] == pytest.approx(0.1)
    assert again["configurations"][0]["samples_per_s"]["experiments"] == pytest.approx([80, 8 / 0.11, 8 / 0.12])
    single = as_data(results_of(studied[:1]))["configurations"][0]
    assert single["samples_per_s"]["standard_error"] is None


def test_rates_of_a_gpu_are_set_beside_its_data_sheet(layout: Layout, visits: Visits) -> None:
    case = layout("nccl", data=2, dtype="bfloat16")
    (result,) = results_of(visits(case, [1e-3], identity={"kind": "cuda", "model": "NVIDIA H100 80GB HBM3"}))
    assert result.mfu is not None
    assert result.flop_per_s is not None
    assert result.mfu == pytest.approx(result.flop_per_s / (2 * 989.4e12), rel=1e-3)
    (unknown,) = results_of(visits(case, [1e-3], identity={"kind": "cuda", "model": "a GPU of tomorrow"}))
    assert unknown.mfu is None
