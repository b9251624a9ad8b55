"""What is said of loaders: who waits, what helps, what binds, and what a start costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.training.input_pipeline import InputPipeline
from pyperf_suite.probes.input_pipeline import MORE_DO_NOT, PINNED_HELPS, PROBE, WORKERS_HELP
from pyperf_suite.runner.record import Case, Metric, Record
from pyperf_suite.spec.findings import Claim, Findings, Remark, Verdict
from pyperf_suite.workloads.training.input_pipeline import InputPipelineParameters

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


def judged(findings: Findings, claim: Claim) -> Verdict:
    (verdict,) = [each for each in findings.verdicts if each.claim == claim]
    return verdict


def told(findings: Findings, name: str) -> Remark:
    """The only remark with a value of that name."""
    (remark,) = [each for each in findings.remarks if isinstance(each, Remark) and name in each.values]
    return remark


def rows(findings: Findings) -> list[dict]:
    (table,) = findings.tables
    return [dict(zip([column.name for column in table.columns], row, strict=True)) for row in table.rows]


def test_loaders_that_feed_the_model_are_said_to():
    findings = PROBE.findings(over_loaders(load_s=0.0075))
    best = judged(findings, WORKERS_HELP)
    assert (best.outcome, best.told.values["how"]) == ("holds", "2 loaders, prefetch 2")
    assert best.measured.value == pytest.approx(2.5)
    waits = told(findings, "waits").values
    assert (waits["waits"].value, waits["how"]) == (0.0, "2 loaders, prefetch 2")
    assert not [each for each in findings.remarks if isinstance(each, Remark) and each.kind == "predicted"]
    without, *_ = rows(findings)
    assert without["waiting"].value == pytest.approx(0.6)
    assert without["iteration"].value == pytest.approx(12.5e-3 * (1 + DRIFT))


def test_too_few_loaders_bind_and_enough_are_named():
    findings = PROBE.findings(over_loaders(load_s=0.018, loaders=(0, 1, 2)))
    bound = told(findings, "binds")
    assert (bound.values["how"], bound.values["binds"], bound.values["enough"]) == (
        *("2 loaders, prefetch 2", "the loaders", 4),
    )
    assert bound.kind == "predicted"
    assert told(findings, "waits").values["waits"].value == pytest.approx(4 / 9)
    assert [row["law"].value for row in rows(findings)] == pytest.approx([23e-3, 18e-3, 9e-3])
    assert [row["waiting"].value for row in rows(findings)] == pytest.approx([18 / 23, 13 / 18, 4 / 9])


def test_too_few_cores_bind_whatever_the_loaders():
    findings = PROBE.findings(over_loaders(load_s=0.030, loaders=(0, 2, 4), cores=2))
    bound = told(findings, "binds")
    assert (bound.values.get("enough"), bound.values["cores"]) == (None, 2)
    assert "no number of loaders" in bound.template
    more = judged(findings, MORE_DO_NOT)
    assert (more.told.values["loaders"], more.told.values["fewer"], more.outcome) == (4, 2, "holds")
    assert more.measured.value == pytest.approx(1.0)


def test_waiting_that_the_law_does_not_explain_is_not_put_on_the_loaders():
    findings = PROBE.findings(visits(BASE, 0.006) + visits(replace(BASE, loaders=2), 0.006, scale=1.4))
    bound = told(findings, "binds")
    assert bound.values["binds"] == "the model"
    assert "handing batches over" in bound.template


def test_the_laws_own_error_is_told():
    near = over_loaders(0.0075, loaders=(0, 1, 2)) + visits(replace(BASE, loaders=4), 0.0075, scale=1.25)
    error = told(PROBE.findings(near), "error")
    assert (error.kind, error.values["settings"]) == ("law", 3)
    assert error.values["error"].value == pytest.approx(0.01, abs=2e-3)
    far = [each for count in (1, 2) for each in visits(replace(BASE, loaders=count), 0.0075, scale=1.25)]
    error = told(PROBE.findings(visits(BASE, 0.0075) + far), "error")
    assert error.values["settings"] == 2
    assert error.values["error"].value == pytest.approx(0.208, abs=2e-3)


def test_loaders_that_only_cost_contradict_the_claim():
    findings = PROBE.findings(visits(BASE, 0.0002) + visits(replace(BASE, loaders=2), 0.0002, scale=1.5))
    assert judged(findings, WORKERS_HELP).outcome == "does not hold here"
    waits = told(findings, "waits").values
    assert (waits["how"], waits["waits"].value) == ("no loaders", pytest.approx(0.2 / 5.2))


def test_a_start_is_told_apart_from_steady_iterations():
    ended = visits(replace(BASE, loaders=4, persistent=False), 0.0075)
    spawned = visits(replace(BASE, loaders=4, start="spawn"), 0.0075)
    of = {row["settings"]: row for row in rows(PROBE.findings(over_loaders(0.0075) + ended + spawned))}
    kept = of[None]
    assert (kept["loaders"], kept["first batch"].value) == (4, pytest.approx(67.5e-3))
    assert kept["in iterations"].value == pytest.approx(13.5 / (1 + DRIFT))
    assert kept["next epoch"].value == pytest.approx(11.5e-3)
    assert of["workers end with the epoch"]["next epoch"].value == pytest.approx(67.5e-3)
    assert of["spawn"]["first batch"].value == pytest.approx(67.5e-3)


@pytest.mark.parametrize("scale", [0.8, 1.0, 1.3])
def test_a_deeper_queue_is_set_beside_the_usual(scale):
    deeper = visits(replace(BASE, loaders=4, prefetch=8), 0.0075, scale)
    remark = told(PROBE.findings(over_loaders(0.0075) + deeper), "prefetch")
    assert (remark.values["prefetch"], remark.values["usual"]) == (8, 2)
    assert remark.values["faster"].value == pytest.approx(1 / scale)
    assert remark.effect == "faster"


@pytest.mark.parametrize(("scale", "outcome"), [(0.7, "holds"), (1.1, "does not hold here")])
def test_pinned_memory_is_judged_by_the_guides_claim(scale, outcome):
    pinned = visits(replace(BASE, loaders=4, pinned=True), 0.0075, scale)
    assert judged(PROBE.findings(over_loaders(0.0075) + pinned), PINNED_HELPS).outcome == outcome


def test_tasks_are_never_compared_with_each_other():
    pictures = over_loaders(0.0075, base=replace(BASE, data="jpeg"))
    slower = over_loaders(0.0075, base=replace(BASE, step_us=20_000))
    findings = PROBE.findings(over_loaders(0.0075) + pictures + slower)
    assert sum(each.claim == WORKERS_HELP for each in findings.verdicts) == 3
    assert len(findings.figures) == 3
    assert len({figure.name for figure in findings.figures}) == 3


def test_the_table_has_each_setting_with_the_law_beside_it():
    by_loaders = {row["loaders"]: row for row in rows(PROBE.findings(over_loaders(0.0075)))}
    assert by_loaders[0]["law"].value == pytest.approx(12.5e-3)
    assert by_loaders[0]["law"].predicted
    assert by_loaders[1]["binds"] == "the loaders"
    assert by_loaders[4]["binds"] == "the model"
    assert by_loaders[0]["prefetch"] is None
    assert by_loaders[4]["from"].value < by_loaders[4]["iteration"].value < by_loaders[4]["to"].value


def test_the_figure_shows_what_was_measured_and_the_law():
    (figure,) = PROBE.findings(over_loaders(0.0075)).figures
    measured, law = figure.rows[0][0].series
    assert list(measured.x) == [0, 1, 2, 4]
    assert list(law.x) == [0, 1, 2, 3, 4]
    assert measured.y[0] == pytest.approx(law.y[0], rel=2 * DRIFT)


def test_without_a_case_without_loaders_there_is_no_law_and_nothing_breaks():
    findings = PROBE.findings(over_loaders(0.0075, loaders=(1, 2, 4)))
    assert {row["law"] for row in rows(findings)} == {None}
    assert told(findings, "waits").values["waits"].value == 0.0


def test_a_task_without_loaders_is_told_without_comparing():
    findings = PROBE.findings(visits(BASE, 0.0075))
    assert told(findings, "waits").values["how"] == "no loaders"
    assert findings.verdicts == []


def test_a_record_that_lacks_what_was_observed_takes_no_part():
    records = visits(BASE, 0.0075)
    for record in records:
        del record.metrics["starved"]
    assert PROBE.findings(records) == Findings()


def test_no_records_say_nothing():
    assert PROBE.findings([]) == Findings()


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
        ({"loaders": "-1"}, "loaders lies between 0"),
        ({"loaders": "1000"}, "and 256"),
        ({"batch": "1000"}, "do not fill a batch of 1000"),
        ({"loaders": "few"}, "takes int values"),
    ],
)
def test_bad_axes_say_what_is_allowed(overrides, sentence):
    with pytest.raises(UserError, match=sentence):
        PROBE.cases("quick", CPU, overrides)
