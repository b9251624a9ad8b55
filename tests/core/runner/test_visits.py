"""Two visits of a case in a run, on a machine whose cores are fast and slow in stretches that a test draws."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pyperf_suite.findings.summary import failures_of
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.hardware.machine import identity
from pyperf_suite.measure.sampling import StopRule
from pyperf_suite.measure.telemetry import SLOW, Disturbances
from pyperf_suite.record.case import Case
from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.reading import readings
from pyperf_suite.record.record import Metric, Record
from pyperf_suite.regressions.stored.series import summarise_journal
from pyperf_suite.render.results import read_results
from pyperf_suite.render.text import point
from pyperf_suite.runner.core_speed import remember, remembered
from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.runner.profiles import QUICK, Effort
from pyperf_suite.runner.results import create_run, find_run
from pyperf_suite.runner.session import CLOSING_S, Session
from pyperf_suite.runner.visits import joined
from pyperf_suite.runner.workers import Workers
from tests.records import a_journal, a_product, a_record

CPU = resolve("cpu")
LOOP_S, SLOWER = 70e-6, 2.0
BAD = ("-1.0", '"1e-4"', "1" * 400, "1e-320", "Infinity", "NaN", "null", "[]")


class TwoSpeeds(Workers):
    """Workers on a machine of its own clock: from `slow_from_s` to `slow_to_s` every core takes SLOWER times as long.

    A product takes `elasticity` of that in logarithms. Each trial lasts as long as its effort allows.
    """

    def __init__(self, slow_from_s: float = math.inf, slow_to_s: float = math.inf, elasticity: float = 1.0) -> None:
        self.now_s, self.elasticity = 0.0, elasticity
        self.slow = slow_from_s, slow_to_s
        self.random = np.random.default_rng(11)
        self.trials: list[str] = []
        self.visits_left = math.inf

    def measure(self, process: int, case: Case, effort: Effort | None) -> dict[str, object]:
        assert effort is not None
        if self.visits_left == 0:
            raise KeyboardInterrupt
        self.visits_left -= 1
        self.trials.append(case.case_id)
        seconds, loops_s = [], []
        for _ in range(int(effort.stop.time_cap_s / effort.stop.block_s)):
            self.now_s += effort.stop.block_s
            factor = SLOWER if self.slow[0] <= self.now_s < self.slow[1] else 1.0
            loops_s.append(LOOP_S * factor)
            noise = 1 + 0.05 * self.random.random(15) + 0.04 * self.random.standard_normal()
            seconds.append(1e-3 * factor**self.elasticity * noise)
        best_s = min(LOOP_S if self.best_loop_s else math.inf, min(loops_s))
        reasons = [SLOW * (each > 1.25 * best_s) for each in loops_s]
        record = a_record(case, float(np.quantile(seconds, 0.1)))
        times = np.concatenate(seconds).tolist()
        time = record.metrics["time"]
        return {
            "outcome": "ok",
            "metrics": {"time": {**vars(time), "samples": times}},
            "work": {"flop": 1, "bytes": 1},
            "kernel": dict(record.kernel),
            "sampling": {
                "slices": [15] * len(seconds), "quantile": 0.1, "launches_per_sample": 1, "warmup_launches": 1,
                "warmup_s": 0.01, "steady": True, "stopped_by": "time_cap", "slow_by": 1.0, "left_out": [],
                "group": f"g{len(self.trials)}",
            },
            "quality": {
                "converged": False, "elapsed_s": 1.0, "relative_half_width": 0.1,
                "disturbances": {**Disturbances.described(reasons, loops_s, best_s), "loop": "made up", "drift": 0.0},
            },
            "trial_s": effort.stop.time_cap_s,
        }  # fmt: skip


def a_run(results: Path, machine: TwoSpeeds, resume: bool = False) -> Session:
    cases = [a_product(size, schedule="persistent@2", tile="32x32x32") for size in range(16, 400, 16)]
    plan = Plan(tuple(PlannedCase("tile_wave", case) for case in cases), QUICK, CPU)
    known = identity(CPU)
    folder = find_run(results, known, plan) if resume else create_run(results, known, plan)
    return Session(plan, folder, workers=[machine])


def measured(session: Session) -> None:
    session.open()
    session.measure_trials(session.trials(), lambda *_: None)
    session.close()


def as_record(case: Case, answer: dict) -> Record:
    return a_record(case, **{**answer, "metrics": {"time": Metric(**answer["metrics"]["time"])}})


@pytest.fixture(autouse=True)
def no_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYPERF_CACHE_DIR", str(tmp_path / "cache"))


def test_a_case_that_a_slow_stretch_hit_once_has_the_figure_of_a_fast_machine(tmp_path):
    calm, hit = TwoSpeeds(), TwoSpeeds(0.0, 1.0)
    runs = [a_run(tmp_path, machine) for machine in (calm, hit)]
    for run in runs:
        measured(run)
    times = [{r.case_id: r.seconds for r in run.records if r.kind == "timing"} for run in runs]
    apart = [abs(math.log(times[0][case_id] / times[1][case_id])) for case_id in times[0]]
    assert max(apart) < 0.08
    slow = [r for r in runs[1].records if r.kind == "timing" and r.quality["disturbances"]["slices"].get(SLOW)]
    assert len(slow) > 5, "the stretch hit nobody"
    assert all(r.sampling["left_out"] for r in slow)


def test_a_case_that_was_slow_in_both_visits_is_an_estimate_and_the_summary_begins_with_it(tmp_path):
    results = tmp_path / "results"
    machines = [TwoSpeeds(), TwoSpeeds(0.0, 1e9, elasticity=0.7)]
    runs = [a_run(results, machine) for machine in machines]
    measured(runs[0])
    remember(identity(CPU).slug, runs[0].folder.run_id, runs[0].records)
    measured(runs[1])
    [fast], [slow] = ([r for r in run.records if r.kind == "timing"][:1] for run in runs)
    assert slow.sampling["slow_by"] == pytest.approx(SLOWER, rel=0.01)
    assert not slow.quality["converged"]
    # The estimate of elasticity, 0.5 for a factor 2 with 0.7, leaves 2**0.2; the interval holds both elasticities.
    assert slow.seconds == pytest.approx(fast.seconds * 2**0.2, rel=0.1)
    assert slow.metrics["time"].low < fast.seconds < slow.metrics["time"].high
    first = failures_of(list(runs[1].records))[0]
    assert point(first).startswith("Slow: cores took 2.00 × their best while 24 of 24 cases were timed")
    assert not failures_of(list(runs[0].records))


def test_a_run_that_is_killed_between_the_visits_keeps_the_first_and_resumes_with_the_second(tmp_path):
    machine = TwoSpeeds()
    machine.visits_left = 30  # the sentinel, 24 first visits and five second ones
    run = a_run(tmp_path, machine)
    run.open()
    with pytest.raises(KeyboardInterrupt):
        run.measure_trials(run.trials(), lambda *_: None)
    run.close()
    kept = [r for r in read_journal(run.folder.records_path) if r.kind == "timing"]
    assert len(kept) == 24
    assert sum(r.is_first_visit for r in kept) == 19
    assert len(run.folder.records_path.read_bytes().splitlines()) == 30
    again = TwoSpeeds()
    resumed = a_run(tmp_path, again, resume=True)
    measured(resumed)
    assert len(again.trials) == 1 + 19
    records = [r for r in read_journal(run.folder.records_path) if r.kind == "timing"]
    assert len(records) == 24
    assert all(r.sampling["visits"] == [4, 4] for r in records)


def test_pairs_of_slices_are_of_the_same_visit_and_round(tmp_path):
    run = a_run(tmp_path, TwoSpeeds())
    measured(run)
    one, other = readings([r for r in run.records if r.kind == "timing"])[:2]
    assert one.groups != other.groups
    assert not one.slices.keys() & other.slices.keys()
    assert len(one.slices) == 8


def test_two_visits_are_judged_as_one_measurement():
    rule = StopRule(0.03, 0.9, min_samples=6, min_effective_samples=6, time_cap_s=0.2, quantile=0.1)
    machine = TwoSpeeds()
    case = a_product(16, schedule="persistent@2", tile="32x32x32")
    answers = [machine.measure(0, case, QUICK.effort.per_visit()) for _ in range(2)]
    first, second = (as_record(case, answer) for answer in answers)
    both = joined(first, second, rule)
    samples = first.metrics["time"].samples + second.metrics["time"].samples
    assert both.metrics["time"].samples == pytest.approx(samples, rel=1e-5)
    assert both.seconds == pytest.approx(np.quantile(samples, 0.1), rel=1e-5)
    assert both.sampling["slices"] == [15] * 8
    assert both.trial_s == first.trial_s + second.trial_s
    failed = a_record(case, outcome="failed")
    assert joined(first, failed, rule) is failed


def test_the_best_of_earlier_runs_is_remembered_and_a_damaged_memory_is_none(tmp_path, monkeypatch):
    record = a_product(16)
    loops = a_record(
        record, quality={"converged": True, "disturbances": {"loop_s": [1e-4] * 17 + [7e-5] * 3, "loop": "made up"}}
    )
    remember("machine", "one", [loops] * 2)
    assert remembered("machine") == {"made up": 7e-5}
    for run_id in map(str, range(25)):
        remember(
            "machine", run_id, [replace(loops, quality={"disturbances": {"loop_s": [9e-5] * 20, "loop": "made up"}})]
        )
    # The last twenty runs count: a machine that lost its speed for good is not slow for ever.
    assert remembered("machine") == {"made up": 9e-5}
    few = replace(loops, quality={"disturbances": {"loop_s": [1e-6] * 19, "loop": "made up"}})
    remember("machine", "few", [few])
    assert remembered("machine") == {"made up": 9e-5}
    [path] = (tmp_path / "cache").rglob("*-machine.json")
    for text in ("{", "[]", *(f'{{"runs": [{{"best_loop_s": {{"made up": {word}}}}}]}}' for word in BAD)):
        path.write_text(text)
        assert remembered("machine") == {}
    monkeypatch.setenv("PYPERF_CACHE_DIR", str(path))  # a file: nothing can be written below it
    remember("machine", "one", [loops] * 2)
    assert remembered("machine") == {}


def test_visits_by_two_versions_of_the_code_are_no_single_measurement(tmp_path):
    machine = TwoSpeeds()
    machine.visits_left = 30
    run = a_run(tmp_path, machine)
    run.open()
    with pytest.raises(KeyboardInterrupt):
        run.measure_trials(run.trials(), lambda *_: None)
    run.close()
    again = TwoSpeeds()
    resumed = a_run(tmp_path, again, resume=True)
    resumed._state = {**resumed._state, "source": {"commit": "another"}}
    measured(resumed)
    assert len(again.trials) == 1 + 19 + 19
    records = [r for r in resumed.records if r.kind == "timing"]
    assert Counter(r.state["source"].get("commit") == "another" for r in records) == {True: 19, False: 5}
    assert all(r.sampling["visits"] == [4, 4] for r in records)
    read = [r for r in read_journal(run.folder.records_path) if r.kind == "timing"]
    assert {r.case_id: r.seconds for r in read} == {r.case_id: r.seconds for r in records}


def test_a_second_visit_that_fails_is_told_by_every_reader_and_one_that_cannot_be_made_by_none(tmp_path):
    rule = QUICK.effort.stop
    case = a_product(16, schedule="persistent@2", tile="32x32x32")
    first = as_record(case, TwoSpeeds().measure(0, case, QUICK.effort.per_visit()))
    first = replace(first, sampling={**first.sampling, "visit_due": True}, run_id="r")
    kept = joined(first, a_record(case, outcome="unsupported"), rule)
    assert (kept.outcome, kept.is_first_visit, kept.seconds) == ("ok", False, first.seconds)
    wrong = a_record(case, outcome="failed", run_id="r", probe=first.probe)
    path = a_journal(tmp_path / "machine" / "r", [first, joined(first, wrong, rule)]) / "records.jsonl"
    assert [r.outcome for r in read_journal(path)] == ["failed"]
    with path.open("rb") as file:
        assert [each.failed for each in summarise_journal(file, "machine").measured] == [1]
    [run] = read_results(tmp_path).runs
    assert run.outcomes == {"failed": 1}


def test_a_budget_leaves_out_second_visits_and_says_so(tmp_path):
    machine = TwoSpeeds()
    run = a_run(tmp_path, machine)
    run.clock, run.budget_s = (lambda: machine.now_s), CLOSING_S + 24 * 0.06 + 0.5
    run.outlook.trial_s = lambda *_: 0.12
    measured(run)
    assert len({r.case_id for r in run.records if r.kind == "timing"}) == 24
    due = sum(r.is_first_visit for r in run.records)
    assert 0 < due < 24
    assert not run.left_out
    assert f"no time for the second visit of {due} of 24 cases" in run.cut_short
    assert machine.now_s <= run.budget_s - CLOSING_S
    assert not all(map(run.is_finished, run.plan.cases))
