"""What is said of loaders: who waits, what helps, what binds, and what a start costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.training.input_pipeline import InputPipeline
from pyperf_suite.operators.training.input_pipeline import InputPipelineParameters
from pyperf_suite.probes.training.input_pipeline import InputPipelineProbe
from pyperf_suite.probes.training.input_pipeline_findings import explain
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Metric, Record
from pyperf_suite.spec.findings import Findings

PROBE = InputPipelineProbe()
CPU, GPU = Device("cpu"), Device("cuda")
CORES = 4
START_S, NEXT_S = 0.060, 0.004
# Processes differ by so much each, all cases alike.
DRIFT = 0.01


def metric(value: float, unit: str = "s") -> Metric:
    return Metric(unit, value, value, value, value, value, [value])


def visits(parameters: InputPipelineParameters, load_s: float, scale: float = 1.0, cores: int = CORES) -> list[Record]:
    """Three processes' records of a machine that keeps to the law; `scale` makes this one case slower or faster."""
    step_s = parameters.step_us * 1e-6
    law = InputPipeline(load_s, step_s, cores, parameters.model == "host")
    iteration_s = law.seconds(parameters.loaders) * scale
    case = Case("input_pipeline", parameters, "torch")
    starts = parameters.loaders > 0
    metrics = {
        "wait": metric(iteration_s - step_s),
        "model": metric(step_s),
        "starved": metric((iteration_s - step_s) / iteration_s, "1"),
        "first_batch": metric(load_s + (START_S if starts else 0.0)),
        "next_epoch": metric(load_s + (NEXT_S if parameters.persistent else START_S) * starts),
    }
    return [
        Record(
            "made-up",
            "timing",
            case.to_json(),
            case.case_id,
            process,
            0,
            "2026-01-01",
            "ok",
            metrics=metrics | {"time": metric(parameters.iterations * iteration_s * (1 + DRIFT * process))},
            work={"flop": 0, "bytes": 0},
            kernel={"name": "DataLoader", "path": "text", "details": {"cores": cores}},
            quality={"converged": True},
        )
        for process in range(3)
    ]


BASE = InputPipelineParameters()


def over_loaders(load_s: float, loaders=(0, 1, 2, 4), base: InputPipelineParameters = BASE, **more) -> list[Record]:
    return [each for count in loaders for each in visits(replace(base, loaders=count), load_s, **more)]


def said(findings: Findings, words: str) -> str:
    (sentence,) = [each for each in findings.sentences if words in each]
    return sentence


def test_loaders_that_feed_the_model_are_said_to():
    findings = explain(over_loaders(load_s=0.0075))
    best = said(findings, "x as fast; claim")
    assert "with no loaders, the model waits 60% of an iteration of 12.6 ms" in best
    assert "with 2 loaders, prefetch 2 it waits 0% of 5.05 ms, 2.50 [2.50, 2.50] x as fast; claim holds" in best
    assert "2 loaders, prefetch 2), the model is what takes the time" in said(findings, "So fed")


def test_too_few_loaders_bind_and_enough_are_named():
    findings = explain(over_loaders(load_s=0.018, loaders=(0, 1, 2)))
    sentence = said(findings, "what binds is")
    assert "With 2 loaders, prefetch 2 the model still waits 44% of the time: what binds is the loaders" in sentence
    assert "4 loaders would do (predicted)" in sentence


def test_too_few_cores_bind_whatever_the_loaders():
    findings = explain(over_loaders(load_s=0.030, loaders=(0, 2, 4), cores=2))
    sentence = said(findings, "what binds is")
    assert "no number of loaders would do on 2 cores" in sentence
    assert "4 loaders are 1.00 [1.00, 1.00] x as fast as 2 loaders" in said(findings, "a very big number")
    assert "claim holds" in said(findings, "a very big number")


def test_waiting_that_the_law_does_not_explain_is_not_put_on_the_loaders():
    base = replace(BASE, loaders=2)
    findings = explain(visits(BASE, 0.006) + visits(base, 0.006, scale=1.4))
    sentence = said(findings, "handing batches over")
    assert "would do for iterations of 5 ms (predicted)" in sentence


def test_the_laws_own_error_is_told():
    records = over_loaders(0.0075, loaders=(0, 1, 2)) + visits(replace(BASE, loaders=4), 0.0075, scale=1.25)
    assert "is 1% off in the median of 3 settings with loaders" in said(
        explain(records), "The law of the slowest stage"
    )
    far = [each for count in (1, 2) for each in visits(replace(BASE, loaders=count), 0.0075, scale=1.25)]
    assert "is 21% off in the median of 2 settings" in said(
        explain(visits(BASE, 0.0075) + far), "The law of the slowest stage"
    )


def test_loaders_that_only_cost_contradict_the_claim():
    findings = explain(visits(BASE, 0.0002) + visits(replace(BASE, loaders=2), 0.0002, scale=1.5))
    assert "claim does not hold here" in said(findings, "the model waits 4%")
    assert "So fed (no loaders), the model is what takes the time" in said(findings, "So fed")


def test_a_start_is_told_apart_from_steady_iterations():
    ended = visits(replace(BASE, loaders=4, persistent=False), 0.0075)
    sentence = said(explain(over_loaders(0.0075) + ended), "takes no part in these times")
    assert "Starting 4 loaders" in sentence
    assert "comes after 67.5 ms, as long as 13.4 iterations" in sentence
    assert "later ones after 11.5 ms as workers are kept (67.5 ms where they end with the epoch)" in sentence


def test_another_way_to_start_is_set_beside_the_usual():
    spawned = visits(replace(BASE, loaders=4, start="spawn"), 0.0075)
    assert "Workers by spawn give the first batch after" in said(explain(over_loaders(0.0075) + spawned), "by spawn")


@pytest.mark.parametrize(("scale", "verdict"), [(0.8, "worth setting"), (1.0, "no gain"), (1.3, "no gain")])
def test_a_deeper_queue_is_judged_beside_the_usual(scale, verdict):
    deeper = visits(replace(BASE, loaders=4, prefetch=8), 0.0075, scale)
    assert said(explain(over_loaders(0.0075) + deeper), "Prefetching 8 batches").endswith(f"{verdict}.")


@pytest.mark.parametrize(("scale", "verdict"), [(0.7, "claim holds"), (1.1, "claim does not hold here")])
def test_pinned_memory_is_judged_by_the_guides_claim(scale, verdict):
    pinned = visits(replace(BASE, loaders=4, pinned=True), 0.0075, scale)
    assert verdict in said(explain(over_loaders(0.0075) + pinned), "Pinned memory and copies")


def test_tasks_are_never_compared_with_each_other():
    pictures = over_loaders(0.0075, base=replace(BASE, data="jpeg"))
    slower = over_loaders(0.0075, base=replace(BASE, step_us=20_000))
    findings = explain(over_loaders(0.0075) + pictures + slower)
    assert sum("x as fast; claim" in each and "with no loaders" in each for each in findings.sentences) == 3
    assert len(findings.figures) == 3
    assert len({figure.name for figure in findings.figures}) == 3


def test_the_table_has_each_setting_with_the_law_beside_it():
    (table,) = explain(over_loaders(0.0075)).tables
    by_loaders = {row[2]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert by_loaders["0"]["law ms"] == "12.50"
    assert by_loaders["1"]["binds"] == "the loaders"
    assert by_loaders["4"]["binds"] == "the model"
    assert by_loaders["0"]["prefetch"] == "-"


def test_the_figure_shows_what_was_measured_and_the_law():
    (figure,) = explain(over_loaders(0.0075)).figures
    measured, law = figure.rows[0][0].series
    assert list(measured.x) == [0, 1, 2, 4]
    assert list(law.x) == [0, 1, 2, 3, 4]
    assert measured.y[0] == pytest.approx(law.y[0], rel=2 * DRIFT)


def test_without_a_case_without_loaders_there_is_no_law_and_nothing_breaks():
    findings = explain(over_loaders(0.0075, loaders=(1, 2, 4)))
    assert {row[9] for row in findings.tables[0].rows} == {"-"}
    assert "the model waits 0%" in findings.sentences[0]


def test_no_records_say_nothing():
    assert explain([]) == Findings()


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
def test_every_profile_has_cases_that_can_be(profile, device):
    cases = PROBE.cases(profile, device)
    assert len(cases) == len({case.case_id for case in cases})
    assert len({case.parameters.iterations for case in cases}) == 1
    assert any(case.parameters.loaders == 0 for case in cases)
    assert all(PROBE.group(case).startswith("input_pipeline ") for case in cases)
    pinned = {case.parameters.pinned for case in cases}
    assert pinned == ({False, True} if device is GPU and profile != "quick" else {False})


def test_short_profiles_have_few_cases():
    assert len(PROBE.cases("quick", CPU)) <= 2
    assert len(PROBE.cases("standard", CPU, {"loaders": "0,1,2"})) <= 7


@pytest.mark.parametrize("cores", [1, 2, 6, 192])
@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
def test_machines_of_any_size_have_cases_that_can_be(profile, cores, monkeypatch):
    found = replace(cpu.detect(), usable_cores=cores)
    monkeypatch.setattr(cpu, "detect", lambda: found)
    cases = PROBE.cases(profile, CPU)
    assert max(case.parameters.iterations for case in cases) <= 16
    # What is started anew holds a torch each.
    assert all(case.parameters.loaders <= 4 for case in cases if case.parameters.start == "spawn")
    varied = {case.parameters.loaders for case in cases if case.parameters.prefetch != 2}
    assert varied <= {min(cores, 4)}


def test_a_start_is_told_of_the_setting_that_was_varied():
    ended = visits(replace(BASE, loaders=2, persistent=False), 0.0075)
    assert "Starting 2 loaders" in said(explain(over_loaders(0.0075) + ended), "takes no part in these times")


def test_settings_of_workers_are_not_varied_where_there_are_none():
    cases = PROBE.cases("full", CPU, {"loaders": "0"})
    assert all(case.parameters.persistent and case.parameters.start == "fork" for case in cases)
    assert {case.parameters.prefetch for case in cases} == {2}


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"data": "sound"}, "choose from text, jpeg"),
        ({"workers": "2"}, "choose from kept, ended"),
        ({"copy": "wet"}, "choose from pageable, pinned"),
        ({"loaders": "-1"}, "loaders of at least 0"),
        ({"loaders": "1000"}, "at most 256"),
        ({"batch": "1000"}, "do not fill a batch of 1000"),
        ({"loaders": "few"}, "takes int values"),
    ],
)
def test_bad_axes_say_what_is_allowed(overrides, sentence):
    with pytest.raises(UserError, match=sentence):
        PROBE.cases("quick", CPU, overrides)
